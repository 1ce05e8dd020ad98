"""What a DRA driver meets in a cluster besides its own claims: pools in parts, tolerated taints, changing classes."""

import json
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

import pytest
from tests.kubernetes.claims import Claims
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.components import NODE
from tests.kubernetes.findings import Findings
from tests.kubernetes.kubectl import Kubectl, Object
from tests.kubernetes.pods import Pod, Pods
from tests.kubernetes.serving import Daemon, Plugins
from tests.kubernetes.waiting import until

Serve = Callable[..., tuple[Daemon, Claims]]
_UNHEALTHY = "plugwright.dev/unhealthy"
_RETRY = range(55, 100)  # seconds; a kubelet comes back to a claim that was not prepared after 60 to 90


@pytest.fixture
def made(cluster: Cluster, pods: Pods) -> Iterator[list[Claims]]:
    """Classes and claims that are removed after the test, with its pods."""
    made: list[Claims] = []
    yield made
    cluster.revive()
    pods.end()
    for claims in made:
        claims.end()


@pytest.fixture
def serve(cluster: Cluster, plugins: Plugins, made: list[Claims]) -> Serve:
    def started(name: str, count: int, extended: str = "", **serve: object) -> tuple[Daemon, Claims]:
        daemon = plugins.run({f"example.com/{name}": {"count": count, "serve": {"api": "dra", **serve}}})
        made.append(claims := Claims(cluster.kubectl, f"{name}.example.com", extended))
        claims.published(count)
        until("registered", lambda: daemon.logged("registered", driver=claims.driver))
        return daemon, claims

    return started


def waits(pod: Pod, text: str = "cannot allocate all claims") -> None:
    until(f"{pod.name} waits", lambda: text in str(pod.read()["status"]), last=lambda: pod.read()["status"])


def is_gone(pod: Pod) -> bool:
    found = pod.kubectl.get("pod", pod.name)
    return found is None or "deletionTimestamp" in found["metadata"]


def tolerating(claims: Claims, **toleration: object) -> Object:
    return claims.request(tolerations=[{"key": _UNHEALTHY, "operator": "Exists", **toleration}])


def test_three_claims_are_prepared_at_once(serve: Serve) -> None:
    daemon, claims = serve("thrice", 3)
    claims.template("one")
    daemon.process.freeze()
    three = [claims.pod(f"thrice-{number}", "one") for number in range(3)]
    until("the kubelet has three claims to prepare", lambda: len(claims.allocated()) == 3)
    time.sleep(2)  # its calls are seen by nobody: the driver is stopped
    daemon.process.thaw()
    assert len({device for pod in three for device in pod.runs().devices()}) == 3
    assert len(daemon.logged("claim prepared")) == 3


def pool_slice(driver: str, number: int, generation: int, count: int, device: str) -> Object:
    pool = {"name": NODE, "generation": generation, "resourceSliceCount": count}
    spec = {"driver": driver, "nodeName": NODE, "pool": pool, "devices": [{"name": device}]}
    metadata = {"name": f"{driver}-{number}", "labels": {"test": "pools"}}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": metadata, "spec": spec}


def test_a_pool_in_parts_and_an_old_generation_are_not_allocated_from(cluster: Cluster, made: list[Claims]) -> None:
    """The slices are written by hand, so no pod runs: what the scheduler allocates is all there is to see."""
    driver = "pools.example.com"
    made.append(claims := Claims(cluster.kubectl, driver))
    try:
        cluster.kubectl.create(pool_slice(driver, 1, generation=1, count=2, device="old"))
        claims.claim("early")
        early = claims.pod("early", claims=["early"])
        waits(early, "")
        until("the scheduler has tried", lambda: "Unschedulable" in str(early.read()["status"]))
        assert claims.allocated() == {}, "one slice of two"
        cluster.kubectl.create(pool_slice(driver, 2, generation=2, count=1, device="new"))
        until("it has a device", lambda: claims.allocated() == {"early": ["new"]}, last=claims.allocated)
        claims.claim("late")
        waits(late := claims.pod("late", claims=["late"]))
        assert late.name not in claims.allocated(), "the old generation's device is not there any more"
    finally:
        cluster.kubectl("delete", "resourceslices", "--selector=test=pools")


@pytest.mark.essential
def test_a_taint_is_tolerated_by_its_effect_or_by_any(serve: Serve) -> None:
    daemon, claims = serve("tolerated", 1)
    [device] = claims.published(1)
    daemon.ask("mock", "fail", device)
    until("it is tainted", lambda: claims.taints() == {device: [(_UNHEALTHY, "NoSchedule")]})
    claims.template("other-effect", tolerating(claims, effect="NoExecute"))
    claims.template("same-effect", tolerating(claims, effect="NoSchedule"))
    claims.template("any-effect", tolerating(claims))
    waits(other := claims.pod("other-effect", "other-effect"))
    other.delete()
    for name in ("same-effect", "any-effect"):
        pod = claims.pod(name, name).runs()
        assert pod.devices() == [device]
        pod.delete()


@pytest.mark.full("upstream's eviction, after the tolerated seconds")
def test_a_pod_stays_for_the_seconds_that_it_tolerates(serve: Serve, findings: Findings) -> None:
    """Without an effect the scheduler honours a toleration, and the controller that evicts does not: upstream's."""
    daemon, claims = serve("enduring", 3, taints={"effect": "NoExecute", "grace": 1, "budget": 3})
    claims.template("while", tolerating(claims, effect="NoExecute", tolerationSeconds=8))
    claims.template("always", tolerating(claims, effect="NoExecute"))
    claims.template("any", tolerating(claims))
    holders = {name: claims.pod(f"endures-{name}", name).runs() for name in ("while", "always", "any")}
    held = {name: pod.devices()[0] for name, pod in holders.items()}
    for device in held.values():
        daemon.ask("mock", "fail", device)
    effects = [[(_UNHEALTHY, "NoExecute")]] * 3
    until("all are tainted", lambda: [*claims.taints().values()] == effects, last=claims.taints)
    tainted = claims.devices()[held["while"]]["taints"][0]
    until("it is evicted", lambda: is_gone(holders["while"]), limit=60)
    stayed = time.time() - datetime.fromisoformat(tainted["timeAdded"]).timestamp()
    without = "evicted" if is_gone(holders["any"]) else "stays"
    findings.notes.append(f"tolerationSeconds 8: evicted after {stayed:.1f} s; a toleration without effect: {without}")
    assert 7 < stayed < 30
    assert not is_gone(holders["always"])


@pytest.mark.essential
def test_a_resource_by_its_class_waits_while_its_device_is_tainted(serve: Serve, pods: Pods) -> None:
    daemon, claims = serve("stained", 1, extended="example.com/stained")
    [device] = claims.published(1)
    daemon.ask("mock", "fail", device)
    until("it is tainted", lambda: device in claims.taints())
    asks = pods.create("stained", {"example.com/stained": 1})
    until("the scheduler has tried", lambda: "Unschedulable" in str(asks.read()["status"]))
    daemon.ask("mock", "recover", device)
    assert asks.runs().devices() == [device]


@pytest.mark.full("upstream's eviction, and the seconds in which it must not happen")
def test_a_taint_that_evicts_leaves_pods_with_the_resource_of_a_class(
    serve: Serve, pods: Pods, findings: Findings
) -> None:
    """The controller that evicts does not look at such claims: upstream's."""
    daemon, claims = serve("spared", 2, "example.com/spared", taints={"effect": "NoExecute", "grace": 0, "budget": 2})
    claims.template("one")
    named, claimed = pods.create("spared", {"example.com/spared": 1}).runs(), claims.pod("goes", "one").runs()
    for pod in (named, claimed):
        daemon.ask("mock", "fail", pod.devices()[0])
    until("the claim's pod is evicted", lambda: is_gone(claimed), limit=60)
    time.sleep(5)  # nothing may happen
    findings.notes.append(f"NoExecute, by the class's resource: {'evicted' if is_gone(named) else 'stays'}")


def device_class(kubectl: Kubectl, name: str, expression: str, extended: str) -> None:
    spec = {"selectors": [{"cel": {"expression": expression}}], "extendedResourceName": extended}
    body = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": name}, "spec": spec}
    kubectl("apply", "--filename=-", given=json.dumps(body))


def test_a_class_changes_while_claims_have_its_devices(serve: Serve, cluster: Cluster, pods: Pods) -> None:
    """Another class takes the resource's name over; on 1.36 it must be touched after the first one is gone."""
    name = "example.com/swapped"
    _, claims = serve("swapped", 3, extended=name)
    claims.template("one")
    first, held = pods.create("by-name", {name: 1}).runs(), claims.pod("by-claim", "one").runs()
    before = [(pod.containers(), pod.devices()) for pod in (first, held)]
    nothing = f'device.driver == "{claims.driver}" && device.attributes["{claims.driver}"].index == 99'
    device_class(cluster.kubectl, claims.driver, nothing, name)
    waits(claims.pod("after-the-change", "one"))
    assert [(pod.containers(), pod.devices()) for pod in (first, held)] == before
    try:
        device_class(cluster.kubectl, "swapped", f'device.driver == "{claims.driver}"', name)
        cluster.kubectl("delete", "deviceclass", claims.driver)
        cluster.kubectl("annotate", "deviceclass", "swapped", "touched=true")
        assert pods.create("by-the-new-class", {name: 1}).runs().devices() not in [devices for _, devices in before]
        assert [(pod.containers(), pod.devices()) for pod in (first, held)] == before
        first.delete()
        held.delete()
    finally:
        pods.end()
        cluster.kubectl("delete", "deviceclass", "swapped")


def times(daemon: Daemon, message: str) -> list[float]:
    return [datetime.fromisoformat(record["time"]).timestamp() for record in daemon.logged(message)]


@pytest.mark.full("the kubelet retries a refused claim after a minute")
@pytest.mark.timeout(600)
def test_a_claim_that_is_refused_is_tried_again_after_a_minute(serve: Serve, findings: Findings) -> None:
    daemon, claims = serve("refused", 1)
    parameters: dict[str, Any] = {"apiVersion": "example.com/v1", "kind": "Unknown"}
    opaque = {"opaque": {"driver": claims.driver, "parameters": parameters}}
    claims.template("configured", config=[opaque])
    pod = claims.pod("refused", "configured")
    until("it was tried twice", lambda: len(times(daemon, "claim not prepared")) == 3, limit=300)
    first, second, third = times(daemon, "claim not prepared")
    findings.notes.append(f"a refused claim is prepared again after {second - first:.0f} and {third - second:.0f} s")
    assert {round(second - first), round(third - second)} <= {*_RETRY}
    assert "FailedPrepareDynamicResources" in pod.kubectl("describe", "pod", pod.name)
