"""An API server in memory, for one node: ResourceSlices as a driver publishes them, and claims allocated out of them.

It is what a driver asks (`dra.resource_api_client.ResourceApiClient`) and what the emulated kubelet asks
(`kubelet.dra.resource_api.ResourceApi`). There is no scheduler: a claim gets the first free devices, in the order of
the slices, or those that it names.
"""

import copy
import uuid
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from typing import Any

from plugwright.errors import KubeletError, PeerRefused
from plugwright.kubelet.dra.resource_api import ResourceClaim
from plugwright.system.latest import Signal
from plugwright.testing.claim_requests import AllocatedResult, RequestedClaim, claim_document, is_satisfied

__all__ = ["ResourceApiServer"]

Document = dict[str, Any]
Documents = list[Document]
Shares = list[Mapping[str, str]]
Fitting = tuple[list[AllocatedResult], int]
_GROUP = "/apis/resource.k8s.io/v1"
_SLICES, _CLAIMS = f"{_GROUP}/resourceslices", f"{_GROUP}/resourceclaims"
_BLOCKING = ("NoSchedule", "NoExecute")


class ResourceApiServer:
    """`changes` is notified of every write, and its count is the resource version."""

    def __init__(self, node: str) -> None:
        self.changes = Signal()
        self._objects: dict[str, Document] = {}  # by path
        self._events: list[tuple[int, str, str, Document]] = []  # version, type, collection, object
        self._put(f"/api/v1/nodes/{node}", {"metadata": {"name": node}})

    @property
    def slices(self) -> Documents:
        return [copy.deepcopy(one) for path, one in sorted(self._objects.items()) if path.startswith(f"{_SLICES}/")]

    async def get(self, path: str) -> Document:
        path = path.partition("?")[0]
        if path in (_SLICES, _CLAIMS):
            return {"items": self._listed(path), "metadata": {"resourceVersion": str(self.changes.count)}}
        return copy.deepcopy(self._found(path))

    async def list(self, path: str, **query: str) -> tuple[Documents, str]:
        items = [one for one in self._listed(path) if _is_selected(one, query.get("fieldSelector", ""))]
        return items, str(self.changes.count)

    async def create(self, path: str, body: Document, **query: str) -> Document:
        metadata = dict(body["metadata"])
        if "dryRun" in query:
            return copy.deepcopy(body)
        name = metadata.get("name") or f"{metadata['generateName']}{len(self._events):05x}"
        return self._put(f"{path}/{name}", {**body, "metadata": {**metadata, "name": name}})

    async def update(self, path: str, body: Document) -> Document:
        before = self._found(path)
        version = body["metadata"].get("resourceVersion")
        if version and version != before["metadata"]["resourceVersion"]:
            raise PeerRefused("Conflict", f"{path} has been changed")
        return self._put(path, {**body, "metadata": {**before["metadata"], **body["metadata"]}})

    async def patch(self, path: str, body: object, kind: str, **query: str) -> Document:
        target = path.removesuffix("/status")
        return self._put(target, _merged(self._found(target), body if isinstance(body, Mapping) else {}))

    async def delete(self, path: str, uid: str = "", resource_version: str = "") -> Document:
        found = self._found(path)
        if uid and uid != found["metadata"]["uid"]:
            raise PeerRefused("Conflict", f"{path} has another uid")
        del self._objects[path]
        self._record("DELETED", path, found)
        return found

    async def watch(self, path: str, resource_version: str, **query: str) -> AsyncGenerator[tuple[str, Document], None]:
        seen = int(resource_version)
        async for _ in self.changes.notifications():
            for version, kind, collection, found in tuple(self._events):
                if version > seen and collection == path and _is_selected(found, query.get("fieldSelector", "")):
                    yield kind, copy.deepcopy(found)
            seen = self.changes.count

    def close(self) -> None:
        """Nothing is open."""

    async def claim(self, namespace: str, name: str) -> ResourceClaim:
        """For the kubelet."""
        try:
            return ResourceClaim.read(self._found(_claim_path(namespace, name)))
        except PeerRefused:
            text = f'resourceclaims.resource.k8s.io "{name}" not found'
            raise KubeletError(f"fetch ResourceClaim {name}: {text}") from None

    async def delete_slices(self, driver: str = "") -> None:
        """For the kubelet."""
        for one in self.slices:
            if driver in ("", one["spec"]["driver"]):
                await self.delete(f"{_SLICES}/{one['metadata']['name']}")

    def reserve(self, namespace: str, name: str, pod: tuple[str, str]) -> None:
        """For a pod, by its name and uid."""
        claim = copy.deepcopy(self._found(_claim_path(namespace, name)))
        claim["status"]["reservedFor"].append({"resource": "pods", "name": pod[0], "uid": pod[1]})
        self._put(_claim_path(namespace, name), claim)

    def release(self, namespace: str, name: str, pod_uid: str) -> None:
        """A claim that no pod uses any more is gone, and its devices are free."""
        path = _claim_path(namespace, name)
        claim = copy.deepcopy(self._objects.get(path))
        if claim is None:
            return
        left = [pod for pod in claim["status"]["reservedFor"] if pod["uid"] != pod_uid]
        claim["status"]["reservedFor"] = left
        self._put(path, claim)
        if not left:
            self._record("DELETED", path, self._objects.pop(path))

    def allocate(self, key: tuple[str, str], spec: RequestedClaim, drivers: Mapping[str, str]) -> str:
        """Makes the claim with its devices; why that is not possible, empty if it is. `drivers` are by resource."""
        if _claim_path(*key) in self._objects:
            return ""
        results: list[AllocatedResult] = []
        for resource in spec.requests:
            if resource not in drivers:
                return f"{resource} is not served by claims"
            found, wanted = self._fitting(resource, drivers[resource], spec)
            if len(found) < wanted:
                return f"{resource}: {wanted} wanted, {len(found)} free"
            results += found[:wanted]
        self._put(_claim_path(*key), claim_document(key, str(uuid.uuid4()), spec, results))
        return ""

    def _fitting(self, resource: str, driver: str, spec: RequestedClaim) -> Fitting:
        """The devices that the claim can have, and how many it wants of them."""
        wanted = spec.requests[resource]
        held, found = self._held(driver), []
        for pool, device in self._devices(driver):
            shares, consumed = held.get(device["name"], []), {}
            if isinstance(wanted, Mapping):
                consumed = {name: str(amount) for name, amount in wanted.items()}
                has_room = is_satisfied(device.get("capacity") or {}, wanted, shares)
                if not device.get("allowMultipleAllocations") or not has_room:
                    continue
            elif (shares and not spec.admin_access) or (isinstance(wanted, Sequence) and not _is_named(device, wanted)):
                continue
            if not spec.admin_access and any(taint["effect"] in _BLOCKING for taint in device.get("taints") or ()):
                continue
            share = str(uuid.uuid4()) if consumed else ""
            found.append(AllocatedResult(resource, driver, pool, device["name"], share, consumed))
        return found, wanted if isinstance(wanted, int) else 1 if isinstance(wanted, Mapping) else len(wanted)

    def _devices(self, driver: str) -> Iterator[tuple[str, Document]]:
        """Of the complete pools at their latest generation."""
        slices = [one["spec"] for one in self.slices if one["spec"]["driver"] == driver]
        latest = max((spec["pool"]["generation"] for spec in slices), default=0)
        current = [spec for spec in slices if spec["pool"]["generation"] == latest]
        for spec in current if all(spec["pool"]["resourceSliceCount"] == len(current) for spec in current) else ():
            for device in spec.get("devices") or ():
                yield spec["pool"]["name"], device

    def _held(self, driver: str) -> dict[str, Shares]:
        """The parts of each device that claims have; one that is held as a whole has an empty part."""
        held: dict[str, Shares] = {}
        for claim in self._listed(_CLAIMS):
            for result in claim["status"]["allocation"]["devices"]["results"]:
                if result["driver"] == driver and not result.get("adminAccess"):
                    held.setdefault(result["device"], []).append(result.get("consumedCapacity") or {})
        return held

    def _found(self, path: str) -> Document:
        if path not in self._objects:
            raise PeerRefused("NotFound", f"{path} not found")
        return self._objects[path]

    def _listed(self, path: str) -> Documents:
        return [copy.deepcopy(one) for key, one in sorted(self._objects.items()) if _collection(key) == path]

    def _put(self, path: str, body: Mapping[str, Any]) -> Document:
        kind = "MODIFIED" if path in self._objects else "ADDED"
        metadata = {"uid": str(uuid.uuid4()), **body["metadata"], "resourceVersion": str(self.changes.count + 1)}
        self._objects[path] = {**copy.deepcopy(dict(body)), "metadata": metadata}
        self._record(kind, path, self._objects[path])
        return copy.deepcopy(self._objects[path])

    def _record(self, kind: str, path: str, found: Document) -> None:
        version = self.changes.count + 1
        self._events.append((version, kind, _collection(path), copy.deepcopy(found)))
        self.changes.notify()


def _claim_path(namespace: str, name: str) -> str:
    return f"{_GROUP}/namespaces/{namespace}/resourceclaims/{name}"


def _collection(path: str) -> str:
    """Claims of all namespaces are one."""
    return _CLAIMS if "/resourceclaims/" in path else path.rpartition("/")[0]


def _is_selected(found: Document, selector: str) -> bool:
    """By fields such as `spec.driver=tape.example.com,spec.nodeName=node`."""
    for term in filter(None, selector.split(",")):
        field, _, value = term.partition("=")
        content: Any = found
        for key in field.split("."):
            content = content.get(key) if isinstance(content, dict) else None
        if content != value:
            return False
    return True


def _is_named(device: Document, ids: Sequence[str]) -> bool:
    known = ((device.get("attributes") or {}).get("id") or {}).get("string")
    return device["name"] in ids or known in ids


def _merged(before: Mapping[str, Any], change: Mapping[str, Any]) -> Document:
    merged = dict(before)
    for key, value in change.items():
        old = merged.get(key)
        merged[key] = _merged(old, value) if isinstance(value, Mapping) and isinstance(old, Mapping) else value
    return merged
