"""Taking extended resources off a node, at the moment when they stay away.

The kubelet puts back, at its next status round, the key of a plugin that lives or that went less than five minutes ago.
`next_step` decides from one look at the key; `remove` looks, acts and waits.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from plugwright.errors import PeerGone, PeerRefused
from plugwright.extended_resources.changes import (
    CONFLICT,
    Outcome,
    Plan,
    Result,
    Site,
    Target,
    as_text,
    over_conflicts,
    removing,
)
from plugwright.extended_resources.resources import Backing, Key, Node, Row

__all__ = ["GRACE", "Attempt", "Step", "next_step", "remove", "stale_targets"]

GRACE = 300.0
_BETWEEN_TRIES = 20.0
_LOOKING = "removed; looking whether the kubelet puts it back"
_PUT_BACK = "the kubelet has put it back: its five minutes are not over, or a plugin lists no device"
_LATER = "try again when five minutes are over, or with --wait"


@dataclass(frozen=True, slots=True)
class Attempt:
    """What is remembered of one key between two looks."""

    tries: int = 0
    removed_at: float | None = None
    retry_at: float = 0.0
    fading_since: float | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """Remove it now, or end with `result`, or, with neither, look again later."""

    attempt: Attempt
    why: str
    remove: bool = False
    result: Result | None = None
    key: Key = Key.FREE


def stale_targets(rows: Iterable[Row], plan: Plan) -> list[Target]:
    """What `--stale` is about. Where resources are named, their live plugins are on their way out."""
    return [Target(row.node, row.resource) for row in rows if _may_be_stale(row, plan)]


def _may_be_stale(row: Row, plan: Plan) -> bool:
    if row.verdict.key is Key.ABSENT or row.verdict.backing is Backing.MANUAL:
        return False
    return row.verdict.key in (Key.FREE, Key.FADING) or (plan.named and plan.wait)


def next_step(row: Row | None, attempt: Attempt, now: float, plan: Plan) -> Step:
    """`row` is None when there is no such node any more."""
    if row is None:
        return Step(attempt, "the node is gone", result=Result.ABSENT)
    if row.verdict.key is Key.ABSENT:
        return _away(attempt, now, plan)
    attempt = _remembered(row, attempt, now)
    if plan.force and not plan.stale and not attempt.tries:
        return Step(attempt, row.verdict.evidence, remove=True)
    if row.requested and not plan.force:
        return _not_now(Step(attempt, f"held by {row.held_by}"), plan, "; --force removes it all the same")
    if row.verdict.key is Key.FREE:
        return _free(row, attempt, now, plan)
    return _kept(row, attempt, now, plan)


def _away(attempt: Attempt, now: float, plan: Plan) -> Step:
    since = now if attempt.removed_at is None else attempt.removed_at
    if not plan.wait:
        return Step(attempt, "the node does not list it", result=Result.ABSENT)
    if now - since < plan.two_rounds:
        return Step(replace(attempt, removed_at=since), _LOOKING if attempt.tries < 2 else _PUT_BACK)
    result = Result.REMOVED if attempt.tries else Result.ABSENT
    return Step(attempt, f"not put back within two status rounds ({now - since:.0f} s)", result=result)


def _remembered(row: Row, attempt: Attempt, now: float) -> Attempt:
    if attempt.removed_at is not None:
        attempt = replace(attempt, removed_at=None, retry_at=now + _BETWEEN_TRIES)
    fading_since = attempt.fading_since if attempt.fading_since is not None else now
    return replace(attempt, fading_since=fading_since if row.verdict.key is Key.FADING else None)


def _free(row: Row, attempt: Attempt, now: float, plan: Plan) -> Step:
    if plan.stale and row.verdict.backing is Backing.MANUAL:
        return Step(attempt, row.verdict.evidence, result=Result.LEFT)
    if now < attempt.retry_at:
        return Step(attempt, _PUT_BACK)
    return Step(attempt, row.verdict.evidence, remove=True)


def _kept(row: Row, attempt: Attempt, now: float, plan: Plan) -> Step:
    key, evidence = row.verdict.key, row.verdict.evidence
    if _faded_too_long(attempt, now, plan):
        key, evidence = Key.SERVED, "no device has been healthy for more than five minutes, so its plugin lives"
    if key is Key.SERVED:
        why, remedy = f"a live plugin serves it: {evidence}", "; stop that first"
    elif key is Key.FADING:
        why = f"capacity {row.capacity}, allocatable {row.allocatable}: {evidence}"
        remedy = f"; the kubelet would put it back: {_LATER}"
    else:
        why, remedy = f"cannot be told: {evidence}", "; --force removes it all the same"
    return _not_now(Step(attempt, why, key=key), plan, remedy)


def _faded_too_long(attempt: Attempt, now: float, plan: Plan) -> bool:
    return attempt.fading_since is not None and now - attempt.fading_since > GRACE + plan.two_rounds


def _not_now(step: Step, plan: Plan, remedy: str) -> Step:
    if plan.wait and (plan.named or step.key in (Key.FREE, Key.FADING)):
        return step
    left = plan.stale and step.key is not Key.FREE  # it is not stale, or not for certain
    return replace(step, why=step.why + remedy, result=Result.LEFT if left else Result.REFUSED)


def remove(site: Site, targets: Sequence[Target], plan: Plan) -> list[Outcome]:
    """Removes each as soon as it stays away, or says why not; with `plan.wait` only after looking again."""
    plan = replace(plan, wait=plan.wait and not plan.dry_run)
    pending = dict.fromkeys(targets, Step(Attempt(), ""))
    outcomes: dict[Target, Outcome] = {}
    deadline = site.clock.now() + plan.timeout
    while pending:
        late = site.clock.now() >= deadline
        for target, before in list(pending.items()):
            step = _patiently(site, target, before.attempt, plan)
            step = _overdue(step, plan) if late and step.result is None else step
            pending[target] = step
            if step.result is not None:
                outcomes[target] = Outcome(target, step.result, step.why)
                del pending[target]
            else:
                site.say(target, step.why)
        if pending:
            site.clock.sleep(plan.pause)
    return [outcomes[target] for target in targets]


def _overdue(step: Step, plan: Plan) -> Step:
    left = plan.stale and step.key in (Key.SERVED, Key.UNCLEAR)
    why = f"after {plan.timeout:.0f} s: {step.why}"
    return replace(step, result=Result.LEFT if left else Result.TIMED_OUT, why=why)


def _patiently(site: Site, target: Target, attempt: Attempt, plan: Plan) -> Step:
    try:
        return over_conflicts(f"node {target.node}", partial(_advance, site, target, attempt, plan))
    except (PeerGone, PeerRefused) as error:
        if not plan.wait or (isinstance(error, PeerRefused) and error.code != CONFLICT):
            raise
        return Step(attempt, str(error))


def _advance(site: Site, target: Target, attempt: Attempt, plan: Plan) -> Step:
    node = site.api.find_node(target.node)
    if node is None:
        return next_step(None, attempt, site.clock.now(), plan)
    row = site.look(target, node)
    if row.verdict.key is Key.FREE and not plan.force:
        row = site.look(target, node, site.api.pods(target.node))
    step = next_step(row, attempt, site.clock.now(), plan)
    return _removed(site, node, row, step, plan) if step.remove else step


def _removed(site: Site, node: Node, row: Row, step: Step, plan: Plan) -> Step:
    operations = removing(node, row.resource)
    if plan.dry_run:
        return replace(step, result=Result.WOULD_REMOVE, why=as_text(operations))
    site.api.patch_status(node.name, operations)
    attempt = replace(step.attempt, tries=step.attempt.tries + 1, removed_at=site.clock.now())
    if plan.wait:
        return Step(attempt, _LOOKING if attempt.tries < 2 else _PUT_BACK)
    return Step(attempt, _afterwards(row), result=Result.REMOVED)


def _afterwards(row: Row) -> str:
    if row.verdict.backing is Backing.MANUAL:
        return row.verdict.evidence
    if row.verdict.key is Key.SERVED:
        return "a live plugin serves it, so that the kubelet puts it back at its next status round"
    if row.verdict.key is Key.FADING:
        return f"the kubelet puts it back at its next status round: {_LATER}"
    return f"the kubelet puts it back if the plugin went less than five minutes ago: then {_LATER}"
