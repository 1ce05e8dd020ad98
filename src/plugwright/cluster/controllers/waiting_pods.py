"""Records on each waiting pod why it waits, in the caller's words: kube-scheduler does not report the cause.

One pod is explained at a time, in a thread, followed by a pause of three times the duration, so a large cluster with
many waiting pods stays responsive. A pod is explained again when its conditions change.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence

from plugwright.apiserver.kinds import (
    DEVICE_CLASSES,
    DEVICE_TAINT_RULES,
    NAMESPACES,
    NODES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
)
from plugwright.apiserver.store import Change, Object, ObjectKey
from plugwright.cluster.events import MALFORMED, ClusterClient, EventRecord, EventRecorder, EventSource
from plugwright.errors import Expired, PlugwrightError
from plugwright.system.blocking import BlockingCalls
from plugwright.text import clean

__all__ = ["PodExplainer", "WaitingPods"]

logger = logging.getLogger(__name__)

# Returns why a pod waits, from the objects of the cluster by qualified kind; called in a thread.
PodExplainer = Callable[[Mapping[str, Sequence[Object]], Object], str]

_KINDS = (
    NODES, PODS, NAMESPACES, RESOURCE_SLICES, DEVICE_CLASSES, RESOURCE_CLAIMS, RESOURCE_CLAIM_TEMPLATES,
    DEVICE_TAINT_RULES,
)  # fmt: skip
_REASON = "WaitsForDevices"
_REASONS = ("Unschedulable", "SchedulerError")
_LIMIT = 60.0  # seconds for an explanation
_MOST = 1000  # remembered pods
_LONGEST = 1000  # characters


class WaitingPods:
    """Follows the store; calls `explain` for every pod without a fitting node."""

    def __init__(self, client: ClusterClient, explain: PodExplainer) -> None:
        self._client, self._explain = client, explain
        self._recorder = EventRecorder(client, EventSource("plugwright"))
        self._calls = BlockingCalls("explanation of a pod", _LIMIT, at_once=1)
        self._waiting: OrderedDict[ObjectKey, None] = OrderedDict()  # yet to be explained
        self._said: OrderedDict[str, str] = OrderedDict()  # by uid
        self._revision = 0

    async def run(self) -> None:
        """Runs until cancelled."""
        self._list()
        now = asyncio.get_running_loop().time
        while True:
            await self._catch_up(None if not self._waiting else 0)
            if not self._waiting:
                continue
            key, _ = self._waiting.popitem(last=False)
            began = now()
            await self._say(key)
            await asyncio.sleep(3 * (now() - began))

    def _list(self) -> None:
        self._revision = self._client.store.revision
        for pod in self._client.store.objects(PODS.qualified):
            self._see(pod)

    async def _catch_up(self, timeout: float | None) -> None:
        try:
            changes = await self._client.store.changes(self._revision, timeout)
        except Expired:
            self._list()
            return
        for change in changes:
            self._revision = change.revision
            if change.key.kind == PODS.qualified:
                self._apply(change)

    def _apply(self, change: Change) -> None:
        if change.type == "DELETED":
            self._waiting.pop(change.key, None)
            self._said.pop(str(change.object["metadata"].get("uid")), None)
        else:
            self._see(change.object)

    def _see(self, pod: Object) -> None:
        key = ObjectKey(PODS.qualified, pod["metadata"]["namespace"], pod["metadata"]["name"])
        if _is_waiting(pod):
            self._waiting[key] = None
        else:
            self._waiting.pop(key, None)

    async def _say(self, key: ObjectKey) -> None:
        pod = self._client.store.get(key)
        if pod is None or not _is_waiting(pod):
            return
        store, uid = self._client.store, str(pod["metadata"].get("uid"))
        try:
            objects = {kind.qualified: store.objects(kind.qualified) for kind in _KINDS}
            text = await self._calls.run(lambda: self._explain(objects, pod))
        except (*MALFORMED, PlugwrightError) as error:
            logger.warning("pod is not explained", extra={"pod": key.name, "error": repr(error)})
            return
        text = clean(text, limit=_LONGEST)
        now = store.get(key)
        if now is None or not _is_waiting(now) or not text or self._said.get(uid) == text:
            return
        self._said[uid] = text
        if len(self._said) > _MOST:
            self._said.popitem(last=False)
        self._recorder.record(now, EventRecord(_REASON, text, "Warning"))


def _is_waiting(pod: Object) -> bool:
    """Whether the scheduler has found no node; false while a pod is gated."""
    if (pod.get("spec") or {}).get("nodeName"):
        return False
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(entry.get("type") == "PodScheduled" and entry.get("reason") in _REASONS for entry in conditions)
