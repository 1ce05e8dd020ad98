"""Messages to systemd arrive on the socket that it names, and nowhere else."""

import os
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.cli.processes import Node, running
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
    systemd.reloading()
    reloading = received(listening[0])
    assert reloading.pop("RELOADING") == "1"
    assert int(reloading.pop("MONOTONIC_USEC")) > 0
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
