"""The daemons of a cluster's nodes, reached through its API server: requests to their control sockets, by exec.

If a daemon's pod has the annotation of a port, its NodeReport and history are read through the API server's proxy of
pods, and by exec only if that fails: whoever may not exec into the pod still sees the node's devices. A network policy
can drop the packets to such a port. So the wait is short, and a silent port is not asked again for a while.

A user who can exec into a daemon's pod can send it every request, and the daemon needs no right for this. The hidden
command `plugwright request` in the pod passes one request to the control socket and prints the responses, so all
commands work alike for the local daemon and for the daemon of any node.
"""

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from plugwright.errors import ConfigError, MalformedMessage, PeerGone, PeerRefused, PeerSilent, PlugwrightError
from plugwright.grammars import DNS_SUBDOMAIN
from plugwright.kube.access import ClusterAccess
from plugwright.kube.answers import Document
from plugwright.kube.api_client import BlockingClient, segment
from plugwright.kube.pod_exec import ExecTarget, exec_lines
from plugwright.text import clean

__all__ = ["DAEMON_CONTAINER", "RemoteDaemon", "ReportPorts", "daemon_pods", "find_daemon_pod", "report_port"]

DAEMON_CONTAINER = "plugwright"
_PORT_ANNOTATION = "plugwright.dev/node-report"
_PORT = re.compile(r"(https:)?(\d{1,5})")
_PAST = 7 * 86_400.0 - 60  # seconds of history that its page has, less a minute between the clocks
_PORT_LIMIT, _LATER_PORT_LIMIT = 5.0, 1.0  # seconds; a daemon answers within one, its API server passes that on
_MANY_SILENT = 16  # ports, without any that answers: a policy applies to the pods of every node
_SILENT_FOR = 300.0  # seconds until a silent port is asked again
_LIMIT = 60.0  # seconds of silence; a daemon answers within 15
_COMMAND_LIMIT = 300.0  # seconds; a check of `doctor` that hangs takes 30


class ReportPorts:
    """How long to wait for the port of each pod, from the answers of all ports that a command or the page has asked."""

    __slots__ = ("_clock", "_is_any_heard", "_limit", "_silent")

    def __init__(self, limit: float = _PORT_LIMIT, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit, self._clock = limit, clock
        self._silent: dict[str, float] = {}  # since when, by pod
        self._is_any_heard = False

    def wait(self, pod: str) -> float:
        """In seconds; 0 for a port that was silent a short time ago."""
        since = self._silent.get(pod)
        if since is not None and self._clock() < since + _SILENT_FOR:
            return 0.0
        are_many_silent = len(self._silent) >= _MANY_SILENT and not self._is_any_heard
        return min(self._limit, _LATER_PORT_LIMIT) if are_many_silent else self._limit

    def answered(self, pod: str) -> None:
        self._silent.pop(pod, None)
        self._is_any_heard = True

    def was_silent(self, pod: str) -> None:
        self._silent[pod] = self._clock()


class RemoteDaemon:
    """The daemon in one pod."""

    def __init__(
        self, access: ClusterAccess, node: str, container: ExecTarget, port: str = "", ports: ReportPorts | None = None
    ) -> None:
        """`port` is that of the report, `9400` or `https:9400`; empty: it has none."""
        self.node = node
        self._access, self._container, self._port = access, container, port
        self._ports = ports if ports is not None else ReportPorts()
        self.via = str(self)

    def __str__(self) -> str:
        return f"pod {self._container.namespace}/{self._container.pod}"

    def ask(self, request: Mapping[str, object]) -> Any:
        via = str(self)
        if self._port and (page := _page_of(request)):
            try:
                answer: Any = self._read_page(page)
                answer = _history_since(answer, request["since"]) if "since" in request else answer
            except PlugwrightError as error:
                via += f"; its port {self._port} cannot be read: {clean(error)}"
            else:
                self.via = f"the proxy of {self}"
                return answer
        self.via = via
        for answer in self._answers(request, [], _LIMIT):
            return answer
        raise PeerGone(f"{self} on {self.node} did not answer")

    def follow(self, request: Mapping[str, object]) -> Iterator[Any]:
        return self._answers(request, ["--follow"], None)

    def document(self, *command: str) -> bytes:
        """The output line of our command in the pod, regardless of its exit code."""
        for line in exec_lines(self._access, self._container, ["plugwright", *command], _COMMAND_LIMIT):
            return line
        raise PeerGone(f"{self} on {self.node}: `plugwright {' '.join(command)}` printed nothing")

    def _read_page(self, page: str) -> Document:
        namespace, pod = segment(self._container.namespace), segment(self._container.pod)
        scheme, _, port = self._port.rpartition(":")
        target = f"{scheme}:{pod}:{port}" if scheme else f"{pod}:{port}"
        if not (limit := self._ports.wait(str(self))):
            raise PeerSilent("it did not answer before")
        try:
            with BlockingClient(self._access, limit) as client:
                answer = client.get(f"/api/v1/namespaces/{namespace}/pods/{target}/proxy/{page}")
        except PeerSilent:
            self._ports.was_silent(str(self))
            raise PeerSilent(f"it did not answer within {limit:g} s") from None
        self._ports.answered(str(self))
        return answer

    def _answers(self, request: Mapping[str, object], flags: Sequence[str], timeout: float | None) -> Iterator[Any]:
        command = ["plugwright", "request", *flags, json.dumps(request)]
        for line in exec_lines(self._access, self._container, command, timeout):
            try:
                answer = json.loads(line)
                error = answer.get("error")
            except (ValueError, AttributeError, RecursionError):
                raise MalformedMessage(f"{self} on {self.node} must answer with JSON, got {line[:80]!r}") from None
            if error is not None:
                raise PeerRefused("", clean(error))
            yield answer.get("ok")


def _page_of(request: Mapping[str, object]) -> str:
    """The page with the answer to a request; empty if there is none."""
    match request:
        case {"do": "report"}:
            return "node-report"
        case {"do": "history", "since": int() | float() as since} if since >= time.time() - _PAST:
            return "history"
    return ""


def _history_since(answer: Document, since: object) -> list[Document]:
    events = answer.get("events")
    if not isinstance(events, list) or not isinstance(since, int | float):
        raise MalformedMessage(f"a history must have events, got {str(answer)[:80]!r}")
    try:
        return [event for event in events if datetime.fromisoformat(event["time"]).timestamp() >= since]
    except (ValueError, TypeError, KeyError):
        raise MalformedMessage(f"an event of a history must have a time, got {str(answer)[:80]!r}") from None


def report_port(pod: Document) -> str:
    """The port of a daemon's NodeReport, as its pod announces it; empty if it has none."""
    port = ((pod.get("metadata") or {}).get("annotations") or {}).get(_PORT_ANNOTATION)
    return port if isinstance(port, str) and _PORT.fullmatch(port) else ""


def daemon_pods(
    client: BlockingClient, selector: str, namespace: str | None, node: str = "", running: bool = True
) -> list[Document]:
    """Pods of daemons that are not terminating, of one node or of all; the chart's other pods have other containers."""
    if node and not DNS_SUBDOMAIN.fullmatch(node):
        raise ConfigError(f"NODE must be the name of a Node, got {node!r}")
    path = f"/api/v1/namespaces/{segment(namespace)}/pods" if namespace else "/api/v1/pods"
    fields = [*(["status.phase=Running"] if running else []), *([f"spec.nodeName={node}"] if node else [])]
    found = client.list(path, labelSelector=selector, fieldSelector=",".join(fields))
    return [pod for pod in found if _is_daemon(pod)]


def find_daemon_pod(pods: Sequence[Document], node: str, selector: str) -> ExecTarget:
    """The container of the single daemon on the node."""
    if not pods:
        raise ConfigError(f"no daemon runs on {node}: no running pod there has the labels {selector}")
    if len(pods) > 1:
        names = ", ".join(sorted(f"{pod['metadata'].get('namespace')}/{pod['metadata']['name']}" for pod in pods))
        raise ConfigError(f"several daemons run on {node}: {names}; choose one with --selector or the namespace")
    metadata = pods[0]["metadata"]
    return ExecTarget(str(metadata.get("namespace") or "default"), str(metadata["name"]), DAEMON_CONTAINER)


def _is_daemon(pod: Document) -> bool:
    """A pod that is not terminating, with a container of the daemon's name."""
    if "deletionTimestamp" in (pod.get("metadata") or {}):
        return False
    containers = (pod.get("spec") or {}).get("containers") or ()
    return any(container.get("name") == DAEMON_CONTAINER for container in containers)
