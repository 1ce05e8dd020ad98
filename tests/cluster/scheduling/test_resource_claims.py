"""Claims in the embedded cluster: a pod waits until its claim is allocated, and runs with what a driver prepared."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.cluster.embedding import Lab, embedded
from tests.kubelet.dra.driver import DRIVER, ScriptedDriver, registered

from plugwright.apiserver.kinds import RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS, RESOURCE_SLICES
from plugwright.apiserver.registry import ResourcePath
from plugwright.apiserver.store import Object, ObjectKey
from plugwright.protocol.dra import VERSIONS
from plugwright.protocol.dra_health import HealthStatus, ReportedHealth

CLAIM_SPEC = {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu.example.com"}}]}}
USE = {"resources": {"claims": [{"name": "dev"}]}}


@asynccontextmanager
async def with_driver(lab: Lab) -> AsyncIterator[ScriptedDriver]:
    async with registered(ScriptedDriver(), lab.cluster.nodes["node-1"].kubelet) as driver:
        yield driver


def create_pod(lab: Lab, name: str, **claim: str) -> None:
    lab.create(name, resourceClaims=[{"name": "dev", **claim}], containers=[{"name": "c", "image": "x", **USE}])


def create_claim(lab: Lab, name: str) -> None:
    content = {"metadata": {"name": name}, "spec": CLAIM_SPEC}
    lab.writer.create(ResourcePath(RESOURCE_CLAIMS, "default", name), content, "test")


def allocate(lab: Lab, name: str, node: str = "node-1") -> None:
    """Plays the scheduler."""
    result = {"request": "gpu", "driver": DRIVER, "pool": node, "device": "gpu-0"}
    field = {"key": "metadata.name", "operator": "In", "values": [node]}
    selector = {"nodeSelectorTerms": [{"matchFields": [field]}]}
    allocation = {"devices": {"results": [result]}, "nodeSelector": selector}
    path = ResourcePath(RESOURCE_CLAIMS, "default", name, "status")
    lab.writer.change(path, lambda claim: {**claim, "status": {"allocation": allocation}}, "test")


def claim(lab: Lab, name: str) -> Object | None:
    return lab.store.get(ObjectKey(RESOURCE_CLAIMS.qualified, "default", name))


async def waits(lab: Lab, name: str, words: str) -> None:
    def message() -> str:
        conditions = lab.status(name).get("conditions") or [{}]
        return str(conditions[0].get("message", ""))

    await lab.cluster.until(lambda: words in message())


async def test_a_pod_waits_for_the_allocation_of_its_claim_and_frees_it_in_the_end() -> None:
    async with embedded() as lab, with_driver(lab) as driver:
        create_pod(lab, "p", resourceClaimName="one")
        await waits(lab, "p", 'resourceclaim "one" not found')
        create_claim(lab, "one")
        await waits(lab, "p", "resourceclaim one is not allocated, and plugwright allocates none")
        allocate(lab, "one")
        await lab.phase("p")
        assert len(driver.prepared) == 1
        reserved = (claim(lab, "one") or {})["status"]["reservedFor"]
        assert [consumer["name"] for consumer in reserved] == ["p"]
        lab.delete("p")
        await lab.cluster.until(lambda: (claim(lab, "one") or {}).get("status") == {})
        assert len(driver.unprepared) == 1
        assert lab.pod("p") is None


async def test_a_template_makes_a_claim_that_goes_with_its_pod() -> None:
    async with embedded() as lab, with_driver(lab):
        template = {"metadata": {"name": "t"}, "spec": {"spec": CLAIM_SPEC}}
        lab.writer.create(ResourcePath(RESOURCE_CLAIM_TEMPLATES, "default", "t"), template, "test")
        create_pod(lab, "p", resourceClaimTemplateName="t")
        await waits(lab, "p", "is not allocated")
        (generated,) = lab.store.objects(RESOURCE_CLAIMS.qualified)
        assert generated["metadata"]["annotations"] == {"resource.kubernetes.io/pod-claim-name": "dev"}
        allocate(lab, generated["metadata"]["name"])
        await lab.phase("p")
        lab.delete("p")
        await lab.cluster.until(lambda: not lab.store.objects(RESOURCE_CLAIMS.qualified))


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
