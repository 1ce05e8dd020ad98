"""What fails in one resource, the plugin's code or ours, is visible, starts again, and touches no other resource."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager

import pytest
from msgspec.structs import replace
from tests.observed_kubelet import ObservedKubelet
from tests.sdk.actors import TAPE, ListingPlugin

from plugwright import Device, Limits, Plugin, Settings, Timeouts, serving
from plugwright.sdk import daemon_status
from plugwright.sdk.daemon import Daemon
from plugwright.sdk.metrics import ResourceMetrics
from plugwright.sdk.status import ResourceStatus
from plugwright.sdk.supervision import Part, ResourceSupervisor, RestartTiming
from plugwright.system.latest import Latest

DISK = "example.com/disk"


class Ambiguous:
    """Compares as a numpy array does."""

    def __init__(self, *values: int) -> None:
        self.values = values

    def __eq__(self, other: object) -> bool:
        raise ValueError("the truth value of an array is ambiguous")

    def __hash__(self) -> int:
        return 0

    def __str__(self) -> str:
        return f"array{self.values}"


class Odd(Device):
    """Breaks our code, not the plugin's: it is read when the list is encoded."""

    @property
    def healthy(self) -> bool:
        raise LookupError("odd device")


class Hopeless(Device):
    """Cannot even be made Unhealthy."""

    def unhealthy(self, reason: str, code: str = "") -> Device:
        raise LookupError("hopeless device")


class Shelf(Plugin):
    """Lists what it is given, and raises what it is given."""

    resource = TAPE

    def __init__(self, *devices: Device) -> None:
        self.listed: Latest[list[Device]] = Latest([*devices])
        self.calls = 0

    async def discover(self) -> AsyncIterator[list[Device]]:
        self.calls += 1
        async for devices in self.listed.changes():
            yield devices


def status_of(daemon: Daemon, resource: str = TAPE) -> ResourceStatus:
    return next(status for status in daemon_status.report(daemon)["resources"] if status["name"] == resource)


@asynccontextmanager
async def serving_beside_another(plugin: Plugin, kubelet: ObservedKubelet, settings: Settings) -> AsyncIterator[Daemon]:
    """With a resource that must not notice: one registration, one list, one stream."""
    quick = replace(settings, timeouts=replace(settings.timeouts, restart=0.01))
    async with serving(plugin, ListingPlugin(DISK), settings=quick) as daemon:
        disk = await kubelet.endpoint(DISK, count=2)
        yield daemon
        assert not disk.ended
        assert len(disk.lists) == 1
        assert [registered.resource for registered in kubelet.registered].count(DISK) == 1
        assert (status_of(daemon, DISK)["restarts"], status_of(daemon, DISK)["fault"]) == (0, "")


async def test_attributes_compare_by_what_status_shows(kubelet: ObservedKubelet, settings: Settings) -> None:
    shelf = Shelf(Device("st0", attributes={"bad blocks": Ambiguous(1)}))
    async with serving_beside_another(shelf, kubelet, settings) as daemon:
        await kubelet.endpoint(TAPE)
        inventory = daemon.resources[TAPE].inventory
        before = inventory.latest.value
        shelf.listed.publish([Device("st0", attributes={"bad blocks": Ambiguous(1)})])
        shelf.listed.publish([Device("st0", attributes={"bad blocks": Ambiguous(1)})])
        await asyncio.sleep(0)
        assert inventory.latest.value is before
        shelf.listed.publish([Device("st0", attributes={"bad blocks": Ambiguous(2)})])
        await inventory.latest.until(lambda snapshot: snapshot is not before)
        [device] = status_of(daemon)["devices"]
        assert device["attributes"] == {"bad blocks": "array(2,)"}
        assert status_of(daemon)["restarts"] == 0


async def test_a_failure_of_our_own_code_is_seen_and_the_resource_starts_again(
    kubelet: ObservedKubelet, settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    shelf = Shelf(Device("st0"), Device("st1"))
    async with serving_beside_another(shelf, kubelet, settings) as daemon:
        tape = await kubelet.endpoint(TAPE, count=2)
        shelf.listed.publish([Odd("st0")])
        await kubelet.health(TAPE, "st0", "Unhealthy")
        await kubelet.health(TAPE, "st1", "Unhealthy")
        reason = "discovery failed: LookupError: odd device"
        status = status_of(daemon)
        assert {device["reason"] for device in status["devices"]} == {reason}
        assert (status["fault"], status["restarts"] > 0) == (reason, True)
        shelf.listed.publish([Device("st0"), Device("st1")])
        await kubelet.health(TAPE, "st0", "Healthy")
        assert shelf.calls > 1
        assert not tape.ended  # the stream went on all the time
        assert status_of(daemon)["fault"] == reason  # until it has run steadily
    [record] = [record for record in caplog.records if record.getMessage() == "resource failed, restarting it"]
    assert record.exc_info is not None
    assert (record.levelno, vars(record)["resource"], vars(record)["error"]) == (logging.ERROR, TAPE, reason)


async def test_devices_that_cannot_be_made_unhealthy_are_not_served(
    kubelet: ObservedKubelet, settings: Settings
) -> None:
    shelf = Shelf(Hopeless("st0"))
    async with serving_beside_another(shelf, kubelet, settings) as daemon:
        tape = await kubelet.endpoint(TAPE)
        shelf.listed.publish([Odd("st1")])
        await kubelet.until(lambda _: tape.ended)
        assert status_of(daemon)["fault"]
        shelf.listed.publish([Device("st0")])
        await kubelet.until(lambda kubelet: kubelet.endpoints[TAPE] is not tape)
        await kubelet.health(TAPE, "st0", "Healthy")


class Silent(Shelf):
    """Lists its devices once, fails when told to, and then never lists again."""

    def __init__(self, *devices: Device) -> None:
        super().__init__(*devices)
        self.failing = asyncio.Event()

    async def discover(self) -> AsyncIterator[list[Device]]:
        self.calls += 1
        if self.calls == 1:
            yield self.listed.value
        await self.failing.wait()
        if self.calls == 1:
            raise RuntimeError("no tape drive answers")
        await asyncio.Event().wait()


async def test_devices_that_cannot_be_made_unhealthy_after_discovery_fell_silent_are_not_served(
    kubelet: ObservedKubelet, settings: Settings
) -> None:
    shelf = Silent(Hopeless("st0"))
    async with serving_beside_another(shelf, kubelet, settings) as daemon:
        tape = await kubelet.endpoint(TAPE)
        shelf.failing.set()
        await kubelet.until(lambda _: tape.ended)
        assert "hopeless device" in status_of(daemon)["fault"]


async def test_a_plugin_that_cancels_its_own_task_is_seen_and_called_again(
    kubelet: ObservedKubelet, settings: Settings
) -> None:
    class Suicidal(Shelf):
        async def discover(self) -> AsyncIterator[list[Device]]:
            self.calls += 1
            first = self.calls == 1
            async for devices in self.listed.changes():
                yield devices
                if first:
                    task = asyncio.current_task()
                    assert task is not None
                    task.cancel()

    shelf = Suicidal(Device("st0"))
    async with serving_beside_another(shelf, kubelet, settings) as daemon:
        await kubelet.endpoint(TAPE)
        await daemon.changed.until(lambda: shelf.calls > 1)
        assert f"discover() of {TAPE} cancelled its own task" in status_of(daemon)["fault"]
        await kubelet.health(TAPE, "st0", "Healthy")


class Stubborn(ListingPlugin):
    """Does not end until it is let go."""

    def __init__(self, resource: str = TAPE, *ids: str) -> None:
        super().__init__(resource, *ids)
        self.let_go = asyncio.Event()
        self.ended = asyncio.Event()

    async def discover(self) -> AsyncIterator[list[Device]]:
        try:
            async with aclosing(super().discover()) as lists:  # type: ignore[type-var]
                async for devices in lists:
                    yield devices
        finally:
            await asyncio.shield(self.let_go.wait())
            self.ended.set()


@pytest.fixture
def impatient(settings: Settings) -> Settings:
    return replace(settings, limits=Limits(stop=0.05))


async def test_a_reload_does_not_wait_for_a_plugin_that_does_not_end(
    kubelet: ObservedKubelet, impatient: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    stubborn, disk = Stubborn(), ListingPlugin(DISK)
    async with serving(stubborn, disk, settings=impatient) as daemon:
        await kubelet.endpoint(TAPE, count=2)
        await daemon.apply([disk])
        assert list(daemon.resources) == [DISK]
        assert not stubborn.ended.is_set()
        assert "plugin code does not end, continuing without it" in caplog.messages
        await daemon.apply([disk, ListingPlugin(TAPE, "st7")])
        await kubelet.until(lambda _: set(kubelet.endpoints[TAPE].devices) == {"st7"})
        stubborn.let_go.set()
        await stubborn.ended.wait()


async def test_a_plugin_is_replaced_though_it_does_not_end_and_lists_nothing_more(
    kubelet: ObservedKubelet, impatient: Settings
) -> None:
    stubborn = Stubborn()
    async with serving(stubborn, settings=impatient) as daemon:
        tape = await kubelet.endpoint(TAPE, count=2)
        await daemon.apply([ListingPlugin(TAPE, "st0", "st7")])
        await kubelet.until(lambda _: "st7" in tape.devices)
        assert status_of(daemon)["restarts"] == 0
        assert daemon.resources[TAPE].service.metrics.abandoned == 1
        stubborn.ids.publish(("st9",))
        stubborn.let_go.set()
        await stubborn.ended.wait()
        await asyncio.sleep(0)
        assert {device["id"] for device in status_of(daemon)["devices"]} == {"st0", "st1", "st7"}


async def test_a_plugin_that_swallows_its_cancellation_lists_nothing_more(
    kubelet: ObservedKubelet, impatient: Settings
) -> None:
    class Deaf(ListingPlugin):
        def __init__(self) -> None:
            super().__init__()
            self.closed = asyncio.Event()

        async def discover(self) -> AsyncIterator[list[Device]]:
            try:
                yield [Device("st0")]
                while True:
                    try:
                        await self.ids.until(lambda ids: "st9" in ids)
                        break
                    except asyncio.CancelledError:
                        pass
                yield [Device("st9")]
            finally:
                self.closed.set()

    deaf = Deaf()
    async with serving(deaf, settings=impatient) as daemon:
        tape = await kubelet.endpoint(TAPE)
        await daemon.apply([ListingPlugin(TAPE, "st7")])
        await kubelet.until(lambda _: "st7" in tape.devices)
        deaf.ids.publish(("st9",))
        await deaf.closed.wait()
        assert {device["id"] for device in status_of(daemon)["devices"]} == {"st0", "st7"}


async def test_a_daemon_ends_though_a_plugin_does_not(kubelet: ObservedKubelet, impatient: Settings) -> None:
    stubborn = Stubborn()
    async with serving(stubborn, settings=impatient):
        await kubelet.endpoint(TAPE, count=2)
    assert not stubborn.ended.is_set()
    assert not list(kubelet.paths.device_plugins.glob("plugwright-*"))
    stubborn.let_go.set()
    await stubborn.ended.wait()
    await asyncio.sleep(0)


class Trial:
    """A supervisor of parts that fail at will, with a clock that the test turns and pauses that only are recorded."""

    def __init__(self) -> None:
        self.now = 0.0
        self.pauses: list[float] = []
        self.failures: list[str] = []
        self.restarts = 0
        self.metrics = ResourceMetrics()
        self.settings = Settings(timeouts=Timeouts(restart=0.1, steady=60.0))
        self.supervisor = ResourceSupervisor(
            TAPE, self.metrics, self.settings, RestartTiming(lambda: self.now, self.pause)
        )

    async def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        await asyncio.sleep(0)

    def restarted(self) -> None:
        self.restarts += 1

    async def run(self, part: Callable[[], Awaitable[None]], until: Callable[[], bool]) -> None:
        running = asyncio.create_task(
            self.supervisor.run([Part("discovery", part, self.failures.append, self.restarted)])
        )
        while not until():
            await asyncio.sleep(0)
        running.cancel()
        await asyncio.wait([running])


async def test_a_part_that_keeps_failing_is_started_less_and_less_often() -> None:
    trial = Trial()

    async def failing() -> None:
        raise OSError("no driver")

    await trial.run(failing, until=lambda: len(trial.pauses) >= 9)
    assert trial.pauses[:9] == [pytest.approx(min(0.1 * 2**n, 5.0), rel=0.2) for n in range(9)]
    assert set(trial.failures) == {"discovery failed: OSError: no driver"}
    assert trial.metrics.restarts == len(trial.failures) == len(trial.pauses)
    assert trial.restarts >= 8


async def test_a_part_that_has_run_steadily_is_started_soon_again() -> None:
    trial = Trial()

    async def failing() -> None:
        trial.now += 59.0 if len(trial.pauses) < 4 else 61.0
        raise OSError("no driver")

    await trial.run(failing, until=lambda: len(trial.pauses) >= 6)
    assert trial.pauses[3:6] == [pytest.approx(0.8, rel=0.2), pytest.approx(0.1, rel=0.2), pytest.approx(0.1, rel=0.2)]


async def test_a_part_that_ends_by_itself_has_failed() -> None:
    trial = Trial()
    await trial.run(lambda: asyncio.sleep(0), until=lambda: bool(trial.pauses))
    assert trial.failures[0] == "discovery failed: RuntimeError: it ended without an error"


async def test_a_failure_with_an_odd_text_has_a_reason_that_can_be_sent() -> None:
    trial = Trial()

    async def failing() -> None:
        raise OSError("no\n\x1b\0")

    await trial.run(failing, until=lambda: bool(trial.pauses))
    assert trial.failures[0] == "discovery failed: OSError: no \\x1b\\x00"


async def test_a_fault_is_over_when_the_part_has_run_steadily() -> None:
    trial = Trial()
    trial.settings = Settings(timeouts=Timeouts(steady=0.01))
    supervisor = ResourceSupervisor(TAPE, trial.metrics, trial.settings, RestartTiming(pause=trial.pause))
    calls = 0

    async def part() -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise OSError("no driver")
        await asyncio.Event().wait()

    running = asyncio.create_task(supervisor.run([Part("discovery", part, trial.failures.append)]))
    await supervisor.fault.until(bool)
    await supervisor.fault.until(lambda fault: not fault)
    running.cancel()
    await asyncio.wait([running])
    assert calls == 2


class Unannounceable(type):
    """A class whose options cannot be told: it breaks registration, not the plugin's own code."""

    broken = False

    @property
    def pre_start(cls) -> object:
        if Unannounceable.broken:
            raise LookupError("odd class")
        return Plugin.pre_start


class OddTape(ListingPlugin, metaclass=Unannounceable):
    pass


async def test_a_failure_of_registration_turns_devices_unhealthy_until_it_runs_again(
    kubelet: ObservedKubelet, settings: Settings
) -> None:
    async with serving_beside_another(OddTape(), kubelet, settings) as daemon:
        first = await kubelet.endpoint(TAPE, count=2)
        inventory = daemon.resources[TAPE].inventory
        Unannounceable.broken = True
        try:
            for path in kubelet.paths.device_plugins.glob(f"{first.request.endpoint}"):
                path.unlink()
            reason = "registration failed: LookupError: odd class"
            await inventory.latest.until(
                lambda snapshot: snapshot is not None and snapshot.devices["st0"].reason == reason
            )
            assert status_of(daemon)["fault"] == reason
        finally:
            Unannounceable.broken = False
        await kubelet.until(lambda _: kubelet.endpoints[TAPE] is not first)
        await kubelet.health(TAPE, "st0", "Healthy")


class Saboteur(Plugin):
    """Cancels the task that serves its resource."""

    resource = "example.com/saboteur"

    async def discover(self) -> AsyncIterator[list[Device]]:
        yield [Device("one")]
        for task in asyncio.all_tasks():
            if task.get_name() == f"resource {self.resource}":
                task.cancel()
        await asyncio.Event().wait()


class Confused(Plugin):
    """Its first list is none."""

    resource = "example.com/confused"

    async def discover(self) -> AsyncIterator[list[Device]]:
        yield None  # type: ignore[misc]
        await asyncio.Event().wait()


async def test_a_resource_whose_first_list_is_refused_is_unready_with_the_reason(
    kubelet: ObservedKubelet, settings: Settings
) -> None:
    async with serving(Confused(), settings=settings) as daemon:
        refused = await daemon.resource(Confused.resource).inventory.refused.until(bool)
        assert refused == "discover() of example.com/confused must yield lists of devices, got None"
        assert any(refused in line for line in daemon_status.unready(daemon))


async def test_a_resource_whose_task_ends_is_unready_with_the_reason(
    kubelet: ObservedKubelet, settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(Saboteur(), settings=settings) as daemon:
        fault = await daemon.resource(Saboteur.resource).supervisor.fault.until(bool)
        assert fault == "resource example.com/saboteur was cancelled by plugin code"
        assert any(fault in line for line in daemon_status.unready(daemon))
        assert not daemon_status.report(daemon)["ready"]
    assert [record.message for record in caplog.records].count("resource has ended") == 1
