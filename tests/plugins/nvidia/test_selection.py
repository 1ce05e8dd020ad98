"""The devices that a resource offers, and devices that two resources select."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plugwright import PluginError
from plugwright.plugins.nvidia import selection, simulated_machines
from plugwright.plugins.nvidia.config import MigStrategy
from plugwright.plugins.nvidia.selection import DevicePattern, Selection

H100 = simulated_machines.load("hgx-h100").gpus
MIXED = simulated_machines.load("dgx-a100-mig").gpus
MIG = simulated_machines.load("hgx-h100-mig").gpus
INDEXES = st.lists(st.integers(0, 7).map(str), max_size=4).map(tuple)


def indexes(include: DevicePattern, exclude: DevicePattern | None = None) -> list[str]:
    units = selection.select_devices(H100, Selection(include=include, exclude=exclude or DevicePattern()))
    return [unit.index for unit in units]


@pytest.mark.parametrize(
    ("include", "expected"),
    [
        (DevicePattern(), "01234567"),
        (DevicePattern(index=("6", "7")), "67"),
        (DevicePattern(uuid=(H100[3].uuid,)), "3"),
        (DevicePattern(pci=("0000:18:00.0", "00000000:2A:00.0", "3a:00.0")), "012"),
        (DevicePattern(model=("*h100*",)), "01234567"),
        (DevicePattern(model=("*A100*", "*T4*")), ""),
        (DevicePattern(least=80 * 2**30), ""),
        (DevicePattern(least=70 * 2**30, most=80 * 2**30), "01234567"),
        (DevicePattern(index=("1", "2"), uuid=(H100[2].uuid,)), "2"),
    ],
)
def test_devices_are_selected_by_their_properties(include: DevicePattern, expected: str) -> None:
    assert indexes(include) == list(expected)


def test_one_matching_property_excludes_a_device() -> None:
    assert indexes(DevicePattern(), DevicePattern(index=("0",), uuid=(H100[1].uuid,))) == list("234567")


def test_without_a_mig_strategy_a_gpu_in_mig_mode_is_whole() -> None:
    units = selection.select_devices(MIG, Selection())
    assert [unit.uuid for unit in units] == [gpu.uuid for gpu in MIG]


def test_single_selects_the_mig_devices() -> None:
    units = selection.select_devices(MIG, Selection(mig=MigStrategy.SINGLE))
    assert (len(units), units[0].index, units[-1].index) == (56, "0:0", "7:6")
    assert {unit.memory // 2**30 for unit in units} == {10}


def test_single_refuses_mig_devices_of_different_profiles() -> None:
    with pytest.raises(PluginError, match=r"all devices must have the same profile.*0:0 is 1g\.5gb"):
        selection.select_devices(MIXED, Selection(mig=MigStrategy.SINGLE))


def test_mixed_selects_mig_devices_by_profile_and_whole_gpus_without() -> None:
    small = selection.select_devices(
        MIXED, Selection(mig=MigStrategy.MIXED, include=DevicePattern(profile=("1g.5gb",)))
    )
    large = selection.select_devices(
        MIXED, Selection(mig=MigStrategy.MIXED, include=DevicePattern(profile=("[23]g.*",)))
    )
    whole = selection.select_devices(MIXED, Selection(mig=MigStrategy.MIXED))
    assert [len(small), len(large), [unit.index for unit in whole]] == [14, 5, ["5", "6", "7"]]


def test_a_mig_device_is_selected_by_its_own_index_or_its_gpus() -> None:
    def count(index: str) -> int:
        return len(
            selection.select_devices(MIG, Selection(mig=MigStrategy.SINGLE, include=DevicePattern(index=(index,))))
        )

    assert (count("3:6"), count("3")) == (1, 7)


@given(one=INDEXES, other=INDEXES)
def test_a_device_that_two_resources_select_is_found(one: tuple[str, ...], other: tuple[str, ...]) -> None:
    selections = {"a": Selection(include=DevicePattern(index=one)), "b": Selection(include=DevicePattern(index=other))}
    overlaps = selection.overlaps(H100, selections)
    everything = {str(index) for index in range(8)}
    both = (set(one) or everything) & (set(other) or everything)
    assert {gpu.uuid for gpu in H100 if str(gpu.index) in both} == set(overlaps)
    assert all(resources == ["a", "b"] for resources in overlaps.values())


def test_a_whole_gpu_and_its_mig_devices_overlap() -> None:
    selections = {
        "whole": Selection(),
        "parts": Selection(mig=MigStrategy.MIXED, include=DevicePattern(profile=("1g.5gb",))),
    }
    assert set(selection.overlaps(MIXED, selections)) == {mig.uuid for gpu in MIXED[:2] for mig in gpu.mig}
    apart = {**selections, "whole": Selection(mig=MigStrategy.MIXED)}
    assert not selection.overlaps(MIXED, apart)
