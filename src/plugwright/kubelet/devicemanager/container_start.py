"""The start of a container: PreStartContainer, and the RunContainerOptions from the recorded responses (3.47 to 3.56).

Which devices the container holds was decided in `allocation`, at admission.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from plugwright.errors import AllocationFailed, ContainerWaiting, KubeletError, PlugwrightError
from plugwright.kubelet import pod_table
from plugwright.kubelet.devicemanager.allocation import Allocator
from plugwright.kubelet.devicemanager.endpoints import Endpoint, grpc_status_text
from plugwright.kubelet.devicemanager.manager import DeviceManager
from plugwright.kubelet.devicemanager.pod_devices import AllocationKey
from plugwright.kubelet.pod_table import Container, Phase, Pod, RunContainerOptions
from plugwright.kubelet.pods import ContainerKind, ContainerSpec, PodSpec
from plugwright.protocol import messages

__all__ = ["ContainerStarter"]


class ContainerStarter:
    """`claim_devices` are the CDI devices of a container's ResourceClaims, which come beside those of plugins."""

    def __init__(
        self,
        manager: DeviceManager,
        allocator: Allocator,
        claim_devices: Callable[[PodSpec, ContainerSpec], Sequence[str]],
    ) -> None:
        self._manager = manager
        self._allocator = allocator
        self._claim_devices = claim_devices

    async def start_pod(self, pod: Pod) -> None:
        """Starts the stopped containers, in order; the others wait for an unstartable init container."""
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
        """Starts a container for the first time or again; raises `ContainerWaiting`."""
        spec = container.spec
        try:
            for resource in sorted(spec.limits):
                if self._allocator.is_device_plugin_resource(resource) and spec.requested(resource):
                    await self._prepare(pod, container, resource)
            if container.config_error:
                raise AllocationFailed(container.config_error)
            container.granted = self.run_container_options(pod, container)
        except AllocationFailed as error:
            # The container waits with this reason, and the kubelet retries it (3.53).
            container.running, container.granted = False, None
            container.reason, container.message = "CreateContainerConfigError", str(error)
            raise ContainerWaiting(spec.name, container.reason, container.message) from error
        container.starts += 1
        container.reason = container.message = ""
        container.running = spec.kind is not ContainerKind.INIT
        self._manager.context.record("started", f"{pod.spec.key}/{spec.name}")

    async def _prepare(self, pod: Pod, container: Container, resource: str) -> None:
        endpoint = self._manager.endpoints.get(resource)
        # Once the plugin has been gone for five minutes, no container with its devices starts (3.52).
        if endpoint is None:
            raise AllocationFailed(f"endpoint not found in cache for a registered resource: {resource}")
        key = AllocationKey(pod.uid, container.spec.name, resource)
        device_ids = self._manager.pod_devices.device_ids(key)
        if endpoint.options.pre_start:
            # PreStartContainer needs recorded devices (3.50).
            if not device_ids:
                raise AllocationFailed(
                    f"no devices found allocated in local cache for pod {pod.uid}, "
                    f"container {key.container}, resource {resource}"
                )
            await self._pre_start(endpoint, device_ids)
        # Records lost between admission and start are allocated now (3.49).
        if not device_ids:
            await self._allocator.allocate(pod.spec, container.spec, None)

    async def _pre_start(self, endpoint: Endpoint, device_ids: tuple[str, ...]) -> None:
        try:
            await endpoint.pre_start(device_ids, self._manager.context.settings.timing.pre_start)
        except PlugwrightError as error:
            reason = str(error) if isinstance(error, KubeletError) else grpc_status_text(error)
            raise AllocationFailed(f"device plugin PreStartContainer rpc failed with err: {reason}") from error

    def run_container_options(self, pod: Pod, container: Container) -> RunContainerOptions:
        """The options from the recorded responses, which outlive the plugin and the kubelet."""
        entries = self._manager.pod_devices.of_container(pod.uid, container.spec.name)
        responses = [messages.decode(entry.answer) for entry in entries if entry.answer is not None]
        options, conflicts = pod_table.merge_responses(responses, container.spec.env)
        about = f"{pod.spec.key}/{container.spec.name}"
        for path in self._missing_paths(options):
            self._manager.context.findings.report(
                "3.55", about, path, "passes it on, and the container runtime fails to create the container"
            )
        for conflict in conflicts:
            self._manager.context.findings.report("3.54", about, str(conflict), "keeps one of them, at random")
        if options.cdi and not self._manager.context.profile.takes_cdi:
            self._manager.context.findings.report(
                "3.56", about, f"CDI devices {', '.join(options.cdi)}", "of this version does not pass them on"
            )
            options = replace(options, cdi=())
        return replace(options, cdi=(*options.cdi, *self._claim_devices(pod.spec, container.spec)))

    def _missing_paths(self, options: RunContainerOptions) -> Iterator[str]:
        """The device nodes and mounts missing on the host, if the settings name a host."""
        root = self._manager.context.settings.host_root
        if root is None:
            return
        for what, items in (("device node", options.nodes), ("mount", options.mounts)):
            for item in items:
                path = Path(root, item.host_path.lstrip("/"))
                if not path.exists():
                    yield f"{what} {path} does not exist"
