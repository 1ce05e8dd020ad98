"""`helm upgrade` and `helm rollback` between the values of `serve`, while pods hold devices by claims and by name.

No device is given to two pods, the pods of before end cleanly, and their devices are then given out again.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.kubernetes.claims import Claims
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.components import NODE
from tests.kubernetes.kubectl import Object
from tests.kubernetes.pods import Pod, Pods
from tests.kubernetes.shipping import Release
from tests.kubernetes.waiting import until

DEVICES = 4
END = 240  # seconds: a ConfigMap may arrive after 75, a driver registers 35 later, and a kubelet retries after up to 90
PLUGIN, DRA, BOTH = "device-plugin", "dra", "both"
LETTERS = {PLUGIN: "p", DRA: "d", BOTH: "b"}  # in names: no two tests share files on the node
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
        """Returns when the devices of `api` are published, and no others, and the daemon is ready.

        A pod whose claim the kubelet prepares before the driver is registered waits for up to 90 s.
        """
        self.arrived()
        wanted = {PLUGIN: 0, DRA: DEVICES, BOTH: 2}[api]
        until("devices are published", lambda: len(self.claims.devices()) == wanted, END, last=self.release.logs)
        until("the daemon is ready", self.is_ready, END, last=self.release.logs)

    def is_ready(self) -> bool:
        return bool(json.loads(self.release.plugwright("status", "--output=json"))["daemon"]["ready"])

    def arrived(self) -> None:
        """Has a changed ConfigMap mounted early; the rest of the time belongs to the waits that follow."""
        self.release.rolled_out()
        self.release.sync()

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
    name = f"{LETTERS[before]}-{LETTERS[after]}-{how[:2]}"
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
    node.arrived()
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


@pytest.mark.parametrize(("before", "after", "how"), [(DRA, PLUGIN, "drain")])
def test_a_drain_after_a_change_of_serve_ends_pods_with_claims(node: Node, before: str, after: str, how: str) -> None:
    release = node.release
    release.install(*node.values(before))
    node.served(before)
    [holder] = node.create("claim", "claimant")
    holder.runs()
    release.upgrade(*node.values(after))
    node.served(after)
    try:
        node.kubectl("drain", NODE, "--force", "--ignore-daemonsets", "--delete-emptydir-data", f"--timeout={END}s")
    finally:
        node.kubectl("uncordon", NODE)
    [taker] = node.create("name", "asker")
    taker.runs()
    assert len(node.given([taker])) == 1
