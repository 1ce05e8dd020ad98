"""Finds a daemon: of this machine, of a node of the running `plugwright up`, or of a node of any cluster.

Without a node it is the daemon of this machine, or if none listens there, that of the only node of the running
`plugwright up`. With a node, a kubeconfig chosen by the caller determines the cluster; otherwise the running
`plugwright up` has precedence, so that a command for an emulated node never reaches a real one of the same name.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

import msgspec

from plugwright.cluster.up.state_directory import StateDirectory, state_directory
from plugwright.errors import ConfigError, PeerGone, PlugwrightError
from plugwright.kube import kubeconfig as kubeconfigs
from plugwright.kube.access import ClusterAccess
from plugwright.kube.api_client import BlockingClient
from plugwright.kube.remote_daemon import RemoteDaemon, ReportPorts, daemon_pods, find_daemon_pod, report_port
from plugwright.model import natural_order, some
from plugwright.system import json_lines, sockets
from plugwright.text import clean

__all__ = [
    "CONTROL_SOCKET",
    "SELECTOR",
    "DaemonChoice",
    "LocalDaemon",
    "ReachableDaemon",
    "ask_all",
    "cluster_access",
    "find_all",
    "find_at",
    "find_daemon",
]

CONTROL_SOCKET = Path("/run/plugwright/control.sock")
SELECTOR = "app.kubernetes.io/name=plugwright"
_AT_ONCE = 16  # daemons queried at a time
_ELSEWHERE = "is `plugwright run` running? For the daemon of a cluster's node, give --node NODE"


class ReachableDaemon(Protocol):
    @property
    def node(self) -> str: ...

    @property
    def via(self) -> str:
        """How its last answer was read."""
        ...

    def ask(self, request: Mapping[str, object]) -> Any:
        """The daemon's single answer."""
        ...

    def follow(self, request: Mapping[str, object]) -> Iterator[Any]:
        """Yields answers for as long as the daemon runs."""
        ...


class DaemonChoice(msgspec.Struct, frozen=True):
    """The flags that choose a daemon; None and empty strings were not given."""

    socket: Path | None = None
    node: str = ""
    kubeconfig: Path | None = None
    context: str | None = None
    selector: str = SELECTOR
    namespace: str | None = None  # of the daemon's pod
    here: Path = CONTROL_SOCKET  # of this machine's daemon, if none is chosen
    ports: ReportPorts = msgspec.field(default_factory=ReportPorts)  # of one command, however often it finds daemons


class LocalDaemon:
    """A daemon whose control socket is on this machine."""

    def __init__(self, path: Path, node: str = "") -> None:
        self.path, self.node = path, node

    def __str__(self) -> str:
        return f"control socket {self.path}"

    @property
    def via(self) -> str:
        return str(self)

    def ask(self, request: Mapping[str, object]) -> Any:
        with self._errors():
            return json_lines.ask(self.path, request)

    def follow(self, request: Mapping[str, object]) -> Iterator[Any]:
        with self._errors():
            yield from json_lines.follow(self.path, request)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            raise PeerGone(f"no daemon here: {self.path} does not exist; {_ELSEWHERE}") from error
        except ConnectionRefusedError as error:
            raise PeerGone(f"no daemon here: no process listens on {self.path}; {_ELSEWHERE}") from error
        except PermissionError as error:
            raise ConfigError(f"no permission to open {self.path}: try as root") from error
        except OSError as error:
            raise ConfigError(f"cannot open {self.path}: {error}") from error


def find_daemon(choice: DaemonChoice, environment: Mapping[str, str] = os.environ) -> ReachableDaemon:
    """The chosen daemon."""
    if not choice.node:
        return LocalDaemon(choice.socket) if choice.socket is not None else _daemon_here(choice, environment)
    access, up = _cluster(choice, environment, choice.node)
    if up is not None:
        return _node_of(up, choice.node)
    assert access is not None
    with BlockingClient(access) as client:
        pods = daemon_pods(client, choice.selector, choice.namespace, choice.node)
    container = find_daemon_pod(pods, choice.node, choice.selector)
    return RemoteDaemon(access, choice.node, container, report_port(pods[0]), choice.ports)


def find_all(choice: DaemonChoice, environment: Mapping[str, str] = os.environ) -> list[ReachableDaemon]:
    """The daemons of all nodes of the chosen cluster, by the name of their node."""
    access, up = _cluster(choice, environment)
    if up is not None:
        found: list[ReachableDaemon] = [_node_of(up, node) for node in up["nodes"]]
    else:
        assert access is not None
        found = list(_remote_daemons(access, choice))
    return sorted(found, key=lambda daemon: natural_order(daemon.node))


def find_at(
    access: ClusterAccess, choice: DaemonChoice, environment: Mapping[str, str] = os.environ
) -> list[ReachableDaemon]:
    """The daemons of the cluster of one API server, whichever cluster the other flags would choose."""
    up = next((up for up in _running_clusters(choice, environment) if up["server"] == access.url), None)
    if up is not None:
        return [_node_of(up, node) for node in up["nodes"]]
    return list(_remote_daemons(access, choice))


def cluster_access(choice: DaemonChoice, environment: Mapping[str, str] = os.environ, node: str = "") -> ClusterAccess:
    """The API server of the chosen cluster, which has this node."""
    access, up = _cluster(choice, environment, node)
    if up is not None:
        access = ClusterAccess.of_kubeconfig(Path(up["kubeconfig"]), None, environment)
    assert access is not None  # because the file was given
    return access


def ask_all(
    daemons: Sequence[ReachableDaemon], request: Mapping[str, object]
) -> Iterator[tuple[ReachableDaemon, Any, str]]:
    """Each daemon with its answer, or with the reason why there is none; in the order of the daemons."""

    def answered(daemon: ReachableDaemon) -> tuple[ReachableDaemon, Any, str]:
        try:
            return daemon, daemon.ask(request), ""
        except PlugwrightError as error:
            return daemon, None, clean(error)

    with ThreadPoolExecutor(max_workers=_AT_ONCE) as threads:
        yield from threads.map(answered, daemons)


def _remote_daemons(access: ClusterAccess, choice: DaemonChoice) -> Iterator[RemoteDaemon]:
    with BlockingClient(access) as client:
        pods = daemon_pods(client, choice.selector, choice.namespace)
    for pod in pods:
        node = str((pod.get("spec") or {}).get("nodeName") or "")
        container = find_daemon_pod([pod], node, choice.selector)
        yield RemoteDaemon(access, node, container, report_port(pod), choice.ports)


def _daemon_here(choice: DaemonChoice, environment: Mapping[str, str]) -> LocalDaemon:
    with suppress(OSError):
        if sockets.is_listening(choice.here):  # or cannot be opened: the error contains the reason
            return LocalDaemon(choice.here)
    # A killed daemon leaves its socket behind, which must not hide the cluster.
    up = next(_running_clusters(choice, environment), None)
    if up is None:
        return LocalDaemon(CONTROL_SOCKET)
    nodes = list(up["nodes"])
    if len(nodes) > 1:
        where = f"the running `plugwright up` has {_nodes(up)}"
        raise ConfigError(f"no daemon listens on {choice.here}; {where}: choose one with --node")
    return _node_of(up, nodes[0])


def _cluster(
    choice: DaemonChoice, environment: Mapping[str, str], node: str = ""
) -> tuple[ClusterAccess | None, Mapping[str, Any] | None]:
    """The chosen cluster: its API server, or the running `plugwright up`."""
    running = list(_running_clusters(choice, environment))
    if choice.kubeconfig is None and choice.context is None and not environment.get("KUBECONFIG"):
        up = next((up for up in running if not node or node in up["nodes"]), None)
        if up is not None:
            return None, up
        try:
            return ClusterAccess.choose(None, None, environment), None
        except ConfigError:
            if running:  # and no other cluster is known
                return None, running[0]
            raise
    access = ClusterAccess.choose(choice.kubeconfig, choice.context, environment)
    up = next((up for up in running if up["server"] == access.url), None)
    return (None, up) if up is not None else (access, None)


def _running_clusters(choice: DaemonChoice, environment: Mapping[str, str]) -> Iterator[Mapping[str, Any]]:
    """The clusters of `plugwright up` with a known state directory: from its variable, a kubeconfig, or the default."""
    found = []
    if environment.get("PLUGWRIGHT_STATE"):
        found.append(state_directory(Path(environment["PLUGWRIGHT_STATE"]), environment))
    with suppress(PlugwrightError, OSError):
        files = kubeconfigs.find_files(choice.kubeconfig, environment, Path(environment.get("HOME") or "/"))
        found += [StateDirectory(path.absolute().parent, kept=True) for path in files]
    found.append(state_directory(None, environment))
    for directory in found:
        with suppress(PlugwrightError, OSError, KeyError, TypeError):
            if directory.path.stat().st_uid == os.getuid():
                info = directory.running_cluster()
                if info["server"] and info["nodes"]:
                    yield info


def _node_of(up: Mapping[str, Any], node: str) -> LocalDaemon:
    if node not in up["nodes"]:
        raise ConfigError(f"the running `plugwright up` has no node {node!r} (it has: {_nodes(up)})")
    return LocalDaemon(Path(up["nodes"][node]["control_socket"]), node)


def _nodes(up: Mapping[str, Any]) -> str:
    return some(sorted(up["nodes"], key=natural_order))
