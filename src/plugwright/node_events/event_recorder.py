"""Writes Events within a limit; counts repetitions in the existing Event object.

Conditions hold the state, so an Event omitted because of the limit loses no information about the current state.
"""

import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from datetime import UTC, datetime

from plugwright.errors import PeerRefused
from plugwright.kube.api_client import ApiClient, Document, segment
from plugwright.node_events.device_changes import Notice, PodReference

__all__ = ["EventBudget", "NodeEventRecorder"]

logger = logging.getLogger(__name__)

_COMPONENT = "plugwright"
_REMEMBERED = 256  # events whose repetitions are counted, and objects whose budget is kept
_REPEATED = 600.0  # seconds within which the same event is a repetition


class EventBudget:
    """The number of Events that can be written: a `burst`, and one more every `every` seconds."""

    def __init__(self, burst: float, every: float, now: float) -> None:
        self._burst, self._every = burst, every
        self._left, self._then = burst, now

    def take(self, now: float) -> bool:
        self._left = min(self._burst, self._left + (now - self._then) / self._every)
        self._then = now
        if self._left < 1:
            return False
        self._left -= 1
        return True


class NodeEventRecorder:
    """Events about the node and its pods; callers handle errors of the API server."""

    def __init__(self, client: ApiClient, node: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.node_uid = ""  # empty until it is known
        self._client, self._node, self._clock = client, node, clock
        self._all = EventBudget(50, 1.0, clock())
        self._budgets: OrderedDict[PodReference | None, EventBudget] = OrderedDict()
        self._written: OrderedDict[Notice, tuple[str, int, float]] = OrderedDict()  # path, count, when

    async def record(self, notice: Notice) -> None:
        now = self._clock()
        if not self._is_allowed(notice.pod, now):
            facts = {"event": notice.reason, "text": notice.message}
            logger.warning("event left out: too many of this object", extra=facts)
            return
        path, count, when = self._written.pop(notice, ("", 0, 0.0))
        if path and now - when <= _REPEATED and await self._counted(path, count + 1):
            self._written[notice] = (path, count + 1, now)
        else:
            self._written[notice] = (await self._create(notice), 1, now)
        if len(self._written) > _REMEMBERED:
            self._written.popitem(last=False)

    def _is_allowed(self, pod: PodReference | None, now: float) -> bool:
        budget = self._budgets.pop(pod, None) or EventBudget(10, 60.0, now)
        self._budgets[pod] = budget
        if len(self._budgets) > _REMEMBERED:
            self._budgets.popitem(last=False)
        return budget.take(now) and self._all.take(now)

    async def _create(self, notice: Notice) -> str:
        """Creates the Event; returns its path."""
        namespace = notice.pod.namespace if notice.pod is not None else "default"
        path = f"/api/v1/namespaces/{segment(namespace)}/events"
        made = await self._client.create(path, _event(notice, self._node, self.node_uid))
        return f"{path}/{segment(made['metadata']['name'])}"

    async def _counted(self, path: str, count: int) -> bool:
        """Counts a repetition; False if the Event has expired."""
        try:
            await self._client.patch(path, {"count": count, "lastTimestamp": _now()}, "merge-patch")
        except PeerRefused as error:
            if error.code == "NotFound":
                return False
            raise
        return True


def _event(notice: Notice, node: str, node_uid: str) -> Document:
    pod = notice.pod
    involved = {"apiVersion": "v1", "kind": "Node", "name": node, "uid": node_uid}
    if pod is not None:
        involved = {"apiVersion": "v1", "kind": "Pod", "namespace": pod.namespace, "name": pod.name, "uid": pod.uid}
    name, now = f"{involved['name'][:200]}.{time.time_ns():x}", _now()
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": involved.get("namespace", "default")},
        "involvedObject": {key: value for key, value in involved.items() if value},
        "reason": notice.reason,
        "message": notice.message,
        "type": notice.type,
        "source": {"component": _COMPONENT, "host": node},
        "reportingComponent": _COMPONENT,
        "reportingInstance": node,
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
