"""Which API offers each device at first, and after another version of the file."""

from collections.abc import Collection

from plugwright import Device
from plugwright.dra.both.first_states import Found, placed
from plugwright.dra.both.split_file import SplitState, settings_text
from plugwright.dra.both.states import Evidence
from plugwright.sdk.serve_settings import ServeMode, ServeSettings, Split

KEEPS_ONE = ServeSettings(api=ServeMode.BOTH, split=Split(keep_free=1))


def found(units: Collection[tuple[str, ...]], held: Collection[str] = (), claimed: Collection[str] = ()) -> Found:
    return Found(
        devices={key: Device(key) for unit in units for key in unit},
        units={key: unit for unit in units for key in unit},
        evidence=lambda unit: Evidence(
            held_by_pod=not set(unit).isdisjoint(held), prepared=not set(unit).isdisjoint(claimed)
        ),
        held=held,
    )


def kept(state: SplitState) -> list[str]:
    """The devices that the device plugin API is to have."""
    placements = state.placements.items()
    return sorted(key for key, placement in placements if placement.target is ServeMode.DEVICE_PLUGIN)


def test_the_first_free_device_stays_with_the_device_plugin_api() -> None:
    assert kept(placed(SplitState(), KEEPS_ONE, found([("a",), ("b",), ("c",)]))) == ["a"]


def test_a_held_device_is_no_free_one() -> None:
    assert kept(placed(SplitState(), KEEPS_ONE, found([("a",), ("b",), ("c",)], held=["a"]))) == ["a", "b"]


def test_a_claimed_device_stays_with_claims() -> None:
    assert kept(placed(SplitState(), KEEPS_ONE, found([("a",), ("b",), ("c",)], claimed=["a"]))) == ["b"]


def test_a_single_unit_goes_to_claims_with_all_of_its_parts() -> None:
    assert kept(placed(SplitState(), KEEPS_ONE, found([("a/0", "a/1")]))) == []


def test_a_unit_is_kept_with_all_of_its_parts() -> None:
    assert kept(placed(SplitState(), KEEPS_ONE, found([("a/0", "a/1"), ("b",)]))) == ["a/0", "a/1"]


def test_a_policy_that_is_new_undoes_no_handover() -> None:
    before = settings_text(ServeSettings(api=ServeMode.BOTH))
    state = placed(SplitState(settings=before, handover=ServeMode.DRA), KEEPS_ONE, found([("a",), ("b",)]))
    assert (state.handover, state.settings, kept(state)) == (ServeMode.DRA, settings_text(KEEPS_ONE), [])


def test_another_split_ends_a_handover() -> None:
    before = settings_text(ServeSettings(api=ServeMode.BOTH, split=Split(dra=1)))
    state = placed(SplitState(settings=before, handover=ServeMode.DRA), KEEPS_ONE, found([("a",), ("b",)]))
    assert (state.handover, kept(state)) == (None, ["a"])
