"""The pods of one emulated node: which there are, each with the task that looks after it.

What becomes of one is `podlife`'s; who says which pods are bound to the node is `agent`.
"""

import asyncio
import logging
from collections.abc import Coroutine, Iterable

from plugwright.cluster import predicates
from plugwright.cluster.access import MALFORMED
from plugwright.cluster.api.kinds import NODES
from plugwright.cluster.podlife import PodLife, Quarters
from plugwright.cluster.predicates import Rejection
from plugwright.cluster.scheduling import Room
from plugwright.cluster.store import Key, Object
from plugwright.errors import KubeletError

__all__ = ["NodePods"]

logger = logging.getLogger(__name__)

_OVER = ("Succeeded", "Failed")


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
        elif life is None and (stored.get("status") or {}).get("phase") not in _OVER:
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
        node = quarters.access.store.get(Key(NODES.qualified, "", quarters.identity.name))
        if node is None:
            return None
        room = Room.of(node)
        for each in self._lives.values():
            if each.is_active:
                room.take(each.asked)
        return predicates.rejection(life.asked, room, quarters.kubelet.node())

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
