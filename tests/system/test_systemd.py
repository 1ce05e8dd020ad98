"""Messages to systemd arrive on the socket that it names, and nowhere else."""

import os
import socket
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.cli.processes import Node, python, running
from tests.observed_kubelet import ObservedKubelet

from plugwright.system.systemd import Systemd


@pytest.fixture(params=["path", "abstract"])
def listening(request: pytest.FixtureRequest, root: Path) -> Iterator[tuple[socket.socket, str]]:
    name = str(root / "notify") if request.param == "path" else f"@plugwright-test-{root.name}"
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as listening:
        listening.bind(name.replace("@", "\0"))
        listening.settimeout(60)
        yield listening, name


def received(listening: socket.socket) -> dict[str, str]:
    return dict(line.split("=", 1) for line in listening.recv(4096).decode().split("\n"))


def test_systemd_hears_of_each_state(listening: tuple[socket.socket, str]) -> None:
    systemd = Systemd({"NOTIFY_SOCKET": listening[1]})
    systemd.ready()
    assert received(listening[0]) == {"READY": "1"}
    before = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    systemd.reloading()
    after = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    reloading = received(listening[0])
    assert reloading.pop("RELOADING") == "1"
    assert before // 1000 <= int(reloading.pop("MONOTONIC_USEC")) <= after // 1000
    assert not reloading
    systemd.stopping()
    assert received(listening[0]) == {"STOPPING": "1"}
    systemd.alive()
    assert received(listening[0]) == {"WATCHDOG": "1"}


def test_a_status_is_sent_when_it_changes(listening: tuple[socket.socket, str]) -> None:
    systemd = Systemd({"NOTIFY_SOCKET": listening[1]})
    for text in ("starting", "starting", "serving"):
        systemd.status(text)
    assert [received(listening[0]), received(listening[0])] == [{"STATUS": "starting"}, {"STATUS": "serving"}]


@pytest.mark.parametrize(
    ("environment", "seconds"),
    [
        ({"WATCHDOG_USEC": "30000000"}, 30.0),
        ({"WATCHDOG_USEC": "500000", "WATCHDOG_PID": str(os.getpid())}, 0.5),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}, 0.0),  # its parent's
        ({"WATCHDOG_USEC": "often"}, 0.0),
        ({}, 0.0),
    ],
)
def test_the_watchdog_is_ours_only_where_systemd_says_so(environment: dict[str, str], seconds: float) -> None:
    assert Systemd({"NOTIFY_SOCKET": "/run/systemd/notify", **environment}).watchdog == seconds


@pytest.mark.parametrize("address", ["", "/there/is/no/such/socket", "@" + "x" * 200])
def test_no_systemd_is_no_trouble(address: str) -> None:
    systemd = Systemd({"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "1"})
    systemd.ready()
    systemd.status("serving")


async def test_a_daemon_tells_systemd_how_it_is(kubelet: ObservedKubelet, root: Path) -> None:
    node = Node(root)
    node.configure(gpu={"count": 1})
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as listening:
        listening.bind(str(root / "notify"))
        listening.settimeout(60)
        where = {"NOTIFY_SOCKET": str(root / "notify"), "WATCHDOG_USEC": "200000"}
        async with running(node.command(), where) as daemon:
            messages: list[dict[str, str]] = []

            def until(name: str, value: str = "1") -> None:
                while not messages or messages[-1].get(name) != value:
                    messages.append(received(listening))

            await daemon.err.until("registered")
            until("READY")
            until("STATUS", "1 of 1 resources registered and watched by the kubelet")
            until("WATCHDOG")
            until("WATCHDOG")
            node.configure(gpu={"count": 2})
            await daemon.err.until("configuration reloaded")
            until("RELOADING")
            until("READY")
            daemon.process.terminate()
            until("STOPPING")
            assert await daemon.ends() == 0
    names = [name for message in messages for name in message]
    assert names.index("READY") < names.index("RELOADING") < names.index("STOPPING")


# Blocks the event loop for ten times as long as there is between two pings, and says so on the socket of the pings.
BLOCKING = """
import asyncio
import os
import socket
import sys
import time
from plugwright import Device, Plugin, Settings, run

def say(word):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.sendto(f"LOOP={word}".encode(), os.environ["NOTIFY_SOCKET"])

class Blocking(Plugin):
    resource = "example.com/blocking"

    async def discover(self):
        yield [Device("one")]
        await asyncio.sleep(0.2)
        say("blocked")
        time.sleep(0.5)
        say("free")
        await asyncio.Event().wait()

run(Blocking(), settings=Settings(kubelet_dir=sys.argv[1]))
"""


async def test_pings_stop_while_the_event_loop_is_blocked(root: Path) -> None:
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as listening:
        listening.bind(str(root / "notify"))
        listening.settimeout(60)
        where = {"NOTIFY_SOCKET": str(root / "notify"), "WATCHDOG_USEC": "100000"}
        async with running(python("-c", BLOCKING, root), where):
            messages = [received(listening)]
            while messages[-1] != {"LOOP": "free"}:
                messages.append(received(listening))
            blocked = messages.index({"LOOP": "blocked"})
            assert {"WATCHDOG": "1"} in messages[:blocked]
            assert {"WATCHDOG": "1"} not in messages[blocked:]
            while received(listening) != {"WATCHDOG": "1"}:
                pass
