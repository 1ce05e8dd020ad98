"""The components of one running kubelet: created at its start, in its order, and ended at its stop."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from plugwright.kubelet import pod_resources, root_dir
from plugwright.kubelet.admission import Admission
from plugwright.kubelet.devicemanager.allocation import Allocator
from plugwright.kubelet.devicemanager.container_start import ContainerStarter
from plugwright.kubelet.devicemanager.manager import DeviceManager
from plugwright.kubelet.devicemanager.registration import DevicePluginHandler, RegistrationServer
from plugwright.kubelet.dra.dra_manager import DRAManager
from plugwright.kubelet.dra.resource_api import KubeClient
from plugwright.kubelet.plugin_watcher import PluginHandler, PluginWatcher
from plugwright.kubelet.pod_resources import DeviceManagerProvider, PodResourcesService
from plugwright.kubelet.pod_table import PodTable
from plugwright.kubelet.settings import KubeletContext
from plugwright.protocol import registration
from plugwright.protocol.dra import DRA_PLUGIN
from plugwright.protocol.registration import DEVICE_PLUGIN

__all__ = ["Components", "running_components"]


class Components:
    def __init__(
        self, context: KubeletContext, table: PodTable, api: KubeClient | None, tasks: asyncio.TaskGroup
    ) -> None:
        self.manager = DeviceManager(context, tasks)
        self.claims = DRAManager(context, api, tasks)
        self.allocator = Allocator(self.manager, table)
        self.admission = Admission(self.manager, table, self.allocator)
        self.starter = ContainerStarter(self.manager, self.allocator, self.claims.cdi_devices)
        handlers: dict[str, PluginHandler] = {DEVICE_PLUGIN: DevicePluginHandler(self.manager)}
        if context.profile.prepares_claims:
            handlers[DRA_PLUGIN] = self.claims.drivers
        self.watcher = PluginWatcher(context, self.manager.metrics, handlers, tasks)
        provider = DeviceManagerProvider(self.manager, self.claims, table, self.allocator)
        self.pod_resources = PodResourcesService(
            provider, context.profile, self.manager.metrics, context.settings.clock
        )


@asynccontextmanager
async def running_components(
    context: KubeletContext, table: PodTable, api: KubeClient | None
) -> AsyncIterator[Components]:
    """Starts in the kubelet's order: checkpoint, directory, sockets (1.5). Ends when it is cancelled."""
    async with asyncio.TaskGroup() as tasks:
        components = Components(context, table, api, tasks)
        components.manager.read_checkpoint()
        if context.profile.prepares_claims:
            components.claims.claims.load()
            components.claims.health.load()
        profile = context.profile
        removed = root_dir.clean(
            context.paths, only_sockets=profile.cleans_only_sockets, writes_deprecation=profile.writes_deprecation
        )
        context.record("started", f"kubelet {profile.name}", f"removed {', '.join(removed)}" if removed else "")
        async with (
            registration.serve(RegistrationServer(components.manager), context.paths.kubelet_socket, kept=True),
            pod_resources.serving(components.pod_resources, context.paths.pod_resources_socket, kept=True),
        ):
            if context.profile.prepares_claims:
                tasks.create_task(components.claims.drivers.wipe())
                tasks.create_task(components.claims.reconcile(table))
            tasks.create_task(components.watcher.run())
            tasks.create_task(components.manager.update_node_status())
            yield components
