"""The pods of one emulated node: a worker for every bound pod, and their requests, for the fit of new pods.

`node` decides which pods are bound to the node; `pod_worker` implements one pod's life.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from functools import partial

from plugwright.apiserver.kinds import NODES
from plugwright.apiserver.store import Object, ObjectKey
from plugwright.cluster.events import MALFORMED
from plugwright.cluster.nodes.node_context import NodeContext, RuntimeSettings
from plugwright.cluster.nodes.pod_processes import Launch
from plugwright.cluster.nodes.pod_worker import REJECTED, PodWorker
from plugwright.cluster.scheduling import fit
from plugwright.cluster.scheduling.fit import NodeInfo, Rejection
from plugwright.errors import KubeletError, StatusError
from plugwright.kubelet import Phase
from plugwright.kubelet.container_input import ContainerInput
from plugwright.system.concurrency import single_error

__all__ = ["NodeContext", "NodePods", "PodWorker", "RuntimeSettings"]

logger = logging.getLogger(__name__)

_FINISHED = (Phase.SUCCEEDED, Phase.FAILED)


class NodePods:
    def __init__(self, context: NodeContext, tasks: asyncio.TaskGroup) -> None:
        self._context = context
        self._tasks = tasks
        self._workers: dict[str, PodWorker] = {}
        self._terminations: dict[tuple[str, str], asyncio.Task[None]] = {}  # a pod of the same name waits for it

    def resume(self, stored: Iterable[Object]) -> None:
        """Resumes the pods with which the kubelet was started: they run, or were rejected at this start."""
        known = {pod.uid: pod for pod in self._context.kubelet.pods}
        for pod in stored:
            if pod["metadata"]["uid"] in known:
                worker = self._add(pod)
                worker.take_over(known[worker.uid])
                self._tasks.create_task(self._supervised(worker, worker.resume()))

    def changed(self, stored: Object) -> None:
        """Handles a new or changed pod bound to this node."""
        worker = self._workers.get(stored["metadata"]["uid"])
        if worker is not None:
            worker.stored = stored
            if stored["spec"].get("readinessGates"):  # conditions for them are set by other components
                worker.refresh()
        if stored["metadata"].get("deletionTimestamp"):
            worker = worker or self._add(stored)
            self._terminate(worker, worker.terminate)
        elif worker is None and (stored.get("status") or {}).get("phase") not in _FINISHED:
            self._tasks.create_task(self._start(self._add(stored)))

    async def command_launch(self, uid: str, container: str) -> Launch:
        """The settings with which a running container was started; raises `StatusError`."""
        worker = self._workers.get(uid)
        if worker is None:
            raise StatusError(400, "BadRequest", f'container "{container}" is not running')
        return await worker.command_launch(container)

    def container_input(self, uid: str, container: str) -> ContainerInput | None:
        worker = self._workers.get(uid)
        return worker.container_input(container) if worker is not None else None

    def deleted(self, uid: str) -> None:
        """Handles a deleted pod: its containers end, and no status is written."""
        if worker := self._workers.get(uid):
            self._terminate(worker, worker.clean_up)

    def resync(self, stored: Iterable[Object]) -> None:
        """Compares with all existing pods, after missed changes."""
        present = {pod["metadata"]["uid"]: pod for pod in stored}
        for uid in [uid for uid in self._workers if uid not in present]:
            self.deleted(uid)
        for uid, pod in present.items():
            self.changed(pod)
            self.refresh(uid)

    def refresh(self, uid: str) -> None:
        if uid in self._workers:
            self._workers[uid].refresh()

    async def _start(self, worker: PodWorker) -> None:
        if termination := self._terminations.get(worker.name):
            await asyncio.wait([termination])
        await self._supervised(worker, worker.start(partial(self._rejection, worker)))

    async def _supervised(self, worker: PodWorker, life: Coroutine[object, object, None]) -> None:
        """Runs a pod in isolation: its failure does not end the others."""
        extra = {"pod": "/".join(worker.name)}
        try:
            await life
        except KubeletError:
            return  # the node is being stopped: the pod is started when the node returns
        except MALFORMED as error:
            logger.warning("pod object is malformed, it is rejected", extra={**extra, "error": repr(error)})
            worker.reject("UnexpectedAdmissionError", f"{REJECTED}it cannot be read: {error!r}")
        except Exception as error:
            logger.exception("pod failed, it is rejected", extra=extra)
            text = f"{REJECTED}it cannot be run: {single_error(error)!r}"
            worker.reject("UnexpectedAdmissionError", text)
        worker.settle()

    def _rejection(self, worker: PodWorker) -> Rejection | None:
        context = self._context
        node = context.client.store.get(ObjectKey(NODES.qualified, "", context.identity.name))
        if node is None:
            return None
        info = NodeInfo.of(node)
        admitted = {pod.uid for pod in context.kubelet.pods if pod.phase not in _FINISHED}
        for other in self._workers.values():
            if other.uid in admitted and other is not worker:
                info.add_pod(other.request)
        return fit.rejection(worker.request, info, context.kubelet.node())

    def _add(self, stored: Object) -> PodWorker:
        worker = PodWorker(self._context, stored, self._address(stored))
        self._workers[worker.uid] = worker
        return worker

    def _address(self, stored: Object) -> str:
        identity, known = self._context.identity, (stored.get("status") or {}).get("podIP")
        if stored["spec"].get("hostNetwork"):
            return identity.address
        taken = {worker.address for worker in self._workers.values()}
        return str(known) if known else identity.pod_address(taken)

    def _terminate(self, worker: PodWorker, terminate: Callable[[], Coroutine[object, object, None]]) -> None:
        if worker.is_terminating:
            return
        worker.is_terminating = True
        task = self._terminations[worker.name] = self._tasks.create_task(terminate())
        task.add_done_callback(lambda _: self._terminated(worker, task))

    def _terminated(self, worker: PodWorker, task: asyncio.Task[None]) -> None:
        self._workers.pop(worker.uid, None)
        if self._terminations.get(worker.name) is task:
            del self._terminations[worker.name]
