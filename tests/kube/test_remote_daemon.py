"""A daemon's report through the API server's proxy of pods: ports that do not answer delay nothing else."""

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.kube.exec_server import ExecServer, daemon_pod, exec_server, frame

from plugwright.errors import PeerSilent
from plugwright.fleet.daemons import DaemonChoice, ask_all, find_all, find_daemon
from plugwright.kube.access import ClusterAccess
from plugwright.kube.credentials import Credentials
from plugwright.kube.remote_daemon import ReportPorts

NODES = ["worker-1", "worker-2"]
REPORT = {"do": "report"}


@contextmanager
def silent_port() -> Iterator[socket.socket]:
    """A port whose connections are accepted, by the kernel alone, and never answered."""
    with socket.create_server(("127.0.0.1", 0), backlog=32) as listener:
        yield listener


def port_of(server: ExecServer, node: str, listener: socket.socket) -> None:
    server.proxied[f"/api/v1/namespaces/devices/pods/{node}:9400/proxy/"] = listener.getsockname()[1]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[ExecServer]:
    """The API server of two nodes with daemons, of which each has a port and can be reached by exec."""
    pods = [daemon_pod(node, node) for node in NODES]
    for pod in pods:
        pod["metadata"]["annotations"] = {"plugwright.dev/node-report": "9400"}
    with exec_server(pods) as served:
        answer = json.dumps({"ok": {"by": "exec"}}).encode()
        served.frames = [frame(1, answer + b"\n"), frame(3, b'{"status": "Success"}')]
        served.kubeconfig(tmp_path / "config")
        yield served


def chosen(tmp_path: Path, limit: float, node: str = "") -> DaemonChoice:
    return DaemonChoice(node=node, kubeconfig=tmp_path / "config", ports=ReportPorts(limit))


def reads_of_ports(server: ExecServer) -> list[str]:
    return [path for path in server.requests if "/proxy/" in path]


def test_a_port_that_never_answers_is_read_by_exec_and_not_asked_again_by_the_command(
    server: ExecServer, tmp_path: Path
) -> None:
    choice = chosen(tmp_path, 1.0, "worker-1")
    with silent_port() as listener:
        port_of(server, "worker-1", listener)
        first, second = find_daemon(choice), find_daemon(choice)  # as `who` finds it for the holder and the history
        assert first.ask(REPORT) == {"by": "exec"}
        assert first.via == "pod devices/worker-1; its port 9400 cannot be read: it did not answer within 1 s"
        assert second.ask(REPORT) == {"by": "exec"}
        assert second.via == "pod devices/worker-1; its port 9400 cannot be read: it did not answer before"
        assert len(reads_of_ports(server)) <= 1


def test_a_connection_that_times_out_is_a_silent_peer() -> None:
    """The socket's limit and that of the request are equal: either can end the wait."""
    access = ClusterAccess("http://127.0.0.1:1", Credentials("token"))
    assert isinstance(access.gone(TimeoutError("timed out")), PeerSilent)
    assert not isinstance(access.gone(ConnectionRefusedError()), PeerSilent)


def test_a_port_that_does_not_answer_delays_no_other_node(server: ExecServer, tmp_path: Path) -> None:
    other_was_read = threading.Event()

    def serve(listener: socket.socket, before: threading.Event | None) -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(2**12)
            if before is not None:
                before.wait()
            body = b'{"by": "proxy"}'
            connection.sendall(b"HTTP/1.0 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        other_was_read.set()

    with silent_port() as waiting, silent_port() as other:
        for node, listener in zip(NODES, (waiting, other), strict=True):
            port_of(server, node, listener)
        threads = [
            threading.Thread(target=serve, args=arguments) for arguments in ((waiting, other_was_read), (other, None))
        ]
        for thread in threads:
            thread.start()
        answers: list[tuple[str, Any]] = [
            (daemon.via, answer) for daemon, answer, _ in ask_all(find_all(chosen(tmp_path, 120.0)), REPORT)
        ]
        for thread in threads:
            thread.join()
    assert answers == [(f"the proxy of pod devices/{node}", {"by": "proxy"}) for node in NODES]


def test_a_silent_port_is_asked_again_after_minutes() -> None:
    now = [100.0]
    ports = ReportPorts(5.0, lambda: now[0])
    ports.was_silent("pod a")
    assert (ports.wait("pod a"), ports.wait("pod b")) == (0.0, 5.0)
    now[0] += 3600
    assert ports.wait("pod a") == 5.0
    ports.answered("pod a")
    now[0] -= 3600
    assert ports.wait("pod a") == 5.0


def test_the_wait_is_shorter_if_no_port_of_many_nodes_answers() -> None:
    ports = ReportPorts(5.0)
    for number in range(16):
        assert ports.wait(f"pod {number}") == 5.0
        ports.was_silent(f"pod {number}")
    assert ports.wait("pod 16") == 1.0
    ports.answered("pod 16")
    assert ports.wait("pod 17") == 5.0
