"""Every waiting or rejected pod of a cluster, each with its first line: the answer of `why` without a name."""

import time
from collections.abc import Callable, Iterator, Sequence

import msgspec
from msgspec import Struct

from plugwright.cluster.events import MALFORMED
from plugwright.explain.explanation import API_VERSION, brief
from plugwright.explain.oracle import Oracle
from plugwright.explain.refusals import REFUSALS
from plugwright.explain.world import ApiObject, World, identity, is_finished
from plugwright.model import natural_order

__all__ = ["WaitingList", "WaitingPod", "first_lines", "waiting_pods"]

_OF_CLAIMS = frozenset({"claims", "classes", "slices", "templates"})
BUDGET = 60.0  # seconds


class WaitingPod(Struct, frozen=True, rename="camel", kw_only=True):
    """`state`, `answer` and `reason` are those of an Explanation."""

    namespace: str
    pod: str
    state: str
    answer: str
    reason: str = ""


class WaitingList(Struct, frozen=True, rename="camel", kw_only=True):
    """The document of `why` without a name."""

    api_version: str = API_VERSION
    kind: str = "WaitingList"
    pods: tuple[WaitingPod, ...] = ()
    unseen: tuple[str, ...] = ()


def waiting_pods(world: World, namespace: str = "", clock: Callable[[], float] = time.monotonic) -> WaitingList:
    """The waiting pods of a namespace, or of all; pods without claims and with equal requests are explained once."""
    found = [pod for pod in world.pods if namespace in ("", identity(pod)[0]) and _waits(pod)]
    found.sort(key=lambda pod: tuple(map(natural_order, identity(pod))))
    if not found:
        return WaitingList(unseen=world.unseen)
    answers = list(_answers(Oracle(world), found, clock))
    left = len(found) - len(answers)
    unseen = (*world.unseen, *([f"{left} more pods wait, for which the time did not suffice"] if left else ()))
    return WaitingList(pods=tuple(answers), unseen=unseen)


def first_lines(world: World, pods: Sequence[ApiObject]) -> dict[str, str]:
    """Why pods wait, by uid; without those that fit, and those whose claims cannot be evaluated."""
    oracle, texts = Oracle(world), {}
    for pod in pods:
        if (pod.get("spec") or {}).get("resourceClaims") and world.hidden & _OF_CLAIMS:
            continue
        state, answer, _ = brief(oracle, pod)
        if state == "waits":
            texts[str(pod["metadata"]["uid"])] = answer
    return texts


def _answers(oracle: Oracle, pods: list[ApiObject], clock: Callable[[], float]) -> Iterator[WaitingPod]:
    end, known = clock() + BUDGET, dict[bytes, tuple[str, str, str]]()
    for pod in pods:
        if clock() > end:
            return
        key = _key(pod)
        try:
            answer = known[key] if key in known else brief(oracle, pod)
        except MALFORMED as error:
            answer = "waits", f"waits: cannot be explained: {error!r}", "error"
        if key:
            known[key] = answer
        namespace, name = identity(pod)
        yield WaitingPod(namespace=namespace, pod=name, state=answer[0], answer=answer[1], reason=answer[2])


def _key(pod: ApiObject) -> bytes:
    """Equal for pods with the same answer; empty if a pod needs its own answer, with names of its claims."""
    spec, metadata = pod.get("spec") or {}, pod.get("metadata") or {}
    if spec.get("resourceClaims") or is_finished(pod) or (pod.get("status") or {}).get("extendedResourceClaimStatus"):
        return b""
    conditions = [
        entry.get("message")
        for entry in (pod.get("status") or {}).get("conditions") or ()
        if entry.get("type") == "PodScheduled"
    ]
    return msgspec.json.encode([metadata.get("namespace"), metadata.get("labels"), spec, conditions])


def _waits(pod: ApiObject) -> bool:
    if is_finished(pod):
        return (pod.get("status") or {}).get("reason") in REFUSALS
    return not (pod.get("spec") or {}).get("nodeName")
