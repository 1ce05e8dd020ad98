"""The control socket answers whoever may open it, and nothing that anyone sends there can harm the daemon."""

import asyncio
import json
import logging
import resource
import socket
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from shutil import rmtree
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given
from hypothesis import settings as trying
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.observed_kubelet import ObservedKubelet
from tests.protocol.held_devices import serve_held_devices

from plugwright import Device, Plugin, Registration, Settings, serving
from plugwright.plugins.mock import Mock, MockOptions
from plugwright.protocol.pod_resources import HeldDevice
from plugwright.sdk.daemon import Daemon
from plugwright.testing import pod_requesting

NO_REQUESTS = {
    "nonsense": (b"nonsense", "not JSON: "),
    "an empty line": (b"", "not JSON: "),
    "bytes that are no text": (b"\xff\xfe\xfd", "not JSON: "),
    "a number of 5000 digits": (b"9" * 5000, "not JSON: "),
    "a list": (b"[]", "a request must be a JSON object"),
    "a text": (b'"status"', "a request must be a JSON object"),
    "an object of nothing": (b"{}", "unknown request: {}"),
    "an unknown word": (b'{"do": "dance"}', 'unknown request: {"do": "dance"}'),
    "no word": (b'{"do": ["watch"]}', "unknown request: "),
    "a cordon without a reason": (b'{"do": "cordon", "resource": "mock/gpu", "id": "x"}', "unknown request: "),
    "a wait that no float can hold": (
        b'{"do": "ready", "wait": 1' + b"0" * 400 + b"}",
        "seconds must be a finite number",
    ),
    "a wait that is no number": (b'{"do": "ready", "wait": NaN}', "seconds must be a finite number, got nan"),
    "a log level for longer than a float": (
        b'{"do": "log level", "level": "debug", "for": 1' + b"0" * 400 + b"}",
        "seconds must be a finite number",
    ),
    "a cordon for longer than a float": (
        b'{"do": "cordon", "resource": "mock/gpu", "id": "x", "reason": "y", "for": 1' + b"0" * 400 + b"}",
        "seconds must be a finite number",
    ),
    "a cordon until a time beyond a float": (
        b'{"do": "cordon", "resource": "mock/gpu", "id": "x", "reason": "y", "until": -1' + b"0" * 400 + b"}",
        "seconds must be a finite number",
    ),
    "a cordon of a number": (b'{"do": "cordon", "resource": 1, "id": 2, "reason": 3}', "unknown request: "),
    "a long request": (b'{"do": "' + b"x" * 60_000 + b'"}', 'unknown request: {"do": "xxx'),
    "an unknown resource": (
        b'{"do": "uncordon", "resource": "a/b", "id": "x"}',
        "no resource 'a/b' is served here (served: mock/gpu)",
    ),
    "an unknown command": (
        b'{"do": "plugin", "resource": "mock/gpu", "name": "dance", "arguments": {}}',
        "mock/gpu takes no command 'dance'",
    ),
}
TEARS = {
    "in the middle of a line": b'{"do": "sta',
    "before the answer": b'{"do": "status"}\n',
    "with an answer unread": b'{"do": "status"}\n' * 100,
    "while watching": b'{"do": "watch"}\n',
}


@pytest.fixture
def path(root: Path) -> Path:
    return root / "run" / "control.sock"


@pytest.fixture
def controlled(settings: Settings, path: Path) -> Settings:
    return replace(settings, control_socket=path)


@asynccontextmanager
async def two_devices(settings: Settings) -> AsyncIterator[Daemon]:
    async with serving(Mock("mock/gpu", MockOptions(count=2)), settings=settings) as daemon:
        await daemon.resource("mock/gpu").inventory.latest.until(lambda snapshot: snapshot is not None)
        yield daemon


class Client:
    """Whoever opened the socket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    def send(self, data: bytes) -> None:
        self._writer.write(data)

    async def answer(self) -> Any:
        async with asyncio.timeout(60):
            return json.loads(await self._reader.readline())

    async def ask(self, **request: object) -> Any:
        self.send(json.dumps(request).encode() + b"\n")
        return await self.answer()

    async def hung_up_on(self) -> bool:
        """Waits for the end; whatever comes before it is read."""
        async with asyncio.timeout(60):
            try:
                return await self._reader.read() is not None
            except ConnectionError:
                return True


@asynccontextmanager
async def client(path: Path) -> AsyncIterator[Client]:
    reader, writer = await asyncio.open_unix_connection(path, limit=2**20)
    try:
        yield Client(reader, writer)
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def until(happened: Callable[[], object]) -> None:
    """For what tells nobody when it happens."""
    async with asyncio.timeout(60):
        while not happened():
            await asyncio.sleep(0.01)


async def test_the_control_socket_is_for_its_owner_alone(controlled: Settings, path: Path) -> None:
    async with two_devices(controlled):
        assert path.stat().st_mode & 0o777 == 0o600
    assert not path.exists()


async def test_status_is_answered_again_and_again(controlled: Settings, path: Path) -> None:
    async with two_devices(controlled), client(path) as someone:
        for _ in range(3):
            answer = await someone.ask(do="status")
            assert [len(resource["devices"]) for resource in answer["ok"]["resources"]] == [2]


async def test_status_names_the_pod_of_each_held_device(
    kubelet: ObservedKubelet, controlled: Settings, path: Path
) -> None:
    async with two_devices(controlled), client(path) as someone:
        await kubelet.endpoint("mock/gpu", 2)
        await kubelet.kubelet.admit(pod_requesting({"mock/gpu": 1}, name="reader"))
        async with asyncio.timeout(60):
            while True:
                [gpu] = (await someone.ask(do="status"))["ok"]["resources"]
                if sorted(device["pods"] for device in gpu["devices"]) == [[], ["default/reader"]]:
                    break


async def test_a_report_has_the_resources_and_their_devices(controlled: Settings, path: Path) -> None:
    async with two_devices(controlled), client(path) as someone:
        answer = (await someone.ask(do="report"))["ok"]
    assert answer["kind"] == "NodeReport"
    [gpu] = answer["resources"]
    assert (gpu["name"], len(gpu["devices"])) == ("mock/gpu", 2)


class SilentKubelet:
    """Its pod-resources API accepts requests, and answers them only while `answering` is set."""

    def __init__(self) -> None:
        self.answering = asyncio.Event()
        self.answering.set()

    async def held_devices(self) -> list[HeldDevice]:
        await self.answering.wait()
        return [HeldDevice("mock/gpu", "mock-0", "default", "reader", "main")]


async def test_status_answers_while_pod_resources_hang_and_names_them(controlled: Settings, path: Path) -> None:
    silent = SilentKubelet()
    socket_path = controlled.paths.pod_resources_socket
    socket_path.parent.mkdir()
    async with serve_held_devices(silent, socket_path), two_devices(controlled), client(path) as someone:
        silent.answering.clear()
        for _ in range(2):
            status = (await someone.ask(do="status"))["ok"]
            assert status["pods_unreadable"] == "pod-resources has not answered yet"
            assert len(status["resources"][0]["devices"]) == 2
        silent.answering.set()
        async with asyncio.timeout(60):
            while (await someone.ask(do="status"))["ok"]["pods_unreadable"]:
                await asyncio.sleep(0.01)


async def answers(path: Path) -> None:
    """Returns when the socket is there and answers."""

    async def attempt() -> bool:
        try:
            async with client(path) as someone:
                return "ok" in await someone.ask(do="status")
        except (OSError, ValueError):
            return False

    async with asyncio.timeout(60):
        while not await attempt():
            await asyncio.sleep(0.01)


async def test_a_removed_control_socket_is_made_again(controlled: Settings, path: Path) -> None:
    async with two_devices(controlled):
        for remove in (path.unlink, lambda: path.rename(path.with_name("moved")), lambda: rmtree(path.parent)):
            await answers(path)
            remove()
        await answers(path)
        assert path.stat().st_mode & 0o777 == 0o600


async def test_a_control_socket_that_another_process_had_is_made_when_that_ends(
    controlled: Settings, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path.parent.mkdir()
    with socket.socket(socket.AF_UNIX) as predecessor:
        predecessor.bind(str(path))
        predecessor.listen()
        async with two_devices(controlled):
            assert [record.message for record in caplog.records].count("no control socket") == 1
            predecessor.close()
            await answers(path)


@pytest.mark.parametrize(("line", "said"), NO_REQUESTS.values(), ids=NO_REQUESTS)
async def test_an_invalid_request_is_answered_with_the_reason(
    controlled: Settings, path: Path, line: bytes, said: str
) -> None:
    async with two_devices(controlled), client(path) as someone:
        someone.send(line + b"\n")
        assert (await someone.answer())["error"].startswith(said)
        assert "ok" in await someone.ask(do="status")


async def test_deeply_nested_json_is_answered_with_the_reason(controlled: Settings, path: Path) -> None:
    async with two_devices(controlled), client(path) as someone:
        someone.send(b"[" * 60_000 + b"\n")
        assert "error" in await someone.answer()


async def test_a_line_without_end_ends_the_connection(controlled: Settings, path: Path) -> None:
    async with two_devices(controlled), client(path) as someone, client(path) as another:
        someone.send(b"x" * 1_000_000)
        assert await someone.hung_up_on()
        assert "ok" in await another.ask(do="status")


@pytest.mark.parametrize("sent", TEARS.values(), ids=TEARS)
async def test_a_client_that_leaves_does_not_disturb_the_others(
    controlled: Settings, path: Path, sent: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with two_devices(controlled), client(path) as another:
        for _ in range(20):
            with socket.socket(socket.AF_UNIX) as someone:
                someone.connect(str(path))
                someone.sendall(sent)
        assert "ok" in await another.ask(do="status")
    assert [record for record in caplog.records if record.name != "asyncio" and record.levelno > logging.WARNING] == []


@pytest.mark.skipif(
    resource.getrlimit(resource.RLIMIT_NOFILE)[0] < 384,
    reason="needs 384 file descriptors, for 100 connections' two ends",
)
async def test_a_hundred_clients_are_answered_at_once(controlled: Settings, path: Path) -> None:
    async with two_devices(controlled), AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(client(path)) for _ in range(100)]
        answers = await asyncio.gather(*(client.ask(do="status") for client in clients))
        assert all(answer["ok"] == answers[0]["ok"] for answer in answers)


def health(answer: Mapping[str, Any]) -> list[str]:
    return [device["health"] for device in answer["ok"]["resources"][0]["devices"]]


async def test_a_watcher_gets_a_report_after_every_change(controlled: Settings, path: Path) -> None:
    async with two_devices(controlled) as daemon, client(path) as watcher, client(path) as operator:
        first, _ = daemon.resource("mock/gpu").inventory.latest.value.devices  # type: ignore[union-attr]
        answer = await watcher.ask(do="watch")
        assert health(answer) == ["Healthy", "Healthy"]
        said = await operator.ask(do="cordon", resource="mock/gpu", id=first, reason="it smells")
        assert said == {"ok": f"{first} of mock/gpu is cordoned: it smells"}
        while health(answer) != ["Unhealthy", "Healthy"]:
            answer = await watcher.answer()
        said = await operator.ask(do="uncordon", resource="mock/gpu", id=first)
        assert said == {"ok": f"{first} of mock/gpu is no longer cordoned"}
        while health(answer) != ["Healthy", "Healthy"]:
            answer = await watcher.answer()


@pytest.mark.parametrize(
    "registration",
    [
        Registration.DIRECT,
        Registration.WATCHER,
    ],
)
async def test_registrations_are_counted(
    kubelet: ObservedKubelet, controlled: Settings, path: Path, registration: Registration
) -> None:
    async with two_devices(replace(controlled, registration=registration)) as daemon, client(path) as someone:
        await daemon.resource("mock/gpu").registration.status.until(lambda standing: standing.state == "registered")
        [gpu] = (await someone.ask(do="status"))["ok"]["resources"]
        assert gpu["registrations"] == 1
        await kubelet.endpoint("mock/gpu", 2)


class Failing(Plugin):
    """Finds one device, and then nothing but trouble."""

    resource = "example.com/failing"

    def __init__(self) -> None:
        self.trouble = asyncio.Event()

    async def discover(self) -> AsyncIterator[list[Device]]:
        yield [Device("one")]
        await self.trouble.wait()
        raise OSError("the bus is gone")


async def test_a_watcher_gets_a_report_when_discovery_fails(settings: Settings) -> None:
    plugin = Failing()
    patient = replace(settings, timeouts=replace(settings.timeouts, discovery=30))
    async with serving(plugin, settings=patient) as daemon:
        runtime = daemon.resource("example.com/failing")
        await until(lambda: runtime.registration.status.value.state == "waiting")
        before = daemon.changed.count
        plugin.trouble.set()
        await until(lambda: runtime.discovery.failing.value)
        assert daemon.changed.count > before


async def test_watchers_are_disconnected_when_the_daemon_ends(controlled: Settings, path: Path) -> None:
    async with AsyncExitStack() as stack:
        async with two_devices(controlled):
            clients = [await stack.enter_async_context(client(path)) for _ in range(5)]
            for watcher in clients[:3]:
                assert "ok" in await watcher.ask(do="watch")
        assert all([await client.hung_up_on() for client in clients])


async def test_a_daemon_with_watchers_ends_without_an_error(
    controlled: Settings, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with AsyncExitStack() as stack:
        async with two_devices(controlled):
            watcher = await stack.enter_async_context(client(path))
            await watcher.ask(do="watch")
        assert await watcher.hung_up_on()
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []


async def test_a_watcher_that_left_costs_nothing(controlled: Settings, path: Path) -> None:
    async with two_devices(controlled) as daemon:
        await until(lambda: daemon.resource("mock/gpu").registration.status.value.state == "waiting")
        before = descriptors()
        for _ in range(10):
            async with client(path) as watcher:
                await watcher.ask(do="watch")
        async with client(path) as someone:
            for _ in range(20):  # whatever has arrived at the daemon before is seen by it by then
                await someone.ask(do="status")
        assert descriptors() <= before + 2  # both ends of the last one may not be closed yet


async def test_the_socket_of_a_killed_daemon_is_replaced(controlled: Settings, path: Path) -> None:
    path.parent.mkdir()
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(path))
    async with two_devices(controlled), client(path) as someone:
        assert "ok" in await someone.ask(do="status")


async def test_the_socket_of_a_daemon_that_runs_is_left_alone(
    controlled: Settings, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with two_devices(controlled):
        inode = path.stat().st_ino
        async with serving(settings=controlled):
            assert said(caplog, "no control socket") == [f"another process listens on {path}"]
        assert path.stat().st_ino == inode
        async with client(path) as someone:
            assert len((await someone.ask(do="status"))["ok"]["resources"]) == 1


def said(caplog: pytest.LogCaptureFixture, message: str) -> list[str]:
    return [vars(record)["error"] for record in caplog.records if record.getMessage() == message]


async def test_a_daemon_that_ends_leaves_the_socket_of_another(controlled: Settings, path: Path) -> None:
    async with AsyncExitStack() as other:
        async with two_devices(controlled):
            path.unlink()
            await other.enter_async_context(serving(settings=controlled))
        async with client(path) as someone:
            assert (await someone.ask(do="status"))["ok"]["resources"] == []


async def test_a_file_that_is_no_socket_is_left_alone(
    controlled: Settings, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path.parent.mkdir()
    path.write_text("precious")
    async with two_devices(controlled):
        assert len(said(caplog, "no control socket")) == 1
    assert path.read_text() == "precious"


@pytest.mark.parametrize("place", ["a-file/control.sock", "a-directory", "x" * 120])
async def test_a_daemon_without_a_control_socket_logs_that_and_goes_on(
    settings: Settings, root: Path, place: str, caplog: pytest.LogCaptureFixture
) -> None:
    root.joinpath("a-file").touch()
    root.joinpath("a-directory").mkdir()
    async with two_devices(replace(settings, control_socket=root / place)):
        assert len(said(caplog, "no control socket")) == 1


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just("mock/gpu"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
_REQUESTS = st.fixed_dictionaries(
    {"do": st.sampled_from(["status", "cordon", "uncordon", "plugin"]) | _VALUES},
    optional=dict.fromkeys(("resource", "id", "reason", "name", "arguments"), _VALUES),
)
_LINES = (st.binary(max_size=40) | _REQUESTS.map(lambda request: json.dumps(request).encode())).map(
    lambda line: line.replace(b"\n", b"")
)


def watches(line: bytes) -> bool:
    """Such a request is answered by changes from then on. Hypothesis finds one among this module's constants."""
    try:
        request = json.loads(line)
    except ValueError:
        return False
    return isinstance(request, dict) and request.get("do") == "watch"


@trying(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(lines=st.lists(_LINES.filter(lambda line: not watches(line)), max_size=20))
@example(lines=[b'{"do": "watch"', b"", b"[]"])
async def test_any_bytes_sent_leave_the_daemon_running(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes]
) -> None:
    root = tmp_path_factory.mktemp("k")
    path = root / "control.sock"
    async with two_devices(Settings(kubelet_dir=root, control_socket=path)), client(path) as someone:
        for line in lines:
            someone.send(line + b"\n")
            assert set(await someone.answer()) < {"ok", "error"}
        assert "ok" in await someone.ask(do="status")


class Refusing:
    def __str__(self) -> str:
        raise ValueError("no text")


class RefusingMapping(dict[str, object]):
    def items(self) -> Any:
        raise ValueError("no items")


CIRCLE: dict[str, object] = {}
CIRCLE["again"] = CIRCLE
ATTRIBUTES: dict[str, tuple[object, object]] = {
    "a path": (Path("/sys/class/tape"), "/sys/class/tape"),
    "a key that JSON has not": ({(1, 2): {None: 3}}, {"(1, 2)": {"None": 3}}),
    "a tuple": ((1, (2.5, True, None)), [1, [2.5, True, None]]),
    "no number": (float("nan"), "nan"),
    "a number that no one reads": ([10**5000], ["int"]),
    "a large number": ([2**70], [str(2**70)]),
    "no text": (Refusing(), "Refusing"),
}


class Documented(Plugin):
    resource = "example.com/documented"

    def __init__(self, attributes: Mapping[str, object]) -> None:
        self.attributes = attributes

    async def discover(self) -> AsyncIterator[list[Device]]:
        yield [Device("one", attributes=self.attributes)]


async def shown(settings: Settings, path: Path, attributes: Mapping[str, object]) -> object:
    async with serving(Documented(attributes), settings=settings) as daemon, client(path) as asking:
        await daemon.resource("example.com/documented").inventory.latest.until(lambda snapshot: snapshot is not None)
        answer = await asking.ask(do="status")
    return answer["ok"]["resources"][0]["devices"][0]["attributes"]


@pytest.mark.parametrize("value", ATTRIBUTES)
async def test_attributes_that_are_no_json_are_sent_as_json(controlled: Settings, path: Path, value: str) -> None:
    given, sent = ATTRIBUTES[value]
    assert await shown(controlled, path, {"given": given}) == {"given": sent}


@pytest.mark.parametrize("value", [CIRCLE, RefusingMapping(a=1)], ids=["a circle", "a mapping that refuses"])
async def test_attributes_that_cannot_be_shown_do_not_break_the_status(
    controlled: Settings, path: Path, value: object
) -> None:
    assert await shown(controlled, path, {"given": value})


async def test_a_watcher_gets_at_most_ten_reports_a_second(controlled: Settings, path: Path) -> None:
    """However many changes there are, and however slow this machine is: so the time it took is what counts."""
    async with two_devices(controlled) as daemon, client(path) as watcher, client(path) as operator:
        first, _ = daemon.resource("mock/gpu").inventory.latest.value.devices  # type: ignore[union-attr]
        reports, begin = 0, time.monotonic()
        await watcher.ask(do="watch")

        async def count() -> None:
            nonlocal reports
            while await watcher.answer():
                reports += 1

        counting = asyncio.create_task(count())
        for _ in range(100):
            await operator.ask(do="cordon", resource="mock/gpu", id=first, reason="it smells")
            await operator.ask(do="uncordon", resource="mock/gpu", id=first)
        counting.cancel()
        await asyncio.gather(counting, return_exceptions=True)
        assert reports <= (time.monotonic() - begin) * 10 + 1
