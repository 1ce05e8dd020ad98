"""Collections of garbage that leave out what stays."""

import gc

from plugwright.system import garbage


def test_what_there_is_stays_out_of_collections_while_pauses_are_short() -> None:
    thresholds, frozen = gc.get_threshold(), gc.get_freeze_count()
    with garbage.short_pauses():
        assert gc.get_freeze_count() > frozen
        assert gc.get_threshold() != thresholds
    assert (gc.get_threshold(), gc.get_freeze_count()) == (thresholds, 0)
    assert not any("garbage" in getattr(callback, "__module__", "") for callback in gc.callbacks)


def test_what_there_was_before_does_not_put_off_full_collections() -> None:
    kept = [[number] for number in range(600_000)]
    full = []

    def collected(phase: str, info: dict[str, int]) -> None:
        if phase == "stop" and info["generation"] == 2:
            full.append(phase)

    with garbage.short_pauses():
        gc.callbacks.append(collected)
        kept += [[number] for number in range(140_000)]  # a full one goes through these: a quarter of all are 150,000
        gc.callbacks.remove(collected)
    assert full
