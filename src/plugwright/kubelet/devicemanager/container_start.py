"""A container starts: the plugin is told, and the stored answers become what the runtime gets (3.47 to 3.56)."""

from plugwright.errors import AllocationFailed, ContainerWaiting, KubeletError, PlugwrightError
from plugwright.kubelet import pod_table
from plugwright.kubelet.devicemanager.allocation import Allocator
from plugwright.kubelet.devicemanager.endpoints import status_text
from plugwright.kubelet.devicemanager.manager import DeviceManager
from plugwright.kubelet.devicemanager.pod_devices import Place
from plugwright.kubelet.pod_table import Container, Phase, Pod, RunContainerOptions
from plugwright.kubelet.pods import ContainerKind
from plugwright.protocol import messages

__all__ = ["Starter"]


class Starter:
    def __init__(self, manager: DeviceManager, allocator: Allocator) -> None:
        self._manager = manager
        self._allocator = allocator

    async def start_pod(self, pod: Pod) -> None:
        """Its containers in order, those that run or are done left alone; for an init container the others wait."""
        waiting = False
        for container in pod.containers.values():
            if container.running or container.is_done:
                continue
            try:
                await self.start(pod, container)
            except ContainerWaiting:
                waiting = True
                if container.spec.kind is not ContainerKind.MAIN:
                    break
        pod.phase = Phase.PENDING if waiting else Phase.RUNNING

    async def start(self, pod: Pod, container: Container) -> None:
        """Also for every start after the first; raises `ContainerWaiting`."""
        spec = container.spec
        try:
            for resource in sorted(spec.limits):
                if self._allocator.is_device(resource) and spec.wanted(resource):
                    await self._prepare(pod, container, resource)
            container.granted = self.granted(pod, container)
        except AllocationFailed as error:
            container.running, container.granted = False, None
            container.reason, container.message = "CreateContainerConfigError", str(error)  # 3.53
            raise ContainerWaiting(spec.name, container.reason, container.message) from error
        container.starts += 1
        container.reason = container.message = ""
        container.running = spec.kind is not ContainerKind.INIT
        self._manager.context.tell("started", f"{pod.spec.key}/{spec.name}")

    async def _prepare(self, pod: Pod, container: Container, resource: str) -> None:
        endpoint = self._manager.connections.get(resource)
        if endpoint is None:  # 3.52
            raise AllocationFailed(f"endpoint not found in cache for a registered resource: {resource}")
        place = Place(pod.uid, container.spec.name, resource)
        held = self._manager.ledger.held(place)
        if endpoint.options.pre_start:
            if not held:  # 3.50
                raise AllocationFailed(
                    f"no devices found allocated in local cache for pod {pod.uid}, "
                    f"container {place.container}, resource {resource}"
                )
            await self._pre_start(resource, held)
        if not held:  # 3.49: lost between admission and start
            await self._allocator.allocate(pod.spec, container.spec, None)

    async def _pre_start(self, resource: str, held: tuple[str, ...]) -> None:
        endpoint = self._manager.connections.get(resource)
        assert endpoint is not None
        try:
            await endpoint.pre_start(held, self._manager.context.settings.timing.pre_start)
        except KubeletError as error:
            raise AllocationFailed(f"device plugin PreStartContainer rpc failed with err: {error}") from error
        except PlugwrightError as error:
            text = f"device plugin PreStartContainer rpc failed with err: {status_text(error)}"
            raise AllocationFailed(text) from error

    def granted(self, pod: Pod, container: Container) -> RunContainerOptions:
        """From the records, which outlive the kubelet."""
        entries = self._manager.ledger.of_container(pod.uid, container.spec.name)
        found = [messages.decode(entry.answer) for entry in entries if entry.answer is not None]
        granted, conflicts = pod_table.merge(found, container.spec.env)
        about = f"{pod.spec.key}/{container.spec.name}"
        for conflict in conflicts:
            self._manager.context.findings.report("3.54", about, str(conflict), "keeps one of them, at random")
        if granted.cdi and not self._manager.context.profile.takes_cdi:
            self._manager.context.findings.report(
                "3.56", about, f"CDI devices {', '.join(granted.cdi)}", "of this version does not pass them on"
            )
            return RunContainerOptions(granted.env, granted.mounts, granted.nodes, granted.annotations, ())
        return granted
