"""Emulated nodes in the real control plane: `plugwright join` as its users call it, and upstream deciding the rest.

No root and no kubelet: etcd, kube-apiserver, scheduler and controller-manager run on loopback.
"""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.kubernetes import building
from tests.kubernetes.control_plane import ControlPlane, control_plane
from tests.kubernetes.joining import (
    access,
    allocatable,
    devices,
    joined,
    nodes_file,
    phase,
    plugwright,
    pod,
    ready,
    refused,
    renewed,
    restricted,
    workload,
)

CHART = Path(__file__).parents[2] / "deploy" / "helm" / "plugwright"


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with control_plane(tmp_path_factory.mktemp("plane")) as plane:
        yield plane


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
        device = devices(plane, "keeps")[0]["resourceID"]
        control = running.info["nodes"]["gpu-1"]["control_socket"]
        plugwright("mock", "fail", device, "--control-socket", control)
        plane.until(
            lambda: {"resourceID": device, "health": "Unhealthy"} in devices(plane, "keeps"),
            "the pod's status says it",
        )
        plane.until(lambda: allocatable(plane, "gpu-1") == "3", "one less is allocatable")

        plugwright("join", "stop-node", "gpu-1", "--state", state)
        plane.until(lambda: ready(plane, "gpu-1") == "Unknown", "the controller finds it lost")
        plugwright("join", "start-node", "gpu-1", "--state", state)
        plane.until(lambda: ready(plane, "gpu-1") == "True", "it is back")

        plane.kill_api_server()
        running.until_said("API server is unavailable")
        plane.start_api_server()
        before = renewed(plane, "gpu-2")
        plane.until(lambda: renewed(plane, "gpu-2") > before, "leases are renewed again")
        plane.until(lambda: ready(plane, "gpu-2") == "True", "nodes are ready")
        assert phase(plane, "keeps") == "Running"
        assert running.end() == 0
        said = "\n".join(running.errors)
        assert 1 <= said.count("API server is back") == said.count("API server is unavailable") <= 2, said
        assert "Traceback" not in said
    assert len(plane.items("nodes")) == 2
    with joined(plane, tmp_path, "-f", file, "--state", state):
        assert phase(plane, "keeps") == "Running"
    assert plugwright("join", *access(plane), "--state", state, "--leave") == "gpu-1, gpu-2: removed\n"
    assert plane.items("nodes") == []
    plane.until(lambda: not plane.items("pods"), "its pod is gone too")


def test_our_own_chart_installs_and_its_daemon_registers_at_a_joined_node(plane: ControlPlane, tmp_path: Path) -> None:
    file = nodes_file(tmp_path, "nodes:\n- name: plain\n  count: 2\n")
    with joined(plane, tmp_path, "-f", file, "--run"):
        helm = (building.build(building.HELM) / "helm", "--kubeconfig", plane.kubeconfig)
        toleration = "tolerations[0].key=plugwright.dev/emulated,tolerations[0].operator=Exists"
        install = (
            "install",
            "devices",
            CHART,
            "--set",
            f"mock.enabled=true,mock.count=6,{toleration}",
        )
        subprocess.run([*map(str, (*helm, *install))], check=True, capture_output=True, timeout=60)
        for node in ("plain-1", "plain-2"):
            plane.until(lambda node=node: allocatable(plane, node) == "6", "the daemon's devices are allocatable")  # type: ignore[misc]
        plane.apply(pod("user", {"mock/gpu": "2"}))
        plane.until(lambda: devices(plane, "user"), "a pod has devices of the chart's daemon")
        daemon = plane.items("pods", "-l", "app.kubernetes.io/name=plugwright")[0]["metadata"]["name"]
        assert "registered" in plane.kubectl("logs", daemon)
        uninstall = ("uninstall", "devices", "--no-hooks")
        subprocess.run([*map(str, (*helm, *uninstall))], check=True, capture_output=True, timeout=60)
        plane.until(lambda: allocatable(plane, "plain-1") == "0", "without the daemon none is allocatable")
        plane.kubectl("delete", "pod", "--all", "--wait=false")
        plane.until(lambda: not plane.items("pods"), "the pods are gone")


def test_bad_input_is_one_line_and_leaves_nothing(plane: ControlPlane, tmp_path: Path) -> None:
    nobody = tmp_path / "nobody.conf"
    nobody.write_text(plane.kubeconfig_of("nobody"))
    assert refused(nobody, "--nodes", "2").startswith("plugwright: not allowed to create nodes and ")
    theirs = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "plugwright-2"}}
    plane.apply(theirs)
    expected = "plugwright: node plugwright-2 already exists and is not a node of plugwright"
    assert refused(plane.kubeconfig, "--nodes", "2").startswith(expected)
    assert [node["metadata"]["name"] for node in plane.items("nodes")] == ["plugwright-2"]
    plane.kubectl("delete", "node", "plugwright-2")
    file = nodes_file(tmp_path, "nodes:\n- name: gpu\n  cout: 2\n")
    expected = "plugwright: nodes.yaml:3: nodes[0]: unknown key 'cout': did you mean 'count'?\n"
    assert refused(plane.kubeconfig, "-f", file) == expected
    assert plane.items("nodes") == []


def test_a_pod_runs_without_what_is_not_emulated_and_an_event_says_so(plane: ControlPlane, tmp_path: Path) -> None:
    with joined(plane, tmp_path):
        volume = {"name": "data", "nfs": {"server": "storage.example.com", "path": "/"}}
        plane.apply(pod("far", {"mock/gpu": "1"}, volumes=[volume]))
        plane.until(lambda: phase(plane, "far") == "Running", "the pod runs")
        said = ("events", "--field-selector=involvedObject.name=far,reason=NotEmulated")
        plane.until(lambda: plane.items(*said), "the event is there")
        [event] = plane.items(*said)
        assert event["message"] == "plugwright does not emulate volumes.nfs on this node"


def test_claims_are_allocated_prepared_and_released_with_the_printed_rights_alone(
    plane: ControlPlane, tmp_path: Path
) -> None:
    resource = "{name: example.com/gpu, mock: {count: 4, numa: 2}, serve: dra}"
    file = nodes_file(tmp_path, f"nodes:\n- {{name: claim, count: 2, resources: [{resource}]}}\n")
    kubeconfig = restricted(plane, tmp_path, "-f", file)
    with joined(plane, tmp_path, "-f", file, kubeconfig=kubeconfig) as running:
        plane.until(
            lambda: sum(map(_published, plane.items("resourceslices"))) == 8, "both nodes publish their devices"
        )
        request = {"name": "gpu", "exactly": {"deviceClassName": "gpu.example.com", "count": 3}}
        plane.apply(
            _dra(
                "DeviceClass",
                "gpu.example.com",
                selectors=[{"cel": {"expression": "device.driver == 'gpu.example.com'"}}],
            ),
            _dra("ResourceClaimTemplate", "three", spec={"devices": {"requests": [request]}}),
            *(_claiming(f"claims-{number}") for number in range(3)),
        )
        plane.until(lambda: _phases(plane, "claims-") == ["Pending", "Running", "Running"], "two of three find devices")
        taken = [_prepared(running.info["nodes"][f"claim-{number}"]) for number in (1, 2)]
        assert [len(found) for found in taken] == [1, 1]
        first = next(name for name in ("claims-0", "claims-1", "claims-2") if phase(plane, name) == "Running")
        plane.kubectl("delete", "pod", first, "--wait=false")
        plane.until(
            lambda: _phases(plane, "claims-") == ["Running", "Running"], "the third gets what the first gave back"
        )
        plane.kubectl("delete", "pod", "--all", "--wait=false")
        plane.until(lambda: not plane.items("resourceclaims"), "the claims are gone")
        assert [_prepared(node) for node in running.info["nodes"].values()] == [[], []]
        assert running.end() == 0
        assert running.errors == []
    plane.until(lambda: not plane.items("resourceslices"), "nothing is published any more")
    plane.kubectl("delete", "deviceclass,resourceclaimtemplate", "--all")


def _dra(kind: str, name: str, **spec: object) -> dict[str, object]:
    return {"apiVersion": "resource.k8s.io/v1", "kind": kind, "metadata": {"name": name}, "spec": spec}


def _claiming(name: str) -> dict[str, object]:
    found = pod(name, {}, resourceClaims=[{"name": "gpus", "resourceClaimTemplateName": "three"}])
    found["spec"]["containers"][0]["resources"]["claims"] = [{"name": "gpus"}]
    return found


def _published(found: dict[str, Any]) -> int:
    return len(found["spec"]["devices"]) if found["spec"]["driver"] == "gpu.example.com" else 0


def _phases(plane: ControlPlane, prefix: str) -> list[str]:
    pods = [found for found in plane.items("pods") if found["metadata"]["name"].startswith(prefix)]
    return sorted(str(found["status"]["phase"]) for found in pods if not found["metadata"].get("deletionTimestamp"))


def _prepared(node: dict[str, str]) -> list[str]:
    """The claims in the checkpoint of the node's driver."""
    checkpoint = Path(node["kubelet_dir"], "plugins", "gpu.example.com", "checkpoint.json")
    _, content = checkpoint.read_text().splitlines()
    return [claim["name"] for claim in json.loads(content)["claims"]]
