"""Records on pods waiting for joined nodes why they wait, in the caller's words, besides the scheduler's event.

It explains only unschedulable pods with tolerations for the taints of a joined node, and leaves the cluster's other
pods alone. The server is polled every few seconds; a pod is explained again when the scheduler's message changes, and
gets at most one event per minute.
"""

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from plugwright.apiserver.store import Object
from plugwright.cluster.events import MALFORMED, EventRecord, EventRecorder, EventSource, NodeClient
from plugwright.cluster.scheduling import affinity
from plugwright.errors import PlugwrightError
from plugwright.kube.api_client import ApiClient
from plugwright.system.blocking import BlockingCalls
from plugwright.system.log_once import LogOnce
from plugwright.text import clean

__all__ = ["PodsExplainer", "RemoteWaitingPods"]

logger = logging.getLogger(__name__)

# Returns why pods wait, by uid; reads the cluster, so it is called in a thread. Omits pods it cannot evaluate.
PodsExplainer = Callable[[Sequence[Object]], Mapping[str, str]]

_PAUSE = 5.0  # seconds between two polls
_GAP = 60.0  # seconds between two events of a pod
_LIMIT = 60.0  # seconds for explanations
_AT_ONCE = 20  # pods
_MOST = 1000  # remembered pods
_LONGEST = 1000  # characters
_PENDING = {"fieldSelector": "spec.nodeName=,status.phase=Pending"}


class _Explained(Struct):
    """The explained message of the scheduler, the answer, and when the last event was recorded."""

    message: str
    text: str = ""
    at: float = float("-inf")


class RemoteWaitingPods:
    """`taints` are those of each joined node: a pod without a toleration for any of these sets is left alone."""

    def __init__(
        self, api: ApiClient, client: NodeClient, taints: Sequence[Sequence[Mapping[str, str]]],
        explain: PodsExplainer, pause: float = _PAUSE,
    ) -> None:  # fmt: skip
        self._api, self._taints, self._explain, self._pause = api, taints, explain, pause
        self._recorder = EventRecorder(client, EventSource("plugwright"))
        self._calls = BlockingCalls("explanation of waiting pods", _LIMIT, at_once=1)
        self._said: OrderedDict[str, _Explained] = OrderedDict()  # by uid
        self._problems = LogOnce(logger)

    async def run(self) -> None:
        """Runs until cancelled."""
        while True:
            began = time.monotonic()
            try:
                await self._look()
                self._problems.recovered()
            except (*MALFORMED, PlugwrightError) as error:
                self._problems.info("waiting pods are not explained", "look", extra={"error": str(error)})
            await asyncio.sleep(max(self._pause, 3 * (time.monotonic() - began)))

    async def _look(self) -> None:
        pods, _ = await self._api.list("/api/v1/pods", **_PENDING)
        now = time.monotonic()
        news = [pod for pod in pods if self._is_ours(pod) and self._is_news(pod, now)][:_AT_ONCE]
        if not news:
            return
        texts = await self._calls.run(lambda: self._explain(news))
        for pod in news:
            uid = str(pod["metadata"]["uid"])
            said = self._said.setdefault(uid, _Explained(""))
            said.message, text = _message(pod), clean(texts.get(uid, ""), limit=_LONGEST)
            if text and text != said.text:
                said.text, said.at = text, now
                typed = {**pod, "apiVersion": "v1", "kind": "Pod"}
                self._recorder.record(typed, EventRecord("WaitsForDevices", text, "Warning"))
        while len(self._said) > _MOST:
            self._said.popitem(last=False)

    def _is_ours(self, pod: Object) -> bool:
        tolerations = (pod.get("spec") or {}).get("tolerations") or ()
        return bool(_message(pod)) and any(
            all(affinity.tolerates(tolerations, dict(taint)) for taint in taints) for taints in self._taints
        )

    def _is_news(self, pod: Object, now: float) -> bool:
        said = self._said.get(str(pod["metadata"]["uid"]))
        return said is None or (said.message != _message(pod) and now - said.at >= _GAP)


def _message(pod: Object) -> str:
    """The scheduler's message about a missing node; empty without a message, and for a gated pod."""
    for entry in (pod.get("status") or {}).get("conditions") or ():
        if entry.get("type") == "PodScheduled" and entry.get("reason") in ("Unschedulable", "SchedulerError"):
            return str(entry.get("message") or entry["reason"])
    return ""
