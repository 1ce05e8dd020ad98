"""Offering extended resources on a node by hand.

Only capacity is set; the kubelet makes allocatable of it. What a plugin serves is refused: the kubelet would set it
back at once.
"""

from collections.abc import Mapping, Sequence
from functools import partial

from plugwright.cluster.changes import Outcome, Plan, Result, Site, Target, over_conflicts
from plugwright.cluster.patch import adding, as_text
from plugwright.cluster.resources import Backing, Key, Node, Row
from plugwright.errors import ConfigError, PeerGone

__all__ = ["add", "why_not"]


def why_not(row: Row, count: int) -> str:
    """Why `count` cannot be set, or "" where it can."""
    backing, key, evidence = row.verdict
    if key in (Key.SERVED, Key.FADING):
        return f"the kubelet would set it back: {evidence}"
    if backing is Backing.DRA:
        return f"pods here would not get their devices through DRA any more: {evidence}"
    if key is Key.UNCLEAR:
        return evidence
    if row.requested > count:
        return f"pods ask for {row.requested} already: {row.held_by}"
    return ""


def add(site: Site, node: str, counts: Mapping[str, int], plan: Plan) -> list[Outcome]:
    """All of `counts` or nothing; with `plan.wait` only when the kubelet offers them."""
    targets = {Target(node, resource): count for resource, count in counts.items()}
    outcomes = over_conflicts(f"node {node}", partial(_set, site, node, targets, plan))
    if not plan.wait or any(outcome.result is not Result.ADDED for outcome in outcomes):
        return outcomes
    return _offered(site, targets, plan)


def _set(site: Site, name: str, targets: Mapping[Target, int], plan: Plan) -> list[Outcome]:
    node = site.api.find_node(name)
    if node is None:
        raise ConfigError(f"there is no node {name}")
    pods = () if plan.force else site.api.pods(name)
    rows = {target: site.look(target, node, pods) for target in targets}
    reasons = {target: why_not(rows[target], count) for target, count in targets.items()}
    if any(reasons.values()) and not plan.force:
        return [_refused(target, reason) for target, reason in reasons.items()]
    operations = adding(node, {target.resource: count for target, count in targets.items()})
    if plan.dry_run:
        return [Outcome(target, Result.WOULD_ADD, as_text(operations)) for target in targets]
    site.api.patch_status(name, operations)
    return [Outcome(target, Result.ADDED, reasons[target] or _afterwards(node, row)) for target, row in rows.items()]


def _refused(target: Target, reason: str) -> Outcome:
    why = f"{reason}; --force sets it all the same" if reason else "not set, because another one is refused"
    return Outcome(target, Result.REFUSED, why)


def _afterwards(node: Node, row: Row) -> str:
    if node.silence:
        return f"the kubelet offers it when it reports again: {node.silence}"
    if row.verdict.backing is Backing.STALE:
        return "the kubelet offers it, or sets it back if its plugin went less than five minutes ago: --wait tells"
    return "the kubelet offers it from its next status round on"


def _offered(site: Site, targets: Mapping[Target, int], plan: Plan) -> list[Outcome]:
    deadline = site.clock.now() + plan.timeout
    while True:
        outcomes = [_stands(site, target, count) for target, count in targets.items()]
        if not any(outcome.result is Result.TIMED_OUT for outcome in outcomes) or site.clock.now() >= deadline:
            return outcomes
        _report(site, outcomes)
        site.clock.sleep(plan.pause)


def _stands(site: Site, target: Target, count: int) -> Outcome:
    """`TIMED_OUT` is what it would be if nothing more happened."""
    try:
        node = site.api.find_node(target.node)
    except PeerGone as error:
        return Outcome(target, Result.TIMED_OUT, str(error))
    if node is None:
        return Outcome(target, Result.REFUSED, "the node is gone")
    capacity, allocatable = node.capacity.get(target.resource), node.allocatable.get(target.resource)
    if capacity != count:
        return Outcome(target, Result.REFUSED, f"somebody has set capacity to {capacity}: {_setter(site, target)}")
    if allocatable != count:
        return Outcome(target, Result.TIMED_OUT, node.silence or f"capacity {capacity}, allocatable {allocatable}")
    return Outcome(target, Result.ADDED, f"the kubelet offers {count}")


def _setter(site: Site, target: Target) -> str:
    node = site.api.find_node(target.node)
    setter = node.setters.get(target.resource) if node else None
    return setter.manager if setter else "unknown"


def _report(site: Site, outcomes: Sequence[Outcome]) -> None:
    for outcome in outcomes:
        if outcome.result is Result.TIMED_OUT:
            site.say(outcome.target, f"waiting for the kubelet: {outcome.detail}")
