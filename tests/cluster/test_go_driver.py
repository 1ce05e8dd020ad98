"""A DRA driver in Go, on Kubernetes' own helper and by protobuf alone: the embedded API and a kubelet serve it."""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.cluster.embedding import Lab, embedded, served
from tests.requirements import go_program

from plugwright.apiserver.kinds import NODES, RESOURCE_CLAIMS, RESOURCE_SLICES
from plugwright.apiserver.registry import DeleteOptions, ResourcePath
from plugwright.apiserver.store import Object, ObjectKey

SOURCE = Path(__file__).parent / "go_driver"
DRIVER = "go.example.com"
pytestmark = pytest.mark.timeout(600)  # the first test builds it


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return go_program(SOURCE, tmp_path_factory.mktemp("go"))


@asynccontextmanager
async def running(program: Path, lab: Lab, kubeconfig: Path, log: Path) -> AsyncIterator[None]:
    root = lab.cluster.nodes["node-1"].kubelet.paths.root
    arguments = ("-kubeconfig", kubeconfig, "-node", "node-1", "-kubelet", root, "-name", DRIVER)
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(program, *arguments, stdout=output, stderr=output)
    try:
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        await process.wait()


def slices(lab: Lab) -> list[Object]:
    return list(lab.store.objects(RESOURCE_SLICES.qualified))


def create_claim(lab: Lab, name: str) -> None:
    spec = {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": DRIVER}}]}}
    lab.writer.create(
        ResourcePath(RESOURCE_CLAIMS, "default", name), {"metadata": {"name": name}, "spec": spec}, "test"
    )
    result = {"request": "gpu", "driver": DRIVER, "pool": "node-1", "device": "gpu-1"}
    opaque = {"driver": DRIVER, "parameters": {"kind": "GpuConfig", "sharing": True}}
    config = {"source": "FromClaim", "requests": [], "opaque": opaque}
    allocation = {"devices": {"results": [result], "config": [config]}}
    path = ResourcePath(RESOURCE_CLAIMS, "default", name, "status")
    lab.writer.change(path, lambda claim: {**claim, "status": {"allocation": allocation}}, "test")


async def test_a_driver_of_the_helper_publishes_prepares_and_unprepares(program: Path, tmp_path: Path) -> None:
    async with embedded() as lab, served(lab, tmp_path) as kubeconfig:
        log = tmp_path / "driver.log"
        async with running(program, lab, kubeconfig, log):
            await lab.cluster.until(lambda: bool(slices(lab)))
            (published,) = slices(lab)
            node = lab.store.require(ObjectKey(NODES.qualified, "", "node-1"))
            (owner,) = published["metadata"]["ownerReferences"]
            assert (owner["kind"], owner["uid"], owner["controller"]) == ("Node", node["metadata"]["uid"], True)
            spec = published["spec"]
            assert (spec["driver"], spec["nodeName"]) == (DRIVER, "node-1")
            assert spec["pool"] == {"name": "node-1", "generation": 1, "resourceSliceCount": 1}
            first, second = spec["devices"]
            taint = first.pop("taints")[0]
            assert first == {
                "name": "gpu-0",
                "attributes": {
                    "model": {"string": "A100"},
                    "memory": {"int": 40},
                    "sparse": {"bool": False},
                    "index": {"int": 0},
                    "version": {"version": "570.86.15"},
                },
                "capacity": {
                    "memory": {
                        "value": "40Gi",
                        "requestPolicy": {"default": "1Gi", "validRange": {"min": "1Gi", "step": "1Gi"}},
                    }
                },
                "allowMultipleAllocations": True,
            }
            assert (taint["key"], taint["effect"]) == ("example.com/hot", "NoSchedule")
            assert second == {"name": "gpu-1"}

            create_claim(lab, "one")
            # A pod before this watch has begun would be reserved for in the first that it sees.
            await lab.cluster.until(lambda: "event ADDED one, reserved for 0" in log.read_text())
            use = {"resources": {"claims": [{"name": "dev"}]}}
            lab.create(
                "p",
                resourceClaims=[{"name": "dev", "resourceClaimName": "one"}],
                containers=[{"name": "c", "image": "x", **use}],
            )
            await lab.phase("p")
            claim = lab.store.require(ObjectKey(RESOURCE_CLAIMS.qualified, "default", "one"))
            kubelet = lab.cluster.nodes["node-1"].kubelet
            (pod,) = kubelet.pods
            assert pod.container("c").cdi == (f"{DRIVER}/claim={claim['metadata']['uid']}-gpu-1",)
            lab.delete("p")
            await lab.gone("p")
            lab.writer.delete(ResourcePath(RESOURCE_CLAIMS, "default", "one"), DeleteOptions())
            await lab.cluster.until(lambda: "event DELETED one" in log.read_text())
        written = log.read_text()
        assert "event MODIFIED one, reserved for 1" in written
        assert 'parameters {"kind":"GpuConfig","sharing":true}' in written
        assert "prepared one created 20" in written
        assert "unprepared one" in written
