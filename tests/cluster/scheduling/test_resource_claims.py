"""Claims in the embedded cluster: allocated by the scheduler, prepared by a driver, freed after the pods."""

import pytest
from tests.cluster.claims import allocate, claim, create_claim, create_pod, devices_of, publish, waits, with_driver
from tests.cluster.embedding import Lab, embedded
from tests.kubelet.dra.driver import DRIVER, ScriptedDriver, registered

from plugwright.apiserver.kinds import DEVICE_CLASSES, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS, RESOURCE_SLICES
from plugwright.apiserver.kinds.kind import Kind
from plugwright.apiserver.registry import DeleteOptions, ResourcePath
from plugwright.apiserver.store import Object
from plugwright.errors import StatusError
from plugwright.protocol.dra import VERSIONS
from plugwright.protocol.dra_health import HealthStatus, ReportedHealth

CLAIM_SPEC = {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu.example.com"}}]}}


async def test_a_claim_is_allocated_reserved_and_freed_after_its_pod() -> None:
    async with embedded() as lab, with_driver(lab) as driver:
        create_pod(lab, "p", resourceClaimName="one")
        await waits(lab, "p", '0/1 nodes are available: resourceclaim "one" not found.')
        create_claim(lab, "one")
        await waits(lab, "p", "request gpu: device class gpu.example.com does not exist")
        publish(lab)
        await lab.phase("p")
        assert len(driver.prepared) == 1
        stored = claim(lab, "one") or {}
        assert devices_of(lab, "one") == ["gpu-0"]
        assert stored["metadata"]["finalizers"] == ["resource.kubernetes.io/delete-protection"]
        assert [consumer["name"] for consumer in stored["status"]["reservedFor"]] == ["p"]
        lab.delete("p")
        await lab.cluster.until(lambda: (claim(lab, "one") or {}).get("status") == {})
        assert "finalizers" not in (claim(lab, "one") or {})["metadata"]
        assert len(driver.unprepared) == 1
        assert lab.pod("p") is None


async def test_a_second_claim_waits_for_the_device_of_the_first() -> None:
    message = (
        "0/1 nodes are available: 1 cannot allocate all claims. still not schedulable, "
        "preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling."
    )
    async with embedded() as lab, with_driver(lab):
        publish(lab)
        for name in ("one", "two"):
            create_claim(lab, name)
        create_pod(lab, "first", resourceClaimName="one")
        await lab.phase("first")
        create_pod(lab, "second", resourceClaimName="two")
        await waits(lab, "second", message)
        why = "no node has the devices: node-1: request gpu: 1 devices requested, at most 0 found together, "
        assert lab.events("two") == [("FailedAllocation", f"{why}1 device already allocated")]
        lab.delete("first")
        await lab.phase("second")
        assert (devices_of(lab, "one"), devices_of(lab, "two")) == ([], ["gpu-0"])


async def test_pods_share_a_claim_until_the_last_of_them_ends() -> None:
    async with embedded() as lab, with_driver(lab):
        publish(lab)
        create_claim(lab, "one")
        for name in ("a", "b"):
            create_pod(lab, name, resourceClaimName="one")
            await lab.phase(name)
        assert [consumer["name"] for consumer in (claim(lab, "one") or {})["status"]["reservedFor"]] == ["a", "b"]
        lab.delete("a")
        await lab.cluster.until(lambda: len((claim(lab, "one") or {})["status"]["reservedFor"]) == 1)
        assert devices_of(lab, "one") == ["gpu-0"]
        lab.writer.delete(ResourcePath(RESOURCE_CLAIMS, "default", "one"), DeleteOptions())
        assert (claim(lab, "one") or {})["metadata"]["deletionTimestamp"]
        lab.delete("b")
        await lab.cluster.until(lambda: claim(lab, "one") is None)


async def test_an_unused_claim_on_the_wrong_node_is_allocated_again() -> None:
    async with embedded(nodes=2) as lab, with_driver(lab):
        publish(lab)
        create_claim(lab, "one")
        allocate(lab, "one", "node-2")
        create_pod(lab, "p", resourceClaimName="one", node="node-1")
        await lab.phase("p")
        assert (claim(lab, "one") or {})["status"]["allocation"]["devices"]["results"][0]["pool"] == "node-1"
        assert any("deallocation of ResourceClaim completed" in text for _, text in lab.events("p"))


async def test_an_invalid_class_stops_its_pods_alone() -> None:
    async with embedded() as lab, with_driver(lab):
        publish(lab, devices=[{"name": "gpu-0"}, {"name": "gpu-1"}])
        selector = {"cel": {"expression": 'device.attributes["gpu.example.com"].nothing == 1'}}
        content = {"metadata": {"name": "broken"}, "spec": {"selectors": [selector]}}
        lab.writer.create(ResourcePath(DEVICE_CLASSES, "", "broken"), content, "test")
        create_claim(lab, "bad", "broken")
        create_claim(lab, "good")
        create_pod(lab, "p", resourceClaimName="bad")
        await waits(lab, "p", 'running "DynamicResources" filter plugin: ')
        assert "no such key: nothing" in lab.status("p")["conditions"][0]["message"]
        assert lab.status("p")["conditions"][0]["reason"] == "SchedulerError"
        create_pod(lab, "q", resourceClaimName="good")
        await lab.phase("q")


async def test_a_pool_with_a_missing_counter_set_is_named_on_the_claim() -> None:
    device = {"name": "gpu-0", "consumesCounters": [{"counterSet": "none", "counters": {"memory": {"value": "1Gi"}}}]}
    async with embedded() as lab:
        publish(lab, devices=[device])
        create_claim(lab, "one")
        create_pod(lab, "p", resourceClaimName="one")
        await waits(lab, "p", "1 invalid resource pools were encountered")
        assert "counter set none not found" in lab.events("one")[0][1]


async def test_a_noexecute_taint_of_a_device_evicts_its_pods_unless_they_tolerate_it() -> None:
    taint = {"key": "example.com/broken", "effect": "NoExecute"}

    def taint_all(published: Object) -> Object:
        devices = [{**device, "taints": [taint]} for device in published["spec"]["devices"]]
        return {**published, "spec": {**published["spec"], "devices": devices}}

    async with embedded() as lab, with_driver(lab):
        publish(lab, devices=[{"name": "gpu-0"}, {"name": "gpu-1"}])
        create_claim(lab, "evicted")
        create_claim(lab, "tolerated", tolerations=[{"key": "example.com/broken", "operator": "Exists"}])
        for name in ("evicted", "tolerated"):
            create_pod(lab, name, resourceClaimName=name)
            await lab.phase(name)
        lab.writer.change(ResourcePath(RESOURCE_SLICES, "", "node-1"), taint_all, "test")
        await lab.cluster.until(lambda: lab.pod("evicted") is None)
        await lab.cluster.until(lambda: devices_of(lab, "evicted") == [])
        event = ("DeviceTaintManagerEviction", "Marking for deletion Pod default/evicted")
        assert event in lab.events("evicted")
        assert lab.status("tolerated")["phase"] == "Running"
        create_pod(lab, "again", resourceClaimName="evicted")
        await waits(lab, "again", "1 cannot allocate all claims")
        assert "1 device tainted" in lab.events("evicted")[-1][1]


async def test_a_template_makes_a_claim_that_goes_with_its_pod() -> None:
    async with embedded() as lab, with_driver(lab):
        publish(lab)
        create_pod(lab, "p", resourceClaimTemplateName="t")
        missing = 'resource claim template "t": resourceclaimtemplate.resource.k8s.io "t" not found'
        event = ("FailedResourceClaimCreation", f"PodResourceClaim dev: {missing}")
        await lab.cluster.until(lambda: event in lab.events("p"))
        labels = {"labels": {"team": "a"}, "annotations": {"note": "kept"}}
        template = {"metadata": {"name": "t"}, "spec": {"metadata": labels, "spec": CLAIM_SPEC}}
        lab.writer.create(ResourcePath(RESOURCE_CLAIM_TEMPLATES, "default", "t"), template, "test")
        await lab.phase("p")
        (generated,) = lab.store.objects(RESOURCE_CLAIMS.qualified)
        metadata = generated["metadata"]
        assert metadata["annotations"] == {"note": "kept", "resource.kubernetes.io/pod-claim-name": "dev"}
        assert metadata["labels"] == {"team": "a"}
        assert metadata["name"].startswith("p-dev-")
        (owner,) = metadata["ownerReferences"]
        assert {**owner, "uid": ""} == {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "", "controller": True}
        lab.delete("p")
        await lab.cluster.until(lambda: not lab.store.objects(RESOURCE_CLAIMS.qualified))


async def test_the_parts_of_a_long_claim_name_are_shortened_in_proportion() -> None:
    async with embedded() as lab:
        content = {"metadata": {"name": "t"}, "spec": {"spec": CLAIM_SPEC}}
        lab.writer.create(ResourcePath(RESOURCE_CLAIM_TEMPLATES, "default", "t"), content, "test")
        create_pod(lab, "a" * 60, resourceClaimTemplateName="t")
        await lab.cluster.until(lambda: bool(lab.store.objects(RESOURCE_CLAIMS.qualified)))
        (generated,) = lab.store.objects(RESOURCE_CLAIMS.qualified)
        assert generated["metadata"]["generateName"] == f"{'a' * 52}-de"
        assert len(generated["metadata"]["name"]) == 60


async def test_a_pod_goes_where_its_claim_is() -> None:
    async with embedded(nodes=2) as lab:
        create_claim(lab, "one")
        allocate(lab, "one", "node-2")
        create_pod(lab, "p", resourceClaimName="one")
        await lab.cluster.until(lambda: bool((lab.pod("p") or {})["spec"].get("nodeName")))
        assert (lab.pod("p") or {})["spec"]["nodeName"] == "node-2"
        await lab.cluster.until(
            lambda: any("DRA driver gpu.example.com is not registered" in text for _, text in lab.events("p"))
        )
        assert lab.status("p")["containerStatuses"][0]["state"] == {"waiting": {"reason": "ContainerCreating"}}
        prefix = "Failed to prepare dynamic resources: prepare dynamic resources: "
        assert {(reason, text.startswith(prefix)) for reason, text in lab.events("p") if reason != "Scheduled"} == {
            ("FailedPrepareDynamicResources", True)
        }


async def test_the_status_of_a_pod_has_the_health_of_its_claims() -> None:
    services = (*VERSIONS, "v1alpha1.DRAResourceHealth")

    async def shows(lab: Lab, **health: str) -> None:
        wanted = [{"name": "claim:dev", "resources": [{"resourceID": "example.com/gpu=0", **health}]}]
        await lab.cluster.until(
            lambda: lab.status("p")["containerStatuses"][0].get("allocatedResourcesStatus") == wanted
        )

    async with (
        embedded() as lab,
        registered(ScriptedDriver(services=services), lab.cluster.nodes["node-1"].kubelet) as driver,
    ):
        create_claim(lab, "one")
        allocate(lab, "one")
        create_pod(lab, "p", resourceClaimName="one")
        await lab.phase("p")
        await shows(lab, health="Unknown")
        driver.health.publish([ReportedHealth("node", "gpu-0", HealthStatus.UNHEALTHY, "too hot")])
        await shows(lab, health="Unhealthy", message="too hot")
        driver.health.publish([ReportedHealth("node", "gpu-0", HealthStatus.HEALTHY)])
        await shows(lab, health="Healthy")


async def test_the_slices_of_a_node_go_when_its_kubelet_starts() -> None:
    spec = {"driver": DRIVER, "pool": {"name": "p", "generation": 0, "resourceSliceCount": 1}, "devices": []}
    async with embedded(nodes=2) as lab:
        for node in ("node-1", "node-2"):
            content = {"metadata": {"name": node}, "spec": {**spec, "nodeName": node}}
            lab.writer.create(ResourcePath(RESOURCE_SLICES, "", node), content, "test")
        await lab.cluster.nodes["node-1"].stop()
        await lab.cluster.nodes["node-1"].start()
        await lab.cluster.until(
            lambda: [one["metadata"]["name"] for one in lab.store.objects(RESOURCE_SLICES.qualified)] == ["node-2"]
        )


async def test_invalid_input_is_refused_or_named_and_other_claims_go_on() -> None:
    def refused(kind: Kind, name: str, spec: Object, words: str) -> None:
        namespace = "default" if kind.namespaced else ""
        with pytest.raises(StatusError, match=words):
            lab.writer.create(ResourcePath(kind, namespace, name), {"metadata": {"name": name}, "spec": spec}, "test")

    def selecting(expression: str) -> Object:
        return {"selectors": [{"cel": {"expression": expression}}]}

    async with embedded(nodes=2) as lab, with_driver(lab):
        publish(lab)
        refused(DEVICE_CLASSES, "bad", selecting("device.nothing =="), r"selectors\[0\].cel.expression: Invalid value")
        refused(DEVICE_CLASSES, "number", selecting("1 + 1"), "must evaluate to bool")
        refused(DEVICE_CLASSES, "costly", selecting(_nested(6)), "too complex, exceeds cost limit")
        requests = [{"name": f"r{number}", "exactly": {"deviceClassName": DRIVER}} for number in range(33)]
        refused(RESOURCE_CLAIMS, "many", {"devices": {"requests": requests}}, "must have at most 32 items")
        publish(lab, "node-2", pool={"name": "half", "generation": 1, "resourceSliceCount": 2})
        create_claim(lab, "one")
        create_claim(lab, "incomplete")
        create_pod(lab, "waits", resourceClaimName="incomplete", node="node-2")
        await waits(lab, "waits", "1 cannot allocate all claims")
        assert "pool gpu.example.com/half: slices are missing" in lab.events("incomplete")[0][1]
        create_pod(lab, "p", resourceClaimName="one")
        await lab.phase("p")


def _nested(depth: int) -> str:
    expression = "true"
    for number in range(depth):
        expression = f'device.attributes["gpu.example.com"].all(k{number}, {expression})'
    return expression
