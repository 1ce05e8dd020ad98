"""The parts of one running kubelet, from its start to its end, as in one process."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from plugwright.kubelet import directory, podresources
from plugwright.kubelet.admission import Admission
from plugwright.kubelet.allocation import Allocator
from plugwright.kubelet.context import Context
from plugwright.kubelet.holdings import Holdings
from plugwright.kubelet.manager import DeviceManager
from plugwright.kubelet.podresources import PodResources
from plugwright.kubelet.registrar import Registrar
from plugwright.kubelet.starting import Starter
from plugwright.kubelet.table import PodTable
from plugwright.kubelet.watcher import Watcher
from plugwright.protocol import registration

__all__ = ["Parts", "running"]


class Parts:
    def __init__(self, context: Context, table: PodTable, tasks: asyncio.TaskGroup) -> None:
        self.manager = DeviceManager(context, tasks)
        self.allocator = Allocator(self.manager, table)
        self.admission = Admission(self.manager, table, self.allocator)
        self.starter = Starter(self.manager, self.allocator)
        self.watcher = Watcher(self.manager, tasks)
        holdings = Holdings(self.manager, table, self.allocator)
        self.pod_resources = PodResources(holdings, context.profile, self.manager.metrics, context.settings.clock)


@asynccontextmanager
async def running(context: Context, table: PodTable) -> AsyncIterator[Parts]:
    """In the real order: the checkpoint, the directory, the sockets (1.5). Ends by being cancelled."""
    async with asyncio.TaskGroup() as tasks:
        parts = Parts(context, table, tasks)
        parts.manager.load()
        profile = context.profile
        removed = directory.clean(
            context.paths, only_sockets=profile.cleans_only_sockets, writes_deprecation=profile.writes_deprecation
        )
        context.tell("started", f"kubelet {profile.name}", f"removed {', '.join(removed)}" if removed else "")
        async with (
            registration.serve(Registrar(parts.manager), context.paths.kubelet_socket, kept=True),
            podresources.serving(parts.pod_resources, context.paths.pod_resources_socket, kept=True),
        ):
            tasks.create_task(parts.watcher.run())
            tasks.create_task(_report_status(parts.manager))
            yield parts


async def _report_status(manager: DeviceManager) -> None:
    """The node's status is computed every ten seconds, and with it plugins that are gone are dropped (7.12)."""
    while True:
        await asyncio.sleep(manager.context.settings.timing.node_status)
        manager.survey()
