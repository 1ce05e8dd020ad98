"""A device turns Unhealthy when its checks say so again and again, and Healthy again in the same way."""

import asyncio
import os
import signal
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.plugins.generic.machines import Machine

from plugwright.plugins.generic.checks import Command, Driver, File, Http, Link
from plugwright.plugins.generic.hardware import Member, Unit
from plugwright.plugins.generic.health import Check, Checking, Hysteresis, Question, Standing
from plugwright.sdk.sysfs import Host


@given(st.lists(st.booleans(), max_size=40), st.integers(1, 4), st.integers(1, 4))
def test_it_takes_a_row_of_results_to_turn_the_tide(good: list[bool], failures: int, successes: int) -> None:
    hysteresis, standing, healthy = Hysteresis(failures, successes), Standing(), None
    for place, result in enumerate(good):
        standing = hysteresis.after(standing, "" if result else "bad")
        needed = successes if result else failures
        row = good[max(0, place + 1 - needed) : place + 1]
        if healthy is None or row == [result] * needed:
            healthy = result
        assert (standing.reason == "") == healthy


def test_the_newest_reason_is_shown() -> None:
    hysteresis = Hysteresis()
    standing = hysteresis.after(hysteresis.after(Standing(), "hot"), "hotter")
    assert standing.reason == "hotter"


# The questions


def unit(machine: Machine, path: str = "", **more: object) -> Unit:
    directory = (machine.root / "sys/devices" / path).resolve() if path else None
    return Unit("one", (Member("/dev/one"),), {"pci": "0000:3b:00.0"}, directory=directory, **more)  # type: ignore[arg-type]


async def fault(machine: Machine, question: Question, asked: Unit | None = None) -> str | None:
    return await question.fault(machine.host, asked or unit(machine))


async def test_a_link_is_up_when_one_port_is(machine: Machine) -> None:
    path = machine.pci("0000:5e:00.0", "15b3:1017", "020700", "mlx5_core")
    adapter = machine.adapter(path, "mlx5_0", 0)
    assert await fault(machine, Link(), unit(machine, adapter)) == ""
    machine.write(f"/sys/devices/{adapter}/ports/1/state", "1: DOWN")
    assert await fault(machine, Link(), unit(machine, adapter)) == "link down: port 1"
    machine.write(f"/sys/devices/{adapter}/ports/2/state", "4: ACTIVE")
    assert await fault(machine, Link(), unit(machine, adapter)) == ""


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
    assert await fault(machine, Link(), unit(machine, interface)) == said
    assert await fault(machine, Link(), unit(machine, path)) == said


async def test_what_a_pod_has_taken_away_is_not_judged(machine: Machine) -> None:
    path = machine.pci("0000:3b:00.0", "8086:1572", "020000", "i40e")
    away = unit(machine, f"{path}/net/ens1", anchor=machine.root / "sys/devices" / path)
    assert await fault(machine, Link(), away) is None


async def test_a_function_whose_interface_a_pod_has_is_not_judged(machine: Machine) -> None:
    path = machine.pci("0000:3b:02.0", "8086:154c", "020000", "iavf")
    assert await fault(machine, Link(), unit(machine, path)) == "has no link"
    (machine.root / "sys/devices" / path / "net").mkdir()
    assert await fault(machine, Link(), unit(machine, path)) is None


async def test_a_driver_must_be_bound(machine: Machine) -> None:
    path = machine.pci("0000:3b:00.0", "8086:1572", "020000")
    assert await fault(machine, Driver(), unit(machine, path)) == "no driver is bound"
    machine.bind(path, "i40e")
    assert await fault(machine, Driver(), unit(machine, path)) == ""
    assert await fault(machine, Driver("vfio*"), unit(machine, path)) == "driver i40e is bound, not vfio*"


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ({"below": 90000}, ""),
        ({"below": 60000}, "hwmon/hwmon*/temp1_input is 71000, not below 60000"),
        ({"above": 71000}, "hwmon/hwmon*/temp1_input is 71000, not above 71000"),
        ({"equals": ["71000", "x"]}, ""),
        ({"equals": ["live"]}, "hwmon/hwmon*/temp1_input is '71000', not 'live'"),
        ({"differs": ["71000"]}, "hwmon/hwmon*/temp1_input is '71000'"),
    ],
)
async def test_a_file_is_what_it_must_be(machine: Machine, wanted: dict[str, object], said: str) -> None:
    path = machine.pci("0000:3b:00.0", "8086:1572", "020000", "i40e")
    machine.write(f"/sys/devices/{path}/hwmon/hwmon3/temp1_input", "71000")
    question = File(path="hwmon/hwmon*/temp1_input", **wanted)  # type: ignore[arg-type]
    assert await fault(machine, question, unit(machine, path)) == said


async def test_a_file_may_be_anywhere_and_must_be_there(machine: Machine) -> None:
    machine.write("/sys/kernel/debug/qat_0000:3b:00.0/status", "-1")
    question = File(path="/sys/kernel/debug/qat_{pci}/status", differs=["-1"])
    assert await fault(machine, question) == "/sys/kernel/debug/qat_0000:3b:00.0/status is '-1'"
    assert await fault(machine, File(path="/none", equals=["1"])) == "/none: No such file or directory"
    assert await fault(machine, File(path="none", equals=["1"])) == "none: no such file"
    machine.write("/word", "warm")
    assert await fault(machine, File(path="/word", below=1)) == "/word is 'warm', no number"


async def test_of_a_file_that_does_not_end_the_beginning_is_read(machine: Machine) -> None:
    machine.write("/long", "good" + " " * 10_000 + "bad")
    assert await fault(machine, File(path="/long", equals=["good"])) == ""


async def test_a_serial_number_leads_to_no_other_file(machine: Machine) -> None:
    machine.write("/etc/secret", "hidden")
    machine.write("/run/state/none")
    question = File(path="/run/state/{serial}", equals=["ok"])
    hostile = Unit("one", facts={"serial": "../../etc/secret"})
    assert await fault(machine, question, hostile) == "/run/state/.._.._etc_secret: No such file or directory"


async def test_a_command_says_what_is_wrong(machine: Machine) -> None:
    assert await fault(machine, Command(("/bin/sh", "-c", "exit 0"))) == ""
    assert (
        await fault(machine, Command(("/bin/sh", "-c", "echo a; echo {id} is hot >&2; exit 3")))
        == "/bin/sh: one is hot"
    )
    assert await fault(machine, Command(("/bin/sh", "-c", "exit 3"))) == "/bin/sh: exit status 3"
    assert await fault(machine, Command(("/none",))) == "/none: No such file or directory"


async def test_a_command_ends_with_its_process_whoever_it_leaves_behind(machine: Machine) -> None:
    leaves = "sleep 600 & echo $! >&2; exit 3"
    said = await fault(machine, Command(("/bin/sh", "-c", leaves)))
    assert said is not None
    os.kill(int(said.removeprefix("/bin/sh: ")), signal.SIGKILL)


async def test_a_command_given_up_ends_with_all_that_it_started(machine: Machine) -> None:
    pipe = machine.root / "alive"
    os.mkfifo(pipe)
    writes = f"(echo begun; exec sleep 600) >{pipe}; true"
    asking = asyncio.create_task(fault(machine, Command(("/bin/sh", "-c", writes))))
    with await asyncio.to_thread(pipe.open, "rb") as alive:
        assert await asyncio.to_thread(alive.readline) == b"begun\n"
        asking.cancel()
        # A pipe ends when the last process that could write to it has.
        assert await asyncio.to_thread(alive.readline) == b""
        with pytest.raises(asyncio.CancelledError):
            await asking


async def test_of_a_command_that_writes_much_the_end_is_kept(machine: Machine) -> None:
    writes = "head --bytes 10000000 /dev/zero; echo; echo too hot; exit 1"
    assert await fault(machine, Command(("/bin/sh", "-c", writes))) == "/bin/sh: too hot"


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
    assert await fault(machine, Http(f"{address}/good/{{id}}")) == ""
    assert await fault(machine, Http(f"{address}/bad")) == f"{address}/bad: 503 Service Unavailable"


async def test_an_address_that_nobody_is_at_is_a_fault(machine: Machine) -> None:
    assert "refused" in str(await fault(machine, Http("http://127.0.0.1:1/")))


# Running them


@asynccontextmanager
async def checking(machine: Machine, *checks: Check) -> AsyncIterator[tuple[Checking, asyncio.Event]]:
    news = asyncio.Event()
    made = Checking(machine.host, checks, news.set)
    async with asyncio.timeout(20), made.running():
        yield made, news


async def turns(made: Checking, news: asyncio.Event, asked: Unit, reason: str) -> None:
    while made.reason(asked) != reason:
        news.clear()
        await news.wait()


async def test_a_device_fails_and_recovers_with_its_file(machine: Machine) -> None:
    path, asked = machine.write("/state", "live"), unit(machine)
    async with checking(machine, Check(question=File(path="/state", equals=["live"]), every=0.01)) as (made, news):
        await made.take([asked])
        assert made.reason(asked) == ""
        path.write_text("dead")
        await turns(made, news, asked, "/state is 'dead', not 'live'")
        path.write_text("live")
        await turns(made, news, asked, "")


async def test_a_new_device_is_not_called_good_before_it_was_checked(machine: Machine) -> None:
    asked = unit(machine)
    async with checking(machine, Check(question=Command(("/bin/sleep", "600")), every=3600, timeout=1.2)) as (
        made,
        news,
    ):
        await made.take([asked])
        assert made.reason(asked) == "not checked yet"
        await turns(made, news, asked, "a check did not end within 1.2 s")


async def test_what_a_pod_has_since_before_we_came_is_good_until_it_is_seen(machine: Machine) -> None:
    path = machine.pci("0000:3b:02.0", "8086:154c", "020000", "iavf")
    (machine.root / "sys/devices" / path / "net").mkdir()
    function = unit(machine, path)
    async with checking(machine, Check(question=Link(), every=0.01)) as (made, news):
        await made.take([function])
        assert made.reason(function) == ""
        machine.interface(path, "ens1", state="down")
        await turns(made, news, function, "link down: ens1")


async def test_a_whole_is_as_good_as_its_parts(machine: Machine) -> None:
    states = [machine.write(f"/state/{name}", "live") for name in "ab"]
    parts = tuple(Unit(name, facts={"name": name}) for name in "ab")
    strict, lenient = Unit("strict", parts=parts), Unit("lenient", parts=parts, one_is_enough=True)
    question = File(path="/state/{name}", equals=["live"])
    broken = "/state/a is 'dead', not 'live'"
    for dead, reasons in ((0, ("", "")), (1, (broken, "")), (2, (broken, broken))):
        for path in states[:dead]:
            path.write_text("dead")
        async with checking(machine, Check(question=question, every=3600)) as (made, _):
            await made.take([strict, lenient])
            assert (made.reason(strict), made.reason(lenient)) == reasons


class Hanging:
    """A driver that never answers, until it is let go."""

    stoppable = False

    def __init__(self) -> None:
        self.asked = 0
        self.released = asyncio.Event()

    async def fault(self, host: Host, unit: Unit) -> str:
        self.asked += 1
        await self.released.wait()
        return ""


class Clock:
    """Is asked as often as its neighbour should be."""

    stoppable = True

    def __init__(self, neighbour: Hanging) -> None:
        self._neighbour, self._asked = neighbour, 0
        self.rang = asyncio.Event()

    async def fault(self, host: Host, unit: Unit) -> str:
        self._asked += 1 if self._neighbour.asked else 0
        if self._asked == 20:
            self.rang.set()
        return ""


async def test_a_check_that_hangs_is_not_begun_again(machine: Machine) -> None:
    asked, question = unit(machine), Hanging()
    clock = Clock(question)
    checks = [
        Check(question=each, every=0.002, timeout=0.002, hysteresis=Hysteresis(1, 1)) for each in (question, clock)
    ]
    async with checking(machine, *checks) as (made, news):
        await made.take([asked])
        await turns(made, news, asked, "a check has not ended within 0.002 s")
        await clock.rang.wait()
        assert question.asked == 1
        question.released.set()
        await turns(made, news, asked, "")


async def test_what_is_no_longer_there_is_forgotten(machine: Machine) -> None:
    asked = unit(machine)
    async with checking(machine, Check(question=File(path="/none", equals=["1"]), every=3600)) as (made, _):
        await made.take([asked])
        assert made.reason(asked) == "/none: No such file or directory"
        await made.take([])
        machine.write("/none", "1")
        await made.take([asked])
        assert made.reason(asked) == ""


async def test_a_driver_that_hangs_keeps_nobody_waiting(machine: Machine) -> None:
    os.mkfifo(machine.root / "pipe")
    asked = unit(machine)
    async with checking(machine, Check(question=File(path="/pipe", equals=["1"]), every=3600, timeout=0.01)) as (
        made,
        news,
    ):
        await made.take([asked])
        await turns(made, news, asked, "a check has not ended within 0.01 s")
        Path(machine.root / "pipe").write_text("1")  # lets the thread go
