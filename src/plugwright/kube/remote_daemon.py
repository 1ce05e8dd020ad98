"""The daemon of another node, reached by kubectl: a command of ours, carried out in its pod."""

import json
import shutil
import subprocess
from pathlib import Path

from plugwright.errors import ConfigError, PeerGone, PeerRefused
from plugwright.grammars import DNS_SUBDOMAIN
from plugwright.text import clean

__all__ = ["RemoteDaemon"]

_CONTAINER = "plugwright"
_LIMIT = 60.0  # seconds to find the pod


class RemoteDaemon:
    def __init__(
        self,
        node: str,
        selector: str,
        namespace: str | None = None,
        kubeconfig: Path | None = None,
        context: str | None = None,
    ) -> None:
        if not DNS_SUBDOMAIN.fullmatch(node):
            raise ConfigError(f"NODE must be the name of a Node, got {node!r}")
        program = shutil.which("kubectl")
        if program is None:
            raise ConfigError(f"kubectl is needed to reach the daemon on {node}; or run this in its pod, without NODE")
        self._node, self._selector, self._namespace = node, selector, namespace
        self._kubectl = [program]
        self._kubectl += [f"--kubeconfig={kubeconfig}"] if kubeconfig else []
        self._kubectl += [f"--context={context}"] if context else []

    def run(self, arguments: list[str]) -> int:
        """The exit code of `plugwright ARGUMENTS` in the daemon's pod; what it writes is written here."""
        namespace, pod, container = self._pod()
        command = ["exec", f"--namespace={namespace}", f"--container={container}", pod, "--", "plugwright", *arguments]
        return subprocess.run([*self._kubectl, *command], check=False).returncode

    def _pod(self) -> tuple[str, str, str]:
        """Namespace, name and container of the one running daemon on the node."""
        where = [f"--namespace={self._namespace}"] if self._namespace else ["--all-namespaces"]
        fields = f"spec.nodeName={self._node},status.phase=Running"
        query = ["get", "pods", *where, f"--selector={self._selector}", f"--field-selector={fields}", "--output=json"]
        try:
            asked = subprocess.run(
                [*self._kubectl, *query], capture_output=True, text=True, timeout=_LIMIT, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise PeerGone(f"kubectl did not answer within {_LIMIT:g} s") from error
        if asked.returncode:
            raise PeerRefused("kubectl", clean(asked.stderr or f"kubectl has ended with {asked.returncode}"))
        try:
            pods = [_named(pod) for pod in json.loads(asked.stdout)["items"] if _is_daemon(pod)]
        except (ValueError, KeyError, TypeError) as error:
            raise PeerRefused("kubectl", f"kubectl has not answered with a list of pods: {error!r}") from error
        if not pods:
            raise ConfigError(f"no daemon runs on {self._node}: no running pod there has the labels {self._selector}")
        if len(pods) > 1:
            names = ", ".join(f"{namespace}/{name}" for namespace, name, _ in sorted(pods))
            raise ConfigError(
                f"several daemons run on {self._node}: {names}; choose one with --selector or --namespace"
            )
        return pods[0]


def _is_daemon(pod: dict[str, dict[str, object]]) -> bool:
    """One that does not end already; the chart's other pods have other containers."""
    containers = pod["spec"]["containers"]
    names = [container["name"] for container in containers] if isinstance(containers, list) else []
    return "deletionTimestamp" not in pod["metadata"] and _CONTAINER in names


def _named(pod: dict[str, dict[str, object]]) -> tuple[str, str, str]:
    return str(pod["metadata"]["namespace"]), str(pod["metadata"]["name"]), _CONTAINER
