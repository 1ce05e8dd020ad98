"""Joined nodes whose API server goes away: for a minute, and while they end."""

import json
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.kubernetes.control_plane import ControlPlane, control_plane
from tests.kubernetes.joining import allocatable, devices, joined, nodes_file, phase, plugwright, pod, ready, renewed

pytestmark = pytest.mark.full("the API server is unavailable for a minute")
NAMES = ("gpu-1", "gpu-2")
AWAY = 60.0  # seconds


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with control_plane(tmp_path_factory.mktemp("plane")) as plane:
        yield plane


def test_after_a_minute_without_its_server_everything_is_right_and_nothing_twice(
    plane: ControlPlane, tmp_path: Path
) -> None:
    with joined(plane, tmp_path, "-f", nodes_file(tmp_path), "--heartbeat", "2s") as running:
        names = [f"stays-{number}" for number in range(4)]
        plane.apply(*(pod(name, {"mock/gpu": "1"}) for name in (*names, "leaves")))
        plane.until(lambda: all(phase(plane, name) == "Running" for name in (*names, "leaves")), "the pods run")
        before = {name: plane.get("pod", name) for name in names}
        nodes = {name: plane.get("node", name)["metadata"]["uid"] for name in NAMES}
        failed = devices(plane, names[0])[0]["resourceID"]

        plane.kubectl("delete", "pod", "leaves", "--wait=false")
        plane.kill_api_server()
        killed = time.monotonic()
        running.until_said("API server is unavailable")
        node = before[names[0]]["spec"]["nodeName"]
        plugwright("mock", "fail", failed, "--control-socket", running.info["nodes"][node]["control_socket"])
        plane.until(lambda: time.monotonic() - killed > AWAY, "a minute has passed", 2 * AWAY)
        plane.start_api_server()

        left = {name: renewed(plane, name) for name in NAMES}
        plane.until(lambda: all(renewed(plane, name) > left[name] for name in NAMES), "leases are renewed again")
        plane.until(lambda: all(ready(plane, name) == "True" for name in NAMES), "the nodes are ready")
        plane.until(lambda: not plane.get("pod", "leaves"), "the pod that was being deleted is gone")
        plane.until(
            lambda: {"resourceID": failed, "health": "Unhealthy"} in devices(plane, names[0]),
            "the device that failed meanwhile shows",
        )
        plane.until(lambda: allocatable(plane, node) == "3", "and is not allocatable")
        assert {name: plane.get("node", name)["metadata"]["uid"] for name in NAMES} == nodes
        assert len(plane.items("nodes")) == len(plane.items("leases", "-n", "kube-node-lease")) == len(NAMES)
        for name in names:
            after = plane.get("pod", name)
            assert (after["metadata"]["uid"], phase(plane, name)) == (before[name]["metadata"]["uid"], "Running")
            assert _containers(after) == _containers(before[name])
        held = [(plane.get("pod", name)["spec"]["nodeName"], devices(plane, name)[0]["resourceID"]) for name in names]
        assert len(set(held)) == len(names)
        assert _started(plane, names) == Counter(names)

        plane.apply(pod("later", {"mock/gpu": "1"}))
        plane.until(lambda: phase(plane, "later") == "Running", "a new pod runs")
        plane.kubectl("delete", "pod", "--all", "--wait=false")
        plane.until(lambda: not plane.items("pods"), "pods can be deleted")
        assert running.end() == 0
        away, failing, back = running.errors
        assert ("API server is unavailable" in away, failed in failing, "API server is back" in back) == (
            True,
            True,
            True,
        )
    assert plane.items("nodes") == plane.items("leases", "-n", "kube-node-lease") == []


def test_nodes_that_end_without_their_server_say_how_to_remove_them(plane: ControlPlane, tmp_path: Path) -> None:
    with joined(plane, tmp_path, "-f", nodes_file(tmp_path)) as running:
        plane.kill_api_server()
        assert running.end() == 1
        [line] = [line for line in running.errors if line.startswith("plugwright: ")]
        owner = f"plugwright.dev/joined-by={running.info['owner']}"
        expected = "plugwright: 2 nodes are left in the cluster (gpu-1, gpu-2): "
        assert line == f"{expected}`kubectl delete nodes -l {owner}` removes them"
        assert "Traceback" not in "\n".join(running.errors)
    plane.start_api_server()
    plane.kubectl("delete", "nodes", "-l", owner)
    plane.until(lambda: not plane.items("leases", "-n", "kube-node-lease"), "their leases go with them")


def _containers(found: dict[str, object]) -> str:
    """The statuses of its containers without the health of their devices."""
    status = json.loads(json.dumps(found["status"]))
    return json.dumps([{**entry, "allocatedResourcesStatus": None} for entry in status["containerStatuses"]])


def _started(plane: ControlPlane, names: list[str]) -> Counter[str]:
    """How often a container of each pod was started, as its events say."""
    counts: Counter[str] = Counter()
    for event in plane.items("events"):
        if event["reason"] == "Started" and event["involvedObject"]["name"] in names:
            counts[event["involvedObject"]["name"]] += event.get("count") or 1
    return counts
