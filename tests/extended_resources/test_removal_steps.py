"""What is done with a key after one look at it."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from plugwright.extended_resources.changes import Plan, Result
from plugwright.extended_resources.removal import Attempt, next_step, stale_targets
from plugwright.extended_resources.resources import Backing, Holder, Key, Row, Verdict

HELD = (Holder("default", "p1", 2),)


def row(key: Key, backing: Backing = Backing.STALE, holders: tuple[Holder, ...] = ()) -> Row:
    return Row("n1", "mock/gpu", 0, 0, holders, Verdict(backing, key, "evidence"))


rows = st.builds(row, st.sampled_from(Key), st.sampled_from(Backing), st.sampled_from([(), HELD]))
plans = st.builds(Plan, wait=st.booleans(), force=st.booleans(), stale=st.booleans(), named=st.booleans())
attempts = st.builds(
    Attempt,
    tries=st.integers(0, 3),
    removed_at=st.none() | st.floats(0, 100),
    retry_at=st.floats(0, 200),
    fading_since=st.none() | st.floats(0, 100),
)


@given(rows, attempts, plans, st.floats(100, 1000))
def test_nothing_is_removed_that_is_held_served_or_not_meant(
    row: Row, attempt: Attempt, plan: Plan, now: float
) -> None:
    step = next_step(row, attempt, now, plan)
    if step.remove and (plan.stale or not plan.force):
        assert row.verdict.key is Key.FREE
        assert plan.force or not row.requested
        assert not (plan.stale and row.verdict.backing is Backing.MANUAL)


@given(rows | st.none(), attempts, plans, st.floats(100, 1000))
def test_who_does_not_wait_gets_an_answer_at_once(row: Row | None, attempt: Attempt, plan: Plan, now: float) -> None:
    step = next_step(row, replace(attempt, removed_at=None, retry_at=0, tries=0), now, replace(plan, wait=False))
    assert step.remove != (step.result is not None)
    assert step.why


@given(rows, attempts, plans, st.floats(100, 1000))
def test_only_a_key_that_stayed_away_for_two_rounds_is_done(row: Row, attempt: Attempt, plan: Plan, now: float) -> None:
    step = next_step(row, attempt, now, replace(plan, wait=True))
    if step.result is Result.REMOVED:
        assert row.verdict.key is Key.ABSENT
        assert attempt.removed_at is not None
        assert now - attempt.removed_at >= plan.two_rounds


def test_only_what_nobody_serves_is_stale_unless_it_is_named_and_waited_for() -> None:
    all_rows = [replace(row(key, backing), resource=f"{key}/{backing}") for key in Key for backing in Backing]
    for_all = {target.resource for target in stale_targets(all_rows, Plan(wait=True, stale=True, named=False))}
    assert {name.split("/")[0] for name in for_all} == {"free", "fading"}
    named = {target.resource for target in stale_targets(all_rows, Plan(wait=True, stale=True, named=True))}
    assert {name.split("/")[0] for name in named} == {"free", "fading", "served", "unclear"}
    assert not any(name.endswith("manual") for name in for_all | named)
