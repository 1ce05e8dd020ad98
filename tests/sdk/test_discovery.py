"""discover() in all the ways it may be written, and in most of the ways it may go wrong."""

import asyncio
import inspect
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager

import pytest
from msgspec.structs import replace
from tests.observed_kubelet import ObservedKubelet
from tests.sdk.actors import LogRecorder, recorded_log

from plugwright import Device, Plugin, Settings, Timeouts, serving
from plugwright.errors import HardwareMissing
from plugwright.protocol import checkpoint
from plugwright.protocol.checkpoint import Checkpoint, PodDevicesEntry
from plugwright.sdk import daemon_status
from plugwright.sdk.discovery import Discovery
from plugwright.sdk.inventory import Inventory
from plugwright.sdk.metrics import ResourceMetrics
from plugwright.sdk.plugin_calls import PluginCalls, StallDetector
from plugwright.system.latest import Latest
from plugwright.text import clean

TAPE = "example.com/tape"
LONG = Timeouts(discovery=60)
SHORT = Timeouts(discovery=0.1)


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Iterator[LogRecorder]:
    with recorded_log("plugwright.sdk.discovery", caplog) as log:
        yield log


@asynccontextmanager
async def discovering(plugin: Plugin, timeouts: Timeouts) -> AsyncIterator[Inventory]:
    stalls = StallDetector(5)
    inventory = Inventory(plugin.resource)
    discovery = Discovery(inventory, PluginCalls(plugin.resource, stalls), ResourceMetrics(), timeouts)
    running = asyncio.create_task(discovery.run(plugin))
    try:
        async with asyncio.timeout(60):
            yield inventory
    finally:
        running.cancel()
        (ended,) = await asyncio.gather(running, return_exceptions=True)
        stalls.close()
    assert ended is None or isinstance(ended, asyncio.CancelledError), ended


def states(inventory: Inventory) -> dict[str, str] | None:
    """Each device's reason, empty if it is healthy; None before the first list."""
    snapshot = inventory.latest.value
    return None if snapshot is None else {key: device.reason for key, device in snapshot.devices.items()}


class Missing(Plugin):
    """Has no hardware until it is told that it has; then what it is told."""

    resource = TAPE

    def __init__(self) -> None:
        self.devices: list[Device] | None = None
        self.calls = Latest(0)

    async def discover(self) -> AsyncIterator[list[Device]]:
        self.calls.publish(self.calls.value + 1)
        if self.devices is None:
            raise HardwareMissing("no driver for tapes")
        yield self.devices
        self.devices = None
        raise HardwareMissing("the driver was unloaded")


async def test_a_node_without_the_hardware_is_idle_and_not_an_error(settings: Settings, log: LogRecorder) -> None:
    plugin = Missing()
    settings = replace(settings, timeouts=Timeouts(discovery=0.01))
    async with serving(plugin, settings=settings) as daemon:
        runtime = daemon.resource(TAPE)
        await plugin.calls.until(lambda calls: calls > 3)  # later than a discovery that fails turns Unhealthy
        assert (runtime.is_idle, runtime.inventory.latest.value, runtime.discovery.failing.value) == (True, None, "")
        [status] = daemon_status.report(daemon)["resources"]
        assert (status["state"], status["reason"], status["discovery"]) == ("idle", "no driver for tapes", "")
        assert daemon_status.report(daemon)["ready"]
        assert daemon_status.one_line(daemon).endswith("0 of 1 resources registered and watched by the kubelet, 1 idle")
        plugin.devices = [Device("st0")]
        await runtime.inventory.latest.until(lambda snapshot: snapshot is not None)
        assert not runtime.is_idle
    said = [line for line in log.shown if "idle" in line or "failed" in line]
    assert said[:2] == [
        "nothing to serve on this node, the resource is idle: ",
        "hardware found, the resource is no longer idle: ",
    ]


async def test_hardware_that_was_there_is_not_idle_but_unhealthy() -> None:
    plugin = Missing()
    plugin.devices = [Device("st0")]
    async with discovering(plugin, SHORT) as inventory:
        await reach(inventory, {"st0": ""})
        await reach(inventory, {"st0": "no driver for tapes"})


async def test_held_devices_of_missing_hardware_are_listed(kubelet: ObservedKubelet, settings: Settings) -> None:
    await holding(kubelet, "st0", 1)
    async with serving(Missing(), settings=settings) as daemon:
        runtime = daemon.resource(TAPE)
        await reach(
            runtime.inventory, {"st0": "a pod holds it, but it is not found, or no longer in the configuration"}
        )
        assert not runtime.is_idle
        [status] = daemon_status.report(daemon)["resources"]
        assert status["discovery"] == "no driver for tapes"


class Empty(Plugin):
    resource, empty_reason = TAPE, "no drive is attached"

    async def discover(self) -> AsyncIterator[list[Device]]:
        yield []


async def test_an_empty_list_is_logged_and_shown_with_its_reason(settings: Settings, log: LogRecorder) -> None:
    async with serving(Empty(), settings=settings) as daemon:
        await daemon.resource(TAPE).discovery.empty.until(bool)
        [status] = daemon_status.report(daemon)["resources"]
    assert status["empty"] == "no drive is attached"
    assert log.shown.count("no devices found: ") == 1


async def reach(inventory: Inventory, wanted: dict[str, str]) -> dict[str, float]:
    """Waits for these states, and says since when the devices have had them."""
    snapshot = await inventory.latest.until(lambda _: states(inventory) == wanted)
    return dict(snapshot.since) if snapshot else {}


class Tape(Plugin):
    resource = TAPE

    def __init__(self) -> None:
        self.tries = 0
        self.go_on = threading.Event()
        self.closed = threading.Event()


class AsyncGenerator(Tape):
    async def discover(self) -> AsyncIterator[list[Device]]:
        yield [Device("st0")]
        await asyncio.sleep(0)
        yield [Device("st0"), Device("st1")]


class Generator(Tape):
    def discover(self) -> Iterator[list[Device]]:
        yield [Device("st0")]
        yield [Device("st0"), Device("st1")]


class Coroutine(Tape):
    async def discover(self) -> list[Device]:
        return [Device("st0"), Device("st1")]


class Function(Tape):
    def discover(self) -> list[Device]:
        return [Device("st0"), Device("st1")]


class Returning(Tape):
    """A function that returns what another way of writing it would be."""

    def discover(self) -> AsyncIterator[list[Device]]:
        return AsyncGenerator().discover()


WAYS = [AsyncGenerator, Generator, Coroutine, Function, Returning]


@pytest.mark.parametrize("way", WAYS)
async def test_discover_may_be_written_in_any_way_and_its_last_list_stays(way: type[Tape], log: LogRecorder) -> None:
    async with discovering(way(), SHORT) as inventory:
        await log.until("discover() ended, its last list stays")
        assert states(inventory) == {"st0": "", "st1": ""}


async def test_a_generator_without_async_waits_in_a_thread_and_does_not_block_the_loop() -> None:
    class Slow(Tape):
        def discover(self) -> Iterator[list[Device]]:
            try:
                yield [Device("st0")]
                assert self.go_on.wait(20)
                yield [Device("st1")]
                yield [Device("st2")]
            finally:
                self.closed.set()

    plugin = Slow()
    async with discovering(plugin, LONG) as inventory:
        await reach(inventory, {"st0": ""})
        plugin.go_on.set()
        await inventory.latest.until(lambda snapshot: snapshot is not None and "st2" in snapshot.devices)
    assert plugin.closed.wait(20)


async def test_a_generator_in_a_thread_ends_at_its_next_list_when_discovery_ends() -> None:
    class Endless(Tape):
        def discover(self) -> Iterator[list[Device]]:
            try:
                while True:
                    yield [Device("st0")]
                    self.go_on.wait(0.01)
            finally:
                self.closed.set()

    plugin = Endless()
    async with discovering(plugin, LONG) as inventory:
        await reach(inventory, {"st0": ""})
    assert plugin.closed.wait(20)


async def test_an_async_generator_is_closed_when_discovery_ends() -> None:
    class Watching(Tape):
        async def discover(self) -> AsyncIterator[list[Device]]:
            try:
                yield [Device("st0")]
                await asyncio.Event().wait()
            finally:
                self.closed.set()

    plugin = Watching()
    async with discovering(plugin, LONG) as inventory:
        await reach(inventory, {"st0": ""})
        assert not plugin.closed.is_set()
    assert plugin.closed.is_set()


def _raise(error: BaseException) -> None:
    raise error


FAILURES: dict[str, tuple[Callable[[], object], str]] = {
    "an exception": (lambda: _raise(OSError("no driver")), "OSError: no driver"),
    "an exception without a text": (lambda: _raise(KeyError()), "KeyError"),
    "an exit": (lambda: exit(3), "SystemExit: 3"),
    "a cancellation of its own": (lambda: _raise(asyncio.CancelledError()), "CancelledError"),
    "a timeout of its own": (lambda: _raise(TimeoutError("no answer")), "TimeoutError: no answer"),
    "the end of an iteration": (lambda: _raise(StopIteration()), "RuntimeError: "),
    "an error of ours": (lambda: Device(""), "device id must be a non-empty string"),
}


class FailingAsync(Tape):
    """Fails at first, then works."""

    fail: Callable[[], object]

    async def discover(self) -> AsyncIterator[list[Device]]:
        self.tries += 1
        if self.tries <= 2:
            self.fail()
        yield [Device("st0")]


class FailingThread(FailingAsync):
    def discover(self) -> Iterator[list[Device]]:  # type: ignore[override]
        self.tries += 1
        if self.tries <= 2:
            self.fail()
        yield [Device("st0")]


@pytest.mark.parametrize("kind", [FailingAsync, FailingThread])
@pytest.mark.parametrize(("fail", "reason"), FAILURES.values(), ids=FAILURES)
async def test_a_discover_that_fails_is_named_and_tried_again(
    kind: type[FailingAsync], fail: Callable[[], object], reason: str, log: LogRecorder
) -> None:
    plugin = kind()
    plugin.fail = fail
    async with discovering(plugin, SHORT) as inventory:
        await reach(inventory, {"st0": ""})
    assert plugin.tries == 3
    failures = [line for line in log.shown if line.startswith("discover() failed, ")]
    assert len(failures) == 1, "the same failure is told once"
    assert reason in failures[0]


class Unsteady(Tape):
    """Works, then fails until it is repaired."""

    def __init__(self) -> None:
        super().__init__()
        self.broken = False

    async def discover(self) -> AsyncIterator[list[Device]]:
        self.tries += 1
        if not self.broken:
            yield [Device("st0"), Device("st1", "Unhealthy", "no tape")]
            self.broken = True
        raise OSError("no driver")


async def test_devices_keep_their_health_while_discover_is_tried_again(log: LogRecorder) -> None:
    plugin = Unsteady()
    async with discovering(plugin, LONG) as inventory:
        await log.until("discover() failed, ")
        assert states(inventory) == {"st0": "", "st1": "no tape"}
        assert "devices turn Unhealthy" not in " ".join(log.lines)


async def test_devices_turn_unhealthy_with_the_reason_after_a_while_and_recover() -> None:
    plugin = Unsteady()
    async with discovering(plugin, SHORT) as inventory:
        found = await reach(inventory, {"st0": "", "st1": "no tape"})
        line = inspect.getsourcelines(Unsteady.discover)[1]
        reason = (
            f"discover() of {TAPE} failed: OSError: no driver at tests/sdk/test_discovery.py:{line + 5} in discover"
        )
        failed = await reach(inventory, {"st0": reason, "st1": "no tape"})
        assert failed["st0"] - found["st0"] >= SHORT.discovery * 0.95
        plugin.broken = False
        await reach(inventory, {"st0": "", "st1": "no tape"})


async def test_a_discover_that_ends_without_a_list_is_tried_again(log: LogRecorder) -> None:
    class Silent(Tape):
        async def discover(self) -> AsyncIterator[list[Device]]:
            self.tries += 1
            if self.tries == 3:
                yield [Device("st0")]

    async with discovering(Silent(), SHORT) as inventory:
        await reach(inventory, {"st0": ""})
    assert f"discover() of {TAPE} ended without a good list" in log.shown[0]


async def test_lists_that_are_nonsense_are_refused_and_the_last_good_one_stays(log: LogRecorder) -> None:
    class Confused(Tape):
        async def discover(self) -> AsyncIterator[list[Device]]:
            yield [Device("st0")]
            for _ in range(5):
                yield None  # type: ignore[misc]
            yield [Device("st1"), Device("st1")]
            await asyncio.to_thread(self.go_on.wait, 20)
            yield [Device("st0"), Device("st1")]

    plugin = Confused()
    async with discovering(plugin, SHORT) as inventory:
        await log.until("lists 'st1' twice")
        assert (states(inventory), "lists 'st1' twice" in inventory.refused.value) == ({"st0": ""}, True)
        assert [line for line in log.shown if "got None" in line] == log.shown[:1]
        plugin.go_on.set()
        await reach(inventory, {"st0": "", "st1": ""})
        assert inventory.refused.value == ""


class Mute(Plugin):
    resource = TAPE

    async def discover(self) -> AsyncIterator[list[Device]]:
        await asyncio.Event().wait()
        yield []


class OnlyNonsense(Plugin):
    resource = TAPE

    async def discover(self) -> list[Device]:
        return [Device("st0"), Device("st0")]


async def holding(kubelet: ObservedKubelet, device_id: str, node: int) -> None:
    """Restarts the kubelet with a checkpoint in which a pod holds the device."""
    entry = PodDevicesEntry("uid", "main", TAPE, {node: (device_id,)}, b"")
    kubelet.paths.checkpoint.write_bytes(checkpoint.encode(Checkpoint((entry,), {TAPE: ()})))
    await kubelet.restart()


async def test_a_discover_that_never_yields_is_registered_with_what_pods_hold(
    kubelet: ObservedKubelet, settings: Settings
) -> None:
    await holding(kubelet, "st7", 1)
    async with serving(Mute(), settings=settings):
        tape = await kubelet.endpoint(TAPE)
        assert tape.lists == [[Device("st7", "Unhealthy", numa=[1])]]


async def test_a_discover_that_never_yields_is_registered_with_nothing_if_pods_hold_nothing(
    kubelet: ObservedKubelet, settings: Settings
) -> None:
    async with serving(Mute(), settings=settings):
        await kubelet.until(lambda kubelet: TAPE in kubelet.endpoints and kubelet.endpoints[TAPE].lists == [[]])


async def test_a_discover_whose_only_list_is_refused_is_registered_with_what_pods_hold(
    kubelet: ObservedKubelet, settings: Settings
) -> None:
    await holding(kubelet, "st7", 1)
    async with serving(OnlyNonsense(), settings=settings):
        await kubelet.endpoint(TAPE)


class Lazy(Plugin):
    resource = "example.com/lazy"

    async def discover(self) -> AsyncIterator[Iterator[Device]]:
        yield (Device(f"lazy{1 // number}") for number in (1, 0))


class Afar(Plugin):
    resource = "example.com/afar"

    async def discover(self) -> AsyncIterator[list[Device]]:
        yield [Device("afar", numa=[2**63])]


class Unprintable(Exception):
    def __str__(self) -> str:
        raise ValueError("a mistake in the author's own exception")


class Unspeakable(Plugin):
    resource = "example.com/unspeakable"

    async def discover(self) -> AsyncIterator[list[Device]]:
        if self.resource:
            raise Unprintable
        yield []


class Panic(BaseException):
    """What bindings of other languages raise is not always an Exception."""


class Panicking(Plugin):
    resource = "example.com/panicking"

    async def discover(self) -> AsyncIterator[list[Device]]:
        if self.resource:
            raise Panic("index out of bounds")
        yield []


class Restless(Plugin):
    resource = "example.com/restless"

    async def discover(self) -> AsyncIterator[list[Device]]:
        while True:
            yield [Device("spinning")]


@pytest.mark.parametrize("broken", [Lazy, Afar, Unspeakable, Panicking, Restless])
async def test_a_broken_plugin_never_touches_another(
    broken: type[Plugin], kubelet: ObservedKubelet, settings: Settings
) -> None:
    async with serving(AsyncGenerator(), broken(), settings=settings):
        await kubelet.endpoint(TAPE, count=2)
        await kubelet.restart()
        await kubelet.endpoint(TAPE, count=2)


async def test_a_discover_that_fails_right_after_its_list_is_tried_less_and_less_often(log: LogRecorder) -> None:
    class Flapping(Tape):
        times: list[float]

        async def discover(self) -> AsyncIterator[list[Device]]:
            self.times.append(time.monotonic())
            yield [Device("st0")]
            raise OSError("no driver")

    plugin = Flapping()
    plugin.times = []
    async with discovering(plugin, SHORT):
        await log.until("discover() failed here", times=8)
    assert len([line for line in log.shown if "discover() failed, " in line]) == 1
    pauses = [after - before for before, after in zip(plugin.times, plugin.times[1:], strict=False)]
    assert min(pauses[4:7]) > SHORT.discovery / 10 * 2**4 * 0.7


@pytest.mark.parametrize("text", ["no /srv/\udcff", "no\0driver", "no \x1b[2J"], ids=["surrogate", "NUL", "escape"])
async def test_a_failure_with_a_text_that_cannot_be_sent_turns_devices_unhealthy(
    text: str, kubelet: ObservedKubelet, settings: Settings
) -> None:
    class Broken(Tape):
        async def discover(self) -> AsyncIterator[list[Device]]:
            self.tries += 1
            if self.tries == 1:
                yield [Device("st0")]
            raise OSError(text)

    async with serving(Broken(), settings=settings) as daemon:
        await kubelet.endpoint(TAPE)
        await kubelet.health(TAPE, "st0", "Unhealthy")
        snapshot = daemon.resources[TAPE].inventory.latest.value
        assert snapshot is not None
        assert snapshot.devices["st0"].reason.startswith(f"discover() of {TAPE} failed: OSError: {clean(text)} at ")


async def test_discover_is_not_said_to_work_again_when_it_is_only_ended(log: LogRecorder) -> None:
    async with discovering(Mute(), SHORT):
        await log.until("no device list, devices turn Unhealthy")
    assert not [line for line in log.lines if "works again" in line]


async def test_discover_is_said_to_work_again_when_it_does(log: LogRecorder) -> None:
    plugin = Unsteady()
    async with discovering(plugin, SHORT):
        await log.until("no device list, devices turn Unhealthy")
        plugin.broken = False
        await log.until("discover() works again")


async def test_a_retry_that_yields_no_list_has_failed_too(log: LogRecorder) -> None:
    class Once(Tape):
        async def discover(self) -> AsyncIterator[list[Device]]:
            self.tries += 1
            if self.tries == 1:
                yield [Device("st0")]
                raise OSError("no driver")

    async with discovering(Once(), SHORT) as inventory:
        reason = f"discover() of {TAPE} ended without a good list: it yielded none"
        await inventory.latest.until(lambda _: states(inventory) == {"st0": reason})
    assert not [line for line in log.lines if "works again" in line]


async def test_discover_whose_thread_cannot_be_started_turns_devices_unhealthy_and_recovers(log: LogRecorder) -> None:
    class Polling(Tape):
        driver = False

        def discover(self) -> Iterator[list[Device]]:
            yield [Device("st0")]
            if not self.driver:
                raise OSError("no driver")

    before = threading.stack_size()
    plugin = Polling()
    try:
        async with discovering(plugin, SHORT) as inventory:
            await reach(inventory, {"st0": ""})
            threading.stack_size(1 << 60)  # larger than any address space
            await log.until("can't start new thread")
            # The reason is that of the failure at which the time was over: this one, or one before it.
            await inventory.latest.until(lambda _: f"discover() of {TAPE} failed: " in str(states(inventory)))
            threading.stack_size(before)
            plugin.driver = True
            await reach(inventory, {"st0": ""})
    finally:
        threading.stack_size(before)
