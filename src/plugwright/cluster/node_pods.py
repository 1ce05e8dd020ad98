"""The pods of one emulated node: a worker for every pod, from its admission to its end.

`node` says which pods are bound to the node. The kubelet decides whether a pod is admitted and with which devices;
`pod_status` composes the status that a worker writes.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property

from plugwright.cluster import fit, pod_status
from plugwright.cluster.api.errors import StatusError
from plugwright.cluster.api.kinds import NODES, PODS
from plugwright.cluster.api.registry import DeleteOptions, ResourcePath
from plugwright.cluster.container_logs import ContainerLogs
from plugwright.cluster.events import MALFORMED, EventRecord, EventRecorder, NodeClient
from plugwright.cluster.fit import NodeInfo, PodRequest, Rejection
from plugwright.cluster.node_status import NodeIdentity
from plugwright.cluster.pod_status import PodStatusInputs
from plugwright.cluster.store import Object, ObjectKey
from plugwright.errors import ClusterError, ContainerWaiting, InvalidPod, KubeletError, PeerGone, PodRefused
from plugwright.kubelet import ContainerKind, Kubelet, Phase, Pod, pods, processes
from plugwright.kubelet.events import StateChange
from plugwright.kubelet.pod_table import Container
from plugwright.kubelet.processes import Output

__all__ = ["NodeContext", "NodePods", "PodWorker", "RuntimeSettings"]

logger = logging.getLogger(__name__)

_MANAGER = "kubelet"
_FINISHED = (Phase.SUCCEEDED, Phase.FAILED)
_REJECTED = "Pod was rejected: "  # begins the message in the status, but not in the event (3.64)
_FOREVER = 3600.0  # seconds; tried again then


@dataclass(frozen=True, slots=True)
class RuntimeSettings:
    """`processes`: containers run as processes of this machine. `retry`: seconds until a failed start is retried."""

    processes: bool = False
    retry: float = 10.0


@dataclass(frozen=True, slots=True)
class NodeContext:
    """The parts that all pods of one node share."""

    client: NodeClient
    identity: NodeIdentity
    logs: ContainerLogs
    recorder: EventRecorder
    kubelet: Kubelet
    runtime: RuntimeSettings


class NodePods:
    def __init__(self, context: NodeContext, tasks: asyncio.TaskGroup) -> None:
        self._context = context
        self._tasks = tasks
        self._workers: dict[str, PodWorker] = {}
        self._terminations: dict[tuple[str, str], asyncio.Task[None]] = {}  # a pod of the same name waits for it

    def resume(self, stored: Iterable[Object]) -> None:
        """Takes over the pods that the kubelet was started with: they run, or were rejected at this start."""
        known = {pod.uid: pod for pod in self._context.kubelet.pods}
        for pod in stored:
            if pod["metadata"]["uid"] in known:
                worker = self._add(pod)
                worker.pod = known[worker.uid]
                self._tasks.create_task(worker.resume())

    def changed(self, stored: Object) -> None:
        """A pod that is bound to this node was added or changed."""
        worker = self._workers.get(stored["metadata"]["uid"])
        if worker is not None:
            worker.stored = stored
        if stored["metadata"].get("deletionTimestamp"):
            worker = worker or self._add(stored)
            self._terminate(worker, worker.terminate)
        elif worker is None and (stored.get("status") or {}).get("phase") not in _FINISHED:
            self._tasks.create_task(self._start(self._add(stored)))

    def deleted(self, uid: str) -> None:
        """The pod's object is gone: its containers end, and no status is written."""
        if worker := self._workers.get(uid):
            self._terminate(worker, worker.clean_up)

    def resync(self, stored: Iterable[Object]) -> None:
        """Compares with all pods that there are, after changes were missed."""
        present = {pod["metadata"]["uid"]: pod for pod in stored}
        for uid in [uid for uid in self._workers if uid not in present]:
            self.deleted(uid)
        for uid, pod in present.items():
            self.changed(pod)
            self.refresh(uid)

    def refresh(self, uid: str) -> None:
        if uid in self._workers:
            self._workers[uid].refresh()

    async def _start(self, worker: "PodWorker") -> None:
        if termination := self._terminations.get(worker.name):
            await asyncio.wait([termination])
        try:
            if rejection := self._rejection(worker):
                worker.reject(*rejection)
            else:
                await worker.start()
        except KubeletError:
            return  # the node is being stopped: the pod is started when it is back
        except MALFORMED as error:
            extra = {"pod": "/".join(worker.name), "error": repr(error)}
            logger.warning("pod object is malformed, it is rejected", extra=extra)
            worker.reject("UnexpectedAdmissionError", f"{_REJECTED}it cannot be read: {error!r}")

    def _rejection(self, worker: "PodWorker") -> Rejection | None:
        context = self._context
        node = context.client.store.get(ObjectKey(NODES.qualified, "", context.identity.name))
        if node is None:
            return None
        info = NodeInfo.of(node)
        for other in self._workers.values():
            if other.is_active:
                info.add_pod(other.request)
        return fit.rejection(worker.request, info, context.kubelet.node())

    def _add(self, stored: Object) -> "PodWorker":
        worker = PodWorker(self._context, stored, self._address(stored))
        self._workers[worker.uid] = worker
        return worker

    def _address(self, stored: Object) -> str:
        identity, known = self._context.identity, (stored.get("status") or {}).get("podIP")
        if stored["spec"].get("hostNetwork"):
            return identity.address
        taken = {worker.address for worker in self._workers.values()}
        return str(known) if known else identity.pod_address(taken)

    def _terminate(self, worker: "PodWorker", terminate: Callable[[], Coroutine[object, object, None]]) -> None:
        if worker.is_terminating:
            return
        worker.is_terminating = True
        task = self._terminations[worker.name] = self._tasks.create_task(terminate())
        task.add_done_callback(lambda _: self._terminated(worker, task))

    def _terminated(self, worker: "PodWorker", task: asyncio.Task[None]) -> None:
        self._workers.pop(worker.uid, None)
        if self._terminations.get(worker.name) is task:
            del self._terminations[worker.name]


class PodWorker:
    """`stored` is the newest version of the pod's object; `pod` is None until the pod is admitted."""

    def __init__(self, context: NodeContext, stored: Object, address: str) -> None:
        self.stored = stored
        self.address = address
        self.pod: Pod | None = None
        self.is_terminating = False
        self._context = context
        self._task: asyncio.Task[None] | None = None
        self._exit_codes: dict[str, int] = {}

    @property
    def uid(self) -> str:
        return str(self.stored["metadata"]["uid"])

    @property
    def name(self) -> tuple[str, str]:
        """With its namespace."""
        return str(self.stored["metadata"]["namespace"]), str(self.stored["metadata"]["name"])

    @property
    def is_active(self) -> bool:
        """Whether its requests count."""
        return self.pod is not None and self.pod.phase not in _FINISHED

    @cached_property
    def request(self) -> PodRequest:
        return PodRequest.of(self.stored)

    async def start(self) -> None:
        """Admits the pod or rejects it for good; returns when its containers run, or, as processes, have ended."""
        if self.is_terminating:
            return
        self._task = asyncio.current_task()
        try:
            self.pod = await self._context.kubelet.admit(pods.read(self.stored))
        except PodRefused as error:
            self.reject(error.reason, error.message)
            return
        except InvalidPod as error:
            self.reject("UnexpectedAdmissionError", f"{_REJECTED}{error}")
            return
        except KubeletError:
            return  # the node is being stopped: the pod is started when it is back
        self._record_started(self.pod, set())
        await self.resume()

    async def resume(self) -> None:
        """As `start`, of a pod that is admitted."""
        assert self.pod is not None
        self._task = asyncio.current_task()
        self.refresh()
        if self.pod.phase is Phase.FAILED:
            return
        await self._retry_waiting(self.pod)
        if self._context.runtime.processes:
            await self._run_processes(self.pod)

    async def terminate(self) -> None:
        """Stops its containers, frees its devices and deletes its object."""
        await self._cancel()
        if self.pod is not None:
            for container in self.pod.containers.values():
                if container.running:
                    self._record(EventRecord("Killing", f"Stopping container {container.spec.name}"), container)
            await self._remove_from_kubelet(self.pod)
            if self.pod.phase is not Phase.FAILED:
                self.pod.phase = Phase.SUCCEEDED
            self._write(self._status)
        with suppress(ClusterError, StatusError):
            self._context.client.writer.delete(ResourcePath(PODS, *self.name), DeleteOptions(grace=0, uid=self.uid))
        self._context.logs.remove(self.uid)

    async def clean_up(self) -> None:
        """As `terminate`, of a pod whose object is gone."""
        await self._cancel()
        if self.pod is not None:
            await self._remove_from_kubelet(self.pod)
        self._context.logs.remove(self.uid)

    def refresh(self) -> None:
        """Writes the status if it differs from the stored one."""
        if self.pod is None or self.is_terminating:
            return
        if self.pod.phase is Phase.FAILED and self.pod.reason:
            if self.stored.get("status", {}).get("phase") != "Failed":
                self.reject(self.pod.reason, self.pod.message)
        else:
            self._write(self._status)

    def reject(self, reason: str, message: str) -> None:
        """Marks the pod as failed: a rejected pod is final, the kubelet does not try again (3.67)."""
        self._context.recorder.record(self.stored, EventRecord(reason, message.removeprefix(_REJECTED), "Warning"))
        now = self._context.client.stamp()
        self._write(lambda stored: pod_status.rejected_status(stored, reason, message, now))

    async def _cancel(self) -> None:
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait([self._task])
        if self.pod is None:  # rejected, or cancelled during its admission
            self.pod = next((pod for pod in self._context.kubelet.pods if pod.uid == self.uid), None)

    async def _remove_from_kubelet(self, pod: Pod) -> None:
        """Returns when the kubelet is done with it, which for a pod with claims may take several tries."""
        kubelet = self._context.kubelet
        with suppress(KubeletError):  # it may be removed already
            await kubelet.remove(pod)
        while pod.terminating and pod in kubelet.pods:
            with suppress(PeerGone):  # that it takes long is no reason to give up
                await kubelet.until(lambda: pod not in kubelet.pods, _FOREVER, f"{pod.spec.key} is terminating")

    async def _retry_waiting(self, pod: Pod) -> None:
        """Starts containers that could not be started, until all run."""
        while any(container.reason for container in pod.containers.values()):
            self._record_failures(pod)
            await asyncio.sleep(self._context.runtime.retry)
            started = {name for name, container in pod.containers.items() if container.starts}
            with suppress(ContainerWaiting, KubeletError):
                await self._context.kubelet.start_waiting(pod)
            self._record_started(pod, started)
            self.refresh()

    def _record_failures(self, pod: Pod) -> None:
        """Claims that are not prepared keep the whole pod waiting (11.15)."""
        waiting = [container for container in pod.containers.values() if container.message]
        if waiting and waiting[0].reason == "ContainerCreating":
            text = f"Failed to prepare dynamic resources: {waiting[0].message}"
            self._context.recorder.record(self.stored, EventRecord("FailedPrepareDynamicResources", text, "Warning"))
            return
        for container in waiting:
            self._record(EventRecord("Failed", f"Error: {container.message}", "Warning"), container)

    async def _run_processes(self, pod: Pod) -> None:
        def write_log(event: StateChange | Output) -> None:
            name = event.about.rpartition("/")[2]
            if isinstance(event, Output):
                self._context.logs.write(self.uid, name, event.text)
            elif event.kind in ("limited", "not started"):
                self._context.logs.write(self.uid, name, f"plugwright: {event.text}")

        for name, container in pod.containers.items():  # after a restart the options come from the checkpoint
            container.granted = self._context.kubelet.granted(pod, name)
        codes = await processes.run(pod, write_log)
        self._exit_codes.update(codes)
        specs = pod.spec.containers
        failed = any(codes.get(spec.name) for spec in specs if spec.kind is not ContainerKind.SIDECAR)
        if failed or all(spec.name in codes for spec in specs if spec.kind is ContainerKind.MAIN):
            self._context.kubelet.finish(pod, failed=failed)
            self.refresh()

    def _record_started(self, pod: Pod, before: set[str]) -> None:
        for name, container in pod.containers.items():
            if not container.starts or name in before:
                continue
            image = self._image(name)
            pulled = f'Container image "{image}" already present on machine and can be accessed by the pod'
            for reason, message in (
                ("Pulled", pulled),
                ("Created", "Container created"),
                ("Started", "Container started"),
            ):
                self._record(EventRecord(reason, message), container)

    def _record(self, event: EventRecord, container: Container) -> None:
        part = "containers" if container.spec.kind is ContainerKind.MAIN else "initContainers"
        path = f"spec.{part}{{{container.spec.name}}}"
        self._context.recorder.record(self.stored, replace(event, field_path=path))

    def _image(self, name: str) -> str:
        spec = self.stored["spec"]
        containers = [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]
        return next((str(container.get("image", "")) for container in containers if container["name"] == name), "")

    def _status(self, stored: Object) -> Object:
        assert self.pod is not None
        context = self._context
        host = context.identity.address
        inputs = PodStatusInputs(context.client.stamp(), host, self.address, exit_codes=self._exit_codes)
        with suppress(KubeletError):  # it is being stopped
            health, claims = context.kubelet.device_health(self.pod), context.kubelet.claim_health(self.pod)
            inputs = replace(inputs, health=health, claim_health=claims)
        return pod_status.status(stored, self.pod, inputs)

    def _write(self, status: Callable[[Object], Object]) -> None:
        """Unless the object is gone, or another pod of the same name."""
        client, path = self._context.client, ResourcePath(PODS, *self.name, "status")
        current = client.store.get(path.key)
        if current is None or current["metadata"]["uid"] != self.uid:
            return
        with suppress(ClusterError, StatusError):
            self.stored = client.writer.change(path, lambda stored: {**stored, "status": status(stored)}, _MANAGER)
