"""The fleet commands on a real cluster: the API server's exec reaches daemons, and their reports name holders."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.components import NODE
from tests.kubernetes.node import Node
from tests.kubernetes.pods import Pods
from tests.kubernetes.shipping import Release
from tests.kubernetes.waiting import until

RESOURCE = "fleet.chart/gpu"

pytestmark = pytest.mark.timeout(600)  # the images may have to be built first


@pytest.fixture
def release(cluster: Cluster, helm: Path, images: None) -> Iterator[Release]:
    release = Release(cluster, helm, "plugwright-fleet")
    release.install(f"config.resources[0].name={RESOURCE}", "config.resources[0].mock.count=3", "cleanup.enabled=false")
    release.rolled_out()
    yield release
    release.uninstall()


@pytest.mark.essential
def test_commands_reach_the_daemon_of_a_node_and_show_who_holds_a_device(
    release: Release, cluster: Cluster, node: Node, pods: Pods
) -> None:
    def plugwright(*arguments: str, code: int = 0) -> str:
        done = cluster.run(sys.executable, "-m", "plugwright", *arguments)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout

    def devices() -> dict[str, dict[str, Any]]:
        found = json.loads(plugwright("devices", NODE, "--resource", RESOURCE, "-o", "json"))["devices"]
        return {device["id"]: device for device in found}

    node.shows(RESOURCE, capacity=3, allocatable=3)
    [held] = pods.create("holder", {RESOURCE: 1}).runs().devices()
    report = json.loads(plugwright("status", "--node", NODE, "-o", "json"))
    assert (report["kind"], report["metadata"]["nodeName"]) == ("NodeReport", NODE)
    until("the holder is known", lambda: devices()[held]["holders"], 90)
    assert len(devices()) == 3
    assert held in plugwright("who", "default/holder")
    assert "default/holder" in plugwright("who", held, "--node", NODE)
    assert RESOURCE in plugwright("free")

    free = next(device for device in devices() if device != held)
    plugwright("cordon", RESOURCE, free, "--node", NODE, "--reason", "fan replaced")
    node.shows(RESOURCE, capacity=3, allocatable=2)
    assert "fan replaced" in plugwright("cordon", "list", "--all-nodes")
    until(
        "the history has the cordon",
        lambda: "fan replaced" in plugwright("history", "--node", NODE),
        60,
        last=lambda: plugwright("history", "--node", NODE),
    )
    plugwright("uncordon", RESOURCE, free, "--node", NODE)
    node.shows(RESOURCE, capacity=3, allocatable=3)
    examined = json.loads(plugwright("doctor", NODE, "-o", "json"))
    assert (examined["kind"], examined["result"], examined["metadata"]["inPod"]) == ("DoctorReport", "healthy", True)
