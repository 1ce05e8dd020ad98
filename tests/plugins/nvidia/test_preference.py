"""The preferred units: GPUs by their links, shares packed or spread."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plugwright.plugins.nvidia import simulated_machines
from plugwright.plugins.nvidia.config import NvidiaShare
from plugwright.plugins.nvidia.driver import Gpu, GpuLink, GpuLinks, PcieLevel
from plugwright.plugins.nvidia.preference import PlacementPolicy, UnitPreference
from plugwright.plugins.nvidia.sharing import GpuUnit, split_all, whole_device
from plugwright.plugins.nvidia.topology.scores import link_score, pair_scores

SHARE = NvidiaShare(replicas=4)


def gpus(machine: str = "dgx-1") -> list[GpuUnit]:
    return [whole_device(gpu) for gpu in simulated_machines.load(machine).gpus]


def parts(machine: str) -> list[GpuUnit]:
    """Its MIG devices."""
    return [whole_device(gpu, part) for gpu in simulated_machines.load(machine).gpus for part in gpu.mig]


def preference(
    units: list[GpuUnit], machine: str = "dgx-1", policy: PlacementPolicy = PlacementPolicy.SPREAD
) -> UnitPreference:
    return UnitPreference(units, simulated_machines.load(machine).links, policy, clock=lambda: 0.0)


def ids(units: list[GpuUnit], *positions: int) -> list[str]:
    return [units[position].id for position in positions]


def test_a_pair_scores_by_its_pcie_level_and_its_nvlinks() -> None:
    assert [link_score(GpuLink(level)) for level in PcieLevel] == [0, 10, 20, 30, 40, 50, 60]
    assert link_score(GpuLink(PcieLevel.NODE, 18)) == 1820


def test_links_make_a_matrix_in_the_order_of_the_gpus() -> None:
    links = GpuLinks({("a", "b"): GpuLink(PcieLevel.PIX, 1)})
    assert pair_scores(["b", "c", "a"], links) == [[0, 0, 150], [0, 0, 0], [150, 0, 0]]


def test_whole_gpus_are_chosen_by_their_links() -> None:
    units = gpus()
    chosen = preference(units).prefer(ids(units, *range(8)), [], 4)
    assert chosen == ids(units, 0, 1, 2, 3)


@pytest.mark.parametrize("policy", PlacementPolicy)
def test_for_whole_gpus_packed_and_spread_are_the_same(policy: PlacementPolicy) -> None:
    units = gpus()
    assert preference(units, policy=policy).prefer(ids(units, 1, 3, 2, 6, 7), ids(units, 6), 2) == ids(units, 6, 7)


def test_required_units_come_first() -> None:
    units = gpus()
    chosen = preference(units).prefer(ids(units, *range(8)), ids(units, 3), 4)
    assert chosen == ids(units, 3, 0, 1, 2)


def test_shares_are_spread_over_the_gpus_with_the_best_links() -> None:
    units = split_all(gpus(), SHARE)
    available = [unit.id for unit in units]
    chosen = preference(units).prefer(available, [], 2)
    assert chosen == [f"{gpus()[index].id}::0" for index in (0, 3)]


def test_shares_are_spread_away_from_the_one_that_is_required() -> None:
    units = split_all(gpus(), SHARE)
    required = [f"{gpus()[0].id}::3"]
    chosen = preference(units).prefer([unit.id for unit in units], required, 2)
    assert chosen == [*required, f"{gpus()[3].id}::0"]


def test_shares_are_packed_on_the_gpu_that_is_used_most() -> None:
    units = split_all(gpus(), SHARE)
    available = [unit.id for unit in units if unit.id != f"{gpus()[5].id}::1"]
    chosen = preference(units, policy=PlacementPolicy.PACKED).prefer(available, [], 3)
    assert chosen == [f"{gpus()[5].id}::{number}" for number in (0, 2, 3)]


def test_more_shares_than_one_gpu_has_are_packed_on_linked_gpus() -> None:
    units = split_all(gpus(), SHARE)
    chosen = preference(units, policy=PlacementPolicy.PACKED).prefer([unit.id for unit in units], [], 8)
    assert chosen == [f"{gpus()[index].id}::{number}" for index in (0, 3) for number in range(4)]


def test_mig_devices_are_packed_on_one_gpu_or_spread_over_linked_ones() -> None:
    machine = "hgx-h100-mig"
    units = parts(machine)
    available = [unit.id for unit in units]
    together = preference(units, machine, PlacementPolicy.PACKED).prefer(available, [], 3)
    apart = preference(units, machine, PlacementPolicy.SPREAD).prefer(available, [], 3)
    assert together == ids(units, 0, 1, 2)
    assert apart == ids(units, 0, 7, 14)  # the first of each of three GPUs at one socket


def test_a_gpu_whose_mig_devices_are_in_use_is_packed_first() -> None:
    machine = "hgx-h100-mig"
    units = parts(machine)
    available = ids(units, *range(7), *range(9, 14))
    assert preference(units, machine, PlacementPolicy.PACKED).prefer(available, [], 2) == ids(units, 9, 10)


def test_shares_of_mig_devices_are_spread_within_the_gpu_too() -> None:
    machine = "hgx-h100-mig"
    units = split_all([unit for unit in parts(machine) if unit.gpu.index == 0], NvidiaShare(replicas=2))
    available = [unit.id for unit in units]
    apart = preference(units, machine, PlacementPolicy.SPREAD).prefer(available, [], 2)
    together = preference(units, machine, PlacementPolicy.PACKED).prefer(available, [], 2)
    assert apart == ids(units, 0, 2)
    assert together == ids(units, 0, 1)


def test_unknown_units_are_taken_when_there_are_no_others() -> None:
    units = gpus()
    assert preference(units).prefer(["x", *ids(units, 2), "a"], [], 2) == [*ids(units, 2), "a"]
    assert preference(units).prefer(ids(units, 2, 3), ["x"], 2) == ["x", *ids(units, 2)]


def test_a_size_above_the_available_units_chooses_all() -> None:
    units = gpus()
    assert preference(units).prefer(ids(units, 5, 1), [], 9) == ids(units, 1, 5)


def test_required_units_are_chosen_even_if_not_available() -> None:
    units = gpus()
    assert preference(units).prefer(ids(units, 4, 5), ids(units, 0), 2) == ids(units, 0, 4)


def test_a_resource_without_units_prefers_unknown_ids() -> None:
    assert UnitPreference([], GpuLinks()).prefer(["x"], [], 1) == ["x"]


def test_gpus_without_any_known_link_are_taken_in_order() -> None:
    units = [whole_device(Gpu(uuid=f"GPU-{index}", index=index)) for index in range(12)]
    assert UnitPreference(units, GpuLinks()).prefer([unit.id for unit in units], [], 3) == ["GPU-0", "GPU-1", "GPU-2"]


KNOWN = [unit.id for unit in split_all(gpus(), SHARE)]
ANY_IDS = st.lists(st.sampled_from([*KNOWN, "x-1", "x-2", ""]))


@given(ANY_IDS, ANY_IDS, st.integers(-3, 40), st.sampled_from(PlacementPolicy))
def test_every_request_gets_a_valid_answer(
    available: list[str], required: list[str], size: int, policy: PlacementPolicy
) -> None:
    answer = preference(split_all(gpus(), SHARE), policy=policy).prefer(available, required, size)
    assert len(answer) == len(set(answer)) == max(0, min(size, len({*available, *required})))
    assert set(answer) <= {*available, *required}
    assert set(required) <= set(answer) or set(answer) <= set(required)


@given(ANY_IDS, st.integers(0, 40), st.sampled_from(PlacementPolicy), st.randoms(use_true_random=False))
def test_the_order_of_available_units_does_not_matter(
    available: list[str], size: int, policy: PlacementPolicy, chance: Random
) -> None:
    shuffled = sorted(available, key=lambda _: chance.random())
    one, other = (preference(split_all(gpus(), SHARE), policy=policy) for _ in range(2))
    assert one.prefer(available, [], size) == other.prefer(shuffled, [], size)
