"""The real kubelet is restarted, again and again, while pods hold devices and others arrive."""

import signal
from collections import Counter
from dataclasses import dataclass

import pytest
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.findings import Findings
from tests.kubernetes.node import Node
from tests.kubernetes.pods import Pod, Pods, refusal
from tests.kubernetes.serving import Daemon, Plugins
from tests.kubernetes.waiting import until

_RESOURCE = "mock/steady"
# Enough for every pod: a kubelet that is restarted before it has seen which pods are gone gives none of theirs again.
_COUNT = 100


@dataclass(frozen=True, slots=True)
class _Scene:
    cluster: Cluster
    node: Node
    pods: Pods
    daemon: Daemon


@pytest.fixture
def scene(cluster: Cluster, node: Node, pods: Pods, plugins: Plugins) -> _Scene:
    return _Scene(cluster, node, pods, plugins.run({_RESOURCE: {"count": _COUNT}}))


@pytest.fixture
def restarts(full: bool) -> int:
    """Both signals twice show it; more make the median and the percentiles of the findings worth reading."""
    return 20 if full else 4


@pytest.mark.essential
@pytest.mark.smoke
async def test_restarts_disturb_no_pod_and_grant_no_device_twice(
    scene: _Scene, findings: Findings, restarts: int
) -> None:
    scene.node.shows(_RESOURCE, capacity=_COUNT, allocatable=_COUNT)
    staying = [scene.pods.create(f"stays-{number}", {_RESOURCE: 2}).runs() for number in range(3)]
    before = [(pod.containers(), pod.devices()) for pod in staying]
    for number in range(restarts):
        arriving = _restart_while_pods_arrive(scene, number)
        _count_refusals(scene.pods, arriving, findings)
        assert await _granted_twice(scene.node) == []
        assert [pod.containers() for pod in staying] == [containers for containers, _ in before]
        scene.pods.delete(*arriving)
    assert [(pod.containers(), pod.devices()) for pod in staying] == before
    findings.requests += _delays(scene, scene.node.registration_requests(_RESOURCE))
    findings.registrations += _delays(scene, scene.daemon.registrations(_RESOURCE))
    assert len(findings.registrations) == restarts
    assert scene.node.panics() == []


def test_a_pod_that_must_start_before_the_plugin_is_back_is_refused_and_no_other(
    cluster: Cluster, node: Node, pods: Pods, plugins: Plugins
) -> None:
    first = plugins.run({"mock/late": {"count": 3}})
    node.shows("mock/late", capacity=3, allocatable=3)
    stays = pods.create("stays", {"mock/late": 1}).runs()
    before = stays.containers(), stays.devices()

    cluster.stop("kubelet", signal.SIGKILL)
    first.process.stop(signal.SIGKILL)
    early = pods.create("early", {"mock/late": 1})
    _until_bound(early)
    cluster.start("kubelet")
    refused = until("the early one is refused", lambda: refusal(early.read()), last=early.read)
    assert refused.fact == "3.16"

    plugins.run({"mock/late": {"count": 3}})
    node.shows("mock/late", capacity=3, allocatable=3)
    pods.create("timely", {"mock/late": 2}).runs()
    assert (stays.containers(), stays.devices()) == before


def _restart_while_pods_arrive(scene: _Scene, number: int) -> list[str]:
    """One arrives just before the kubelet ends, one while there is none, one just after the next has started."""
    arriving = [f"{when}-{number}" for when in ("before", "between", "after")]
    registered = len(scene.daemon.registrations(_RESOURCE))
    scene.pods.create(arriving[0], {_RESOURCE: 1})
    scene.cluster.stop("kubelet", signal.SIGKILL if number % 2 else signal.SIGTERM)
    between = scene.pods.create(arriving[1], {_RESOURCE: 1})
    _until_bound(between)
    scene.cluster.start("kubelet")
    scene.pods.create(arriving[2], {_RESOURCE: 1})
    until("it is registered again", lambda: len(scene.daemon.registrations(_RESOURCE)) > registered)
    return arriving


def _until_bound(pod: Pod) -> None:
    until(f"the scheduler has bound {pod.name}", lambda: pod.read()["spec"].get("nodeName"))


def _count_refusals(pods: Pods, arriving: list[str], findings: Findings) -> None:
    """Waits until each runs or was refused: as only a container may be that had to start before the plugin was back."""
    until(f"{arriving} are settled", lambda: _settled(pods, arriving), last=pods.every)
    refused = [found for name in arriving if (found := refusal(Pod(name, pods.kubectl).read()))]
    findings.arrived += len(arriving)
    for each in refused:
        findings.count(each)
        assert each.fact in ("3.15", "3.16"), each


def _settled(pods: Pods, names: list[str]) -> bool:
    every = pods.every()
    return all(every[name]["status"].get("phase") in ("Running", "Failed") for name in names)


async def _granted_twice(node: Node) -> list[str]:
    holders = Counter(holding.device_id for holding in await node.holdings() if holding.resource == _RESOURCE)
    assert len(holders) >= 6, "the pods that stay hold six"
    return [device for device, count in holders.items() if count > 1]


def _delays(scene: _Scene, moments: list[float]) -> list[float]:
    """For each kubelet that started under this daemon: the seconds until the first of `moments`."""
    first = scene.daemon.registrations(_RESOURCE)[0]
    starts = [start for start in scene.node.kubelet_starts() if start > first]
    ends = [*starts[1:], float("inf")]
    return [
        min(moment for moment in moments if start - 0.001 <= moment < end) - start  # our log has milliseconds
        for start, end in zip(starts, ends, strict=True)
    ]
