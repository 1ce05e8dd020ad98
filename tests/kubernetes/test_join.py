"""Emulated nodes in the real control plane: `plugwright join` as its users call it, and upstream deciding the rest.

No root and no kubelet: etcd, kube-apiserver, scheduler and controller-manager run on loopback.
"""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.kubernetes import building
from tests.kubernetes.control_plane import CONTEXT, ControlPlane, control_plane

CHART = Path(__file__).parents[2] / "deploy" / "helm" / "plugwright"
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


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with control_plane(tmp_path_factory.mktemp("plane")) as plane:
        yield plane


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


@pytest.mark.essential
def test_deployments_jobs_and_daemonsets_run_with_the_printed_rights_alone(plane: ControlPlane, tmp_path: Path) -> None:
    file = nodes_file(tmp_path)
    kubeconfig = restricted(plane, tmp_path, "-f", file, "--run")
    with joined(plane, tmp_path, "-f", file, "--run", kubeconfig=kubeconfig) as running:
        plane.apply(
            workload("Deployment", "web", 2, words=["sleep", "600"], limits={"mock/gpu": "2"}),
            workload("DaemonSet", "agent", words=["sleep", "600"]),
            workload(
                "Job", "train", words=["sh", "-c", "echo $MOCK_MODEL"], limits={"mock/gpu": "1"}, restartPolicy="Never"
            ),
        )
        plane.until(lambda: plane.get("deploy", "web")["status"].get("readyReplicas") == 2, "the deployment is ready")
        plane.until(lambda: plane.get("ds", "agent")["status"].get("numberReady") == 2, "a daemon on each node")
        plane.until(lambda: plane.get("job", "train")["status"].get("succeeded") == 1, "the job has completed")
        assert plane.kubectl("logs", "job/train") == "Mock"
        assert "mock/gpu" in plane.kubectl("describe", "node", "gpu-1")
        plane.apply(pod("other", {}, tolerations=[]))
        plane.until(
            lambda: "untolerated taint" in json.dumps(plane.get("pod", "other").get("status", {})), "a pod is kept away"
        )
        plane.kubectl("delete", "deploy,ds,job,pod", "--all", "--wait=false")
        plane.until(lambda: not plane.items("pods"), "the pods are gone")
        assert running.end() == 0
        assert running.errors == []
    assert plane.items("nodes") == []
    assert plane.items("leases", "-n", "kube-node-lease") == []


def test_upstream_decides_on_drain_preemption_quota_and_our_kubelet_on_topology(
    plane: ControlPlane, tmp_path: Path
) -> None:
    with joined(plane, tmp_path, "-f", nodes_file(tmp_path)):
        plane.apply(workload("Deployment", "one", 1, limits={"mock/gpu": "1"}))
        plane.until(lambda: plane.get("deploy", "one")["status"].get("readyReplicas") == 1, "the deployment is ready")
        before = plane.items("pods", "-l", "app=one")[0]["spec"]["nodeName"]
        plane.kubectl("drain", before, "--ignore-daemonsets", "--timeout=30s")
        plane.until(
            lambda: (
                [found["spec"].get("nodeName") for found in plane.items("pods", "-l", "app=one")] != [before]
                and plane.get("deploy", "one")["status"].get("readyReplicas") == 1
            ),
            "the pod has moved",
        )
        plane.kubectl("uncordon", before)
        plane.kubectl("delete", "deploy", "one")

        plane.apply(pod("split", {"mock/gpu": "4"}))
        plane.until(lambda: phase(plane, "split") == "Failed", "a pod over both NUMA nodes is refused")
        assert plane.get("pod", "split")["status"]["reason"] == "TopologyAffinityError"

        priority = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "value": 1000}
        low = [pod(f"low-{number}", {"cpu": "8"}) for number in range(2)]
        plane.apply({**priority, "metadata": {"name": "high"}}, *low)
        plane.until(lambda: all(phase(plane, f"low-{number}") == "Running" for number in range(2)), "all is taken")
        plane.apply(pod("urgent", {"cpu": "8"}, priorityClassName="high"))
        plane.until(lambda: phase(plane, "urgent") == "Running", "a pod of low priority has given way")
        assert len(plane.items("pods", "--field-selector=status.phase=Running")) == 2

        quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "none"}}
        plane.apply({**quota, "spec": {"hard": {"requests.mock/gpu": "0"}}})
        plane.until(lambda: plane.get("quota", "none").get("status"), "the quota is known")
        with pytest.raises(AssertionError, match="exceeded quota"):
            plane.apply(pod("refused", {"mock/gpu": "1"}))
        plane.kubectl("delete", "pod,quota,priorityclass/high", "--all", "--wait=false", check=False)
        plane.kubectl("delete", "quota", "none", check=False)


def test_a_device_fails_a_node_is_lost_and_comes_back_and_the_server_goes_away(
    plane: ControlPlane, tmp_path: Path
) -> None:
    state = tmp_path / "state"
    file = nodes_file(tmp_path)
    with joined(plane, tmp_path, "-f", file, "--state", state, "--heartbeat", "1s") as running:
        plane.apply(pod("keeps", {"mock/gpu": "2"}, nodeSelector={"kubernetes.io/hostname": "gpu-1"}))
        plane.until(lambda: phase(plane, "keeps") == "Running", "the pod runs")
        device = _devices(plane, "keeps")[0]["resourceID"]
        control = running.info["nodes"]["gpu-1"]["control_socket"]
        _plugwright("mock", "fail", device, "--control-socket", control)
        plane.until(
            lambda: {"resourceID": device, "health": "Unhealthy"} in _devices(plane, "keeps"),
            "the pod's status says it",
        )
        plane.until(lambda: _allocatable(plane, "gpu-1") == "3", "one less is allocatable")

        _plugwright("join", "stop-node", "gpu-1", "--state", state)
        plane.until(lambda: _ready(plane, "gpu-1") == "Unknown", "the controller finds it lost")
        _plugwright("join", "start-node", "gpu-1", "--state", state)
        plane.until(lambda: _ready(plane, "gpu-1") == "True", "it is back")

        plane.kill_api_server()
        running.until_said("API server is away")
        plane.start_api_server()
        renewed = _renewed(plane, "gpu-2")
        plane.until(lambda: _renewed(plane, "gpu-2") > renewed, "leases are renewed again")
        plane.until(lambda: _ready(plane, "gpu-2") == "True", "nodes are ready")
        assert phase(plane, "keeps") == "Running"
        assert running.end() == 0
        said = "\n".join(running.errors)
        assert 1 <= said.count("API server is back") == said.count("API server is away") <= 2, said
        assert "Traceback" not in said
    assert len(plane.items("nodes")) == 2
    with joined(plane, tmp_path, "-f", file, "--state", state):
        assert phase(plane, "keeps") == "Running"
    assert _plugwright("join", *_access(plane), "--state", state, "--leave") == "gpu-1, gpu-2: removed\n"
    assert plane.items("nodes") == []
    plane.until(lambda: not plane.items("pods"), "its pod is gone too")


def test_our_own_chart_installs_and_its_daemon_registers_at_a_joined_node(plane: ControlPlane, tmp_path: Path) -> None:
    file = nodes_file(tmp_path, "nodes:\n- name: plain\n  count: 2\n")
    with joined(plane, tmp_path, "-f", file, "--run"):
        helm = (building.build(building.HELM) / "helm", "--kubeconfig", plane.kubeconfig)
        toleration = "tolerations[0].key=plugwright.dev/emulated,tolerations[0].operator=Exists"
        install = ("install", "devices", CHART, "--set", f"mock.enabled=true,mock.count=6,{toleration}")
        subprocess.run([*map(str, (*helm, *install))], check=True, capture_output=True, timeout=60)
        for node in ("plain-1", "plain-2"):
            plane.until(lambda node=node: _allocatable(plane, node) == "6", "the daemon's devices are allocatable")  # type: ignore[misc]
        plane.apply(pod("user", {"mock/gpu": "2"}))
        plane.until(lambda: _devices(plane, "user"), "a pod has devices of the chart's daemon")
        daemon = plane.items("pods", "-l", "app.kubernetes.io/name=plugwright")[0]["metadata"]["name"]
        assert "registered" in plane.kubectl("logs", daemon)
        uninstall = ("uninstall", "devices", "--no-hooks")
        subprocess.run([*map(str, (*helm, *uninstall))], check=True, capture_output=True, timeout=60)
        plane.until(lambda: _allocatable(plane, "plain-1") == "0", "without the daemon none is allocatable")
        plane.kubectl("delete", "pod", "--all", "--wait=false")
        plane.until(lambda: not plane.items("pods"), "the pods are gone")


def test_bad_input_is_one_line_and_leaves_nothing(plane: ControlPlane, tmp_path: Path) -> None:
    nobody = tmp_path / "nobody.conf"
    nobody.write_text(plane.kubeconfig_of("nobody"))
    assert _refused(nobody, "--nodes", "2").startswith("plugwright: not allowed to create nodes and ")
    theirs = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "plugwright-2"}}
    plane.apply(theirs)
    expected = "plugwright: node plugwright-2 is there already and is not a node of plugwright"
    assert _refused(plane.kubeconfig, "--nodes", "2").startswith(expected)
    assert [node["metadata"]["name"] for node in plane.items("nodes")] == ["plugwright-2"]
    plane.kubectl("delete", "node", "plugwright-2")
    file = nodes_file(tmp_path, "nodes:\n- name: gpu\n  cout: 2\n")
    expected = "plugwright: nodes.yaml:3: nodes[0]: unknown key 'cout': did you mean 'count'?\n"
    assert _refused(plane.kubeconfig, "-f", file) == expected
    assert plane.items("nodes") == []


def _refused(kubeconfig: Path, *flags: object) -> str:
    done = subprocess.run(command(kubeconfig, *flags), check=False, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("\n") == 1, done.stderr
    return done.stderr


def _plugwright(*words: object) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "plugwright", *map(str, words)], check=False, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def _access(plane: ControlPlane) -> tuple[object, ...]:
    return "--context", CONTEXT, "--kubeconfig", plane.kubeconfig


def _devices(plane: ControlPlane, name: str) -> list[dict[str, str]]:
    [status] = (plane.get("pod", name).get("status") or {}).get("containerStatuses") or [{}]
    return [device for health in status.get("allocatedResourcesStatus") or () for device in health["resources"]]


def _allocatable(plane: ControlPlane, node: str) -> object:
    return plane.get("node", node)["status"]["allocatable"].get("mock/gpu")


def _ready(plane: ControlPlane, node: str) -> str:
    conditions = (plane.get("node", node).get("status") or {}).get("conditions") or ()
    return next((condition["status"] for condition in conditions if condition["type"] == "Ready"), "")


def _renewed(plane: ControlPlane, node: str) -> str:
    return str(plane.get("lease", node, "-n", "kube-node-lease")["spec"]["renewTime"])
