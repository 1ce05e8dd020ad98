"""The holders of a resource's devices: pods, by the kubelet's checkpoint and pod-resources; claims, by the API server.

Claims are read page by page with a single LIST when a device waits for them, and never watched: they cannot be selected
by node, so a watch would send every claim of the cluster to every node.
"""

import logging
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Protocol
from urllib.parse import urlencode

import msgspec

from plugwright import quantity
from plugwright.errors import HoldersUnknown, MalformedMessage, MessageTooLarge, PeerRefused, PlugwrightError
from plugwright.kube.answers import ListPages
from plugwright.kube.api_client import segment
from plugwright.sdk.resource_runtime import ResourceRuntime
from plugwright.text import clean

__all__ = ["ClaimHolders", "ClusterReader", "HolderSources", "PodHolders", "Prepared", "allocated_devices"]

logger = logging.getLogger(__name__)

_CLAIMS = "/apis/resource.k8s.io/v1/resourceclaims"
_PAGE = 250
_STARTS = 3  # number of attempts; a list whose pages have expired is read from the start again


class ClusterReader(Protocol):
    """Implemented by `kube.api_client.ApiClient`."""

    async def get(self, path: str) -> dict[str, object]: ...


class Subscribable(Protocol):
    def subscribe(self, callback: Callable[[], object]) -> Callable[[], None]: ...


class Prepared(Protocol):
    """Implemented by `prepared_claims.PreparedClaims`."""

    async def read(self) -> object: ...

    def held(self) -> Mapping[str, Sequence[object]]:
        """The claims that hold each device, by its name."""
        ...

    @property
    def latest(self) -> Subscribable: ...


class PodHolders:
    """The pods that hold devices of one resource; the kubelet stores an answer to Allocate within `stored` seconds.

    A kubelet that was stopped in between stores it when it continues, before it writes the checkpoint that is read
    here.
    """

    def __init__(self, runtime: ResourceRuntime, stored: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._runtime, self._clock = runtime, clock
        self._admission = runtime.settings.limits.allocate + stored
        self._seen: dict[str, float] = {}  # allocations whose pods the kubelet has since listed

    async def stored(self) -> frozenset[str]:
        """Devices that the checkpoint assigns to containers, including those of ended pods."""
        return frozenset(await self._runtime.holdings.stored())

    async def pods(self) -> dict[str, str]:
        """The pod of each device that pod-resources lists."""
        allocated = dict(self._runtime.inventory.allocated)
        pods = await self._runtime.holdings.pods()
        self._seen |= {device_id: allocated.get(device_id, 0.0) for device_id in pods}
        return pods

    async def of(self, candidates: Collection[str]) -> dict[str, str]:
        """The pod of each held candidate, or a description if the pod is not known.

        The candidates must already be Unhealthy in the list. A kubelet that has read the list writes its checkpoint
        (4.31), so a device that is then in neither source is free, except for an answer to Allocate that is not stored
        yet.
        """
        holders = await self.pods()
        if any(device_id not in holders for device_id in candidates):
            if self._runtime.service.streams.value.open:
                await self._runtime.holdings.rewritten()
            for device_id in await self.stored():
                holders.setdefault(device_id, "a pod that the kubelet's checkpoint has")
        for device_id in self._just_allocated():
            holders.setdefault(device_id, "a pod that is being admitted")
        return {device_id: holders[device_id] for device_id in candidates if device_id in holders}

    async def active(self) -> frozenset[str]:
        """Devices that pods hold now, according to pod-resources only: good enough for an estimate."""
        return frozenset(await self.pods()) | self._just_allocated()

    def _just_allocated(self) -> frozenset[str]:
        since = self._clock() - self._admission
        allocated = self._runtime.inventory.allocated.items()
        return frozenset(key for key, when in allocated if when > max(since, self._seen.get(key, 0.0)))


class ClaimHolders:
    """The claims with devices of one driver's pool, which is that of its node, and the Node's allocatable."""

    def __init__(self, api: ClusterReader, driver: str, node: str) -> None:
        self._api, self._driver, self._node = api, driver, node

    async def by_device(self) -> dict[str, list[str]]:
        """The claims that have each allocated device of the pool, by the name of the device, from one LIST."""
        for _ in range(_STARTS):
            try:
                holders: dict[str, list[str]] = {}
                async for claims in _pages(self._api):
                    for claim, device in allocated_devices(claims, self._driver, self._node):
                        holders.setdefault(device, []).append(claim)
            except PeerRefused as error:
                if error.code not in ("Expired", "Gone"):
                    raise HoldersUnknown(clean(f"claims cannot be listed: {error}")) from error
            except PlugwrightError as error:
                raise HoldersUnknown(clean(f"claims cannot be listed: {error}")) from error
            else:
                return {device: sorted(set(claims)) for device, claims in sorted(holders.items())}
        raise HoldersUnknown("claims cannot be listed: the list changes faster than it can be read")

    async def allocatable(self, resource: str) -> int:
        """The Node's count of a resource, which the scheduler uses."""
        node = await self._api.get(f"/api/v1/nodes/{segment(self._node)}")
        count = _at(node, "status", "allocatable", resource)
        return int(quantity.parse(str(count))) if count is not None else 0


class HolderSources(msgspec.Struct, frozen=True):
    """The sources of holders: pods, claims of the cluster, and claims prepared on this node."""

    pods: PodHolders
    claims: ClaimHolders
    prepared: Prepared


async def _pages(api: ClusterReader) -> AsyncIterator[Iterable[object]]:
    """Lists without a resourceVersion, so that the server reads its store instead of a cache that could be outdated."""
    pages = ListPages(_CLAIMS, _PAGE)
    while True:
        try:
            page = await api.get(f"{_CLAIMS}?{urlencode(pages.query)}")
        except MessageTooLarge:
            if pages.shrink():
                continue
            raise
        if page.get("kind") != "ResourceClaimList":  # an empty list of anything else says nothing about claims
            raise MalformedMessage(f"the answer must be a ResourceClaimList, got {page.get('kind')!r:.80}")
        yield pages.take(page)[0]
        if not pages.more:
            return


def allocated_devices(claims: Iterable[object], driver: str, pool: str) -> Iterator[tuple[str, str]]:
    """Each claim, as namespace/name, with an allocated device of the pool; admin access holds no device.

    Raises `MalformedMessage` if a claim cannot be read, because it could hold any device.
    """
    for claim in claims:
        metadata = _at(claim, "metadata")
        for result in _results(claim):
            holds = _at(result, "adminAccess") is not True
            if holds and (_at(result, "driver"), _at(result, "pool")) == (driver, pool):
                yield clean(f"{_at(metadata, 'namespace')}/{_at(metadata, 'name')}"), str(_at(result, "device"))


def _results(claim: object) -> list[object]:
    """What the claim was given: nothing if a part on the way is absent."""
    value = claim
    for key in ("status", "allocation", "devices", "results"):
        value = value.get(key) if isinstance(value, Mapping) else ""
        if value is None:
            return []
    if isinstance(value, list):
        return value
    raise MalformedMessage(f"each claim must have its allocation, got {claim!r:.80}")


def _at(value: object, *keys: str) -> object:
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value
