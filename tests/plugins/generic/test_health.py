"""A device becomes Unhealthy after several failed checks in a row, and Healthy after several good ones."""

import asyncio
import os
import signal
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.plugins.generic.machines import Machine

from plugwright.plugins.generic.checks import CommandProbe, probe_of
from plugwright.plugins.generic.hardware import HostPath, Unit
from plugwright.plugins.generic.health import CheckState, HealthCheck, HealthMonitor, Probe
from plugwright.sdk.sysfs import Host


@given(st.lists(st.booleans(), max_size=40), st.integers(1, 4), st.integers(1, 4))
def test_a_state_changes_after_enough_results_in_a_row(good: list[bool], failures: int, successes: int) -> None:
    check, state, healthy = HealthCheck(failures=failures, successes=successes), CheckState(), None
    for index, result in enumerate(good):
        state = check.next_state(state, "" if result else "bad")
        needed = successes if result else failures
        row = good[max(0, index + 1 - needed) : index + 1]
        if healthy is None or row == [result] * needed:
            healthy = result
        assert (state.reason == "") == healthy


def test_the_newest_reason_is_shown() -> None:
    check = HealthCheck()
    state = check.next_state(check.next_state(CheckState(), "hot"), "hotter")
    assert state.reason == "hotter"


# The probes


def unit(machine: Machine, path: str = "", **more: object) -> Unit:
    directory = (machine.root / "sys/devices" / path).resolve() if path else None
    return Unit("one", (HostPath("/dev/one"),), {"pci": "0000:3b:00.0"}, directory=directory, **more)  # type: ignore[arg-type]


def probe(**keys: object) -> Probe:
    return probe_of(HealthCheck(**keys))  # type: ignore[arg-type]


def command(*words: str) -> Probe:
    return probe(command=list(words))


async def fault(machine: Machine, probe: Probe, checked: Unit | None = None) -> str | None:
    return await probe.fault(machine.host, checked or unit(machine))


async def test_a_link_is_up_when_one_port_is(machine: Machine) -> None:
    path = machine.pci("0000:5e:00.0", "15b3:1017", "020700", "mlx5_core")
    adapter = machine.adapter(path, "mlx5_0", 0)
    assert await fault(machine, probe(link="up"), unit(machine, adapter)) == ""
    machine.write(f"/sys/devices/{adapter}/ports/1/state", "1: DOWN")
    assert await fault(machine, probe(link="up"), unit(machine, adapter)) == "link down: port 1"
    machine.write(f"/sys/devices/{adapter}/ports/2/state", "4: ACTIVE")
    assert await fault(machine, probe(link="up"), unit(machine, adapter)) == ""


@pytest.mark.parametrize(
    ("state", "carrier", "said"),
    [("up", "1", ""), ("down", "0", "link down: ens1"), ("unknown", "1", ""), ("unknown", "0", "link down: ens1")],
)
async def test_a_link_of_an_interface_is_what_the_kernel_says(
    machine: Machine, state: str, carrier: str, said: str
) -> None:
    path = machine.pci("0000:3b:00.0", "8086:1572", "020000", "i40e")
    interface = machine.interface(path, "ens1", state=state)
    machine.write(f"/sys/devices/{interface}/carrier", carrier)
    assert await fault(machine, probe(link="up"), unit(machine, interface)) == said
    assert await fault(machine, probe(link="up"), unit(machine, path)) == said


async def test_an_interface_in_a_pod_has_an_unknown_link(machine: Machine) -> None:
    path = machine.pci("0000:3b:00.0", "8086:1572", "020000", "i40e")
    away = unit(machine, f"{path}/net/ens1", anchor=machine.root / "sys/devices" / path)
    assert await fault(machine, probe(link="up"), away) is None


async def test_a_function_whose_interface_is_in_a_pod_has_an_unknown_link(machine: Machine) -> None:
    path = machine.pci("0000:3b:02.0", "8086:154c", "020000", "iavf")
    assert await fault(machine, probe(link="up"), unit(machine, path)) == "has no link"
    (machine.root / "sys/devices" / path / "net").mkdir()
    assert await fault(machine, probe(link="up"), unit(machine, path)) is None


async def test_a_driver_must_be_bound(machine: Machine) -> None:
    path = machine.pci("0000:3b:00.0", "8086:1572", "020000")
    assert await fault(machine, probe(driver="*"), unit(machine, path)) == "no driver is bound"
    machine.bind(path, "i40e")
    assert await fault(machine, probe(driver="*"), unit(machine, path)) == ""
    assert await fault(machine, probe(driver="vfio*"), unit(machine, path)) == "driver i40e is bound, not vfio*"


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ({"below": 90000}, ""),
        ({"below": 60000}, "hwmon/hwmon*/temp1_input is 71000, not below 60000"),
        ({"above": 71000}, "hwmon/hwmon*/temp1_input is 71000, not above 71000"),
        ({"equals": ["71000", "x"]}, ""),
        ({"equals": ["live"]}, "hwmon/hwmon*/temp1_input is '71000', not 'live'"),
        ({"not_": ["71000"]}, "hwmon/hwmon*/temp1_input is '71000'"),
    ],
)
async def test_a_file_is_what_it_must_be(machine: Machine, wanted: dict[str, object], said: str) -> None:
    path = machine.pci("0000:3b:00.0", "8086:1572", "020000", "i40e")
    machine.write(f"/sys/devices/{path}/hwmon/hwmon3/temp1_input", "71000")
    assert await fault(machine, probe(file="hwmon/hwmon*/temp1_input", **wanted), unit(machine, path)) == said


async def test_a_file_may_be_anywhere_and_must_be_there(machine: Machine) -> None:
    machine.write("/sys/kernel/debug/qat_0000:3b:00.0/status", "-1")
    question = probe(file="/sys/kernel/debug/qat_{pci}/status", not_=["-1"])
    assert await fault(machine, question) == "/sys/kernel/debug/qat_0000:3b:00.0/status is '-1'"
    assert await fault(machine, probe(file="/none", equals=["1"])) == "/none: No such file or directory"
    assert await fault(machine, probe(file="none", equals=["1"])) == "none: no such file"
    machine.write("/word", "warm")
    assert await fault(machine, probe(file="/word", below=1)) == "/word is 'warm', not a number"


async def test_a_file_without_an_end_is_read_at_its_beginning(machine: Machine) -> None:
    machine.write("/long", "good" + " " * 10_000 + "bad")
    assert await fault(machine, probe(file="/long", equals=["good"])) == ""


async def test_a_serial_number_leads_to_no_other_file(machine: Machine) -> None:
    machine.write("/etc/secret", "hidden")
    machine.write("/run/state/none")
    question = probe(file="/run/state/{serial}", equals=["ok"])
    hostile = Unit("one", facts={"serial": "../../etc/secret"})
    assert await fault(machine, question, hostile) == "/run/state/.._.._etc_secret: No such file or directory"


async def test_a_command_has_its_last_line_as_the_fault(machine: Machine) -> None:
    assert await fault(machine, command("/bin/sh", "-c", "exit 0")) == ""
    assert (
        await fault(machine, command("/bin/sh", "-c", "echo a; echo {id} is hot >&2; exit 3")) == "/bin/sh: one is hot"
    )
    assert await fault(machine, command("/bin/sh", "-c", "exit 3")) == "/bin/sh: exit status 3"
    assert await fault(machine, command("/none")) == "/none: No such file or directory"


async def test_a_command_ends_with_its_process_and_not_with_its_children(machine: Machine) -> None:
    leaves = "sleep 600 & echo $! >&2; exit 3"
    said = await fault(machine, command("/bin/sh", "-c", leaves))
    assert said is not None
    os.kill(int(said.removeprefix("/bin/sh: ")), signal.SIGKILL)


async def test_a_cancelled_command_ends_with_all_its_children(machine: Machine) -> None:
    pipe = machine.root / "alive"
    os.mkfifo(pipe)
    writes = f"(echo begun; exec sleep 600) >{pipe}; true"
    asking = asyncio.create_task(fault(machine, command("/bin/sh", "-c", writes)))
    with await asyncio.to_thread(pipe.open, "rb") as alive:
        assert await asyncio.to_thread(alive.readline) == b"begun\n"
        asking.cancel()
        # A pipe ends when the last process that could write to it has.
        assert await asyncio.to_thread(alive.readline) == b""
        with pytest.raises(asyncio.CancelledError):
            await asking


async def test_a_command_with_much_output_keeps_its_end(machine: Machine) -> None:
    writes = "head --bytes 10000000 /dev/zero; echo; echo too hot; exit 1"
    assert await fault(machine, command("/bin/sh", "-c", writes)) == "/bin/sh: too hot"


@pytest.fixture
def address() -> Iterator[str]:
    """Answers 200 to /good, 503 to the rest."""

    class Answering(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/good/one" else 503)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Answering) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield "http://{}:{}".format(*server.server_address)
        server.shutdown()
        thread.join()


async def test_an_address_must_answer_well(machine: Machine, address: str) -> None:
    assert await fault(machine, probe(http=f"{address}/good/{{id}}")) == ""
    assert await fault(machine, probe(http=f"{address}/bad")) == f"{address}/bad: 503 Service Unavailable"


async def test_an_address_without_a_server_is_a_fault(machine: Machine) -> None:
    assert "refused" in str(await fault(machine, probe(http="http://127.0.0.1:1/")))


# Running them


@asynccontextmanager
async def monitoring(machine: Machine, *checks: tuple[HealthCheck, Probe]) -> AsyncIterator[HealthMonitor]:
    monitor = HealthMonitor(machine.host, checks)
    async with asyncio.timeout(60), monitor.running():
        yield monitor


def check(**keys: object) -> tuple[HealthCheck, Probe]:
    made = HealthCheck(**keys)  # type: ignore[arg-type]
    return made, probe_of(made)


async def becomes(monitor: HealthMonitor, unit: Unit, reason: str) -> None:
    await monitor.reasons.until(lambda reasons: reasons.get(unit.id, "") == reason)


async def test_a_device_fails_and_recovers_with_its_file(machine: Machine) -> None:
    path, device = machine.write("/state", "live"), unit(machine)
    async with monitoring(machine, check(file="/state", equals=["live"], every=0.01)) as monitor:
        await monitor.follow([device])
        assert monitor.reasons.value == {}
        path.write_text("dead")
        await becomes(monitor, device, "/state is 'dead', not 'live'")
        path.write_text("live")
        await becomes(monitor, device, "")


async def test_a_new_device_is_not_healthy_before_its_first_check_has_ended(machine: Machine) -> None:
    device = unit(machine)
    async with monitoring(machine, check(command=["/bin/sleep", "600"], every=3600, timeout=1.2)) as monitor:
        await monitor.follow([device])
        assert monitor.reasons.value == {device.id: "not checked yet"}
        await becomes(monitor, device, "check command did not answer within 1.2 s")


async def test_an_interface_in_a_pod_since_before_the_start_is_good_until_it_is_visible(machine: Machine) -> None:
    path = machine.pci("0000:3b:02.0", "8086:154c", "020000", "iavf")
    (machine.root / "sys/devices" / path / "net").mkdir()
    function = unit(machine, path)
    async with monitoring(machine, check(link="up", every=0.01)) as monitor:
        await monitor.follow([function])
        assert monitor.reasons.value == {}
        machine.interface(path, "ens1", state="down")
        await becomes(monitor, function, "link down: ens1")


async def test_a_whole_is_as_good_as_its_parts(machine: Machine) -> None:
    states = [machine.write(f"/state/{name}", "live") for name in "ab"]
    parts = tuple(Unit(name, facts={"name": name}) for name in "ab")
    strict, lenient = Unit("strict", parts=parts), Unit("lenient", parts=parts, one_is_enough=True)
    broken = "/state/a is 'dead', not 'live'"
    for dead, reasons in ((0, {}), (1, {"strict": broken}), (2, {"strict": broken, "lenient": broken})):
        for path in states[:dead]:
            path.write_text("dead")
        async with monitoring(machine, check(file="/state/{name}", equals=["live"], every=3600)) as monitor:
            await monitor.follow([strict, lenient])
            assert monitor.reasons.value == reasons


class HangingProbe:
    """A driver that never answers, until it is released."""

    kind, stoppable = "link", False

    def __init__(self) -> None:
        self.calls = 0
        self.released = asyncio.Event()

    async def fault(self, host: Host, unit: Unit) -> str:
        self.calls += 1
        await self.released.wait()
        return ""


class CountingProbe:
    """Runs as often as its neighbour should."""

    kind, stoppable = "link", True

    def __init__(self, neighbour: HangingProbe) -> None:
        self._neighbour, self._calls = neighbour, 0
        self.called_often = asyncio.Event()

    async def fault(self, host: Host, unit: Unit) -> str:
        self._calls += 1 if self._neighbour.calls else 0
        if self._calls == 20:
            self.called_often.set()
        return ""


async def test_a_check_that_hangs_is_not_started_again(machine: Machine) -> None:
    device, hanging = unit(machine), HangingProbe()
    counting = CountingProbe(hanging)
    often = HealthCheck(every=0.002, timeout=0.002, failures=1, successes=1)
    async with monitoring(machine, (often, hanging), (often, counting)) as monitor:
        await monitor.follow([device])
        await becomes(monitor, device, "check link did not answer within 0.002 s")
        await counting.called_often.wait()
        assert hanging.calls == 1
        hanging.released.set()
        await becomes(monitor, device, "")


class UnkillableProbe:
    """A command in an uninterruptible sleep: it outlives its kill."""

    kind, stoppable = "command", True

    def __init__(self) -> None:
        self.calls = 0

    async def fault(self, host: Host, unit: Unit) -> str:
        self.calls += 1
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        await asyncio.Event().wait()
        return ""


async def test_a_command_that_cannot_be_killed_is_a_fault_and_keeps_nothing_waiting(machine: Machine) -> None:
    devices = [Unit(f"disk{number}") for number in range(100)]
    unkillable, often = UnkillableProbe(), HealthCheck(every=0.002, timeout=0.001, failures=1, successes=1)
    overdue = "check command did not answer within 0.001 s"
    refused = "check command not begun: too many checks of other devices have not ended"
    monitor = HealthMonitor(machine.host, [(often, unkillable)])
    async with asyncio.timeout(60), monitor.running():
        await monitor.follow(devices)
        # All have a result, so the slots of those that hang were given back.
        reasons = await monitor.reasons.until(lambda reasons: {overdue, refused} == set(reasons.values()))
        assert len(reasons) == len(devices)
    assert unkillable.calls < 64 + 8  # those that hang, and those that were under way with the last of them


async def test_many_checks_that_hang_cost_their_own_devices_and_recover_when_their_files_are_replaced(
    machine: Machine,
) -> None:
    """As eight functions of a dead adapter beside devices that work."""
    units = [Unit(f"disk{number}", directory=machine.root / f"disk{number}") for number in range(20)]
    for disk in units:
        assert disk.directory is not None
        disk.directory.mkdir()
        os.mkfifo(disk.directory / "state") if disk in units[:12] else (disk.directory / "state").write_text("1")
    pipes = [os.open(disk.directory / "state", os.O_RDWR) for disk in units[:12] if disk.directory is not None]
    often = check(file="state", equals=["1"], every=0.01, timeout=0.02, failures=1, successes=1)
    overdue = dict.fromkeys([disk.id for disk in units[:12]], "check file did not answer within 0.02 s")
    try:
        async with asyncio.timeout(60), monitoring(machine, often) as monitor:
            await monitor.follow(units)
            await monitor.reasons.until(lambda reasons: reasons == overdue)
            for disk in units[:12]:
                assert disk.directory is not None
                disk.directory.joinpath("new").write_text("1")
                disk.directory.joinpath("new").replace(disk.directory / "state")
            await monitor.reasons.until(lambda reasons: not reasons)
    finally:
        for pipe in pipes:
            os.write(pipe, b"ends the thread")
            os.close(pipe)


async def test_a_command_on_a_file_system_that_hangs_is_not_started_and_costs_one_thread(machine: Machine) -> None:
    disk, answers = Unit("disk"), threading.Event()
    looks: list[str] = []

    def hang(path: str) -> None:
        looks.append(path)
        answers.wait()

    checked = HealthCheck(command=["/bin/true"], every=0.002, timeout=0.05, failures=1, successes=1)
    monitor = HealthMonitor(machine.host, [(checked, CommandProbe(checked, hang))])
    try:
        async with asyncio.timeout(60), monitor.running():
            await monitor.follow([disk])
            refused = "/bin/true: look at the command not started: 1 earlier call still hangs in "
            await monitor.reasons.until(lambda reasons: reasons.get("disk", "").startswith(refused))
            assert looks == ["/bin/true"]
            answers.set()
            await becomes(monitor, disk, "")
    finally:
        answers.set()


class RaisingProbe:
    """Raises what a library may raise."""

    kind, stoppable = "link", True

    def __init__(self, error: BaseException) -> None:
        self.error: BaseException | None = error

    async def fault(self, host: Host, unit: Unit) -> str:
        if self.error is not None:
            raise self.error
        return ""


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (RuntimeError("can't start new thread"), "check link failed: RuntimeError: can't start new thread"),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "\x1b[31m"), "check link failed: UnicodeDecodeError: "),
        (KeyError("state\ud800"), "check link failed: KeyError: 'state\\ud800'"),
    ],
)
async def test_a_check_that_raises_is_a_fault(
    machine: Machine, caplog: pytest.LogCaptureFixture, error: Exception, reason: str
) -> None:
    device, raising = unit(machine), RaisingProbe(error)
    often = HealthCheck(every=0.002, failures=1, successes=1)
    async with monitoring(machine, (often, raising)) as monitor:
        await monitor.follow([device])
        [said] = monitor.reasons.value.values()
        assert said.startswith(reason)
        assert said.isprintable()
        raising.error = None
        await becomes(monitor, device, "")
    assert [record.message for record in caplog.records] == ["health check failed"]


async def test_checks_that_end_make_their_devices_unhealthy(machine: Machine) -> None:
    """What must not happen, and would be health that nobody looks at: a probe that ends the tasks around it."""

    class Ending(BaseException):
        pass

    device = unit(machine)
    async with monitoring(machine, (HealthCheck(), RaisingProbe(Ending("over")))) as monitor:
        await monitor.follow([device])
        await becomes(monitor, device, "health checks have ended: Ending: over")


@pytest.mark.parametrize("answer", [b"garbage\r\n\r\n", b"HTTP/1.1 99999 \x1b]0;x\r\n\r\n", b""])
async def test_an_answer_that_is_not_http_is_a_fault(machine: Machine, answer: bytes) -> None:
    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(respond, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        async with monitoring(machine, check(http=f"http://{host}:{port}/", every=3600)) as monitor:
            await monitor.follow([unit(machine)])
            await monitor.reasons.until(lambda reasons: "not checked yet" not in reasons.values())
            reason = monitor.reasons.value["one"]
    assert reason.startswith(f"http://{host}:{port}/: ")
    assert reason.isprintable()


def end_readers(pipe: Path) -> None:
    """Ends the threads that have opened `pipe`; never waits, since on a busy machine none may have opened it yet."""
    with os.fdopen(os.open(pipe, os.O_RDWR), "wb") as end:
        end.write(b"1")


@pytest.mark.parametrize(
    ("kind", "keys"), [("link", {"link": "up"}), ("file", {"file": "operstate", "equals": ["up"]})]
)
async def test_a_driver_whose_files_hang_is_a_fault_and_does_not_stop_the_event_loop(
    machine: Machine, kind: str, keys: dict[str, object]
) -> None:
    path = machine.pci("0000:3b:00.0", "8086:1572", "020000", "i40e")
    interface = machine.interface(path, "ens1")
    state = machine.root / "sys/devices" / interface / "operstate"
    state.unlink()
    os.mkfifo(state)
    device = unit(machine, interface)
    async with monitoring(machine, check(every=3600, timeout=0.01, failures=1, **keys)) as monitor:
        await monitor.follow([device])
        await becomes(monitor, device, f"check {kind} did not answer within 0.01 s")
    end_readers(state)


async def test_a_driver_is_looked_up_off_the_event_loop(machine: Machine) -> None:
    path = machine.pci("0000:3b:00.0", "8086:1572", "020000", "i40e")
    threads: list[str] = []

    class Recording(type(machine.root)):  # type: ignore[misc]
        """A directory that says who reads it."""

        def __truediv__(self, name: str) -> Path:
            threads.append(threading.current_thread().name)
            return Path(self).__truediv__(name)

    recorded = Unit("one", directory=Recording(machine.root / "sys/devices" / path))
    assert await fault(machine, probe(driver="*"), recorded) == ""
    assert set(threads) == {"check driver of one"}


async def test_a_unit_that_is_gone_is_forgotten(machine: Machine) -> None:
    device = unit(machine)
    async with monitoring(machine, check(file="/none", equals=["1"], every=3600)) as monitor:
        await monitor.follow([device])
        assert monitor.reasons.value == {device.id: "/none: No such file or directory"}
        await monitor.follow([])
        assert monitor.reasons.value == {}
        machine.write("/none", "1")
        await monitor.follow([device])
        assert monitor.reasons.value == {}


async def test_a_driver_that_hangs_keeps_no_list_waiting(machine: Machine) -> None:
    os.mkfifo(machine.root / "pipe")
    device = unit(machine)
    async with monitoring(machine, check(file="/pipe", equals=["1"], every=3600, timeout=0.01)) as monitor:
        await monitor.follow([device])
        await becomes(monitor, device, "check file did not answer within 0.01 s")
        end_readers(machine.root / "pipe")
