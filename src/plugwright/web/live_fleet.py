"""The devices of a cluster, updated live: recomputed node by node from objects and NodeReports.

A change of one pod or device recomputes the devices of its node, not those of the cluster.
"""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

import msgspec

from plugwright.explain.world import ApiObject, ObjectId, World, allocation_of, identity, is_finished
from plugwright.fleet.claim_users import text_of
from plugwright.fleet.fleet_devices import Fleet, FleetDevice, make_fleet
from plugwright.fleet.sums import wants_devices
from plugwright.kube.access import ClusterAccess
from plugwright.kube.api_client import ApiClient
from plugwright.model import natural_order
from plugwright.system.concurrency import cancel
from plugwright.system.latest import Signal
from plugwright.web.cluster_objects import KINDS, ClusterObjects
from plugwright.web.daemon_reports import DaemonReports, FindDaemons

__all__ = ["FleetSource", "LiveFleet"]

_Index: TypeAlias = defaultdict[str, dict[ObjectId, ApiObject]]
_AT_ONCE = len(KINDS) + 8  # requests to the API server
_BATCH = 0.1  # seconds in which changes are collected
_TURN = 20  # nodes computed before other tasks run


class FleetSource(msgspec.Struct, frozen=True, kw_only=True):
    """The sources of the page: an API server, and a function that finds its daemons."""

    access: ClusterAccess
    find: FindDaemons
    namespace: str = "default"


class LiveFleet:
    """Inside `following`, `parts` has each node's devices, and `changed` is notified of each new `version`."""

    def __init__(self, source: FleetSource) -> None:
        self.api = ApiClient(source.access, at_once=_AT_ONCE)
        self.objects = ClusterObjects(self.api, source.namespace, self._object_changed)
        self.reports = DaemonReports(source.find, self._report_changed)
        self.parts: dict[str, Fleet] = {}  # by node; "" has devices of no node
        self.version = 0
        self.changed = Signal()
        self._outdated: set[str] = set()
        self._woken = Signal()
        self._pods: _Index = defaultdict(dict)
        self._slices: _Index = defaultdict(dict)
        self._nodes_of_pools: dict[str, str] = {}

    @asynccontextmanager
    async def following(self) -> AsyncIterator[None]:
        works = self.objects.run(), self.reports.run(), self._keep()
        tasks = [asyncio.create_task(work) for work in works]
        try:
            yield
        finally:
            await cancel(*tasks)
            self.api.close()

    async def until_read(self) -> None:
        """Returns when all objects were read and converted to devices, or when some cannot be read."""
        await self.changed.until(
            lambda: (self.objects.is_complete or self.objects.problems) and not self._outdated and self.version
        )

    @property
    def nodes(self) -> list[str]:
        return sorted(self.parts, key=natural_order)

    def devices(self) -> Iterator[FleetDevice]:
        for node in self.nodes:
            yield from self.parts[node].devices

    @property
    def problems(self) -> list[str]:
        """Why the whole view could be outdated."""
        return [*self.objects.problems, *filter(None, [self.reports.problem])]

    @property
    def unseen(self) -> list[str]:
        """Facts that could not be taken into account."""
        return [*self.objects.unseen, *(entry for node in self.nodes for entry in self.parts[node].unseen)]

    def report(self, node: str) -> Mapping[str, Any]:
        """The NodeReport of a node; empty if there is none."""
        source = self.reports.source(node)
        return (source.report if source is not None else None) or {}

    def node_of_pool(self, pool: str) -> str:
        """The node of a pool's devices; empty if they belong to no node."""
        return self._nodes_of_pools.get(pool, "")

    def touch(self) -> None:
        """Updates the views, because something other than the devices has changed."""
        self.changed.notify()

    def waiting_pods(self) -> list[ApiObject]:
        """Pods without a node that request devices."""
        return [pod for pod in self._pods[""].values() if wants_devices(pod) and not is_finished(pod)]

    def part_world(self, node: str) -> World:
        """The objects on which the devices of one node depend."""
        pools = set(map(_pool_of, self._slices[node].values()))
        claims = self.objects.of("claims").values()
        stored = self.objects.of("nodes").get(("", node))
        return self.objects.world(
            nodes=(stored,) if stored is not None else (),
            pods=tuple(self._pods[node].values()) if node else tuple(self._pods_with_claims()),
            slices=tuple(self._slices[node].values()),
            claims=tuple(claim for claim in claims if pools & _pools_of(claim) or self._uses(claim, node)),
        )

    def _pods_with_claims(self) -> Iterator[ApiObject]:
        """Pods without their nodes' statuses, which belong to the parts of those nodes."""
        for pod in self.objects.of("pods").values() if self._slices[""] else ():
            if (pod.get("spec") or {}).get("resourceClaims"):
                status = dict(pod.get("status") or {})
                status.pop("containerStatuses", None)
                yield {**pod, "status": status}

    def _uses(self, claim: ApiObject, node: str) -> bool:
        namespace, _ = identity(claim)
        users = (claim.get("status") or {}).get("reservedFor") or ()
        return any((namespace, text_of(user.get("name"))) in self._pods[node] for user in users)

    def _object_changed(self, kind: str, before: ApiObject | None, now: ApiObject | None) -> None:
        match kind:
            case "pods":
                _index(self._pods, _node_of_pod, before, now)
                if before is not None and (now is None or is_finished(now)):
                    self.reports.refresh(_node_of_pod(before))
            case "slices":
                _index(self._slices, _node_of_slice, before, now)
                if now is not None:
                    self._nodes_of_pools[_pool_of(now)] = _node_of_slice(now)
            case "taint_rules":
                self._outdated |= {*self.parts, *self._slices}
        for entry in (before, now):
            if entry is not None:
                self._outdated |= set(self._nodes_of(kind, entry))
        self._woken.notify()

    def _report_changed(self, node: str) -> None:
        self._outdated.add(node)
        self._woken.notify()

    def _nodes_of(self, kind: str, entry: ApiObject) -> Iterable[str]:
        match kind:
            case "nodes":
                return [identity(entry)[1]]
            case "pods":
                return [_node_of_pod(entry)]
            case "slices":
                return [_node_of_slice(entry)]
            case "claims":
                return [self._nodes_of_pools.get(pool, "") for pool in _pools_of(entry)]
        return []

    async def _keep(self) -> None:
        seen = -1
        while True:
            seen = await self._woken.wait(seen)
            await asyncio.sleep(_BATCH)
            seen = self._woken.count
            outdated = sorted(self._outdated)
            self._outdated -= set(outdated)
            for number, node in enumerate(outdated):
                self._make(node)
                if number % _TURN == _TURN - 1:
                    await asyncio.sleep(0)
            self.version += 1
            self.changed.notify()

    def _make(self, node: str) -> None:
        world, source = self.part_world(node), self.reports.source(node)
        part = make_fleet(world, [source] if source is not None else [])
        own = [entry for entry in part.unseen if entry not in world.unseen]
        part = msgspec.structs.replace(part, unseen=tuple(own))
        if part.devices or part.unnamed or part.unseen or world.nodes:
            if part != self.parts.get(node):
                self.parts[node] = part
        else:
            self.parts.pop(node, None)


def _index(index: _Index, place: Callable[[ApiObject], str], before: ApiObject | None, now: ApiObject | None) -> None:
    if before is not None:
        index[place(before)].pop(identity(before), None)
    if now is not None:
        index[place(now)][identity(now)] = now


def _node_of_pod(pod: ApiObject) -> str:
    return text_of((pod.get("spec") or {}).get("nodeName"))


def _node_of_slice(entry: ApiObject) -> str:
    return text_of((entry.get("spec") or {}).get("nodeName"))


def _pool_of(entry: ApiObject) -> str:
    return text_of(((entry.get("spec") or {}).get("pool") or {}).get("name"))


def _pools_of(claim: ApiObject) -> set[str]:
    results = ((allocation_of(claim) or {}).get("devices") or {}).get("results") or ()
    return {text_of(result.get("pool")) for result in results}
