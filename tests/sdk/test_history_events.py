"""Which events follow from two states of the devices, and which state from events."""

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from plugwright.sdk.history_events import DeviceFacts, FactKey, HolderFacts, changes, replayed

A, B = HolderFacts(api="device-plugin", namespace="n", pod="a"), HolderFacts(api="dra", namespace="n", claim="b")
KEY = "example.com/gpu", "gpu-0"
State = Mapping[FactKey, DeviceFacts]
FACTS = st.builds(
    DeviceFacts,
    health=st.sampled_from(["Healthy", "Unhealthy"]),
    code=st.sampled_from(["", "xid-79"]),
    cordon=st.sampled_from(["", "fan"]),
    holders=st.frozensets(st.sampled_from([A, B])),
)
STATES = st.lists(st.dictionaries(st.sampled_from([KEY, ("r", "x")]), FACTS), min_size=1, max_size=6)


def kinds(
    before: Mapping[FactKey, DeviceFacts], now: Mapping[FactKey, DeviceFacts], complete: bool = True
) -> list[str]:
    return [event.kind for event in changes(before, now, 1.0, is_complete=complete)]


def test_a_healthy_free_device_that_is_new_is_no_event() -> None:
    assert kinds({}, {KEY: DeviceFacts()}) == []


def test_a_pod_that_follows_another_one_is_two_events() -> None:
    before, now = DeviceFacts(holders=frozenset([A])), DeviceFacts(holders=frozenset([B]))
    assert kinds({KEY: before}, {KEY: now}) == ["released", "allocated"]


def test_nothing_is_released_while_holders_are_unknown() -> None:
    assert kinds({KEY: DeviceFacts(holders=frozenset([A]))}, {KEY: DeviceFacts()}, complete=False) == []


def test_a_holder_of_a_journal_without_containers_is_the_same_one() -> None:
    main, side = (HolderFacts(api="device-plugin", namespace="n", pod="a", container=name) for name in ("main", "side"))
    before, now = DeviceFacts(holders=frozenset([A])), DeviceFacts(holders=frozenset([main, side]))
    assert kinds({KEY: before}, {KEY: now}) == []
    assert kinds({KEY: now}, {KEY: DeviceFacts(holders=frozenset([main]))}) == ["released"]
    events = [
        *changes({}, {KEY: before}, 1.0, is_complete=True),
        *changes({KEY: now}, {KEY: DeviceFacts()}, 2.0, is_complete=True),
    ]
    assert replayed(events)[KEY].holders == frozenset()


def test_a_resource_that_has_no_list_yet_is_no_event() -> None:
    assert kinds({KEY: DeviceFacts(holders=frozenset([A]), health="Unhealthy")}, {}) == []


def test_a_reason_with_another_number_in_it_is_no_event() -> None:
    hot = [DeviceFacts(health="Unhealthy", code="hot", reason=f"{degrees} degrees") for degrees in (90, 91)]
    assert kinds({KEY: hot[0]}, {KEY: hot[1]}) == []
    assert kinds({}, {KEY: hot[0]}) == ["health"]
    assert kinds({KEY: hot[0]}, {KEY: DeviceFacts()}) == ["health"]


@given(STATES)
def test_events_lead_back_to_the_state_that_they_came_from(states: list[dict[FactKey, DeviceFacts]]) -> None:
    known: dict[FactKey, DeviceFacts] = {}
    events = []
    for state in states:
        events += list(changes(known, state, 1.0, is_complete=True))
        known = {**known, **state}
    again = replayed(events)
    for key, facts in known.items():
        found = again.get(key, DeviceFacts())
        assert (found.holders, bool(found.cordon)) == (facts.holders, bool(facts.cordon))
        assert (found.health, found.code) == (facts.health, facts.code)
