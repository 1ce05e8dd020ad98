"""The same faults beside a real kubelet: one cluster, one daemon on its node, one fault after another.

The cluster is that of `tests/kubernetes`, and needs what it needs: root, and Go where it is not built yet.
"""

import asyncio
import signal
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import count
from pathlib import Path
from typing import TypeVar

from chaos.daemon import Daemon, Launch
from chaos.experiment import NOT_ASKED, Cell, Fault, Plan, Row, lost_cell, observe
from chaos.node import STEADY, Node
from chaos.rig import Rig
from tests.kubernetes import building, machine
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.node import Node as ClusterNode
from tests.kubernetes.pods import Pod, Pods

from chaos import catalogue
from plugwright.errors import PeerGone, PeerRefused
from plugwright.protocol import device_plugin, pod_resources
from plugwright.protocol.device_plugin import DevicePluginClient
from plugwright.protocol.pod_resources import AllocatableDevice, PodResourcesClient

__all__ = ["TITLES", "try_all"]

_RESTARTS, _QUICK_RESTARTS = 100, 3
_REGISTERED_LIMIT = 60.0  # a kubelet on a busy machine takes seconds to begin
_RECOVERS = 30.0
_FAULT_LIMIT = 300.0
_LOOK_INTERVAL = 0.05
_RESTARTS_TITLE = "the real kubelet is killed and started again"


T = TypeVar("T")


def _real(fault: Fault) -> str:
    return f"{fault.title} (real kubelet)"


_FAULTS = [fault for fault in catalogue.FAULTS if fault.on_real_kubelet]
TITLES = (_RESTARTS_TITLE, *map(_real, _FAULTS))


class RealKubelet:
    """Runs already when the rig begins."""

    def __init__(self, cluster: Cluster, node: Node) -> None:
        self._cluster, self._node = cluster, node
        self._pods, self._numbers = Pods(cluster.kubectl), count()
        self._kills = 0
        self._seen: list[AllocatableDevice] = []
        self._seen_at = 0.0
        self._connections = AsyncExitStack()
        self._plugins: dict[Path, DevicePluginClient] = {}

    async def close(self) -> None:
        await self._connections.aclose()

    async def start(self) -> None:
        if not self._cluster.kubelet.alive:
            await asyncio.to_thread(self._cluster.start, "kubelet")

    async def stop(self) -> None:
        """By SIGKILL and by SIGTERM in turn."""
        self._kills += 1
        await asyncio.to_thread(self._cluster.stop, "kubelet", signal.SIGKILL if self._kills % 2 else signal.SIGTERM)

    async def healthy(self, resource: str) -> frozenset[str]:
        if time.monotonic() - self._seen_at > _LOOK_INTERVAL:
            try:
                self._seen = await self._pod_resources(lambda kubelet: kubelet.allocatable(timeout=2))
            except (OSError, PeerGone, TimeoutError):
                self._seen = []  # there is no kubelet
            self._seen_at = time.monotonic()
        return frozenset(device.device_id for device in self._seen if device.resource == resource)

    async def allocate(self, resource: str, device_ids: Sequence[str]) -> None:
        """As a second client of the plugin; what is called throughout has a connection that lasts, as a kubelet's."""
        endpoints = sorted(self._node.paths.device_plugins.glob(f"plugwright-{resource.replace('/', '_')}-*.sock"))
        if not endpoints:
            raise PeerGone(f"no plugin has registered {resource}")
        if resource != STEADY:
            async with device_plugin.connect(endpoints[-1]) as plugin:
                await plugin.allocate_encoded(device_ids)
                return
        if endpoints[-1] not in self._plugins:
            await self.close()
            plugin = await self._connections.enter_async_context(device_plugin.connect(endpoints[-1]))
            self._plugins = {endpoints[-1]: plugin}
        await self._plugins[endpoints[-1]].allocate_encoded(device_ids)

    async def hold(self, resource: str, count: int) -> str:
        return await asyncio.to_thread(self._run_pod, f"holds-{next(self._numbers)}", {resource: count})

    async def pass_through(self) -> str:
        name = f"passes-{next(self._numbers)}"
        async with asyncio.timeout(60):
            refused = await asyncio.to_thread(self._run_pod, name, {STEADY: 1})
        twice = [device for device, holders in Counter(await self.held()).items() if holders > 1]
        await asyncio.to_thread(Pod(name, self._cluster.kubectl).delete)
        return refused or (f"{', '.join(twice)} given twice" if twice else "")

    async def held(self) -> list[str]:
        devices = await self._pod_resources(lambda kubelet: kubelet.held_devices(timeout=5))
        return [device.device_id for device in devices if device.resource == STEADY]

    async def _pod_resources(self, call: Callable[[PodResourcesClient], Awaitable[list[T]]]) -> list[T]:
        """Again and again while the kubelet refuses: it answers a hundred times a second, and no more."""
        async with asyncio.timeout(10):
            while True:
                try:
                    async with pod_resources.connect(self._node.paths.pod_resources_socket) as kubelet:
                        return await call(kubelet)
                except PeerRefused:
                    await asyncio.sleep(_LOOK_INTERVAL)

    def _run_pod(self, name: str, wants: dict[str, int]) -> str:
        try:
            self._pods.create(name, wants).runs()
        except AssertionError as error:
            return str(error)
        return ""


async def try_all(version: str, plan: Plan, only: Sequence[str] = ()) -> list[Row]:
    """The restarts, then every fault that can be made beside a real kubelet."""
    rows = []
    async with _real_rig(version) as (rig, cluster_node):
        if not only or "restarts" in only:
            rows.append(_said(await _restarts(rig, cluster_node, plan)))
        for fault in _FAULTS:
            if only and fault.name not in only:
                continue
            if missing := fault.missing():
                rows.append(Row(fault.name, _real(fault), skipped=missing))
                continue
            rows.append(_said(await _observed(fault, rig, plan)))
            await _revive(rig)
        if panics := cluster_node.panics():
            rows.append(Row("panics", "panics of the real kubelet", lost=Cell(panics[0], holds=False)))
    return rows


async def _observed(fault: Fault, rig: Rig, plan: Plan) -> Row:
    try:
        async with asyncio.timeout(_FAULT_LIMIT):
            seen = await observe(fault, rig, fault.quick_seconds if plan.quick else fault.seconds, recovers=_RECOVERS)
    except Exception as error:  # noqa: BLE001  one fault must not take the others with it
        return Row(fault.name, _real(fault), recovered=Cell(f"{type(error).__name__}: {error}", holds=False))
    return Row(fault.name, _real(fault), *seen.cells)


def _said(row: Row) -> Row:
    print(f"{row.title}: {'holds' if row.holds else 'BROKEN'}", file=sys.stderr, flush=True)
    for cell in row.cells:
        if not cell.holds:
            print(f"    {cell.text}", file=sys.stderr, flush=True)
    return row


async def _revive(rig: Rig) -> None:
    if not rig.daemon.alive:
        await rig.daemon.stop()
        rig.daemon.start()
    await rig.recovery(_RECOVERS)


async def _restarts(rig: Rig, cluster_node: ClusterNode, plan: Plan) -> Row:
    before, seconds, failed = await rig.baseline(), list[float](), list[str]()
    restarts = plan.choose(_RESTARTS, _QUICK_RESTARTS)
    for number in range(restarts):
        await rig.kubelet.stop()
        await rig.kubelet.start()
        began = time.monotonic()
        _, complaint = await rig.recovery(_REGISTERED_LIMIT)
        seconds.append(time.monotonic() - began)
        failed += [f"restart {number}: {complaint}"] if complaint else []
        if number % 10 == 0 and (refused := await rig.kubelet.pass_through()):
            failed.append(f"restart {number}: a pod is refused: {refused}")
    seconds.sort()
    figures = f"{restarts} times: median {seconds[restarts // 2]:.1f} s, longest {seconds[-1]:.1f} s from its start"
    lost = await lost_cell(rig, before)
    if panics := cluster_node.panics():
        lost = Cell(f"panic: {panics[0]}", holds=False)
    recovered = Cell("; ".join(failed[:3]) or figures, not failed)
    return Row("restarts", _RESTARTS_TITLE, NOT_ASKED, NOT_ASKED, recovered, lost)


@asynccontextmanager
async def _real_rig(version: str) -> AsyncIterator[tuple[Rig, ClusterNode]]:
    machine.remove_remains()
    machine.install_packages()
    for recipe in Cluster.recipes(version):
        building.build(recipe)
    with Cluster(version) as cluster:
        root = cluster.state / "chaos"
        node = Node(root, cluster.kubelet_dir, Path("/var/lib/kubelet"))
        daemon = Daemon(node, Launch(within=cluster.enclosure.command(), probes=False))
        kubelet = RealKubelet(cluster, node)
        rig = Rig(node, kubelet, daemon)
        try:
            await rig.begin()
            yield rig, ClusterNode(cluster)
        finally:
            await kubelet.close()
            await daemon.stop()
