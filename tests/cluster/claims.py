"""Claims, slices and classes of an embedded cluster, as tests write and read them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.cluster.embedding import Lab
from tests.kubelet.dra.driver import DRIVER, ScriptedDriver, registered

from plugwright.apiserver.kinds import DEVICE_CLASSES, RESOURCE_CLAIMS, RESOURCE_SLICES
from plugwright.apiserver.registry import ResourcePath
from plugwright.apiserver.store import Object, ObjectKey

__all__ = ["allocate", "claim", "create_claim", "create_pod", "devices_of", "publish", "waits", "with_driver"]

USE = {"resources": {"claims": [{"name": "dev"}]}}


@asynccontextmanager
async def with_driver(lab: Lab) -> AsyncIterator[ScriptedDriver]:
    async with registered(ScriptedDriver(), lab.cluster.nodes["node-1"].kubelet) as driver:
        yield driver


def create_pod(lab: Lab, name: str, node: str = "", **claim: str) -> None:
    where: dict[str, Any] = {"nodeSelector": {"kubernetes.io/hostname": node}} if node else {}
    containers = [{"name": "c", "image": "x", **USE}]
    lab.create(name, resourceClaims=[{"name": "dev", **claim}], containers=containers, **where)


def create_claim(lab: Lab, name: str, device_class: str = DRIVER, **exactly: object) -> None:
    request = {"name": "gpu", "exactly": {"deviceClassName": device_class, **exactly}}
    content = {"metadata": {"name": name}, "spec": {"devices": {"requests": [request]}}}
    lab.writer.create(ResourcePath(RESOURCE_CLAIMS, "default", name), content, "test")


def allocate(lab: Lab, name: str, node: str = "node-1") -> None:
    """Plays another scheduler."""
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


def publish(lab: Lab, node: str = "node-1", devices: list[Object] | None = None, **spec: object) -> None:
    """Plays the driver of a node; the class selects its devices."""
    expression = f'device.driver == "{DRIVER}"'
    path = ResourcePath(DEVICE_CLASSES, "", DRIVER)
    if lab.store.get(path.key) is None:
        content = {"metadata": {"name": DRIVER}, "spec": {"selectors": [{"cel": {"expression": expression}}]}}
        lab.writer.create(path, content, "test")
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    shown = {"driver": DRIVER, "pool": pool, "nodeName": node, "devices": devices or [{"name": "gpu-0"}], **spec}
    lab.writer.create(ResourcePath(RESOURCE_SLICES, "", node), {"metadata": {"name": node}, "spec": shown}, "test")


def devices_of(lab: Lab, name: str) -> list[str]:
    allocation = ((claim(lab, name) or {}).get("status") or {}).get("allocation") or {"devices": {}}
    return [result["device"] for result in allocation["devices"].get("results") or ()]
