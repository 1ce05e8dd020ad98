"""An emulated kubelet: started, queried, restarted and stopped, over real sockets and a real checkpoint.

It admits pods and allocates devices as the real kubelet does, and starts no container: `Pod.container` shows what a
container would have run with. Its components are created at every start, as in a new process; only the pods, the node
status, the event log and the findings outlive a restart.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from plugwright.errors import ClaimNotPrepared, ConfigError, KubeletError, PeerGone, PodRefused
from plugwright.kubelet import pods, root_dir
from plugwright.kubelet.admission import Predicates
from plugwright.kubelet.components import Components, running_components
from plugwright.kubelet.devicemanager.devices import DeviceCount
from plugwright.kubelet.devicemanager.endpoints import Endpoint
from plugwright.kubelet.devicemanager.manager import DeviceHealth, pod_device_health
from plugwright.kubelet.dra.health import ClaimDeviceHealth
from plugwright.kubelet.dra.resource_api import KubeClient
from plugwright.kubelet.events import Call, Event, EventLog, Finding, Findings
from plugwright.kubelet.metrics import KubeletMetrics
from plugwright.kubelet.pod_table import Phase, Pod, PodTable, RunContainerOptions
from plugwright.kubelet.pods import PodSpec
from plugwright.kubelet.settings import KubeletContext, KubeletSettings
from plugwright.model import natural_order, some
from plugwright.protocol.messages import AllocateResponse
from plugwright.protocol.paths import KubeletPaths
from plugwright.system.concurrency import unwrapped

__all__ = ["Kubelet"]


class Kubelet:
    """`async with Kubelet(root=tmp_path) as kubelet:`; `root` is created, and must not be shared with other kubelets.

    `pods` are running already, as after a restart of a kubelet. `resource_api` is the source of ResourceClaims and
    ResourceSlices; without it there are none.
    """

    def __init__(
        self,
        root: Path | str,
        settings: KubeletSettings | None = None,
        pods: Iterable[PodSpec] = (),
        resource_api: KubeClient | None = None,
    ) -> None:
        self.settings = settings or KubeletSettings()
        self.paths = KubeletPaths.from_environment({}, Path(root).absolute())
        self._event_log = EventLog()
        self._findings = Findings(self._event_log.add, strict=self.settings.strict, allowed=self.settings.allowed)
        self._context = KubeletContext(self.settings, self.paths, self._event_log, self._findings)
        self._table = PodTable.running_already(pods)
        self._resource_api = resource_api
        # Pods are admitted one at a time: a plugin hanging in Allocate blocks all of them (3.37).
        self._admission_lock = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._components: Components | None = None

    async def __aenter__(self) -> Self:
        root_dir.claim(self.paths)
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.stop()
        finally:
            self._event_log.close()
        self.paths.kubelet_socket.unlink(missing_ok=True)
        self.paths.pod_resources_socket.unlink(missing_ok=True)
        if error is None:
            self._findings.check()

    async def start(self) -> None:
        """Starts with the state in the checkpoint; the node's pods are admitted again (3.68)."""
        if self._task is not None:
            raise KubeletError("the kubelet is already running")
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._run(ready))
        await asyncio.wait({self._task, ready}, return_when=asyncio.FIRST_COMPLETED)
        if not ready.done():
            await self._raise_start_error()
        ready.result()
        self._table.sources_ready, self._table.running_at_start = False, self._table.running()
        for pod in self._table:
            if pod.uid in self._table.active:
                await self._admit_again(pod)
            elif pod.terminating:
                self._running.claims.end_later(pod.spec, partial(self._delete, pod))
        self._table.sources_ready = True

    async def stop(self) -> None:
        """Stops as if the process were killed: the kubelet leaves its sockets behind (1.10).

        Raises the error behind an earlier end of the kubelet, or several errors as a group.
        """
        task, self._task, self._components = self._task, None, None
        if task is None:
            return
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled() and (error := task.exception()):
            raise unwrapped(error)

    def hang_up(self, resource: str) -> None:
        """Ends the connection to the plugin, as a kubelet does after an oversized list (2.16)."""
        self._running.manager.endpoints.hang_up(resource)

    async def restart(self, *, reboot: bool = False) -> None:
        """Stops and starts; after a `reboot` no container is running (3.69)."""
        await self.stop()
        if reboot:
            self._table.halt()
        await self.start()
        self._findings.check()

    async def capacity(self, resource: str, count: int | None = None) -> int:
        """The number of devices, healthy or not; waits until the resource is known, or until there are `count`."""
        return (await self._wait_for(resource, "capacity", count)).capacity

    async def allocatable(self, resource: str, count: int | None = None) -> int:
        """The number of healthy devices, held or not; waits until the resource is known, or until there are `count`."""
        return (await self._wait_for(resource, "allocatable", count)).allocatable

    def node(self) -> dict[str, DeviceCount]:
        """The resources in the node status; the count is 0 five minutes after the end of the plugin."""
        return self._running.manager.get_capacity()

    async def admit(self, pod: PodSpec | Mapping[str, object], predicates: Predicates | None = None) -> Pod:
        """Admits a pod and starts its containers; raises `PodRefused`, and then the pod has failed for good.

        `predicates` can reject the pod after its devices are allocated, for nodes with more rules (3.1).
        """
        admitted = await self.add(pod, predicates)
        await self._start_pod(admitted)
        self._findings.check()
        return admitted

    async def add(self, pod: PodSpec | Mapping[str, object], predicates: Predicates | None = None) -> Pod:
        """As `admit`; its containers are started by the caller: by `start_waiting`, or by `restart_container` each."""
        spec = self._table.generate_name(pod if isinstance(pod, PodSpec) else pods.read(pod))
        admitted = Pod(spec.with_unused_uid(self._running.manager.pod_devices.has_pod))
        async with self._admission_lock:
            self._report_violations(admitted.spec)
            self._table.add(admitted)
            await self._admit(admitted, predicates)
        return admitted

    async def remove(self, pod: Pod) -> None:
        """Deletes the pod; its devices are freed by the next allocation, and the plugin is not called (3.58, 3.61).

        A pod with claims is gone once they are unprepared: it may still be `terminating` when this returns (11.19).
        """
        self._check_known(pod)
        if pod.spec.claims:
            self._table.end(pod, pod.phase)
            pod.terminating = True
            await self._running.claims.end(pod.spec, partial(self._delete, pod))
        else:
            self._delete(pod)
        self._findings.check()

    def _delete(self, pod: Pod) -> None:
        self._table.remove(pod.uid)
        self._context.record("deleted", pod.spec.key)

    def finish(self, pod: Pod, *, failed: bool = False) -> None:
        """Ends all containers of the pod, which succeeds or has `failed`."""
        self._check_known(pod)
        self._table.end(pod, Phase.FAILED if failed else Phase.SUCCEEDED)
        self._context.record("failed" if failed else "succeeded", pod.spec.key)
        if pod.spec.claims:
            self._running.claims.end_later(pod.spec)

    def stop_container(self, pod: Pod, name: str) -> None:
        """Ends a container without a restart, as in a crash loop."""
        self._check_known(pod)
        pod.state(name).running = False

    async def restart_container(self, pod: Pod, name: str) -> None:
        """Starts a container again: the kubelet calls PreStartContainer again, but not Allocate (3.48, 3.49)."""
        self._check_known(pod)
        self.stop_container(pod, name)
        async with self._admission_lock:
            await self._running.starter.start(pod, pod.containers[name])
        self._findings.check()

    async def prepare(self, pod: Pod) -> bool:
        """Prepares the claims of a pod none of whose containers runs; whether its containers can be started."""
        self._check_known(pod)
        return await self._prepare_claims(pod)

    async def start_waiting(self, pod: Pod) -> None:
        """Retries the unprepared claims, and the unstarted containers."""
        self._check_known(pod)
        await self._start_pod(pod)
        self._findings.check()

    def granted(self, pod: Pod, name: str) -> RunContainerOptions:
        """The options of a container, also of a container older than this kubelet."""
        return pod.state(name).granted or self._running.starter.run_container_options(pod, pod.state(name))

    def device_health(self, pod: Pod) -> Mapping[str, tuple[DeviceHealth, ...]]:
        """The health of the pod's devices in the pod status, by container; empty before 1.36 (7.1, 7.2)."""
        manager = self._running.manager
        if not self._context.profile.reports_device_health:
            return {}
        return pod_device_health(pod, manager.devices, manager.pod_devices)

    def claim_health(self, pod: Pod) -> Mapping[str, tuple[ClaimDeviceHealth, ...]]:
        """The health of the devices of the pod's claims in the pod status, by container; empty before 1.36 (11.26a)."""
        if not self._context.profile.reports_device_health:
            return {}
        return self._running.claims.device_health(pod.spec)

    def endpoint(self, resource: str) -> Endpoint:
        """The connected plugin, for direct calls: the device manager records nothing."""
        endpoint = self._running.manager.endpoints.get(resource)
        if endpoint is None:
            raise PeerGone(f"no plugin has registered {resource}")
        return endpoint

    async def allocate(self, resource: str, device_ids: Sequence[str]) -> AllocateResponse:
        """Calls Allocate directly, outside of any admission."""
        return await self.endpoint(resource).allocate(device_ids)

    @property
    def pods(self) -> tuple[Pod, ...]:
        return tuple(self._table)

    @property
    def calls(self) -> list[Call]:
        """Every RPC in order, with its duration and outcome."""
        return self._event_log.calls

    @property
    def findings(self) -> tuple[Finding, ...]:
        return self._findings.all

    def check_findings(self) -> None:
        """Raises `KubeletFindings` if there are findings not allowed by the settings."""
        self._findings.check(strict=True)

    @property
    def unexpected_findings(self) -> tuple[Finding, ...]:
        """The findings not allowed by the settings, and not raised yet."""
        return self._findings.unexpected

    @property
    def metrics(self) -> KubeletMetrics:
        return self._running.manager.metrics

    @property
    def recorded(self) -> list[Event]:
        """Every kept event, in order."""
        return self._event_log.events

    async def until(self, condition: Callable[[], bool], timeout: float, problem: str) -> None:
        """Waits until `condition` holds after some event; raises `PeerGone` with `problem` on timeout."""
        await self._event_log.until(condition, timeout, lambda: problem)

    def events(self, *, new: bool = False) -> AsyncGenerator[Event, None]:
        """Every event, from the beginning or from now on, until the `async with` ends."""
        return self._event_log.follow(new=new)

    @property
    def _running(self) -> Components:
        if self._components is None:
            raise KubeletError("the kubelet is not running")
        return self._components

    async def _run(self, ready: "asyncio.Future[None]") -> None:
        """Runs in its own task, so `start` and `stop` can be called from different tasks."""
        async with running_components(self._context, self._table, self._resource_api) as components:
            self._components = components
            ready.set_result(None)
            await asyncio.get_running_loop().create_future()  # until it is cancelled

    async def _raise_start_error(self) -> None:
        # A failure to create or clean a directory, or to bind a socket, aborts the start (1.6).
        try:
            await self.stop()
        except OSError as error:
            raise ConfigError(f"cannot use {error.filename or self.paths.root}: {error.strerror}") from error

    async def _admit(self, pod: Pod, predicates: Predicates | None = None) -> None:
        components = self._running
        try:
            await components.admission.admit(pod, predicates)
        except PodRefused as error:
            if self._components is not components:  # a killed kubelet refuses nothing; the next one admits the pod
                self._table.remove(pod.uid)
                raise KubeletError(f"the kubelet was stopped while it admitted {pod.spec.key}") from error
            self._table.end(pod, Phase.FAILED, error.reason, error.message)
            self._context.record("refused", pod.spec.key, f"{error.reason}: {error.message}")
            raise
        except BaseException:  # cancelled halfway: the pod leaves no trace
            self._table.remove(pod.uid)
            raise
        self._context.record("admitted", pod.spec.key)

    async def _admit_again(self, pod: Pod) -> None:
        """Admits a pod after a restart; a refusal shows in its phase."""
        async with self._admission_lock:
            if self._table.get(pod.uid) is not pod:
                return  # it was being admitted when the last kubelet was stopped
            try:
                await self._admit(pod)
            except PodRefused:
                return
        await self._start_pod(pod)

    async def _start_pod(self, pod: Pod) -> None:
        if await self._prepare_claims(pod):
            async with self._admission_lock:
                await self._running.starter.start_pod(pod)

    async def _prepare_claims(self, pod: Pod) -> bool:
        """Claims are prepared for a new sandbox, and for pods side by side (11.14, 11.16)."""
        if pod.spec.claims and not any(container.running for container in pod.containers.values()):
            try:
                await self._running.claims.prepare(pod.spec)
            except ClaimNotPrepared as error:
                pod.wait("ContainerCreating", str(error))
                self._context.record("waiting", pod.spec.key, f"FailedPrepareDynamicResources: {error}")
                return False
        return True

    async def _wait_for(self, resource: str, kind: str, expected: int | None) -> DeviceCount:
        def is_accepted() -> bool:
            count = self._running.manager.node_status.get(resource)
            return count is not None and expected in (None, getattr(count, kind))

        def problem() -> str:
            wanted = "a list" if expected is None else f"{expected} {kind}"
            return f"{resource}: {wanted} expected, {self._described(resource)}"

        self._running.manager.get_capacity()
        await self._event_log.until(is_accepted, self.settings.timeout, problem)
        return self._running.manager.node_status[resource]

    def _described(self, resource: str) -> str:
        """The devices of a resource as they are now: `3 of 4 (st0 Unhealthy)`."""
        count = self._running.manager.node_status.get(resource)
        if count is None:
            listed = ", ".join(sorted(self._running.manager.node_status)) or "nothing"
            return f"no plugin has listed it (listed: {listed})"
        unhealthy = sorted(self._running.manager.devices.of(resource).unhealthy, key=natural_order)
        shown = f" ({some(unhealthy, 8)} Unhealthy)" if unhealthy else ""
        return f"{count.allocatable} of {count.capacity}{shown}"

    def _check_known(self, pod: Pod) -> None:
        if self._table.get(pod.uid) is not pod:
            raise KubeletError(f"pod {pod.spec.key} is not on this node")

    def _report_violations(self, pod: PodSpec) -> None:
        for field, text in pods.violations(pod):
            self._findings.report(
                "10.4", f"{pod.key} {field}", text, "never sees such a pod: the API server refuses it"
            )
