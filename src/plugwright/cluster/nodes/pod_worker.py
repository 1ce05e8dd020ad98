"""One pod on an emulated node, from its admission to its end: a worker to start, watch and stop its containers.

The kubelet decides whether it is admitted and with which devices; `pod_processes` runs its containers if the node runs
any, and `pod_status` composes the written status.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import cached_property

from plugwright.apiserver import clock
from plugwright.apiserver.kinds import PODS
from plugwright.apiserver.registry import DeleteOptions, ResourcePath
from plugwright.apiserver.store import Object
from plugwright.cluster.events import EventRecord
from plugwright.cluster.nodes import pod_status, restarts
from plugwright.cluster.nodes.container_runs import lost_runs, run_of_status
from plugwright.cluster.nodes.node_context import NodeContext
from plugwright.cluster.nodes.pod_config import PodConfig
from plugwright.cluster.nodes.pod_processes import Launch, PodProcesses, ProcessTiming
from plugwright.cluster.nodes.pod_status import PodStatusInputs
from plugwright.cluster.scheduling.fit import PodRequest
from plugwright.errors import (
    ClusterError,
    ContainerWaiting,
    InvalidPod,
    KubeletError,
    PeerGone,
    PodRefused,
    StatusError,
    VolumeNotMounted,
)
from plugwright.kubelet import ContainerKind, Phase, Pod, pods
from plugwright.kubelet.admission import Predicates
from plugwright.kubelet.container_input import ContainerInput

__all__ = ["REJECTED", "PodWorker"]

REJECTED = "Pod was rejected: "  # prefix of the message in the status, but not in the event (3.64)
_MANAGER = "kubelet"
_FINISHED = (Phase.SUCCEEDED, Phase.FAILED)
_FOREVER = 3600.0  # seconds until a retry
_GRACE = 30.0  # default in seconds
_LEAST_GRACE = 2.0  # seconds, the kubelet's minimum
_PATIENCE = 5.0  # seconds beyond the grace period
_DEADLINE_EXCEEDED = "Pod was active on the node longer than the specified deadline"


class PodWorker:
    """`pod` is None until the pod is admitted."""

    def __init__(self, context: NodeContext, stored: Object, address: str) -> None:
        metadata = stored["metadata"]
        self.uid = str(metadata["uid"])
        self.name = str(metadata["namespace"]), str(metadata["name"])  # with its namespace
        self._stored: Object | None = stored
        self.address = address
        self.pod: Pod | None = None
        self.is_terminating = False
        self._context = context
        self._task: asyncio.Task[None] | None = None
        self._has_sandbox = not stored["spec"].get("volumes")
        self._is_past_deadline = False
        runtime = context.runtime
        timing = ProcessTiming(runtime.retry, runtime.back_off, runtime.longest_back_off)
        self._processes = PodProcesses(self, context.logs, timing) if runtime.processes else None

    @property
    def stored(self) -> Object:
        """The newest version of the pod's object; for a settled and deleted pod, its identifying part."""
        if self._stored is not None:
            return self._stored
        found = self._context.client.store.get(ResourcePath(PODS, *self.name).key)
        if found is not None and found["metadata"]["uid"] == self.uid:
            return found
        namespace, name = self.name
        metadata = {"namespace": namespace, "name": name, "uid": self.uid}
        return {"apiVersion": PODS.api_version, "kind": PODS.name, "metadata": metadata, "spec": {}}

    @stored.setter
    def stored(self, newest: Object) -> None:
        if self._stored is not None:
            self._stored = newest

    def settle(self) -> None:
        """Drops state once the containers have started or never will, because a node can have thousands of pods.

        Container processes need the object until they have ended, even if it is deleted.
        """
        if self._processes is None:
            self._task = self._stored = None

    @cached_property
    def request(self) -> PodRequest:
        return PodRequest.of(self.stored)

    async def start(self, predicates: Predicates) -> None:
        """Admits the pod or rejects it permanently; returns when its containers run, or, as processes, have ended."""
        if self.is_terminating:
            return
        self._task = asyncio.current_task()
        try:
            self.pod = await self._context.kubelet.add(pods.read(self.stored), predicates)
        except PodRefused as error:
            self.reject(error.reason, error.message)
            return
        except InvalidPod as error:
            self.reject("UnexpectedAdmissionError", f"{REJECTED}{error}")
            return
        except KubeletError:
            return  # the node is being stopped: the pod is started when the node returns
        self.take_over(self.pod)
        await self._live(self.pod)

    def take_over(self, pod: Pod) -> None:
        """Takes over a pod started before the node's restart, from its status."""
        self.pod = pod
        if self._processes is not None:
            statuses = pod_status.container_statuses(self.stored)
            runs = {name: run_of_status(shown) for name, shown in statuses.items()}
            self._processes.runs |= lost_runs(runs, self.now())

    async def resume(self) -> None:
        """Like `start`, for a pod taken over."""
        assert self.pod is not None
        self._task = asyncio.current_task()
        if self.pod.phase is Phase.FAILED:
            pod, self.pod = self.pod, None
            self.reject(pod.reason, pod.message)
            return
        await self._live(self.pod)

    async def _live(self, pod: Pod) -> None:
        if self.stored["spec"].get("activeDeadlineSeconds") is None:
            await self._run_containers(pod)
            return
        async with asyncio.TaskGroup() as tasks:
            life = tasks.create_task(self._run_containers(pod))
            deadline = tasks.create_task(self._enforce_deadline(pod, life))
            if self._processes is not None:
                life.add_done_callback(lambda _: None if self._is_past_deadline else deadline.cancel())

    async def _run_containers(self, pod: Pod) -> None:
        if self._processes is None:
            await self._start_containers(pod)
            return
        self.refresh()
        while self._processes.stop.value is None:
            if await self._set_up_volumes() and await self._prepare(pod):
                await self._processes.run()
                break
            await self._processes.pause(self._context.runtime.retry)
        self.refresh()

    async def _start_containers(self, pod: Pod) -> None:
        """Starts containers on a node without processes: they count as started once all their references exist."""
        while True:
            before = {name for name, container in pod.containers.items() if container.starts}
            if not self._context.runtime.references or await self._set_up_volumes():
                if self._context.runtime.references:
                    await self._config.check_references(pod)
                with suppress(ContainerWaiting, KubeletError):
                    await self._context.kubelet.start_waiting(pod)
            for name, container in pod.containers.items():
                if container.starts and name not in before:
                    self.record_started(name)
            self.refresh()
            if not any(container.reason for container in pod.containers.values()):
                return
            self._record_failures(pod)
            await asyncio.sleep(self._context.runtime.retry)

    async def _set_up_volumes(self) -> bool:
        if self._has_sandbox:
            return True
        try:
            await self._config.set_up_volumes()
        except VolumeNotMounted as error:
            self._context.recorder.record(self.stored, EventRecord("FailedMount", str(error), "Warning"))
            return False
        self._has_sandbox = True
        return True

    async def _prepare(self, pod: Pod) -> bool:
        try:
            if await self._context.kubelet.prepare(pod):
                return True
        except KubeletError:
            return False  # the node is being stopped
        self._record_failures(pod)
        return False

    async def launch(self, container: Object, attempt: int) -> Launch:
        """The settings of a container, once the kubelet has started it; raises `ContainerWaiting`."""
        assert self.pod is not None
        return await self._config.launch(self.pod, container, attempt)

    async def command_launch(self, container: str) -> Launch:
        """The settings of a running container, for another command in it; raises `StatusError`."""
        name = f"{self.name[1]}"
        if self.pod is None or self._processes is None or not self._processes.runs[container].is_running:
            raise StatusError(400, "BadRequest", f'container "{container}" of pod "{name}" is not running')
        entry = next(one for one in restarts.containers_of(self.stored["spec"]) if one["name"] == container)
        return await self._config.launch(self.pod, entry, self._processes.runs[container].attempt, is_start=False)

    def container_input(self, container: str) -> ContainerInput | None:
        """The input of a container process with `stdin` or `tty`."""
        return self._processes.inputs.get(container) if self._processes is not None else None

    @property
    def _config(self) -> PodConfig:
        return PodConfig(self._context, self.stored, self.address)

    def ended(self, container: str) -> None:
        assert self.pod is not None
        with suppress(KubeletError):  # it is being stopped
            self._context.kubelet.stop_container(self.pod, container)

    async def _enforce_deadline(self, pod: Pod, life: "asyncio.Task[None]") -> None:
        spec, began = self.stored["spec"], (self.stored.get("status") or {}).get("startTime")
        now = self._context.client.now()
        elapsed = (now - clock.parse(began)).total_seconds() if began else 0.0
        await asyncio.sleep(max(0.0, float(spec["activeDeadlineSeconds"]) - elapsed))
        if pod.phase in _FINISHED or self.is_terminating:
            return
        self._context.recorder.record(self.stored, EventRecord("DeadlineExceeded", _DEADLINE_EXCEEDED))
        self._is_past_deadline = True
        grace = spec.get("terminationGracePeriodSeconds")
        await self._stop(pod, life, _GRACE if grace is None else float(grace))
        with suppress(KubeletError):
            self._context.kubelet.finish(pod, failed=True)
        pod.reason, pod.message = "DeadlineExceeded", _DEADLINE_EXCEEDED
        self.refresh()

    async def _stop(self, pod: Pod, life: "asyncio.Task[None] | None", grace: float) -> None:
        """Ends its containers, and with them their task."""
        running = [name for name, container in pod.containers.items() if self._is_running(name, container.running)]
        mains = [name for name in running if not self._is_sidecar(pod, name) or self._processes is None]
        for name in mains:
            self.record(EventRecord("Killing", f"Stopping container {name}"), name)
        if life is None or life.done():
            return
        if self._processes is not None:
            self._processes.stop.publish(max(grace, _LEAST_GRACE))
            await asyncio.wait([life], timeout=grace + _PATIENCE)
        if not life.done():
            life.cancel()
            await asyncio.wait([life])

    def _is_running(self, name: str, counts_as_running: bool) -> bool:
        return counts_as_running if self._processes is None else self._processes.runs[name].is_running

    def _is_sidecar(self, pod: Pod, name: str) -> bool:
        return pod.containers[name].spec.kind is ContainerKind.SIDECAR

    async def terminate(self) -> None:
        """Stops its containers, frees its devices and deletes its object."""
        await self._end()
        if self.pod is not None:
            await self._remove_from_kubelet(self.pod)
            if self.pod.phase is not Phase.FAILED:
                self.pod.phase = Phase.SUCCEEDED if self._has_succeeded() else Phase.FAILED
            self._write(self._status)
        with suppress(ClusterError, StatusError):
            self._context.client.writer.delete(ResourcePath(PODS, *self.name), DeleteOptions(grace=0, uid=self.uid))
        self._forget()

    async def clean_up(self) -> None:
        """Like `terminate`, for a pod whose object is deleted."""
        await self._end()
        if self.pod is not None:
            await self._remove_from_kubelet(self.pod)
        self._forget()

    def _has_succeeded(self) -> bool:
        """Whether the pod has succeeded; a pod whose containers never ran has not failed."""
        if self._processes is None:
            return True
        runs = [self._processes.runs[container["name"]] for container in self.stored["spec"]["containers"]]
        return all(run.has_succeeded or not run.has_started for run in runs)

    def _forget(self) -> None:
        self._context.logs.remove(self.uid)
        self._context.volumes.remove(self.uid)

    def refresh(self) -> None:
        """Writes the status if it differs from the stored status."""
        if self.pod is None or self.is_terminating:
            return
        if self._processes is not None and self.pod.phase not in _FINISHED and not self._is_past_deadline:
            phase = restarts.phase(self.stored["spec"], self._processes.runs)
            if phase in _FINISHED:
                with suppress(KubeletError):  # it is being stopped
                    self._context.kubelet.finish(self.pod, failed=phase is Phase.FAILED)
            self.pod.phase = phase
        self._write(self._status)

    def reject(self, reason: str, message: str) -> None:
        """Marks the pod as failed: a rejection is final, and the kubelet does not retry (3.67)."""
        self._context.recorder.record(self.stored, EventRecord(reason, message.removeprefix(REJECTED), "Warning"))
        self._write(lambda stored: pod_status.rejected_status(stored, reason, message, self.now()))

    async def _end(self) -> None:
        """Ends the pod; without `pod` it was rejected, or is cancelled during its admission."""
        grace = (self.stored["metadata"].get("deletionGracePeriodSeconds")) or 0.0
        if self.pod is not None:
            await self._stop(self.pod, self._task, float(grace))
            return
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait([self._task])
        self.pod = next((pod for pod in self._context.kubelet.pods if pod.uid == self.uid), None)

    async def _remove_from_kubelet(self, pod: Pod) -> None:
        """Returns when the kubelet has removed it, which can take several attempts for a pod with claims."""
        kubelet = self._context.kubelet
        with suppress(KubeletError):  # it can be removed already
            await kubelet.remove(pod)
        while pod.terminating and pod in kubelet.pods:
            with suppress(PeerGone):  # a slow removal is no reason to give up
                await kubelet.until(lambda: pod not in kubelet.pods, _FOREVER, f"{pod.spec.key} is terminating")

    def _record_failures(self, pod: Pod) -> None:
        """Records failures; unprepared claims keep the whole pod waiting (11.15)."""
        waiting = [container for container in pod.containers.values() if container.message]
        if waiting and waiting[0].reason == "ContainerCreating":
            text = f"Failed to prepare dynamic resources: {waiting[0].message}"
            self._context.recorder.record(self.stored, EventRecord("FailedPrepareDynamicResources", text, "Warning"))
            return
        for container in waiting:
            self.record_pulled(container.spec.name)
            self.record(EventRecord("Failed", f"Error: {container.message}", "Warning"), container.spec.name)

    def record_pulled(self, container: str) -> None:
        """Records the image first, because a kubelet has it before it examines anything else of a container."""
        containers = restarts.containers_of(self.stored["spec"])
        image = next((str(entry.get("image", "")) for entry in containers if entry["name"] == container), "")
        text = f'Container image "{image}" already present on machine and can be accessed by the pod'
        self.record(EventRecord("Pulled", text), container)

    def record_started(self, container: str) -> None:
        self.record_pulled(container)
        self.record(EventRecord("Created", "Container created"), container)
        self.record(EventRecord("Started", "Container started"), container)

    def record(self, event: EventRecord, container: str) -> None:
        assert self.pod is not None
        part = "containers" if self.pod.containers[container].spec.kind is ContainerKind.MAIN else "initContainers"
        self._context.recorder.record(self.stored, replace(event, field_path=f"spec.{part}{{{container}}}"))

    def now(self) -> str:
        return self._context.client.stamp()

    def _status(self, stored: Object) -> Object:
        assert self.pod is not None
        context = self._context
        runs = self._processes.runs if self._processes is not None else {}
        inputs = PodStatusInputs(self.now(), context.identity.address, self.address, runs=dict(runs))
        inputs = replace(inputs, has_sandbox=self._has_sandbox)
        with suppress(KubeletError):  # it is being stopped
            health, claims = context.kubelet.device_health(self.pod), context.kubelet.claim_health(self.pod)
            inputs = replace(inputs, health=health, claim_health=claims)
        return pod_status.status(stored, self.pod, inputs)

    def _write(self, status: Callable[[Object], Object]) -> None:
        """Writes the status, unless the object was deleted or replaced by another pod of the same name."""
        client, path = self._context.client, ResourcePath(PODS, *self.name, "status")
        current = client.store.get(path.key)
        if current is None or current["metadata"]["uid"] != self.uid:
            return
        with suppress(ClusterError, StatusError):
            self.stored = client.writer.change(path, lambda stored: {**stored, "status": status(stored)}, _MANAGER)
