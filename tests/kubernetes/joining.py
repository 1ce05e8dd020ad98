"""`plugwright join` as its users call it, on the real `control_plane`, and the objects that tests create there."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from tests.kubernetes.control_plane import CONTEXT, ControlPlane

__all__ = [
    "NODES",
    "Joined",
    "access",
    "allocatable",
    "command",
    "devices",
    "joined",
    "nodes_file",
    "phase",
    "plugwright",
    "pod",
    "ready",
    "refused",
    "renewed",
    "restricted",
    "template",
    "workload",
]

TOLERATIONS = [{"key": "plugwright.dev/emulated", "operator": "Exists"}]
NODES = """\
nodes:
  - name: gpu
    count: 2
    cpu: 8
    numa: 2
    labels: {pool: gpu}
    kubelet: {policy: single-numa-node}
    resources:
      - name: mock/gpu
        mock: {count: 4, numa: 2}
"""


class Joined:
    """A running `plugwright join`."""

    def __init__(self, process: "subprocess.Popen[str]", info: dict[str, Any], errors: Path) -> None:
        self.process, self.info, self._errors = process, info, errors

    @property
    def errors(self) -> list[str]:
        return self._errors.read_text().splitlines()

    def until_said(self, text: str) -> None:
        end = time.monotonic() + 30
        while text not in "\n".join(self.errors):
            assert time.monotonic() < end, f"not said: {text}"
            time.sleep(0.05)

    def end(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


@contextmanager
def joined(plane: ControlPlane, tmp_path: Path, *flags: object, kubeconfig: Path | None = None) -> Iterator[Joined]:
    errors = tmp_path / "errors"
    with errors.open("w") as file:
        process = subprocess.Popen(
            command(kubeconfig or plane.kubeconfig, *flags, "--output", "json"),
            stdout=subprocess.PIPE,
            stderr=file,
            text=True,
        )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line, errors.read_text()
        yield Joined(process, json.loads(line), errors)
    finally:
        process.terminate()
        process.wait(60)
        process.stdout.close()


def command(kubeconfig: Path, *flags: object) -> list[str]:
    words = ("join", "--context", CONTEXT, "--kubeconfig", kubeconfig, *flags)
    return [sys.executable, "-m", "plugwright", *map(str, words)]


def nodes_file(tmp_path: Path, text: str = NODES) -> Path:
    path = tmp_path / "nodes.yaml"
    path.write_text(text)
    return path


def template(name: str, words: Sequence[str] = (), limits: Mapping[str, str] | None = None, **spec: Any) -> Any:
    container: dict[str, Any] = {"name": "main", "image": "demo", "resources": {"limits": dict(limits or {})}}
    if words:
        container["command"] = list(words)
    content = {"tolerations": TOLERATIONS, "containers": [container], "terminationGracePeriodSeconds": 1, **spec}
    return {"metadata": {"labels": {"app": name}}, "spec": content}


def pod(name: str, limits: Mapping[str, str], **spec: Any) -> dict[str, Any]:
    found = template(name, limits=limits, **spec)
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": found["spec"]}


def workload(kind: str, name: str, replicas: int | None = None, **content: Any) -> dict[str, Any]:
    selector = {"selector": {"matchLabels": {"app": name}}} if kind != "Job" else {}
    spec = {"template": template(name, **content), **selector, **({"replicas": replicas} if replicas else {})}
    version = "batch/v1" if kind == "Job" else "apps/v1"
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": spec}


def phase(plane: ControlPlane, name: str) -> str:
    return str((plane.get("pod", name).get("status") or {}).get("phase"))


def restricted(plane: ControlPlane, tmp_path: Path, *flags: object) -> Path:
    """A kubeconfig with the rights that `--print-rbac` prints, and no others."""
    plane.kubectl("create", "serviceaccount", "plugwright-join", check=False)
    words = [sys.executable, "-m", "plugwright", "join", *map(str, flags), "--print-rbac"]
    manifests = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    assert all("*" not in json.dumps(document) for document in yaml.safe_load_all(manifests))
    plane.kubectl("apply", "-f", "-", stdin=manifests)
    path = tmp_path / "restricted.conf"
    path.write_text(plane.kubeconfig_of(plane.kubectl("create", "token", "plugwright-join")))
    return path


def refused(kubeconfig: Path, *flags: object) -> str:
    done = subprocess.run(command(kubeconfig, *flags), check=False, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("\n") == 1, done.stderr
    return done.stderr


def plugwright(*words: object) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "plugwright", *map(str, words)], check=False, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def access(plane: ControlPlane) -> tuple[object, ...]:
    return "--context", CONTEXT, "--kubeconfig", plane.kubeconfig


def devices(plane: ControlPlane, name: str) -> list[dict[str, str]]:
    [status] = (plane.get("pod", name).get("status") or {}).get("containerStatuses") or [{}]
    return [device for health in status.get("allocatedResourcesStatus") or () for device in health["resources"]]


def allocatable(plane: ControlPlane, node: str) -> object:
    return plane.get("node", node)["status"]["allocatable"].get("mock/gpu")


def ready(plane: ControlPlane, node: str) -> str:
    conditions = (plane.get("node", node).get("status") or {}).get("conditions") or ()
    return next((condition["status"] for condition in conditions if condition["type"] == "Ready"), "")


def renewed(plane: ControlPlane, node: str) -> str:
    """When its lease was renewed last."""
    return str(plane.get("lease", node, "-n", "kube-node-lease")["spec"]["renewTime"])
