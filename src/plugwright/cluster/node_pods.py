"""The pods of one emulated node: which there are, each with the task that looks after it.

What becomes of one is `podlife`'s; who says which pods are bound to the node is `agent`.

One pod on an emulated node, from its admission to its end: what happens to it is shown in its status and its events.

What a status looks like is `admitted`'s; whether the pod is admitted, and with which devices, is the kubelet's.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property

from plugwright.cluster import fit, pod_status
from plugwright.cluster.api.errors import StatusError
from plugwright.cluster.api.kinds import NODES, PODS
from plugwright.cluster.api.registry import DeleteOptions, ResourcePath
from plugwright.cluster.container_logs import ContainerLogs
from plugwright.cluster.events import MALFORMED, Access, Happening, Recorder
from plugwright.cluster.fit import Rejection, Room, Wish
from plugwright.cluster.node_status import Identity
from plugwright.cluster.pod_status import Facts
from plugwright.cluster.store import Object, ObjectKey
from plugwright.errors import ClusterError, ContainerWaiting, InvalidPod, KubeletError, PodRefused
from plugwright.kubelet import ContainerKind, Kubelet, Phase, Pod, pods, processes
from plugwright.kubelet.events import StateChange
from plugwright.kubelet.pod_table import Container
from plugwright.kubelet.processes import Output

__all__ = ["NodePods", "PodLife", "Quarters", "Runtime"]

_MANAGER = "kubelet"
_OVER = (Phase.SUCCEEDED, Phase.FAILED)
_PREFIX = "Pod was rejected: "  # in the status, not in the event


@dataclass(frozen=True, slots=True)
class Runtime:
    """How containers are run: not at all, or as processes of this machine. `retry`: seconds until the next try."""

    processes: bool = False
    retry: float = 10.0


@dataclass(frozen=True, slots=True)
class Quarters:
    """What the pods of one node share."""

    access: Access
    identity: Identity
    logs: ContainerLogs
    recorder: Recorder
    kubelet: Kubelet
    runtime: Runtime


class PodLife:
    """`stored` is the newest object that was seen; `pod` is None until the pod is admitted."""

    def __init__(self, quarters: Quarters, stored: Object, address: str, pod: Pod | None = None) -> None:
        self.stored = stored
        self.address = address
        self.pod = pod
        self.is_ending = False
        self._quarters = quarters
        self._work: asyncio.Task[None] | None = None
        self._exits: dict[str, int] = {}

    @property
    def uid(self) -> str:
        return str(self.stored["metadata"]["uid"])

    @property
    def is_active(self) -> bool:
        """Whether it holds what it asked for."""
        return self.pod is not None and self.pod.phase not in _OVER

    @cached_property
    def asked(self) -> Wish:
        return fit.wish(self.stored)

    @property
    def name(self) -> str:
        return f"{self._namespace}/{self._name}"

    async def live(self) -> None:
        """Admitted, or refused for good; then until its containers run, or, as processes, have ended."""
        if self.is_ending:
            return
        self._work = asyncio.current_task()
        try:
            self.pod = await self._quarters.kubelet.admit(pods.read(self.stored))
        except PodRefused as error:
            self.refuse(error.reason, error.message)
            return
        except InvalidPod as error:
            self.refuse("UnexpectedAdmissionError", f"{_PREFIX}{error}")
            return
        except KubeletError:
            return  # the node is being stopped: the pod is looked at again when it is back
        self._tell_started(self.pod, set())
        await self.go_on()

    async def go_on(self) -> None:
        """From here on also for a pod that was there when its node started again."""
        assert self.pod is not None
        self._work = asyncio.current_task()
        self.refresh()
        if self.pod.phase is Phase.FAILED:
            return
        await self._start_waiting(self.pod)
        if self._quarters.runtime.processes:
            await self._run(self.pod)

    async def end(self) -> None:
        """Its containers are stopped, its devices are free, and then its object goes."""
        await self._stop()
        if self.pod is not None:
            for container in self.pod.containers.values():
                if container.running:
                    self._tell(Happening("Killing", f"Stopping container {container.spec.name}"), container)
            await self._take_away(self.pod)
            if self.pod.phase is not Phase.FAILED:
                self.pod.phase = Phase.SUCCEEDED
            self._write(self._status)
        with suppress(ClusterError, StatusError):
            place = ResourcePath(PODS, self._namespace, self._name)
            self._quarters.access.writer.delete(place, DeleteOptions(grace=0, uid=self.uid))
        self._quarters.logs.forget(self.uid)

    async def forget(self) -> None:
        """The object is gone already."""
        await self._stop()
        if self.pod is not None:
            await self._take_away(self.pod)
        self._quarters.logs.forget(self.uid)

    def refresh(self) -> None:
        """Writes the status, if it is another than the one that is there."""
        if self.pod is None or self.is_ending:
            return
        if self.pod.phase is Phase.FAILED and self.pod.reason:
            if self.stored.get("status", {}).get("phase") != "Failed":
                self.refuse(self.pod.reason, self.pod.message)
        else:
            self._write(self._status)

    async def _stop(self) -> None:
        self.is_ending = True
        if self._work is not None and not self._work.done():
            self._work.cancel()
            await asyncio.wait([self._work])
        if self.pod is None:  # refused, or cancelled while it started
            self.pod = next((pod for pod in self._quarters.kubelet.pods if pod.uid == self.uid), None)

    async def _take_away(self, pod: Pod) -> None:
        with suppress(KubeletError):  # it may be gone already
            await self._quarters.kubelet.remove(pod)

    async def _start_waiting(self, pod: Pod) -> None:
        """Containers that could not be started are tried again, as long as it takes."""
        while any(each.reason for each in pod.containers.values()):
            self._tell_waiting(pod)
            await asyncio.sleep(self._quarters.runtime.retry)
            running = {name for name, each in pod.containers.items() if each.starts}
            with suppress(ContainerWaiting, KubeletError):
                await self._quarters.kubelet.start_waiting(pod)
            self._tell_started(pod, running)
            self.refresh()

    async def _run(self, pod: Pod) -> None:
        def tell(event: StateChange | Output) -> None:
            name = event.about.rpartition("/")[2]
            if isinstance(event, Output):
                self._quarters.logs.write(self.uid, name, event.text)
            elif event.kind in ("limited", "not started"):
                self._quarters.logs.write(self.uid, name, f"plugwright: {event.text}")

        for name, container in pod.containers.items():  # of an earlier run: what they got is in the records
            container.granted = self._quarters.kubelet.granted(pod, name)
        codes = await processes.run(pod, tell)
        self._exits.update(codes)
        failed = any(codes.get(each.name) for each in pod.spec.containers if each.kind is not ContainerKind.SIDECAR)
        if failed or all(each.name in codes for each in pod.spec.containers if each.kind is ContainerKind.MAIN):
            self._quarters.kubelet.finish(pod, failed=failed)
            self.refresh()

    def _tell_started(self, pod: Pod, before: set[str]) -> None:
        for name, container in pod.containers.items():
            if not container.starts or name in before:
                continue
            image = self._image(name)
            text = f'Container image "{image}" already present on machine and can be accessed by the pod'
            for reason, message in (
                ("Pulled", text),
                ("Created", "Container created"),
                ("Started", "Container started"),
            ):
                self._tell(Happening(reason, message), container)

    def _tell_waiting(self, pod: Pod) -> None:
        for container in pod.containers.values():
            if container.message:
                self._tell(Happening("Failed", f"Error: {container.message}", "Warning"), container)

    def _tell(self, happening: Happening, container: Container) -> None:
        part = "containers" if container.spec.kind is ContainerKind.MAIN else "initContainers"
        path = f"spec.{part}{{{container.spec.name}}}"
        told = Happening(happening.reason, happening.message, happening.type, path)
        self._quarters.recorder.tell(self.stored, told)

    def refuse(self, reason: str, message: str) -> None:
        """It is not admitted, and has failed for good."""
        self._quarters.recorder.tell(self.stored, Happening(reason, message.removeprefix(_PREFIX), "Warning"))
        self._write(lambda stored: pod_status.refused(stored, reason, message, self._quarters.access.stamp()))

    def _status(self, stored: Object) -> Object:
        assert self.pod is not None
        quarters = self._quarters
        try:
            health = quarters.kubelet.device_health(self.pod)
        except KubeletError:  # it is being stopped
            health = {}
        facts = Facts(quarters.access.stamp(), quarters.identity.address, self.address, health, self._exits)
        return pod_status.status(stored, self.pod, facts)

    def _write(self, status: Callable[[Object], Object]) -> None:
        """Only to the very pod that it is about."""
        access, place = self._quarters.access, ResourcePath(PODS, self._namespace, self._name, "status")
        found = access.store.get(place.key)
        if found is None or found["metadata"]["uid"] != self.uid:
            return
        with suppress(ClusterError, StatusError):
            self.stored = access.writer.change(place, lambda stored: {**stored, "status": status(stored)}, _MANAGER)

    def _image(self, name: str) -> str:
        return next((str(each.get("image", "")) for each in self._written() if each["name"] == name), "")

    def _written(self) -> Iterator[Object]:
        for part in ("initContainers", "containers"):
            yield from self.stored["spec"].get(part) or ()

    @property
    def _namespace(self) -> str:
        return str(self.stored["metadata"]["namespace"])

    @property
    def _name(self) -> str:
        return str(self.stored["metadata"]["name"])


logger = logging.getLogger(__name__)

_FINISHED = ("Succeeded", "Failed")


class NodePods:
    def __init__(self, quarters: Quarters, tasks: asyncio.TaskGroup) -> None:
        self._quarters = quarters
        self._tasks = tasks
        self._lives: dict[str, PodLife] = {}
        self._endings: dict[tuple[str, str], asyncio.Task[None]] = {}  # by name: the next one of it waits

    def resume(self, stored: Iterable[Object]) -> None:
        """Pods that the kubelet was started with: they run already, or were refused at this start."""
        known = {pod.uid: pod for pod in self._quarters.kubelet.pods}
        for each in stored:
            if each["metadata"]["uid"] in known:
                life = self._add(each)
                life.pod = known[life.uid]
                self._spawn(life.go_on())

    def see(self, stored: Object) -> None:
        """A pod that is bound to this node, as it is now."""
        life = self._lives.get(stored["metadata"]["uid"])
        if life is not None:
            life.stored = stored
        if stored["metadata"].get("deletionTimestamp"):
            self._end(life or self._add(stored))
        elif life is None and (stored.get("status") or {}).get("phase") not in _FINISHED:
            self._spawn(self._live(self._add(stored)))

    def gone(self, uid: str) -> None:
        """The object was deleted: nothing is left to be told."""
        life = self._lives.get(uid)
        if life is not None and not life.is_ending:
            life.is_ending = True
            self._spawn_ending(life, life.forget())

    def sync(self, stored: Iterable[Object]) -> None:
        """All that there are, after a time without news."""
        present = {each["metadata"]["uid"]: each for each in stored}
        for uid in [uid for uid in self._lives if uid not in present]:
            self.gone(uid)
        for uid, each in present.items():
            self.see(each)
            self.refresh(uid)

    def refresh(self, uid: str) -> None:
        if uid in self._lives:
            self._lives[uid].refresh()

    async def _live(self, life: PodLife) -> None:
        before = self._endings.get(_name(life.stored))
        if before is not None:
            await asyncio.wait([before])
        try:
            if rejected := self._rejection(life):
                life.refuse(*rejected)
            else:
                await life.live()
        except KubeletError:
            return  # the node is being stopped: the pod is looked at again when it is back
        except MALFORMED as error:
            logger.warning("a pod cannot be run as it is written", extra={"pod": life.name, "error": repr(error)})
            life.refuse("UnexpectedAdmissionError", f"Pod was rejected: it cannot be read: {error!r}")

    def _rejection(self, life: PodLife) -> Rejection | None:
        quarters = self._quarters
        node = quarters.access.store.get(ObjectKey(NODES.qualified, "", quarters.identity.name))
        if node is None:
            return None
        room = Room.of(node)
        for each in self._lives.values():
            if each.is_active:
                room.take(each.asked)
        return fit.rejection(life.asked, room, quarters.kubelet.node())

    def _add(self, stored: Object) -> PodLife:
        life = PodLife(self._quarters, stored, self._address(stored))
        self._lives[life.uid] = life
        return life

    def _address(self, stored: Object) -> str:
        identity, known = self._quarters.identity, (stored.get("status") or {}).get("podIP")
        if stored["spec"].get("hostNetwork"):
            return identity.address
        taken = {life.address for life in self._lives.values()}
        return str(known) if known else identity.pod_address(taken)

    def _end(self, life: PodLife) -> None:
        if not life.is_ending:
            life.is_ending = True
            self._spawn_ending(life, life.end())

    def _spawn_ending(self, life: PodLife, work: Coroutine[object, object, None]) -> None:
        name = _name(life.stored)
        task = self._endings[name] = self._spawn(work)
        task.add_done_callback(lambda _: self._over(life.uid, name, task))

    def _over(self, uid: str, name: tuple[str, str], task: asyncio.Task[None]) -> None:
        self._lives.pop(uid, None)
        if self._endings.get(name) is task:
            del self._endings[name]

    def _spawn(self, work: Coroutine[object, object, None]) -> asyncio.Task[None]:
        return self._tasks.create_task(work)


def _name(stored: Object) -> tuple[str, str]:
    return stored["metadata"]["namespace"], stored["metadata"]["name"]
