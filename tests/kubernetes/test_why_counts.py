"""`why` on the real control plane: devices that only the API server has counted, and the end of preempted pods."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.explain.worlds import CLASS, DRIVER
from tests.kubernetes.control_plane import ControlPlane, control_plane
from tests.kubernetes.test_why import alive

pytestmark = [pytest.mark.essential, pytest.mark.timeout(300)]

GATE = "--feature-gates=DRAResourcePoolStatus=true"
FLAGS = {
    "kube-apiserver": (GATE, "--runtime-config=resource.k8s.io/v1alpha3=true"),
    "kube-controller-manager": (GATE,),
}
RIGHTS = {"": ["nodes", "pods", "namespaces"], "resource.k8s.io": ["resourceslices", "deviceclasses"]}
COUNTS = {"apiGroups": ["resource.k8s.io"], "resources": ["resourcepoolstatusrequests"], "verbs": ["list", "create"]}
RESOURCE, RBAC = {"apiVersion": "resource.k8s.io/v1"}, "rbac.authorization.k8s.io"


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with control_plane(tmp_path_factory.mktemp("plane"), FLAGS) as plane:
        yield plane


def claim(name: str, namespace: str, count: int) -> dict[str, Any]:
    request = {"name": "gpu", "exactly": {"deviceClassName": DRIVER, "count": count}}
    spec = {"devices": {"requests": [request]}}
    return {**RESOURCE, "kind": "ResourceClaim", "metadata": {"name": name, "namespace": namespace}, "spec": spec}


def pod(name: str, count: int = 0, **spec: Any) -> dict[str, Any]:
    limits = {"mock/gpu": str(count)} if count else {}
    container = {"name": "main", "image": "demo", "resources": {"limits": limits}}
    metadata = {"name": name, "namespace": "default"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container], **spec}}


def reader(name: str) -> list[dict[str, Any]]:
    """Rights of somebody who may list the claims of the namespace `default` only."""
    rules = [{"apiGroups": [group], "resources": kinds, "verbs": ["get", "list"]} for group, kinds in RIGHTS.items()]
    claims = {"apiGroups": ["resource.k8s.io"], "resources": ["resourceclaims"], "verbs": ["get", "list"]}
    subject = {"kind": "User", "name": name, "apiGroup": RBAC}
    made = []
    for scope, own, namespace in (("ClusterRole", [*rules, COUNTS], {}), ("Role", [claims], {"namespace": "default"})):
        head = {"apiVersion": f"{RBAC}/v1", "metadata": {"name": name, **namespace}}
        reference = {"apiGroup": RBAC, "kind": scope, "name": name}
        made += [{**head, "kind": scope, "rules": own}]
        made += [{**head, "kind": f"{scope}Binding", "roleRef": reference, "subjects": [subject]}]
    return made


def why(config: Path, *arguments: object) -> str:
    command = [sys.executable, "-m", "plugwright", *map(str, arguments), "-n", "default", "--kubeconfig", str(config)]
    return subprocess.run(command, env=os.environ, capture_output=True, text=True, check=False).stdout


async def test_devices_of_claims_that_cannot_be_read_are_counted_by_the_api_server(
    plane: ControlPlane, tmp_path: Path
) -> None:
    config = tmp_path / "config"
    config.write_text(plane.kubeconfig_of("nobody"))
    async with alive(plane.kubeconfig):
        await asyncio.to_thread(play_counts, plane, config)


def play_counts(plane: ControlPlane, config: Path) -> None:
    pool = {"name": "node-1", "generation": 1, "resourceSliceCount": 1}
    devices = [{"name": f"gpu-{number}"} for number in range(3)]
    spec = {"driver": DRIVER, "nodeName": "node-1", "pool": pool, "devices": devices}
    waiting = pod("w", resourceClaims=[{"name": "dev", "resourceClaimName": "mine"}])
    plane.apply(
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team-b"}},
        {**RESOURCE, "kind": "DeviceClass", **CLASS},
        {**RESOURCE, "kind": "ResourceSlice", "metadata": {"name": "gpus"}, "spec": spec},
        claim("theirs", "team-b", 2), claim("mine", "default", 2), *reader("nobody"),
    )  # fmt: skip
    results = [{"request": "gpu", "driver": DRIVER, "pool": "node-1", "device": f"gpu-{number}"} for number in (1, 2)]
    status = {"status": {"allocation": {"devices": {"results": results}}}}
    where = ("--namespace=team-b", "patch", "resourceclaim", "theirs", "--subresource=status", "--type=merge")
    plane.kubectl(*where, "--patch-file=/dev/stdin", stdin=json.dumps(status))
    plane.apply(waiting)
    plane.until(lambda: "cannot allocate all claims" in _message(plane, "w"), "the scheduler finds too few devices")

    before = why(config, "why", "w")
    assert "fits now" in before  # because the claim of team-b is not seen
    command = next(line for line in before.replace("\n  ", " ").splitlines() if "kubectl create -f -" in line)
    asked = command.split("echo '")[1].split("'")[0]
    name = plane.kubectl("create", "-f", "-", "--output=name", stdin=asked)
    plane.until(lambda: plane.get(name).get("status"), "the API server has counted")

    after = why(config, "why", "w").replace("\n  ", " ")
    assert after.startswith("w waits: no node has the devices for request gpu of claim mine (node-1: ")
    assert f"1 of 3 devices available, 2 allocated in pool node-1 of {DRIVER}" in after
    assert name.partition("/")[2] in after
    file = config.with_name("one.yaml")
    one = pod("one", resourceClaims=[{"name": "dev", "resourceClaimName": "one"}])
    file.write_text(json.dumps({"kind": "List", "items": [one, claim("one", "default", 1)]}))
    assert "one fits 1 of 1 times: 1 on node-1" in why(config, "fit", "-f", file, "--no-daemons")


async def test_a_pod_for_which_others_are_preempted_waits_for_their_end(plane: ControlPlane) -> None:
    async with alive(plane.kubeconfig):
        await asyncio.to_thread(play_preemption, plane)


def play_preemption(plane: ControlPlane) -> None:
    high = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "high"}, "value": 9}
    selected = {"nodeSelector": {"kubernetes.io/hostname": "node-1"}}
    offered = json.dumps({"status": {field: {"mock/gpu": "10"} for field in ("capacity", "allocatable")}})
    plane.kubectl("patch", "node", "node-1", "--subresource=status", "--type=merge", f"--patch={offered}")
    plane.apply(high, pod("low", 10, **selected))
    plane.until(lambda: plane.get("pod", "low")["spec"].get("nodeName"), "the first pod is bound")
    plane.apply(pod("urgent", 10, priorityClassName="high", **selected))
    plane.until(lambda: (plane.get("pod", "urgent").get("status") or {}).get("nominatedNodeName"), "it preempts")
    plane.apply(pod("late", 10, **selected))
    answer = why(plane.kubeconfig, "why", "urgent", "--no-daemons").replace("\n  ", " ")
    assert answer.startswith("urgent waits: low (default) ends on node-1 to make room; until then no node has 10 free")
    assert "runs on node-1 if low (default, being deleted) ends" in answer
    plane.kubectl("delete", "pod", "low", "--force", "--grace-period=0")  # no kubelet does it
    late = why(plane.kubeconfig, "why", "late", "--no-daemons").replace("\n  ", " ")
    assert "runs on node-1 if urgent (default) ends" in late
    plane.until(
        lambda: plane.get("pod", "urgent")["spec"].get("nodeName"), "the pod is bound once its victim has ended"
    )


def _message(plane: ControlPlane, name: str) -> str:
    conditions = (plane.get("pod", name).get("status") or {}).get("conditions") or ()
    return next((str(entry.get("message")) for entry in conditions if entry["type"] == "PodScheduled"), "")
