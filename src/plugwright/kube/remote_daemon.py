"""The daemons of a cluster's nodes, reached through its API server: requests to their control sockets, by exec.

A user who can exec into a daemon's pod can send it every request, and the daemon needs no right for that. The hidden
command `plugwright request` in the pod passes one request to the control socket and prints the responses, so all
commands work alike for the local daemon and for the daemon of any node.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from plugwright.errors import ConfigError, MalformedMessage, PeerGone, PeerRefused
from plugwright.grammars import DNS_SUBDOMAIN
from plugwright.kube.access import ClusterAccess
from plugwright.kube.answers import Document
from plugwright.kube.api_client import BlockingClient, segment
from plugwright.kube.pod_exec import ExecTarget, exec_lines
from plugwright.text import clean

__all__ = ["DAEMON_CONTAINER", "RemoteDaemon", "daemon_pods", "find_daemon_pod"]

DAEMON_CONTAINER = "plugwright"
_LIMIT = 60.0  # seconds of silence; a daemon answers within 15
_COMMAND_LIMIT = 300.0  # seconds; a check of `doctor` that hangs takes 30


class RemoteDaemon:
    """The daemon in one pod."""

    def __init__(self, access: ClusterAccess, node: str, container: ExecTarget) -> None:
        self.node = node
        self._access, self._container = access, container

    def __str__(self) -> str:
        return f"pod {self._container.namespace}/{self._container.pod}"

    def ask(self, request: Mapping[str, object]) -> Any:
        for answer in self._answers(request, [], _LIMIT):
            return answer
        raise PeerGone(f"{self} on {self.node} did not answer")

    def follow(self, request: Mapping[str, object]) -> Iterator[Any]:
        return self._answers(request, ["--follow"], None)

    def document(self, *command: str) -> bytes:
        """The line that our command prints in the pod, regardless of its exit code."""
        for line in exec_lines(self._access, self._container, ["plugwright", *command], _COMMAND_LIMIT):
            return line
        raise PeerGone(f"{self} on {self.node}: `plugwright {' '.join(command)}` printed nothing")

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


def daemon_pods(
    client: BlockingClient, selector: str, namespace: str | None, node: str = "", running: bool = True
) -> list[Document]:
    """Pods of daemons that do not end, of one node or of all; the chart's other pods have other containers."""
    if node and not DNS_SUBDOMAIN.fullmatch(node):
        raise ConfigError(f"NODE must be the name of a Node, got {node!r}")
    path = f"/api/v1/namespaces/{segment(namespace)}/pods" if namespace else "/api/v1/pods"
    fields = [*(["status.phase=Running"] if running else []), *([f"spec.nodeName={node}"] if node else [])]
    found = client.list(path, labelSelector=selector, fieldSelector=",".join(fields))
    return [pod for pod in found if _is_daemon(pod)]


def find_daemon_pod(pods: Sequence[Document], node: str, selector: str) -> ExecTarget:
    """The container of the one daemon on the node."""
    if not pods:
        raise ConfigError(f"no daemon runs on {node}: no running pod there has the labels {selector}")
    if len(pods) > 1:
        names = ", ".join(sorted(f"{pod['metadata'].get('namespace')}/{pod['metadata']['name']}" for pod in pods))
        raise ConfigError(f"several daemons run on {node}: {names}; choose one with --selector or the namespace")
    metadata = pods[0]["metadata"]
    return ExecTarget(str(metadata.get("namespace") or "default"), str(metadata["name"]), DAEMON_CONTAINER)


def _is_daemon(pod: Document) -> bool:
    """A pod that is not ending, with a container of the daemon's name."""
    if "deletionTimestamp" in (pod.get("metadata") or {}):
        return False
    containers = (pod.get("spec") or {}).get("containers") or ()
    return any(container.get("name") == DAEMON_CONTAINER for container in containers)
