"""`plugwright doctor NODE`: what the API server's objects tell about a node, with and without a daemon."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.doctor.patient import Patient, check_only, findings, patient
from tests.doctor.test_doctor_command import PAGE, doctor
from tests.kube.exec_server import daemon_pod, exec_server

from plugwright.doctor.cluster_checks import (
    CLUSTER_CHECKS,
    ClusterView,
    report_without_daemon,
    with_cluster_checks,
)
from plugwright.doctor.doctor_report import DoctorMetadata, DoctorReport
from plugwright.sdk.node_report import NodeReport

NOW = datetime(2026, 11, 19, 12, tzinfo=UTC)
READY = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "ok"}
GPU = "mock/gpu"


def node(*conditions: dict[str, str], version: str = "v1.36.4", allocatable: str = "2", **spec: Any) -> dict[str, Any]:
    status = {"conditions": [READY, *conditions], "nodeInfo": {"kubeletVersion": version}}
    return {"metadata": {"name": "worker-1"}, "spec": spec, "status": {**status, "allocatable": {GPU: allocatable}}}


def condition(kind: str, status: str) -> dict[str, str]:
    return {"type": kind, "status": status, "reason": "Reason", "message": "the kubelet stopped posting"}


def served(healthy: int = 2, changed: datetime = NOW - timedelta(hours=1), **resource: Any) -> NodeReport:
    since = (NOW - timedelta(hours=1)).isoformat()
    devices = [{"id": f"d{number}", "health": "Healthy", "since": changed.isoformat()} for number in range(healthy)]
    registered = {"name": GPU, "serve": "device-plugin", "state": "registered", "streams": 1, "since": since}
    document = {
        "metadata": {"generatedAt": since},
        "daemon": {"version": "0.1.0", "ready": True},
        "kubelet": {"registration": "direct", "directory": "/var/lib/kubelet/device-plugins"},
        "holdings": {"complete": True},
        "resources": [{**registered, "devices": devices, **resource}],
    }
    return msgspec.convert(document, NodeReport)


def pod(phase: str = "Running", **container: Any) -> dict[str, Any]:
    made = daemon_pod("plugwright-x7")
    statuses = [{"name": "plugwright", **container}]
    return {**made, "status": {"phase": phase, "containerStatuses": statuses}}


def seen(ahead: float = 0.0, **facts: Any) -> DoctorReport:
    """The report of a daemon's pod without findings, with the checks of a view of these facts."""
    metadata = DoctorMetadata(version="0.1.0", root="/", in_pod=True, generated_at=NOW + timedelta(seconds=ahead))
    view = ClusterView(**{"name": "worker-1", "node": node(), "pods": [pod()], "served": served(), "now": NOW, **facts})
    return with_cluster_checks(DoctorReport(metadata=metadata, result="healthy"), view)


def test_a_healthy_node_has_no_finding_in_the_api_server() -> None:
    report = seen()
    assert [(check.name, check.state) for check in report.checks] == [(name, "ok") for name in CLUSTER_CHECKS]
    assert report.result == "healthy"


NOT_READY = {**node(), "status": {**node()["status"], "conditions": [condition("Ready", "Unknown")]}}
CRASH = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 40s"}}
ENDED = {"terminated": {"exitCode": 1, "message": "starting\nunknown key 'cuont'"}}
KILLED = {"terminated": {"exitCode": 137, "reason": "OOMKilled", "finishedAt": "2026-11-19T11:58:00Z"}}
LONG_AGO = {"terminated": {**KILLED["terminated"], "finishedAt": "2026-11-18T11:58:00Z"}}
LEFT = {**pod(), "metadata": {**pod()["metadata"], "deletionTimestamp": "2026-11-19T11:50:00Z"}}
PULL = {"waiting": {"reason": "ImagePullBackOff", "message": "not found"}}


@pytest.mark.parametrize(
    ("facts", "name", "text", "fix"),
    [
        ({"node": NOT_READY}, "node", "is not Ready: Reason: the kubelet stopped", "systemctl status kubelet"),
        ({"node": node(condition("DiskPressure", "True"))}, "node", "worker-1 has DiskPressure", "df -h"),
        ({"node": node(version="v1.27.9")}, "kubelet-version", "v1.27.9, and plugwright needs v1.28", "update"),
        ({"pods": []}, "daemon-pod", "no daemon's pod is on worker-1", "kubectl get ds -A -l app.kubernetes.io/name"),
        ({"pods": [pod(state=CRASH, lastState=ENDED)]}, "daemon-pod", "code 1: unknown key 'cuont'", "--previous"),
        ({"pods": [pod("Pending", state=PULL)]}, "daemon-pod", "ImagePullBackOff", "-n devices plugwright-x7"),
        ({"pods": [pod("Failed")]}, "daemon-pod", "devices/plugwright-x7 is Failed", "kubectl describe pod"),
        (
            {"pods": [pod(restartCount=7, lastState=KILLED)]},
            "daemon-pod",
            "7 times, last with code 137: OOMKilled",
            "logs",
        ),
        ({"pods": [LEFT]}, "daemon-pod", "should have ended at 2026-11-19T11:50:00Z", "kubectl describe pod"),
        ({"node": node(allocatable="1")}, "allocatable", "allocatable is 1, 2 devices are Healthy", "restart kubelet"),
        ({"node": node(allocatable="9")}, "allocatable", "allocatable is 9, 2 devices are Healthy", "restart kubelet"),
        ({"ahead": -300.0}, "node-clock", "is 300 s behind this machine's", "timedatectl"),
        ({"ahead": 90.0}, "node-clock", "is 90 s ahead of this machine's", "timedatectl"),
    ],
)
def test_a_fault_of_a_node_in_the_api_server_is_one_finding(
    facts: dict[str, Any], name: str, text: str, fix: str
) -> None:
    check_only(seen(**facts), name, text, fix)


@pytest.mark.parametrize(
    "facts",
    [
        {"node": node(allocatable="0"), "served": served(changed=NOW)},  # the kubelet has not posted it yet
        {"node": node(allocatable="0"), "served": served(serve="both")},
        {"node": node(allocatable="0"), "served": served(state="idle")},
        {"pods": [pod(restartCount=7, lastState=LONG_AGO)]},
        {"pods": [pod(restartCount=1, lastState=KILLED)]},
        {"node": node(unschedulable=True, taints=[{"key": "nvidia.com/gpu", "effect": "NoSchedule"}])},
    ],
)
def test_planned_states_of_a_node_are_no_findings(facts: dict[str, Any]) -> None:
    assert findings(seen(**facts)) == []


def test_a_cordoned_node_is_described() -> None:
    [check, *_] = seen(node=node(unschedulable=True, taints=[{"key": "a", "effect": "NoSchedule"}])).checks
    assert check.found == "Ready; kubectl cordon keeps new pods away; taints: a:NoSchedule"


def test_what_the_caller_may_not_read_is_unknown() -> None:
    report = seen(node=None, problem="the Node cannot be read: forbidden", served=None)
    states = {check.name: check.state for check in report.checks}
    assert {name for name, state in states.items() if state == "unknown"} == {"node", "kubelet-version", "allocatable"}


def test_without_a_daemon_nothing_but_the_api_server_is_examined() -> None:
    report = report_without_daemon(ClusterView(name="worker-1", node=node(), now=NOW))
    check_only(report, "daemon-pod", "no daemon's pod", "tolerations of the chart")
    assert report.metadata.node_name == "worker-1"


def test_the_page_has_every_check() -> None:
    text = PAGE.read_text()
    assert [name for name in CLUSTER_CHECKS if f"| `{name}` |" not in text] == []


async def test_a_node_without_a_daemon_is_a_finding_and_no_error(root: Path, tmp_path: Path) -> None:
    with exec_server([]) as server:
        server.objects["/api/v1/nodes/worker-1"] = node()
        flags = ("-o", "json", "--kubeconfig", str(server.kubeconfig(tmp_path / "c")))
        there = await doctor(Patient(root), "worker-1", *flags)
        nowhere = await doctor(Patient(root), "worker-2", *flags)
    assert there.code == 1
    found = [check["name"] for check in json.loads(there.out)["checks"] if check["state"] == "finding"]
    assert found == ["daemon-pod"]
    assert (nowhere.code, "no daemon runs on worker-2" in nowhere.err) == (1, True)


async def test_a_node_is_examined_in_its_daemons_pod_and_through_the_api_server(root: Path, tmp_path: Path) -> None:
    async with patient(root) as examined, examined.served_here():
        await examined.settled()
        places = {"PLUGWRIGHT_KUBELET_DIR": f"{root}/var/lib/kubelet", "PLUGWRIGHT_STATE_DIR": f"{root}/state"}
        with exec_server([daemon_pod("plugwright-x7")], {"plugwright-x7": examined.control}) as server:
            server.objects["/api/v1/nodes/worker-1"] = {**node(condition("PIDPressure", "True"))}
            server.environment = {**places, "KUBERNETES_SERVICE_HOST": "10.0.0.1"}
            flags = ("-o", "json", "--kubeconfig", str(server.kubeconfig(tmp_path / "c")))
            done = await doctor(examined, "worker-1", *flags)
    checks = {check["name"]: check for check in json.loads(done.out)["checks"]}
    assert {*CLUSTER_CHECKS, "pod-resources"} <= checks.keys()
    assert (checks["node"]["state"], checks["allocatable"]["state"]) == ("finding", "ok")  # it has just registered
