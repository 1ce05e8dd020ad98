"""Which devices a resource offers, and that no device is offered by two."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plugwright import PluginError
from plugwright.plugins.nvidia import selection, simulated_machines
from plugwright.plugins.nvidia.selection import Mig, Pattern, Selection

H100 = simulated_machines.load("hgx-h100").gpus
MIXED = simulated_machines.load("dgx-a100-mig").gpus
CUT = simulated_machines.load("hgx-h100-mig").gpus
INDEXES = st.lists(st.integers(0, 7).map(str), max_size=4).map(tuple)


def indexes(include: Pattern, exclude: Pattern | None = None) -> list[str]:
    chosen = selection.chosen(H100, Selection(include=include, exclude=exclude or Pattern()))
    return [unit.index for unit in chosen]


@pytest.mark.parametrize(
    ("include", "expected"),
    [
        (Pattern(), "01234567"),
        (Pattern(index=("6", "7")), "67"),
        (Pattern(uuid=(H100[3].uuid,)), "3"),
        (Pattern(pci=("0000:18:00.0", "00000000:2A:00.0", "3a:00.0")), "012"),
        (Pattern(model=("*h100*",)), "01234567"),
        (Pattern(model=("*A100*", "*T4*")), ""),
        (Pattern(least=80 * 2**30), ""),
        (Pattern(least=70 * 2**30, most=80 * 2**30), "01234567"),
        (Pattern(index=("1", "2"), uuid=(H100[2].uuid,)), "2"),
    ],
)
def test_devices_are_selected_by_what_they_are(include: Pattern, expected: str) -> None:
    assert indexes(include) == list(expected)


def test_any_reason_to_leave_a_device_out_is_enough() -> None:
    assert indexes(Pattern(), Pattern(index=("0",), uuid=(H100[1].uuid,))) == list("234567")


def test_without_mig_a_cut_gpu_is_whole() -> None:
    units = selection.chosen(CUT, Selection())
    assert [unit.uuid for unit in units] == [gpu.uuid for gpu in CUT]


def test_single_lists_the_parts() -> None:
    units = selection.chosen(CUT, Selection(mig=Mig.SINGLE))
    assert (len(units), units[0].index, units[-1].index) == (56, "0:0", "7:6")
    assert {unit.memory // 2**30 for unit in units} == {10}


def test_single_refuses_parts_that_differ() -> None:
    with pytest.raises(PluginError, match=r"all devices are alike.*0:0 is 1g\.5gb"):
        selection.chosen(MIXED, Selection(mig=Mig.SINGLE))


def test_mixed_lists_parts_by_profile_and_whole_gpus_without() -> None:
    small = selection.chosen(MIXED, Selection(mig=Mig.MIXED, include=Pattern(profile=("1g.5gb",))))
    large = selection.chosen(MIXED, Selection(mig=Mig.MIXED, include=Pattern(profile=("[23]g.*",))))
    whole = selection.chosen(MIXED, Selection(mig=Mig.MIXED))
    assert [len(small), len(large), [unit.index for unit in whole]] == [14, 5, ["5", "6", "7"]]


def test_a_part_is_selected_by_its_own_index_or_its_gpus() -> None:
    def chosen(index: str) -> int:
        return len(selection.chosen(CUT, Selection(mig=Mig.SINGLE, include=Pattern(index=(index,)))))

    assert (chosen("3:6"), chosen("3")) == (1, 7)


@given(one=INDEXES, other=INDEXES)
def test_a_device_that_two_ask_for_is_found(one: tuple[str, ...], other: tuple[str, ...]) -> None:
    asked = {"a": Selection(include=Pattern(index=one)), "b": Selection(include=Pattern(index=other))}
    contested = selection.overlaps(H100, asked)
    everything = {str(index) for index in range(8)}
    both = (set(one) or everything) & (set(other) or everything)
    assert {gpu.uuid for gpu in H100 if str(gpu.index) in both} == set(contested)
    assert all(askers == ["a", "b"] for askers in contested.values())


def test_a_whole_gpu_and_a_part_of_it_are_not_offered_both() -> None:
    asked = {"whole": Selection(), "parts": Selection(mig=Mig.MIXED, include=Pattern(profile=("1g.5gb",)))}
    assert set(selection.overlaps(MIXED, asked)) == {mig.uuid for gpu in MIXED[:2] for mig in gpu.mig}
    apart = {**asked, "whole": Selection(mig=Mig.MIXED)}
    assert not selection.overlaps(MIXED, apart)
