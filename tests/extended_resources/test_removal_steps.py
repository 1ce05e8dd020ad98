"""The step that follows from one observation of a key."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from plugwright.extended_resources.changes import ChangeOptions, ChangeResult
from plugwright.extended_resources.removal import RemovalProgress, next_step, stale_targets
from plugwright.extended_resources.resources import Assessment, Backing, Holder, KeyState, NodeResource

HELD = (Holder("default", "p1", 2),)


def row(key: KeyState, backing: Backing = Backing.STALE, holders: tuple[Holder, ...] = ()) -> NodeResource:
    return NodeResource("n1", "mock/gpu", 0, 0, holders, Assessment(backing, key, "evidence"))


rows = st.builds(row, st.sampled_from(KeyState), st.sampled_from(Backing), st.sampled_from([(), HELD]))
option_sets = st.builds(
    ChangeOptions, wait=st.booleans(), force=st.booleans(), stale=st.booleans(), named=st.booleans()
)
progresses = st.builds(
    RemovalProgress,
    tries=st.integers(0, 3),
    removed_at=st.none() | st.floats(0, 100),
    retry_at=st.floats(0, 200),
    grace_since=st.none() | st.floats(0, 100),
)


@given(rows, progresses, option_sets, st.floats(100, 1000))
def test_held_served_and_manual_resources_are_never_removed(
    row: NodeResource, progress: RemovalProgress, options: ChangeOptions, now: float
) -> None:
    step = next_step(row, progress, now, options)
    if step.remove and (options.stale or not options.force):
        assert row.assessment.key is KeyState.FREE
        assert options.force or not row.requested
        assert not (options.stale and row.assessment.backing is Backing.MANUAL)


@given(rows | st.none(), progresses, option_sets, st.floats(100, 1000))
def test_step_without_wait_ends_at_once(
    row: NodeResource | None, progress: RemovalProgress, options: ChangeOptions, now: float
) -> None:
    step = next_step(row, replace(progress, removed_at=None, retry_at=0, tries=0), now, replace(options, wait=False))
    assert step.remove != (step.result is not None)
    assert step.reason


@given(rows, progresses, option_sets, st.floats(100, 1000))
def test_removal_is_done_after_two_rounds_without_the_key(
    row: NodeResource, progress: RemovalProgress, options: ChangeOptions, now: float
) -> None:
    step = next_step(row, progress, now, replace(options, wait=True))
    if step.result is ChangeResult.REMOVED:
        assert row.assessment.key is KeyState.ABSENT
        assert progress.removed_at is not None
        assert now - progress.removed_at >= options.two_rounds


def test_served_resource_is_stale_only_if_named_and_waited_for() -> None:
    all_rows = [replace(row(key, backing), resource=f"{key}/{backing}") for key in KeyState for backing in Backing]
    for_all = {target.resource for target in stale_targets(all_rows, ChangeOptions(wait=True, stale=True, named=False))}
    assert {name.split("/")[0] for name in for_all} == {"free", "grace period"}
    named = {target.resource for target in stale_targets(all_rows, ChangeOptions(wait=True, stale=True, named=True))}
    assert {name.split("/")[0] for name in named} == {"free", "grace period", "served", "unclear"}
    assert not any(name.endswith("manual") for name in for_all | named)
