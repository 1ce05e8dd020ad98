"""Why the nodes' devices do not satisfy a claim, in one sentence for an Event of the claim. Pure.

kube-scheduler reports only "cannot allocate all claims".
"""

from collections import Counter
from collections.abc import Iterable, Sequence

from plugwright.allocator import Reason

__all__ = ["explanation"]

_WORDS = {
    "SelectorFalse": "excluded by a selector",
    "SelectorError": "excluded by a selector that failed",
    "Tainted": "tainted",
    "AlreadyAllocated": "already allocated",
    "UsedByOtherRequest": "used by another request",
    "CounterExhausted": "without the shared counters that it needs",
    "InsufficientCapacity": "without enough capacity",
    "ConstraintViolated": "excluded by a constraint",
    "FeatureDisabled": "dependent on a disabled feature",
}


def explanation(claim: str, reasons: Iterable[tuple[str, Sequence[Reason]]], nodes: int) -> str:
    """`claim` includes its namespace; `reasons` are by node, for the first of all `nodes`."""
    texts: dict[str, list[str]] = {}
    for node, of_node in reasons:
        texts.setdefault(_on_node(claim, of_node), []).append(node)
    parts = [f"{', '.join(names)}: {text}" for text, names in texts.items()]
    explained = sum(map(len, texts.values()))
    more = f"; {nodes - explained} more nodes" if nodes > explained else ""
    return f"no node has the devices: {'; '.join(parts)}{more}"


def _on_node(claim: str, reasons: Sequence[Reason]) -> str:
    """Requests with too few devices, then invalid pools, then the number of devices excluded by each rule."""
    relevant = [reason for reason in reasons if reason.claim in ("", claim)]
    parts = [
        f"request {reason.request}: {reason.message}" for reason in relevant if reason.request and not reason.device
    ]
    pools = [reason for reason in relevant if reason.pool and not reason.device and reason.kind != "NodeMismatch"]
    parts += [f"pool {reason.driver}/{reason.pool}: {reason.message}" for reason in pools]
    devices = {(reason.driver, reason.pool, reason.device, reason.kind) for reason in relevant if reason.device}
    counts = Counter(kind for *_, kind in devices)
    parts += [
        f"{count} {'device' if count == 1 else 'devices'} {_WORDS.get(kind, kind)}"
        for kind, count in sorted(counts.items())
    ]
    return ", ".join(dict.fromkeys(parts)) or "no devices are published for this node"
