"""Two real nodes in one cluster: a rolling update of the chart, a drain, and claims that move to the other node."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.kubernetes import shipping
from tests.kubernetes.claims import Claims
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.components import NODE, SECOND
from tests.kubernetes.conftest import shown
from tests.kubernetes.host import Host
from tests.kubernetes.images import BUSYBOX
from tests.kubernetes.kubectl import Kubectl, Object
from tests.kubernetes.node import Node
from tests.kubernetes.pods import Pod, Pods
from tests.kubernetes.second_node import SecondNode
from tests.kubernetes.serving import Plugins
from tests.kubernetes.shipping import Release
from tests.kubernetes.waiting import until

COUNT = 3  # devices of each resource on each node
NAMES = (NODE, SECOND.name)
Nodes = tuple[Cluster, SecondNode]

pytestmark = [
    pytest.mark.full("a second cluster, of two nodes"),
    pytest.mark.timeout(900),  # the images may have to be built first
]


class Two:
    """Both nodes, and the resources of one test: `counted` by the device plugin API, `claimed` by claims."""

    def __init__(self, nodes: Nodes, name: str) -> None:
        self.hosts: tuple[Host, Host] = nodes
        self.kubectl = nodes[0].kubectl
        self.counted, self.claimed = f"counted.example.com/{name}", f"claimed.example.com/{name}"
        self.pods, self.claims = Pods(self.kubectl), Claims(self.kubectl, f"{name}.claimed.example.com")
        self._nodes = [Node(host) for host in nodes]

    def published(self) -> dict[str, int]:
        """The number of devices in the slices of each node."""
        return {found["spec"]["nodeName"]: len(found["spec"]["devices"]) for found in self.claims.slices()}

    def serve(self) -> None:
        """Waits until both nodes have all devices of both resources."""
        for node in self._nodes:
            node.shows(self.counted, capacity=COUNT, allocatable=COUNT)
        until("both nodes publish", lambda: self.published() == dict.fromkeys(NAMES, COUNT), last=self.claims.slices)

    def count(self, name: str, node: str) -> Pod:
        """A pod with a device of the device plugin API."""
        return self.pods.create(name, {self.counted: 1}, **selected(node))

    def claim(self, name: str, node: str) -> Pod:
        """A pod with a device by a claim of its own."""
        return self.claims.pod(name, "one", **selected(node))

    def panics(self) -> list[str]:
        return [line for node in self._nodes for line in node.panics()]


def selected(node: str) -> Object:
    """The part of a pod's spec that has it run on this node."""
    return {"nodeSelector": {"kubernetes.io/hostname": node}}


@pytest.fixture(scope="module")
def nodes(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[Nodes]:
    """Of a cluster of their own; that of the session shows that the machine can."""
    with Cluster(cluster.version) as first, SecondNode(first) as second:
        yield first, second
        if request.session.testsfailed:
            print(f"logs are kept in {first.keep_logs('two-nodes')}")


@pytest.fixture
def two(nodes: Nodes, request: pytest.FixtureRequest) -> Iterator[Two]:
    """Requested after whatever serves the devices, because pods of claims end only as long as their driver runs."""
    two = Two(nodes, "drained" if "drained" in request.node.name else "updated")
    two.claims.template("one")
    yield two
    for host in nodes:
        host.revive()
        two.kubectl("uncordon", host.files.member.name)
    two.kubectl("delete", "replicasets", "--all", "--wait", "--timeout=60s")
    two.pods.end()
    two.claims.end()


@pytest.fixture
def plugins(nodes: Nodes) -> Iterator[list[Plugins]]:
    """Of each node."""
    plugins = [Plugins(host) for host in nodes]
    yield plugins
    for each in plugins:
        each.end()


@pytest.fixture
def release(nodes: Nodes, helm: Path, pytestconfig: pytest.Config) -> Iterator[Release]:
    with shown(pytestconfig):
        archives = shipping.build_images()
    for host in nodes:
        for archive in archives:
            host.load_image(archive)
    release = Release(nodes[0], helm, "plugwright-two-nodes")
    yield release
    release.remove()


def replica_set(name: str, resources: Object, **spec: object) -> Object:
    """Of one pod, which is replaced if it is evicted."""
    container = {
        "name": "main",
        "image": BUSYBOX,
        "imagePullPolicy": "Never",
        "command": ["sh", "-c", "trap exit TERM; sleep 1000000 & wait"],
        "resources": resources,
    }
    pod = {"containers": [container], "terminationGracePeriodSeconds": 1, **spec}
    labels = {"app": name}
    content = {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": pod}}
    return {"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": name}, "spec": content}


def its_pod(kubectl: Kubectl, name: str) -> Pod:
    """The pod of a ReplicaSet, once there is one that does not end."""

    def names() -> list[str]:
        found = kubectl.every("pods", f"--selector=app={name}")
        return [pod["metadata"]["name"] for pod in found if "deletionTimestamp" not in pod["metadata"]]

    return Pod(until(f"{name} has a pod", names)[0], kubectl)


def node_of(pod: Pod) -> str:
    return str(pod.read()["spec"]["nodeName"])


def claim_files(host: Host) -> list[str]:
    """The CDI specs of prepared claims on a node."""
    return sorted(path.name for path in (host.state / "run" / "cdi").glob("*.json"))


async def test_a_drained_node_holds_nothing_and_its_claims_move_to_the_other(plugins: list[Plugins], two: Two) -> None:
    kubectl, workloads = two.kubectl, ("counted", "templated", "named")
    resources: dict[str, dict[str, object]] = {
        two.counted: {"count": COUNT},
        two.claimed: {"count": COUNT, "serve": "dra"},
    }
    daemons = [each.run(resources) for each in plugins]
    two.serve()
    two.claims.claim("moving")  # of no pod: it is the same claim on the other node
    device = {"claims": [{"name": "device"}]}
    kubectl("cordon", NODE)
    kubectl.create(
        replica_set("counted", {"limits": {two.counted: "1"}}),
        replica_set("templated", device, resourceClaims=[{"name": "device", "resourceClaimTemplateName": "one"}]),
        replica_set("named", device, resourceClaims=[{"name": "device", "resourceClaimName": "moving"}]),
    )
    before = {name: its_pod(kubectl, name).runs() for name in workloads}
    assert {node_of(pod) for pod in before.values()} == {SECOND.name}
    assert [result["pool"] for result in two.claims.results("moving")] == [SECOND.name]
    assert len(claim_files(two.hosts[1])) == 2
    kubectl("uncordon", NODE)

    kubectl("drain", SECOND.name, "--timeout=100s")
    after = {name: its_pod(kubectl, name).runs() for name in workloads}
    assert {node_of(pod) for pod in after.values()} == {NODE}
    assert {pod.name for pod in after.values()}.isdisjoint(pod.name for pod in before.values())
    assert [result["pool"] for result in two.claims.results("moving")] == [NODE]
    assert set(after["templated"].devices()).isdisjoint(after["named"].devices())

    def held(number: int) -> list[str]:
        """The devices of both resources for which a node's daemon names a holder.

        Until its next checkpoint, the kubelet still has the ended pod's UID, which `status` shows without a name.
        """
        shown = [found for name in resources for found in daemons[number].status(name)["devices"]]
        return [found["id"] for found in shown if any(each["pod"] or each["claim"] for each in found["holders"])]

    until("the drained node holds nothing", lambda: not held(1), last=lambda: held(1))
    until("the other node holds all", lambda: len(held(0)) == len(workloads), last=lambda: held(0))
    assert await Node(two.hosts[1]).holdings() == []
    assert [len(claim_files(host)) for host in two.hosts] == [2, 0]

    kubectl("uncordon", SECOND.name)
    for ask in (two.count, two.claim):  # every device of the drained node is free
        pods = [ask(f"{ask.__name__}-{number}", SECOND.name) for number in range(COUNT)]
        assert len({found for pod in pods for found in pod.runs().devices()}) == COUNT
    assert two.panics() == []


def test_a_rolling_update_of_two_nodes_keeps_the_devices_of_pods_of_both_apis(release: Release, two: Two) -> None:
    values = (
        *(f"config.resources[0].name={two.counted}", f"config.resources[0].mock.count={COUNT}"),
        *(f"config.resources[1].name={two.claimed}", f"config.resources[1].mock.count={COUNT}"),
        *("config.resources[1].serve=dra", "dra.deviceClasses=false", "cleanup.enabled=false"),
    )
    release.install(*values)
    release.rolled_out()
    two.serve()

    def pods_of_both(suffix: str) -> list[Pod]:
        """A pod of each API on each node."""
        made = [ask(f"{ask.__name__}-{node}-{suffix}", node) for node in NAMES for ask in (two.count, two.claim)]
        return [pod.runs() for pod in made]

    holders = pods_of_both("before")
    held = [(pod.containers(), pod.devices()) for pod in holders]
    daemons = set(release.pods())
    assert len(daemons) == len(NAMES)

    release.upgrade(*values, r"podAnnotations.example\.com/round=second")
    release.rolled_out()
    assert len(set(release.pods()) - daemons) == len(NAMES)
    two.serve()
    assert [(pod.containers(), pod.devices()) for pod in holders] == held
    later = pods_of_both("after")
    for holder, other in zip(holders, later, strict=True):
        assert set(holder.devices()).isdisjoint(other.devices())

    for pod in (*holders, *later):
        pod.delete()
    for node in NAMES:  # the new daemons release what the old ones prepared
        again = [two.claim(f"again-{node}-{number}", node) for number in range(COUNT)]
        assert len({found for pod in again for found in pod.runs().devices()}) == COUNT
    assert two.panics() == []
