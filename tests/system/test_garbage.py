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
