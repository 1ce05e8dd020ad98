"""`helm upgrade` and `helm rollback` between the values of `serve`, while pods hold devices by claims and by name.

No device is given to two pods, the pods of before end cleanly, and their devices are then given out again.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.kubernetes.claims import Claims
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.kubectl import Object
from tests.kubernetes.pods import Pod, Pods
from tests.kubernetes.shipping import Release
from tests.kubernetes.waiting import until

DEVICES = 4
END = 150  # seconds: a driver registers 35 s after its start, and a kubelet tries again after up to 90
PLUGIN, DRA, BOTH = "device-plugin", "dra", "both"
ESSENTIAL = [
    pytest.param(DRA, PLUGIN, "rollback", marks=pytest.mark.essential),
    pytest.param(BOTH, PLUGIN, "upgrade", marks=pytest.mark.essential),
]
REST = [
    (before, after, how)
    for before in (PLUGIN, DRA, BOTH)
    for after in (PLUGIN, DRA, BOTH)
    for how in ("upgrade", "rollback")
    if before != after and (before, after, how) not in ((DRA, PLUGIN, "rollback"), (BOTH, PLUGIN, "upgrade"))
]
PAIRS = [*ESSENTIAL, *(pytest.param(*pair, marks=pytest.mark.full("all pairs of serve values")) for pair in REST)]


class Node:
    """The chart on the node, and the pods of a test."""

    def __init__(self, release: Release, cluster: Cluster, pods: Pods, name: str) -> None:
        self.release, self.kubectl, self.pods = release, cluster.kubectl, pods
        self.resource, self.driver = f"serve.chart/{name}", f"{name}.serve.chart"
        self.claims = Claims(cluster.kubectl, self.driver)
        self.claims.template("one")

    def values(self, api: str) -> list[str]:
        serve = ["config.resources[0].serve.api=both", "config.resources[0].serve.split.dra=2"]
        return [
            f"config.resources[0].name={self.resource}",
            f"config.resources[0].mock.count={DEVICES}",
            *(serve if api == BOTH else [f"config.resources[0].serve={api}"]),
            "dra.deviceClasses=false",
            "cleanup.enabled=false",
        ]

    def served(self, api: str) -> None:
        self.release.rolled_out()
        if api != PLUGIN:
            wanted = DEVICES if api == DRA else 2
            until("devices are published", lambda: len(self.claims.devices()) >= wanted, last=self.release.logs)

    def create(self, kind: str, *names: str) -> list[Pod]:
        if kind == "claim":
            return [self.claims.pod(name, "one") for name in names]
        return [self.pods.create(name, {self.resource: 1}) for name in names]

    def running(self, pods: list[Pod]) -> list[Pod]:
        every: dict[str, Object] = self.pods.every()
        return [pod for pod in pods if every.get(pod.name, {}).get("status", {}).get("phase") == "Running"]

    def given(self, pods: list[Pod]) -> list[str]:
        return sorted(device for pod in pods for device in pod.devices())


@pytest.fixture
def node(request: pytest.FixtureRequest, cluster: Cluster, helm: Path, images: None, pods: Pods) -> Iterator[Node]:
    before, after, how = (request.getfixturevalue(name) for name in ("before", "after", "how"))
    name = f"{before[0]}-{after[0]}-{how[:2]}"
    release = Release(cluster, helm, f"plugwright-{name}")
    found = Node(release, cluster, pods, name)
    yield found
    pods.end()
    found.claims.end()
    release.uninstall()


@pytest.mark.parametrize(("before", "after", "how"), PAIRS)
def test_a_change_of_serve_gives_no_device_twice_and_pods_end(node: Node, before: str, after: str, how: str) -> None:
    release = node.release
    if how == "rollback":
        release.install(*node.values(after))
        node.served(after)
        release.upgrade(*node.values(before))
    else:
        release.install(*node.values(before))
    node.served(before)
    holders = [] if before == PLUGIN else node.create("claim", "claimant")
    holders += [] if before == DRA else node.create("name", "asker")
    for pod in holders:
        pod.runs()
    held = node.given(holders)
    assert len(set(held)) == len(holders)

    release.rollback() if how == "rollback" else release.upgrade(*node.values(after))
    release.rolled_out()
    sides = {PLUGIN: ["name"] * 4, DRA: ["claim"] * 4, BOTH: ["name", "name", "claim", "claim"]}[after]
    takers = [pod for number, kind in enumerate(sides) for pod in node.create(kind, f"taker-{number}")]
    least = DEVICES - len(holders) if after != BOTH else 1
    until("free devices are given out", lambda: len(node.running(takers)) >= least, END, last=release.logs)
    together = node.given([*node.running(takers), *holders])
    assert len(set(together)) == len(together), f"{together}\n{release.logs()}"
    if after == PLUGIN:
        assert "waits for: ResourceClaim default/claimant" in release.plugwright("status")

    node.kubectl("delete", "pods", *(pod.name for pod in holders), "--wait=false")
    gone = {pod.name for pod in holders}
    until("the pods of before have ended", lambda: not gone & node.pods.every().keys(), END, last=release.logs)
    until("all devices are given out", lambda: len(node.running(takers)) == DEVICES, END, last=release.logs)
    assert len(set(node.given(takers))) == DEVICES
