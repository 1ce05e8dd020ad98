"""Removal of extended resources from a node, at the moment when they stay away.

The kubelet puts back, at its next status update, the key of a plugin that runs or that stopped less than the grace
period ago. `next_step` decides from one observation of the key; `remove` observes, patches and waits.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from plugwright.errors import PeerGone, PeerRefused
from plugwright.extended_resources.changes import (
    CONFLICT,
    ChangeContext,
    ChangeOptions,
    ChangeOutcome,
    ChangeResult,
    ChangeTarget,
    describe_patch,
    removal_patch,
    retry_conflicts,
)
from plugwright.extended_resources.resources import (
    GRACE_MINUTES,
    GRACE_PERIOD,
    Backing,
    KeyState,
    NodeResource,
)

__all__ = ["RemovalProgress", "RemovalStep", "next_step", "remove", "stale_targets"]

_RETRY_INTERVAL = 20.0
_CHECKING = "removed; checking whether the kubelet puts it back"
_PUT_BACK = f"the kubelet has put it back: its {GRACE_MINUTES} are not over, or a plugin lists no device"
_SERVED_EMPTY = f"the kubelet has put it back for more than {GRACE_MINUTES}, so its plugin runs and lists no device"
_RETRY_LATER = f"try again when {GRACE_MINUTES} are over, or use --wait"


@dataclass(frozen=True, slots=True)
class RemovalProgress:
    """The state of one removal between two observations of the key."""

    tries: int = 0
    removed_at: float | None = None
    retry_at: float = 0.0
    grace_since: float | None = None
    first_removed_at: float | None = None


@dataclass(frozen=True, slots=True)
class RemovalStep:
    """The next step: remove the key now, end with `result`, or, with neither, observe again later."""

    progress: RemovalProgress
    reason: str
    remove: bool = False
    result: ChangeResult | None = None
    key: KeyState = KeyState.FREE


def stale_targets(resources: Iterable[NodeResource], options: ChangeOptions) -> list[ChangeTarget]:
    """The targets of `--stale`; with named resources and `--wait`, running plugins are expected to stop."""
    return [
        ChangeTarget(resource.node, resource.resource) for resource in resources if _may_be_stale(resource, options)
    ]


def remove(context: ChangeContext, targets: Sequence[ChangeTarget], options: ChangeOptions) -> list[ChangeOutcome]:
    """Removes each key once nothing would add it again, or reports why not; `options.wait` adds a check afterwards."""
    options = replace(options, wait=options.wait and not options.dry_run)
    pending = dict.fromkeys(targets, RemovalProgress())
    outcomes: dict[ChangeTarget, ChangeOutcome] = {}
    deadline = context.clock.now() + options.timeout
    while pending:
        late = context.clock.now() >= deadline
        for target, progress in list(pending.items()):
            step = _take_step(context, target, progress, options)
            step = _timed_out(step, options) if late and step.result is None else step
            pending[target] = step.progress
            if step.result is not None:
                outcomes[target] = ChangeOutcome(target, step.result, step.reason)
                del pending[target]
            else:
                context.report_progress(target, step.reason)
        if pending:
            context.clock.sleep(options.poll_interval)
    return [outcomes[target] for target in targets]


def next_step(
    resource: NodeResource | None, progress: RemovalProgress, now: float, options: ChangeOptions
) -> RemovalStep:
    """Decides from one observation; `resource` is None when the node no longer exists."""
    if resource is None:
        return RemovalStep(progress, "the node was deleted", result=ChangeResult.ABSENT)
    if resource.assessment.key is KeyState.ABSENT:
        return _step_without_key(progress, now, options)
    progress = _updated(progress, resource, now)
    if options.force and not options.stale and not progress.tries:
        return RemovalStep(progress, resource.assessment.evidence, remove=True)
    if resource.requested and not options.force:
        step = RemovalStep(progress, f"held by {resource.held_by}")
        return _wait_or_end(step, options, "; --force removes it anyway")
    if resource.assessment.key is KeyState.FREE:
        return _step_with_free_key(resource, progress, now, options)
    return _step_with_kept_key(resource, progress, now, options)


def _may_be_stale(resource: NodeResource, options: ChangeOptions) -> bool:
    if resource.assessment.key is KeyState.ABSENT or resource.assessment.backing is Backing.MANUAL:
        return False
    return resource.assessment.key in (KeyState.FREE, KeyState.GRACE_PERIOD) or (options.named and options.wait)


def _step_without_key(progress: RemovalProgress, now: float, options: ChangeOptions) -> RemovalStep:
    since = now if progress.removed_at is None else progress.removed_at
    if not options.wait:
        return RemovalStep(progress, "the node does not list it", result=ChangeResult.ABSENT)
    if now - since < options.two_rounds:
        return RemovalStep(replace(progress, removed_at=since), _CHECKING if progress.tries < 2 else _PUT_BACK)
    result = ChangeResult.REMOVED if progress.tries else ChangeResult.ABSENT
    return RemovalStep(progress, f"not put back within two status updates ({now - since:.0f} s)", result=result)


def _updated(progress: RemovalProgress, resource: NodeResource, now: float) -> RemovalProgress:
    if progress.removed_at is not None:
        progress = replace(progress, removed_at=None, retry_at=now + _RETRY_INTERVAL)
    grace_since = progress.grace_since if progress.grace_since is not None else now
    in_grace_period = resource.assessment.key is KeyState.GRACE_PERIOD
    return replace(progress, grace_since=grace_since if in_grace_period else None)


def _step_with_free_key(
    resource: NodeResource, progress: RemovalProgress, now: float, options: ChangeOptions
) -> RemovalStep:
    if options.stale and resource.assessment.backing is Backing.MANUAL:
        return RemovalStep(progress, resource.assessment.evidence, result=ChangeResult.LEFT)
    if now < progress.retry_at:
        return RemovalStep(progress, _PUT_BACK)
    first = progress.first_removed_at
    if first is not None and now - first > GRACE_PERIOD + options.two_rounds and options.stale and not options.named:
        return RemovalStep(progress, _SERVED_EMPTY, result=ChangeResult.LEFT)
    return RemovalStep(progress, resource.assessment.evidence, remove=True)


def _step_with_kept_key(
    resource: NodeResource, progress: RemovalProgress, now: float, options: ChangeOptions
) -> RemovalStep:
    key, evidence = resource.assessment.key, resource.assessment.evidence
    if progress.grace_since is not None and now - progress.grace_since > GRACE_PERIOD + options.two_rounds:
        key = KeyState.SERVED
        evidence = f"no device has been healthy for more than {GRACE_MINUTES}, so its plugin runs"
    if key is KeyState.SERVED:
        reason, remedy = f"a live plugin serves it: {evidence}", "; stop the plugin first"
    elif key is KeyState.GRACE_PERIOD:
        reason = f"capacity {resource.capacity}, allocatable {resource.allocatable}: {evidence}"
        remedy = f"; the kubelet would put it back: {_RETRY_LATER}"
    else:
        reason, remedy = f"its backing is unknown: {evidence}", "; --force removes it anyway"
    return _wait_or_end(RemovalStep(progress, reason, key=key), options, remedy)


def _wait_or_end(step: RemovalStep, options: ChangeOptions, remedy: str) -> RemovalStep:
    if options.wait and (options.named or step.key in (KeyState.FREE, KeyState.GRACE_PERIOD)):
        return step
    left = options.stale and step.key is not KeyState.FREE  # it is not stale, or not certainly
    return replace(step, reason=step.reason + remedy, result=ChangeResult.LEFT if left else ChangeResult.REFUSED)


def _timed_out(step: RemovalStep, options: ChangeOptions) -> RemovalStep:
    left = options.stale and step.key in (KeyState.SERVED, KeyState.UNCLEAR)
    reason = f"after {options.timeout:.0f} s: {step.reason}"
    return replace(step, result=ChangeResult.LEFT if left else ChangeResult.TIMED_OUT, reason=reason)


def _take_step(
    context: ChangeContext, target: ChangeTarget, progress: RemovalProgress, options: ChangeOptions
) -> RemovalStep:
    try:
        return retry_conflicts(f"node {target.node}", partial(_advance, context, target, progress, options))
    except (PeerGone, PeerRefused) as error:
        if not options.wait or (isinstance(error, PeerRefused) and error.code != CONFLICT):
            raise
        return RemovalStep(progress, str(error))


def _advance(
    context: ChangeContext, target: ChangeTarget, progress: RemovalProgress, options: ChangeOptions
) -> RemovalStep:
    node = context.api.find_node(target.node)
    if node is None:
        return next_step(None, progress, context.clock.now(), options)
    resource = context.assess(target, node)
    if resource.assessment.key is KeyState.FREE and not options.force:
        resource = context.assess(target, node, context.api.pods(target.node))
    step = next_step(resource, progress, context.clock.now(), options)
    if not step.remove:
        return step
    operations = removal_patch(node, resource.resource)
    if options.dry_run:
        return replace(step, result=ChangeResult.WOULD_REMOVE, reason=describe_patch(operations))
    context.api.patch_status(node.name, operations)
    now, first = context.clock.now(), step.progress.first_removed_at
    progress = replace(
        step.progress,
        tries=step.progress.tries + 1,
        removed_at=now,
        first_removed_at=now if first is None else first,
    )
    if options.wait:
        return RemovalStep(progress, _CHECKING if progress.tries < 2 else _PUT_BACK)
    return RemovalStep(progress, _next_update(resource), result=ChangeResult.REMOVED)


def _next_update(resource: NodeResource) -> str:
    if resource.assessment.backing is Backing.MANUAL:
        return resource.assessment.evidence
    if resource.assessment.key is KeyState.SERVED:
        return "a live plugin serves it: the kubelet puts it back at its next status update"
    if resource.assessment.key is KeyState.GRACE_PERIOD:
        return f"the kubelet puts it back at its next status update: {_RETRY_LATER}"
    return f"the kubelet puts it back if the plugin stopped less than {GRACE_MINUTES} ago: then {_RETRY_LATER}"
