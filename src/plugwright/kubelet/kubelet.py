"""An emulated kubelet: started, asked, restarted and stopped, over real sockets and a real checkpoint.

It admits pods and hands out devices as the real one does, and starts no container: what a container would have
got is what `Pod.container` shows. Its parts are made anew at every start, as in a new process; only pods, the node's
status, the trace and the findings stay.

The parts of one running kubelet, from its start to its end, as in one process.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from plugwright.errors import ConfigError, KubeletError, PeerGone, PodRefused
from plugwright.kubelet import pod_resources, pods, root_dir
from plugwright.kubelet.admission import Admission
from plugwright.kubelet.devicemanager.allocation import Allocator
from plugwright.kubelet.devicemanager.container_start import Starter
from plugwright.kubelet.devicemanager.context import Context
from plugwright.kubelet.devicemanager.devices import DeviceCount
from plugwright.kubelet.devicemanager.endpoints import Endpoint
from plugwright.kubelet.devicemanager.manager import DeviceHealth, DeviceManager, of_pod
from plugwright.kubelet.devicemanager.registration import Registrar, Watcher
from plugwright.kubelet.events import Call, Event, Finding, Findings, Trace
from plugwright.kubelet.metrics import Metrics
from plugwright.kubelet.pod_resources import Holdings, PodResourcesService
from plugwright.kubelet.pod_table import Phase, Pod, PodTable, RunContainerOptions
from plugwright.kubelet.pods import PodSpec
from plugwright.kubelet.settings import KubeletSettings
from plugwright.protocol import registration
from plugwright.protocol.messages import AllocateResponse
from plugwright.protocol.paths import KubeletPaths
from plugwright.system.concurrency import single_error

__all__ = ["Kubelet", "Parts", "running"]


class Parts:
    def __init__(self, context: Context, table: PodTable, tasks: asyncio.TaskGroup) -> None:
        self.manager = DeviceManager(context, tasks)
        self.allocator = Allocator(self.manager, table)
        self.admission = Admission(self.manager, table, self.allocator)
        self.starter = Starter(self.manager, self.allocator)
        self.watcher = Watcher(self.manager, tasks)
        holdings = Holdings(self.manager, table, self.allocator)
        self.pod_resources = PodResourcesService(
            holdings, context.profile, self.manager.metrics, context.settings.clock
        )


@asynccontextmanager
async def running(context: Context, table: PodTable) -> AsyncIterator[Parts]:
    """In the real order: the checkpoint, the directory, the sockets (1.5). Ends by being cancelled."""
    async with asyncio.TaskGroup() as tasks:
        parts = Parts(context, table, tasks)
        parts.manager.load()
        profile = context.profile
        removed = root_dir.clean(
            context.paths, only_sockets=profile.cleans_only_sockets, writes_deprecation=profile.writes_deprecation
        )
        context.tell("started", f"kubelet {profile.name}", f"removed {', '.join(removed)}" if removed else "")
        async with (
            registration.serve(Registrar(parts.manager), context.paths.kubelet_socket, kept=True),
            pod_resources.serving(parts.pod_resources, context.paths.pod_resources_socket, kept=True),
        ):
            tasks.create_task(parts.watcher.run())
            tasks.create_task(_report_status(parts.manager))
            yield parts


async def _report_status(manager: DeviceManager) -> None:
    """The node's status is computed every ten seconds, and with it plugins that are gone are dropped (7.12)."""
    while True:
        await asyncio.sleep(manager.context.settings.timing.node_status)
        manager.survey()


class Kubelet:
    """`async with Kubelet(root=tmp_path) as kubelet:`; `root` is made, and is nobody else's.

    `pods` are there already and running, as when a kubelet starts again on a node.
    """

    def __init__(self, root: Path | str, settings: KubeletSettings | None = None, pods: Iterable[PodSpec] = ()) -> None:
        self.settings = settings or KubeletSettings()
        self.paths = KubeletPaths.from_environment({}, Path(root).absolute())
        self._trace = Trace()
        self._findings = Findings(self._trace.add, strict=self.settings.strict)
        self._context = Context(self.settings, self.paths, self._trace, self._findings)
        self._table = PodTable.running_already(pods)
        self._turn = asyncio.Lock()  # pods are admitted one after the other (3.37)
        self._life: asyncio.Task[None] | None = None
        self._parts: Parts | None = None

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
            self._trace.close()
        self.paths.kubelet_socket.unlink(missing_ok=True)
        self.paths.pod_resources_socket.unlink(missing_ok=True)
        if error is None:
            self._findings.check()

    async def start(self) -> None:
        """Listens, with what the checkpoint remembers; pods that are there are admitted again (3.68)."""
        if self._life is not None:
            raise KubeletError("the kubelet is running already")
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._life = asyncio.create_task(self._live(ready))
        await asyncio.wait({self._life, ready}, return_when=asyncio.FIRST_COMPLETED)
        if not ready.done():
            await self._fail()
        ready.result()
        self._table.sources_ready, self._table.running_at_start = False, self._table.running()
        for pod in self._table:
            if pod.uid in self._table.active:
                await self._admit_again(pod)
        self._table.sources_ready = True

    async def stop(self) -> None:
        """As when its process is killed: its sockets stay behind, its connections break (1.10)."""
        life, self._life, self._parts = self._life, None, None
        if life is None:
            return
        life.cancel()
        await asyncio.wait([life])
        if not life.cancelled() and (error := life.exception()):
            raise single_error(error)

    async def restart(self, *, reboot: bool = False) -> None:
        """Stops and starts; after a `reboot` no container is running any more (3.69)."""
        await self.stop()
        if reboot:
            self._table.halt()
        await self.start()
        self._findings.check()

    async def capacity(self, resource: str, count: int | None = None) -> int:
        """Every device, healthy or not; waits until the resource is known, or until there are `count`."""
        return (await self._counted(resource, lambda found: count in (None, found.capacity))).capacity

    async def allocatable(self, resource: str, count: int | None = None) -> int:
        """The healthy devices, held ones too; waits until the resource is known, or until there are `count`."""
        return (await self._counted(resource, lambda found: count in (None, found.allocatable))).allocatable

    def node(self) -> dict[str, DeviceCount]:
        """Every resource in the node's status; one whose plugin was gone for five minutes has become 0."""
        return self._running.manager.survey()

    async def admit(self, pod: PodSpec | Mapping[str, object]) -> Pod:
        """Admits a pod and starts its containers; raises `PodRefused`, and the pod has then failed for good."""
        spec = self._table.named(pod if isinstance(pod, PodSpec) else pods.read(pod))
        admitted = Pod(spec.anew(self._running.manager.ledger.holds))
        async with self._turn:
            self._report_violations(admitted.spec)
            self._table.add(admitted)
            await self._admit(admitted)
            await self._running.starter.start_pod(admitted)
        self._findings.check()
        return admitted

    async def remove(self, pod: Pod) -> None:
        """The pod is gone. Its devices are freed when they are next looked for, and no plugin is told (3.58, 3.61)."""
        self._known(pod)
        self._table.remove(pod.uid)
        self._context.tell("deleted", pod.spec.key)
        self._findings.check()

    def finish(self, pod: Pod, *, failed: bool = False) -> None:
        """All its containers ended: well, or with `failed` not."""
        self._known(pod)
        self._table.end(pod, Phase.FAILED if failed else Phase.SUCCEEDED)
        self._context.tell("failed" if failed else "succeeded", pod.spec.key)

    def stop_container(self, pod: Pod, name: str) -> None:
        """It ended, as in a crash loop, and was not started again yet."""
        self._known(pod)
        pod.state(name).running = False

    async def restart_container(self, pod: Pod, name: str) -> None:
        """Starts it once more: PreStartContainer is called again, Allocate is not (3.48, 3.49)."""
        self._known(pod)
        self.stop_container(pod, name)
        async with self._turn:
            await self._running.starter.start(pod, pod.containers[name])
        self._findings.check()

    async def start_waiting(self, pod: Pod) -> None:
        """Tries once more to start the containers that could not be started."""
        self._known(pod)
        async with self._turn:
            await self._running.starter.start_pod(pod)
        self._findings.check()

    def granted(self, pod: Pod, name: str) -> RunContainerOptions:
        """What a container has got, also one that was running when this kubelet started."""
        return pod.state(name).granted or self._running.starter.granted(pod, pod.state(name))

    def device_health(self, pod: Pod) -> Mapping[str, tuple[DeviceHealth, ...]]:
        """What the pod's status says of its devices, by container; before 1.36 nothing (7.1, 7.2)."""
        manager = self._running.manager
        return of_pod(pod, manager.stock, manager.ledger) if self._context.profile.reports_device_health else {}

    def endpoint(self, resource: str) -> Endpoint:
        """The plugin itself, to be called as it is: nothing is recorded."""
        found = self._running.manager.connections.get(resource)
        if found is None:
            raise PeerGone(f"no plugin has registered {resource}")
        return found

    async def allocate(self, resource: str, device_ids: Sequence[str]) -> AllocateResponse:
        """A raw Allocate, outside of any admission."""
        return await self.endpoint(resource).allocate(device_ids)

    @property
    def pods(self) -> tuple[Pod, ...]:
        return tuple(self._table)

    @property
    def calls(self) -> list[Call]:
        """Every RPC in order, with its duration and outcome."""
        return self._trace.calls

    @property
    def findings(self) -> tuple[Finding, ...]:
        return self._findings.all

    @property
    def metrics(self) -> Metrics:
        return self._running.manager.metrics

    def events(self, *, new: bool = False) -> AsyncGenerator[Event, None]:
        """Everything that happens, from the beginning or from now on, until the kubelet is left."""
        return self._trace.follow(new=new)

    @property
    def _running(self) -> Parts:
        if self._parts is None:
            raise KubeletError("the kubelet is not running")
        return self._parts

    async def _live(self, ready: "asyncio.Future[None]") -> None:
        """In a task of its own, so that it may be started and stopped from different tasks."""
        async with running(self._context, self._table) as made:
            self._parts = made
            ready.set_result(None)
            await asyncio.Event().wait()

    async def _fail(self) -> None:
        """The start came to nothing: says why (1.6)."""
        try:
            await self.stop()
        except OSError as error:
            raise ConfigError(f"cannot use {error.filename or self.paths.root}: {error.strerror}") from error

    async def _admit(self, pod: Pod) -> None:
        try:
            await self._running.admission.admit(pod)
        except PodRefused as error:
            self._table.end(pod, Phase.FAILED, error.reason, error.message)
            self._context.tell("refused", pod.spec.key, f"{error.reason}: {error.message}")
            raise
        except BaseException:  # cancelled in the middle: as if it had never come
            self._table.remove(pod.uid)
            raise
        self._context.tell("admitted", pod.spec.key)

    async def _admit_again(self, pod: Pod) -> None:
        """After a start; a pod that is refused now is shown by its phase."""
        async with self._turn:
            try:
                await self._admit(pod)
            except PodRefused:
                return
            await self._running.starter.start_pod(pod)

    async def _counted(self, resource: str, is_right: Callable[[DeviceCount], bool]) -> DeviceCount:
        def found() -> bool:
            count = self._running.manager.node.get(resource)
            return count is not None and is_right(count)

        self._running.manager.survey()
        await self._trace.until(found, self.settings.timeout, f"no plugin listed {resource} as expected")
        return self._running.manager.node[resource]

    def _known(self, pod: Pod) -> None:
        if self._table.get(pod.uid) is not pod:
            raise KubeletError(f"pod {pod.spec.key} is not on this node")

    def _report_violations(self, pod: PodSpec) -> None:
        for place, text in pods.violations(pod):
            self._findings.report(
                "10.4", f"{pod.key} {place}", text, "never sees such a pod: the API server refuses it"
            )
