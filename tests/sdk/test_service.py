"""What the kubelet is answered, through a served plugin: by the rules, whatever the plugin does."""

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from random import Random

import pytest
from msgspec.structs import replace
from tests.observed_kubelet import ObservedEndpoint, ObservedKubelet
from tests.sdk.misbehaving_kubelet import MisbehavingKubelet

from plugwright import Allocation, Device, Limits, Plugin, Settings, serving
from plugwright.errors import PeerRefused
from plugwright.model import Options, PreferenceRequest

TAPE = "example.com/tape"
QUICK = Limits(allocate=0.2, prefer=0.2, pre_start=0.2, loop_step=5)


class Tape(Plugin):
    """Four drives, of which st3 is broken; remembers what it was asked to allocate."""

    resource = TAPE

    def __init__(self) -> None:
        self.allocated: list[list[str]] = []

    async def discover(self) -> AsyncIterator[list[Device]]:
        sound = [Device(f"st{number}", numa=[number % 2]) for number in range(3)]
        yield [*sound, Device("st3", "Unhealthy", "no tape")]

    async def allocate(self, devices: Sequence[Device]) -> Allocation:
        self.allocated.append([device.id for device in devices])
        return Allocation(env={"TAPES": ",".join(self.allocated[-1])})


@asynccontextmanager
async def plugged(plugin: Plugin, kubelet: ObservedKubelet, settings: Settings) -> AsyncIterator[ObservedEndpoint]:
    async with asyncio.timeout(60), serving(plugin, settings=settings):
        yield await kubelet.endpoint(TAPE)


async def refusal(endpoint: ObservedEndpoint, *containers: list[str]) -> tuple[str, str]:
    with pytest.raises(PeerRefused) as caught:
        await endpoint.client.allocate(*containers)
    return caught.value.code, caught.value.message


async def test_a_container_gets_the_plugins_allocation(kubelet: ObservedKubelet, settings: Settings) -> None:
    async with plugged(Tape(), kubelet, settings) as tape:
        assert await tape.client.allocate(["st1"]) == [Allocation(env={"TAPES": "st1"})]


async def test_allocate_answers_every_container_request_in_order(kubelet: ObservedKubelet, settings: Settings) -> None:
    async with plugged(Tape(), kubelet, settings) as tape:
        answers = await tape.client.allocate(["st2"], ["st0", "st1"], [], ["st2"])
    assert [answer.env["TAPES"] for answer in answers] == ["st2", "st0,st1", "", "st2"]


REFUSED = {
    "unknown": ([["st0", "st9", "st8"]], f"{TAPE} has no device 'st8', 'st9'"),
    "empty": ([[""]], f"{TAPE} has no device ''"),
    "unhealthy": ([["st0", "st3"]], f"unhealthy in {TAPE}: 'st3' (no tape)"),
    "repeated": ([["st1", "st0", "st1"]], f"asked for more than once from {TAPE}: 'st1'"),
    "unknown in the second container": ([["st0"], ["st9"]], f"{TAPE} has no device 'st9'"),
    "unhealthy in the third container": ([["st0"], ["st1"], ["st3"]], f"unhealthy in {TAPE}: 'st3' (no tape)"),
}


async def test_allocate_of_unusable_devices_names_them_and_calls_no_plugin(
    kubelet: ObservedKubelet, settings: Settings
) -> None:
    plugin = Tape()
    async with plugged(plugin, kubelet, settings) as tape:
        for what, (containers, message) in REFUSED.items():
            assert await refusal(tape, *containers) == ("INVALID_ARGUMENT", message), what
    assert plugin.allocated == []


class Broken(Tape):
    async def allocate(self, devices: object) -> Allocation:
        raise OSError("bus error")


async def test_a_plugin_that_raises_is_answered_clearly_and_its_traceback_is_for_debugging(
    kubelet: ObservedKubelet, settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "plugwright.sdk.service")
    async with plugged(Broken(), kubelet, settings) as tape:
        code, message = await refusal(tape, ["st0"])
        assert code == "INTERNAL"
        assert message.startswith(f"allocate() of {TAPE} failed: OSError: bus error at tests/sdk/test_service.py:")
    logged = [record for record in caplog.records if record.name == "plugwright.sdk.service"]
    assert [record.levelname for record in logged if record.exc_info] == ["DEBUG"]
    errors = [record for record in logged if record.levelno >= logging.ERROR]
    assert [record.__dict__["error"] for record in errors] == [message]


class Odd(Tape):
    """Answers whatever it is told to."""

    answer: Callable[[], object]

    async def allocate(self, devices: object) -> Allocation:
        return self.answer()  # type: ignore[return-value]

    async def prefer(self, available: object, required: object, size: int) -> list[Device]:
        return self.answer()  # type: ignore[return-value]


async def test_an_answer_that_is_no_allocation_is_the_plugins_fault(
    kubelet: ObservedKubelet, settings: Settings
) -> None:
    plugin = Odd()
    async with plugged(plugin, kubelet, settings) as tape:
        for answer in [None, {"TAPES": "st0"}, "/dev/st0", Allocation, [Allocation()]]:
            plugin.answer = partial(lambda same: same, answer)
            said = f"allocate() of {TAPE} must return an Allocation, got {answer!r}"
            assert await refusal(tape, ["st0"]) == ("INTERNAL", said)


async def test_an_allocation_of_more_than_4_mib_is_the_plugins_fault(
    kubelet: ObservedKubelet, settings: Settings
) -> None:
    class Verbose(Tape):
        def allocate(self, devices: object) -> Allocation:  # type: ignore[override]
            return Allocation(env={"TAPES": "x" * 4 * 1024 * 1024})

    async with plugged(Verbose(), kubelet, settings) as tape:
        code, message = await refusal(tape, ["st0"])
    assert code == "INTERNAL"
    assert "at most 4194304 bytes for the kubelet" in message


async def test_a_container_that_fails_leaves_no_answer_for_the_others(
    kubelet: ObservedKubelet, settings: Settings
) -> None:
    class Moody(Tape):
        async def allocate(self, devices: Sequence[Device]) -> Allocation:
            if devices[0].id == "st1":
                raise OSError("bus error")
            return Allocation()

    async with plugged(Moody(), kubelet, settings) as tape:
        assert (await refusal(tape, ["st0"], ["st1"]))[0] == "INTERNAL"
        assert await tape.client.allocate(["st0"], ["st2"]) == [Allocation(), Allocation()]


class Hanging(Tape):
    """Hangs in every call until it is let go: those with `async` cooperate, those without sit in a thread."""

    def __init__(self) -> None:
        super().__init__()
        self.let_go = threading.Event()
        self.threads: list[str] = []


class HangingAsync(Hanging):
    async def allocate(self, devices: object) -> Allocation:
        await asyncio.Event().wait()
        return Allocation()

    async def prefer(self, available: object, required: object, size: int) -> list[Device]:
        await asyncio.Event().wait()
        return []

    async def pre_start(self, devices: object) -> None:
        await asyncio.Event().wait()


class HangingThread(Hanging):
    def allocate(self, devices: object) -> Allocation:  # type: ignore[override]
        self.threads.append(threading.current_thread().name)
        self.let_go.wait(20)
        return Allocation()

    def prefer(self, available: object, required: object, size: int) -> list[Device]:
        self.let_go.wait(20)
        return []

    def pre_start(self, devices: object) -> None:
        self.let_go.wait(20)


@pytest.fixture(params=[HangingAsync, HangingThread])
async def hanging(request: pytest.FixtureRequest) -> AsyncIterator[Hanging]:
    plugin: Hanging = request.param()
    yield plugin
    plugin.let_go.set()


async def test_a_plugin_that_hangs_times_out_with_its_name(
    hanging: Hanging, kubelet: ObservedKubelet, settings: Settings
) -> None:
    async with plugged(hanging, kubelet, replace(settings, limits=QUICK)) as tape:
        late = ("DEADLINE_EXCEEDED", f"allocate() of {TAPE} did not end within 0.2 s")
        assert await refusal(tape, ["st0"]) == late
        with pytest.raises(PeerRefused, match=r"pre_start\(\) of example.com/tape did not end within 0.2 s"):
            await tape.client.pre_start(["st0"])
        assert await tape.client.prefer(PreferenceRequest(("st0", "st1", "st2"), (), 2)) == [["st0", "st2"]]


async def test_a_blocking_method_without_async_does_not_delay_other_calls(
    kubelet: ObservedKubelet, settings: Settings
) -> None:
    plugin = HangingThread()
    async with plugged(plugin, kubelet, settings) as tape:
        allocating = [asyncio.create_task(tape.client.allocate([f"st{number}"])) for number in range(3)]
        assert await tape.client.options() == Options(pre_start=True, preference=True)
        assert not any(task.done() for task in allocating)
        plugin.let_go.set()
        assert await asyncio.gather(*allocating) == [[Allocation()]] * 3
    assert plugin.threads == [f"allocate() of {TAPE}"] * 3


async def test_no_pre_start_call_is_announced_if_there_is_none(
    misbehaving: MisbehavingKubelet, settings: Settings
) -> None:
    async with plugged(Tape(), misbehaving, settings) as tape:
        [request] = misbehaving.requests
        assert tape.options == request.options == Options(pre_start=False, preference=True)
        await tape.client.pre_start(["st0"])


async def test_an_overridden_pre_start_is_announced(misbehaving: MisbehavingKubelet, settings: Settings) -> None:
    async with plugged(HangingAsync(), misbehaving, settings) as tape:
        [request] = misbehaving.requests
        assert tape.options == request.options == Options(pre_start=True, preference=True)


async def test_a_container_that_starts_again_may_hold_a_device_that_broke(
    kubelet: ObservedKubelet, settings: Settings
) -> None:
    class Rewinding(Tape):
        def pre_start(self, devices: Sequence[Device]) -> None:
            self.allocated.append([device.id for device in devices])

    plugin = Rewinding()
    async with plugged(plugin, kubelet, settings) as tape:
        await tape.client.pre_start(["st3", "st0"])
        with pytest.raises(PeerRefused, match=r"has no device 'st9' \(INVALID_ARGUMENT\)"):
            await tape.client.pre_start(["st9"])
    assert plugin.allocated == [["st0", "st3"]]


def _raise() -> list[Device]:
    raise OSError("bus error")


class Unprintable:
    def __str__(self) -> str:
        raise ValueError("a mistake in the author's own class")


NONSENSE: dict[str, Callable[[], object]] = {
    "raises": _raise,
    "exits": lambda: exit(3),
    "None": lambda: None,
    "a text": lambda: "st0",
    "a number": lambda: 2,
    "a generator": lambda: (Device(device_id) for device_id in ["st0"]),
    "nothing": list,
    "unknown devices": lambda: [Device("st9"), "st8", "", None, 7],
    "one device again and again": lambda: [Device("st2")] * 9,
    "far too many": lambda: [Device(f"st{number}") for number in range(10_000)],
    "what is not available": lambda: [Device("st3")],
    "lists of lists": lambda: [["st0"]],
    "bytes": lambda: b"st0",
}


async def test_a_preference_is_answered_with_any_result_of_the_plugin(
    kubelet: ObservedKubelet, settings: Settings
) -> None:
    plugin, request = Odd(), PreferenceRequest(("st0", "st1", "st2"), ("st1",), 2)
    async with plugged(plugin, kubelet, settings) as tape:
        for what, plugin.answer in NONSENSE.items():
            [chosen] = await tape.client.prefer(request)
            assert (chosen[0], len(chosen), len(set(chosen))) == ("st1", 2, 2), what
            assert set(chosen) <= set(request.available), what


async def test_the_plugins_own_preference_is_the_answer(kubelet: ObservedKubelet, settings: Settings) -> None:
    class Choosy(Tape):
        def prefer(self, available: Sequence[Device], required: Sequence[Device], size: int) -> list[Device]:
            return [*reversed(available)][:size]

    async with plugged(Choosy(), kubelet, settings) as tape:
        asked = PreferenceRequest(("st0", "st1", "st2"), (), 2)
        assert await tape.client.prefer(asked, asked) == [["st2", "st1"], ["st2", "st1"]]


async def test_any_preference_request_has_a_valid_answer(kubelet: ObservedKubelet, settings: Settings) -> None:
    random, ids = Random(3), [*(f"st{number}" for number in range(4)), "st9", "", "x" * 300, "ü"]
    async with plugged(Tape(), kubelet, settings) as tape:
        for _ in range(150):
            available = tuple(random.sample(ids, random.randrange(len(ids))))
            required = tuple(random.sample(ids, random.randrange(3)))
            size = random.choice([-(2**31), -1, 0, 1, 2, 3, 100, 2**31 - 1])
            [chosen] = await tape.client.prefer(PreferenceRequest(available, required, size))
            assert len(chosen) == len(set(chosen)) <= max(0, size)
            assert chosen[: len(required)] == list(required[: max(0, size)])
            assert set(chosen) <= {*available, *required}


async def test_a_preference_that_cannot_be_printed_is_answered(kubelet: ObservedKubelet, settings: Settings) -> None:
    plugin = Odd()
    plugin.answer = lambda: [Unprintable()]
    async with plugged(plugin, kubelet, settings) as tape:
        assert await tape.client.prefer(PreferenceRequest(("st0",), (), 1)) == [["st0"]]


async def test_an_id_of_thousands_of_digits_is_unknown_like_any_other(
    kubelet: ObservedKubelet, settings: Settings
) -> None:
    async with plugged(Tape(), kubelet, settings) as tape:
        assert await tape.client.prefer(PreferenceRequest(("st0", "9" * 5000), (), 1)) == [["st0"]]
        assert (await refusal(tape, ["9" * 5000]))[0] == "INVALID_ARGUMENT"


async def test_a_change_that_the_kubelet_cannot_see_is_not_sent(kubelet: ObservedKubelet, settings: Settings) -> None:
    class Warming(Tape):
        async def discover(self) -> AsyncIterator[list[Device]]:
            yield [Device("st0", attributes={"temperature": 40})]
            await kubelet.endpoint(TAPE)
            yield [Device("st0", attributes={"temperature": 90})]
            yield [Device("st0", "Unhealthy", "hot")]

    async with plugged(Warming(), kubelet, settings) as tape:
        await kubelet.health(TAPE, "st0", "Unhealthy")
        assert tape.lists == [[Device("st0")], [Device("st0", "Unhealthy")]]


async def test_every_stream_gets_the_newest_list_and_what_follows(kubelet: ObservedKubelet, settings: Settings) -> None:
    changed = asyncio.Event()

    class Changing(Tape):
        async def discover(self) -> AsyncIterator[list[Device]]:
            yield [Device("st0")]
            await changed.wait()
            yield [Device("st0", "Unhealthy")]

    async with plugged(Changing(), kubelet, settings) as tape:
        streams = [tape.client.lists() for _ in range(20)]
        assert [await anext(stream) for stream in streams] == [[Device("st0")]] * 20
        await streams.pop().aclose()
        changed.set()
        assert [await anext(stream) for stream in streams] == [[Device("st0", "Unhealthy")]] * 19
        for stream in streams:
            await stream.aclose()


class Moody(Device):
    """Breaks our own code on the plugin's values, once it is told to."""

    broken = False

    @property
    def healthy(self) -> bool:
        if self.broken:
            raise LookupError("odd device")
        return True


class MoodyTape(Tape):
    async def discover(self) -> AsyncIterator[list[Device]]:
        yield [Moody("st0")]


async def test_an_exception_that_is_not_ours_is_a_failure_that_is_logged_and_answered(
    kubelet: ObservedKubelet, settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(MoodyTape(), settings=settings) as daemon:
        tape = await kubelet.endpoint(TAPE)
        Moody.broken = True
        try:
            code, message = await refusal(tape, ["st0"])
        finally:
            Moody.broken = False
        assert (code, message) == ("UNKNOWN", f"Allocate of {TAPE} failed: LookupError: odd device")
        assert daemon.resources[TAPE].service.metrics.calls["Allocate", "failed"] == 1
    [record] = [record for record in caplog.records if record.getMessage() == "call of the kubelet failed"]
    assert (record.levelname, record.exc_info is not None) == ("ERROR", True)


async def test_an_answer_too_large_for_the_kubelet_is_a_failure_and_not_logged_as_allocated(
    kubelet: ObservedKubelet, settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    class Wordy(Tape):
        async def allocate(self, devices: Sequence[Device]) -> Allocation:
            return Allocation(env={"TAPES": "x" * 5_000_000})

    caplog.set_level(logging.INFO, "plugwright.sdk.service")
    async with serving(Wordy(), settings=settings) as daemon:
        code, _ = await refusal(await kubelet.endpoint(TAPE), ["st0"])
        await asyncio.sleep(0)
        assert code == "INTERNAL"
        assert daemon.resources[TAPE].service.metrics.calls["Allocate", "failed"] == 1
        assert daemon.resources[TAPE].service.metrics.calls["Allocate", "ok"] == 0
    assert "plugin method failed" in caplog.messages
    assert "allocated" not in caplog.messages
