"""Why each pod waits, computed in the background, because an answer can take seconds on a large cluster.

One pod is explained at a time, in a thread. An answer is recomputed when the cluster has changed since, but not before
a pause of several times its own duration.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Mapping
from functools import partial

import msgspec

from plugwright.errors import PlugwrightError
from plugwright.explain.explanation import Explanation, explain_pod
from plugwright.explain.world import ApiObject, ObjectId, identity
from plugwright.kube.api_client import segment
from plugwright.system.blocking import BlockingCalls
from plugwright.text import clean
from plugwright.web.live_fleet import LiveFleet

__all__ = ["PodAnswer", "PodAnswers"]

_LIMIT = 120.0  # seconds for an explanation
_SHORTEST_PAUSE, _PAUSES = 2.0, 3.0  # seconds, and a multiple of the last answer's duration
_MOST = 500  # answers that are kept
_RESOURCE = "/apis/resource.k8s.io/v1/namespaces"


class PodAnswer(msgspec.Struct, frozen=True):
    """An explanation, or why there is none; `version` is that of the explained fleet."""

    version: int
    again: float  # time.monotonic() from which it can be recomputed
    explanation: Explanation | None = None
    problem: str = ""


class PodAnswers:
    """`run` explains the pods requested by `of`, until cancelled."""

    def __init__(self, fleet: LiveFleet) -> None:
        self._fleet = fleet
        self._answers: OrderedDict[ObjectId, PodAnswer] = OrderedDict()
        self._wanted: dict[ObjectId, ApiObject] = {}
        self._asked = asyncio.Event()
        self._calls = BlockingCalls("explanation of a pod", _LIMIT, at_once=1)

    def of(self, pod: ApiObject) -> PodAnswer | None:
        """The last answer; None while the first one is being computed."""
        key = identity(pod)
        answer = self._answers.get(key)
        if answer is None or answer.version != self._fleet.version:
            self._wanted[key] = pod
            self._asked.set()
        return answer

    async def run(self) -> None:
        while True:
            await self._asked.wait()
            if not self._wanted:
                self._asked.clear()
                continue
            key = min(self._wanted, key=self._due)
            if (delay := self._due(key) - time.monotonic()) > 0:
                await asyncio.sleep(min(delay, _SHORTEST_PAUSE))
                continue
            await self._explain(key, self._wanted.pop(key))

    def _due(self, key: ObjectId) -> float:
        answer = self._answers.get(key)
        return answer.again if answer is not None else 0.0

    async def _explain(self, key: ObjectId, pod: ApiObject) -> None:
        began, version = time.monotonic(), self._fleet.version
        explanation: Explanation | None = None
        problem = ""
        try:
            world = self._fleet.objects.world(**await self._of_namespace(key[0]))
            explanation = await self._calls.run(partial(explain_pod, world, pod))
        except PlugwrightError as error:
            problem = clean(error)
        now = time.monotonic()
        again = now + max(_SHORTEST_PAUSE, _PAUSES * (now - began))
        before = self._answers.pop(key, None)
        self._answers[key] = PodAnswer(version, again, explanation, problem)
        while len(self._answers) > _MOST:
            self._answers.popitem(last=False)
        if before is None or (before.explanation, before.problem) != (explanation, problem):
            self._fleet.touch()

    async def _of_namespace(self, namespace: str) -> Mapping[str, object]:
        """Objects needed only for explanations."""
        paths = {
            "templates": f"{_RESOURCE}/{segment(namespace)}/resourceclaimtemplates",
            "quotas": f"/api/v1/namespaces/{segment(namespace)}/resourcequotas",
        }
        found: dict[str, object] = {}
        for name, path in paths.items():
            try:
                found[name] = tuple((await self._fleet.api.list(path))[0])
            except PlugwrightError:  # as for `why`: a cluster can lack them, or not show them
                found |= {name: (), "hidden": self._fleet.objects.hidden | {name}}
        return found
