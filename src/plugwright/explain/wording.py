"""Why a node cannot run a pod, in words: a name for programs, a text for people, a sentence for the first line."""

import re
from collections import Counter
from collections.abc import Sequence

from plugwright.allocator import Reason, found_together
from plugwright.explain.oracle import DeviceFailure, NodeVerdict
from plugwright.model import some

__all__ = ["device_text", "group_text", "missing", "reason_name", "sentence"]

_EXCLUDED = {
    "SelectorFalse": "excluded by a selector",
    "SelectorError": "on which a selector fails",
    "Tainted": "tainted",
    "AlreadyAllocated": "allocated to other claims",
    "UsedByOtherRequest": "used by another request of the pod",
    "CounterExhausted": "without free shared counters",
    "InsufficientCapacity": "without enough free capacity",
    "ConstraintViolated": "excluded by a constraint",
    "FeatureDisabled": "that need a disabled feature",
    "NodeMismatch": "on other nodes",
}
_SELECTOR_ERROR = re.compile(
    r"^(?P<owner>(class|claim) \S+): selector (?P<number>#\d+)( on device \S+)?: "
    r"CEL (?P<phase>\w+) error: (?P<error>.*)",
    re.DOTALL,
)
# The main reason only if there is no other: devices of the pod's own requests, then devices irrelevant to it.
_SECONDARY = {"UsedByOtherRequest": 1, "SelectorFalse": 2, "NodeMismatch": 2}
_FACTS = {"ConstraintViolated": "constraint ", "Tainted": "taint ", "InsufficientCapacity": ""}


def missing(failure: DeviceFailure | None) -> int:
    """The number of devices that a node lacks; 0 if it is unknown."""
    if failure is None:
        return 0
    wanted, found = found_together(failure.reasons) or (failure.wanted, failure.free)
    return max(0, wanted - found)


def reason_name(verdict: NodeVerdict) -> str:
    """The reason's machine-readable name."""
    failure = verdict.failure
    if failure is None or (verdict.filter and not failure.has_devices and failure.kind != "error"):
        return verdict.filter or (failure.kind if failure else "")
    if failure.kind == "claims" and failure.reasons:
        return _main_kind(failure)
    return failure.kind


def _main_kind(failure: DeviceFailure) -> str:
    """The kind of reason that excludes most devices, except devices irrelevant to the pod's requests."""
    kinds = Counter(reason.kind for reason in failure.reasons if reason.device)
    pools = [reason.kind for reason in failure.reasons if reason.kind in ("PoolIncomplete", "PoolInvalid")]
    if not kinds:
        return pools[0] if pools else "TooFewDevices" if found_together(failure.reasons) else "NoDevices"
    main = min(kinds, key=lambda kind: (_SECONDARY.get(kind, 0), -kinds[kind]))
    return pools[0] if pools and _SECONDARY.get(main) == 2 else main


def group_text(verdict: NodeVerdict) -> str:
    failure = verdict.failure
    if failure is None:
        return verdict.filter_text
    text = device_text(failure)
    return f"{verdict.filter_text}, {text}" if verdict.filter and failure.has_devices else text


def device_text(failure: DeviceFailure) -> str:
    if failure.kind == "count":
        return _count_text(failure)
    if failure.kind == "numa":
        return f"{failure.resource}: {failure.message}"
    if failure.message and failure.kind in ("error", "elsewhere"):
        return _SELECTOR_ERROR.sub(_selector_error, failure.message)
    pools = [f"pool {r.pool} is incomplete" for r in failure.reasons if r.kind == "PoolIncomplete"]
    pools += [f"pool {r.pool} is invalid: {r.message}" for r in failure.reasons if r.kind == "PoolInvalid"]
    short = [r for r in failure.reasons if r.kind == "TooFewDevices"]
    main = f"{short[0].request.partition('/')[0]}/" if short else "/"  # of the request that failed first
    alternatives = [r.request for r in short if r.request.startswith(main) and r.claim == short[0].claim]
    if len(alternatives) > 1:
        of_each = [(name, [r for r in failure.reasons if r.request == name]) for name in alternatives]
        found = [f"{name}: {', '.join(_excluded(reasons)) or 'no suitable devices'}" for name, reasons in of_each]
        return "; ".join([*dict.fromkeys(pools), *found])
    words = ", ".join([*dict.fromkeys(pools), *_excluded(failure.reasons)])
    unreached = dict.fromkeys(r.pool for r in failure.reasons if r.kind == "NodeMismatch" and r.pool and not r.device)
    where = f" (its labels do not match the node selector of pool {some(unreached, 3)})" if unreached else ""
    return words or f"no suitable devices{where}"


def _excluded(reasons: Sequence[Reason]) -> list[str]:
    """Each device once: one that two requests reject for different reasons has the reason of the first."""
    devices = {(r.driver, r.pool, r.device): r for r in reversed(reasons) if r.device}
    counts = Counter(map(_exclusion, devices.values()))
    words = [f"{count} {text}" for text, count in counts.most_common()]
    found = found_together(reasons)
    return [f"at most {found[1]} of {found[0]} devices together", *words] if found and found[1] else words


def _selector_error(match: re.Match[str]) -> str:
    problem = "does not compile" if match["phase"] == "compile" else "fails"
    return f"selector {match['number']} of {match['owner']} {problem}: {match['error']}"


def _exclusion(reason: Reason) -> str:
    if reason.kind == "InsufficientCapacity" and reason.message.startswith("no capacity "):
        return f"without the {reason.message.removeprefix('no ')}"
    if reason.kind == "InsufficientCapacity" and reason.message.endswith("violates the request policy"):
        return "whose request policy excludes the amount"
    return _EXCLUDED.get(reason.kind, reason.kind)


def _count_text(failure: DeviceFailure) -> str:
    if not failure.capacity:
        return f"offers no {failure.resource}"
    used = failure.allocatable - failure.free
    parts = [f"{used} in use"] if used else []
    unhealthy = failure.capacity - failure.allocatable
    parts += [failure.message or f"{unhealthy} unhealthy or cordoned"] if unhealthy > 0 else []
    detail = f": {', '.join(parts)}" if parts else ""
    return f"{failure.free} of {failure.capacity} {failure.resource} free{detail}"


def sentence(verdict: NodeVerdict) -> str:
    """Why no node can run the pod, with the facts of one of them."""
    failure, node = verdict.failure, verdict.node
    if failure is None:
        return f"{node} has the devices, but {verdict.filter_text}"
    detail = device_text(failure)
    if failure.kind == "error":
        device = next((f"{each.driver}/{each.pool}/{each.device}" for each in failure.reasons if each.device), "")
        where = f" (device {device})" if device else ""
        is_of_a_node = any(reason.pool for reason in failure.reasons)
        return f"{detail}{where}" + ("; this stops the pod on every node" if failure.stops and is_of_a_node else "")
    also = f"; it also {verdict.filter_text}" if verdict.filter and failure.has_devices else ""
    if failure.kind == "count":
        if not failure.capacity:
            return f"no node offers {failure.resource}"
        return f"no node has {failure.wanted} free {failure.resource} ({node} has {detail}{also})"
    if failure.kind == "numa":
        where = f"{failure.wanted} free {failure.resource} on one NUMA node"
        return f"no node has {where} ({node} has {failure.message}{also})"
    if failure.kind == "elsewhere":
        return f"{detail}, and {node} cannot use its devices"
    return _claim_sentence(failure, f"{node}: {detail}", also)


def _claim_sentence(failure: DeviceFailure, detail: str, also: str) -> str:
    short = next((r for r in failure.reasons if r.kind == "TooFewDevices"), None)
    for kind, word in _FACTS.items():
        fact = next((r.message for r in failure.reasons if r.kind == kind and not r.message.startswith("no ")), "")
        detail += f"; {word}{fact.replace('=:', ':')}" if fact else ""
    detail += also
    if short is None:
        return f"no node has the devices of its claims ({detail})"
    claim = short.claim.rpartition("/")[2]
    if claim.endswith("-extended-resources"):
        return f"no node has the devices of its extended resources, which claims serve ({detail})"
    request, _, alternative = short.request.partition("/")
    named = f"any alternative of request {request}" if alternative else f"request {request}"
    return f"no node has the devices for {named} of claim {claim} ({detail})"
