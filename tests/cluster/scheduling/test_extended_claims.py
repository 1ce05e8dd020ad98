"""Extended resources that a DeviceClass serves: the claim of the pod, its requests, and who gets the devices."""

from collections.abc import Sequence

import pytest
from tests.cluster.claims import claim, devices_of, publish, waits
from tests.cluster.embedding import Lab, embedded
from tests.kubelet.dra.driver import DRIVER, ScriptedDriver, registered

from plugwright.apiserver.kinds import DEVICE_CLASSES, NODES, PODS, RESOURCE_CLAIMS
from plugwright.apiserver.registry import DeleteOptions, ResourcePath
from plugwright.apiserver.store import Object
from plugwright.cluster.scheduling.extended_claims import classes_of_resources, requests_of
from plugwright.errors import StatusError
from plugwright.kubelet import Kubelet
from plugwright.protocol.dra import PreparedDevice

GPU = "example.com/gpu"
IMPLICIT = f"deviceclass.resource.kubernetes.io/{DRIVER}"


def serve(lab: Lab, devices: int = 2, node: str = "node-1", resource: str = GPU) -> None:
    """A class that serves the resource, and the devices of a node."""
    publish(lab, node, [{"name": f"gpu-{number}"} for number in range(devices)])

    def named(stored: Object) -> Object:
        return {**stored, "spec": {**stored["spec"], "extendedResourceName": resource}}

    lab.writer.change(ResourcePath(DEVICE_CLASSES, "", DRIVER), named, "test")


def container(name: str, count: int, resource: str = GPU, **more: object) -> Object:
    amounts = {resource: str(count), "cpu": "1"} if count else {}
    return {"name": name, "image": "x", "resources": {"limits": amounts, "requests": amounts}, **more}


def extended_claims(lab: Lab) -> Sequence[Object]:
    return lab.store.objects(RESOURCE_CLAIMS.qualified)


def driver_for(*requests: str) -> ScriptedDriver:
    """Answers with one device for each request."""
    devices = [PreparedDevice("node-1", f"gpu-{n}", (name,), (f"{GPU}={n}",)) for n, name in enumerate(requests)]
    return ScriptedDriver(answer=devices)


async def test_a_pod_gets_the_devices_of_its_extended_resource_by_a_claim() -> None:
    async with (
        embedded() as lab,
        registered(driver_for("container-0-request-1"), lab.cluster.nodes["node-1"].kubelet) as driver,
    ):
        serve(lab)
        lab.create("p", containers=[container("c", 2), container("none", 0)])
        await lab.phase("p")
        (made,) = extended_claims(lab)
        metadata = made["metadata"]
        assert metadata["name"].startswith("p-extended-resources-")
        assert metadata["annotations"] == {"resource.kubernetes.io/extended-resource-claim": "true"}
        assert [(owner["kind"], owner["name"], owner["controller"]) for owner in metadata["ownerReferences"]] == [
            ("Pod", "p", True)
        ]
        exactly = {"deviceClassName": DRIVER, "allocationMode": "ExactCount", "count": 2}
        assert made["spec"]["devices"]["requests"] == [{"name": "container-0-request-1", "exactly": exactly}]
        assert devices_of(lab, metadata["name"]) == ["gpu-0", "gpu-1"]
        assert [consumer["name"] for consumer in made["status"]["reservedFor"]] == ["p"]
        mapping = {"containerName": "c", "resourceName": GPU, "requestName": "container-0-request-1"}
        assert lab.status("p")["extendedResourceClaimStatus"] == {
            "requestMappings": [mapping],
            "resourceClaimName": metadata["name"],
        }
        ((prepared,),) = driver.prepared
        assert prepared.name == metadata["name"]
        lab.delete("p")
        await lab.cluster.until(lambda: not extended_claims(lab))
        assert len(driver.unprepared) == 1


async def test_every_class_serves_the_resource_of_its_name() -> None:
    async with embedded() as lab, registered(driver_for("container-0-request-0"), kubelet(lab)):
        publish(lab)
        lab.create("p", {IMPLICIT: "1"})
        await lab.phase("p")
        (made,) = extended_claims(lab)
        assert devices_of(lab, made["metadata"]["name"]) == ["gpu-0"]


async def test_pods_wait_for_devices_and_for_a_class() -> None:
    full = (
        "0/1 nodes are available: 1 cannot allocate all claims. still not schedulable, "
        "preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling."
    )
    async with embedded() as lab, registered(driver_for("container-0-request-0"), kubelet(lab)):
        lab.create("first", {GPU: "1"})
        await waits(lab, "first", f"1 Insufficient {GPU}")
        serve(lab, devices=1)
        await lab.phase("first")
        lab.create("second", {GPU: "1"})
        await waits(lab, "second", full)
        lab.delete("first")
        await lab.phase("second")
        lab.create("many", {GPU: "33"})
        await waits(lab, "many", "number of requested devices 33 exceeds the claim limit of 32")


async def test_a_node_with_a_device_plugin_serves_its_resource_itself() -> None:
    def offering(node: Object) -> Object:
        status = node["status"]
        amounts = {name: {**status[name], GPU: "1"} for name in ("capacity", "allocatable")}
        return {**node, "status": {**status, **amounts}}

    async with embedded(nodes=2) as lab, registered(driver_for("container-0-request-0"), kubelet(lab)):
        lab.writer.change(ResourcePath(NODES, "", "node-2", "status"), offering, "test")
        serve(lab, devices=1)
        selectors = [{"nodeSelector": {"kubernetes.io/hostname": f"node-{number}"}} for number in (2, 1)]
        for name, where in zip(("plugin", "claim"), selectors, strict=True):
            lab.create(name, {GPU: "1"}, **where)
            await lab.cluster.until(lambda name=name: bool((lab.pod(name) or {})["spec"].get("nodeName")))  # type: ignore[misc]
        assert "extendedResourceClaimStatus" not in lab.status("plugin")
        assert lab.status("claim")["extendedResourceClaimStatus"]["requestMappings"]
        lab.create("more", {GPU: "1"}, **selectors[0])
        await waits(lab, "more", f"1 Insufficient {GPU}")


async def test_a_claim_that_an_earlier_attempt_has_left_is_replaced() -> None:
    async with embedded() as lab, registered(driver_for("container-0-request-0"), kubelet(lab)):
        publish(lab)
        lab.create("p", {IMPLICIT: "1"}, schedulingGates=[{"name": "example.com/wait"}])
        uid = (lab.pod("p") or {})["metadata"]["uid"]
        owner = {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": uid, "controller": True}
        request = {"name": "container-0-request-0", "exactly": {"deviceClassName": DRIVER}}
        left = {
            "metadata": {
                "name": "left",
                "annotations": {"resource.kubernetes.io/extended-resource-claim": "true"},
                "ownerReferences": [owner],
            },
            "spec": {"devices": {"requests": [request]}},
        }
        lab.writer.create(ResourcePath(RESOURCE_CLAIMS, "default", "left"), left, "test")
        lab.writer.change(ResourcePath(PODS, "default", "p"), _ungated, "test")
        await lab.phase("p")
        assert claim(lab, "left") is None
        assert any("deletion of ResourceClaim completed" in text for _, text in lab.events("p"))


async def test_a_device_class_with_an_invalid_resource_is_refused() -> None:
    async with embedded() as lab:
        for resource in ("gpu", "kubernetes.io/gpu", "requests.example.com/gpu"):
            content = {"metadata": {"name": "bad"}, "spec": {"extendedResourceName": resource}}
            with pytest.raises(StatusError, match=r"extendedResourceName: Invalid value: .*valid extended resource"):
                lab.writer.create(ResourcePath(DEVICE_CLASSES, "", "bad"), content, "test")


async def test_a_deleted_class_makes_its_pods_wait() -> None:
    async with embedded() as lab:
        serve(lab)
        lab.writer.delete(ResourcePath(DEVICE_CLASSES, "", DRIVER), DeleteOptions())
        lab.create("p", {GPU: "1"})
        await waits(lab, "p", f"1 Insufficient {GPU}")


def test_the_newest_class_serves_a_resource_and_names_decide_between_equals() -> None:
    def made(name: str, second: int, resource: str | None = GPU) -> Object:
        created = f"2026-01-01T00:00:0{second}Z"
        return {"metadata": {"name": name, "creationTimestamp": created}, "spec": {"extendedResourceName": resource}}

    classes = [made("old", 1), made("b", 2), made("a", 2), made("plain", 3, None)]
    found = classes_of_resources({entry["metadata"]["name"]: entry for entry in classes})
    assert found[GPU] == "a"
    prefix = "deviceclass.resource.kubernetes.io"
    assert {name: found[f"{prefix}/{name}"] for name in ("old", "plain")} == {"old": "old", "plain": "plain"}


def test_init_containers_use_the_devices_of_later_containers() -> None:
    spec = {
        "initContainers": [
            container("small", 1),
            container("sidecar", 1, restartPolicy="Always"),
            container("large", 5),
            container("larger", 6),
        ],
        "containers": [container("main", 2), container("none", 0)],
    }
    found = requests_of({"spec": spec}, {GPU: "gpu"}, [GPU])
    counts = {request["name"]: request["exactly"]["count"] for request in found.requests}
    assert counts == {"container-1-request-1": 1, "container-3-request-1": 4, "container-4-request-1": 2}
    uses = [(mapping["containerName"], mapping["requestName"]) for mapping in found.mappings]
    assert uses == [
        ("sidecar", "container-1-request-1"),
        ("main", "container-4-request-1"),
        ("small", "container-1-request-1"),
        ("large", "container-4-request-1"),
        ("large", "container-3-request-1"),
        ("larger", "container-4-request-1"),
        ("larger", "container-3-request-1"),
    ]


def kubelet(lab: Lab) -> Kubelet:
    return lab.cluster.nodes["node-1"].kubelet


def _ungated(pod: Object) -> Object:
    return {**pod, "spec": {name: value for name, value in pod["spec"].items() if name != "schedulingGates"}}
