"""What the kubelet is answered when it asks which units to take."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plugwright.plugins.nvidia import simulated_machines
from plugwright.plugins.nvidia.driver import Gpu, Link, Links, PcieLevel
from plugwright.plugins.nvidia.preference import Policy, Preference
from plugwright.plugins.nvidia.sharing import Share, Unit, shared, whole
from plugwright.plugins.nvidia.topology.scores import pair_scores, score

SHARE = Share(replicas=4)


def gpus(machine: str = "dgx-1") -> list[Unit]:
    return [whole(gpu) for gpu in simulated_machines.load(machine).gpus]


def parts(machine: str) -> list[Unit]:
    """Its MIG devices."""
    return [whole(gpu, part) for gpu in simulated_machines.load(machine).gpus for part in gpu.mig]


def preference(units: list[Unit], machine: str = "dgx-1", policy: Policy = Policy.SPREAD) -> Preference:
    return Preference(units, simulated_machines.load(machine).links, policy, clock=lambda: 0.0)


def ids(units: list[Unit], *places: int) -> list[str]:
    return [units[place].id for place in places]


def test_a_pair_scores_by_its_place_and_by_its_links() -> None:
    assert [score(Link(level)) for level in PcieLevel] == [0, 10, 20, 30, 40, 50, 60]
    assert score(Link(PcieLevel.NODE, 18)) == 1820


def test_links_make_a_matrix_in_the_order_of_the_gpus() -> None:
    links = Links({("a", "b"): Link(PcieLevel.PIX, 1)})
    assert pair_scores(["b", "c", "a"], links) == [[0, 0, 150], [0, 0, 0], [150, 0, 0]]


def test_whole_gpus_are_chosen_by_their_links() -> None:
    units = gpus()
    chosen = preference(units).prefer(ids(units, *range(8)), [], 4)
    assert chosen == ids(units, 0, 1, 2, 3)


@pytest.mark.parametrize("policy", Policy)
def test_for_whole_gpus_packed_and_spread_are_the_same(policy: Policy) -> None:
    units = gpus()
    assert preference(units, policy=policy).prefer(ids(units, 1, 3, 2, 6, 7), ids(units, 6), 2) == ids(units, 6, 7)


def test_what_is_required_comes_first() -> None:
    units = gpus()
    chosen = preference(units).prefer(ids(units, *range(8)), ids(units, 3), 4)
    assert chosen == ids(units, 3, 0, 1, 2)


def test_shares_are_spread_over_the_gpus_with_the_best_links() -> None:
    units = shared(gpus(), SHARE)
    available = [unit.id for unit in units]
    chosen = preference(units).prefer(available, [], 2)
    assert chosen == [f"{gpus()[place].id}::0" for place in (0, 3)]


def test_shares_are_spread_away_from_the_one_that_is_required() -> None:
    units = shared(gpus(), SHARE)
    required = [f"{gpus()[0].id}::3"]
    chosen = preference(units).prefer([unit.id for unit in units], required, 2)
    assert chosen == [*required, f"{gpus()[3].id}::0"]


def test_shares_are_packed_on_the_gpu_that_is_used_most() -> None:
    units = shared(gpus(), SHARE)
    available = [unit.id for unit in units if unit.id != f"{gpus()[5].id}::1"]
    chosen = preference(units, policy=Policy.PACKED).prefer(available, [], 3)
    assert chosen == [f"{gpus()[5].id}::{number}" for number in (0, 2, 3)]


def test_more_shares_than_one_gpu_has_are_packed_on_linked_gpus() -> None:
    units = shared(gpus(), SHARE)
    chosen = preference(units, policy=Policy.PACKED).prefer([unit.id for unit in units], [], 8)
    assert chosen == [f"{gpus()[place].id}::{number}" for place in (0, 3) for number in range(4)]


def test_mig_devices_are_packed_on_one_gpu_or_spread_over_linked_ones() -> None:
    machine = "hgx-h100-mig"
    units = parts(machine)
    available = [unit.id for unit in units]
    together = preference(units, machine, Policy.PACKED).prefer(available, [], 3)
    apart = preference(units, machine, Policy.SPREAD).prefer(available, [], 3)
    assert together == ids(units, 0, 1, 2)
    assert apart == ids(units, 0, 7, 14)  # the first of each of three GPUs at one socket


def test_a_gpu_whose_mig_devices_are_in_use_is_packed_first() -> None:
    machine = "hgx-h100-mig"
    units = parts(machine)
    available = ids(units, *range(7), *range(9, 14))
    assert preference(units, machine, Policy.PACKED).prefer(available, [], 2) == ids(units, 9, 10)


def test_shares_of_mig_devices_are_spread_within_the_gpu_too() -> None:
    machine = "hgx-h100-mig"
    units = shared([unit for unit in parts(machine) if unit.gpu.index == 0], Share(replicas=2))
    available = [unit.id for unit in units]
    apart = preference(units, machine, Policy.SPREAD).prefer(available, [], 2)
    together = preference(units, machine, Policy.PACKED).prefer(available, [], 2)
    assert apart == ids(units, 0, 2)
    assert together == ids(units, 0, 1)


def test_unknown_units_are_taken_when_there_are_no_others() -> None:
    units = gpus()
    assert preference(units).prefer(["x", *ids(units, 2), "a"], [], 2) == [*ids(units, 2), "a"]
    assert preference(units).prefer(ids(units, 2, 3), ["x"], 2) == ["x", *ids(units, 2)]


def test_more_than_there_are_is_everything() -> None:
    units = gpus()
    assert preference(units).prefer(ids(units, 5, 1), [], 9) == ids(units, 1, 5)


def test_what_is_required_though_not_available_is_in_the_answer() -> None:
    units = gpus()
    assert preference(units).prefer(ids(units, 4, 5), ids(units, 0), 2) == ids(units, 0, 4)


def test_a_resource_without_units_has_an_answer() -> None:
    assert Preference([], Links()).prefer(["x"], [], 1) == ["x"]


def test_gpus_without_any_known_link_are_taken_in_order() -> None:
    units = [whole(Gpu(uuid=f"GPU-{index}", index=index)) for index in range(12)]
    assert Preference(units, Links()).prefer([unit.id for unit in units], [], 3) == ["GPU-0", "GPU-1", "GPU-2"]


KNOWN = [unit.id for unit in shared(gpus(), SHARE)]
ANY_IDS = st.lists(st.sampled_from([*KNOWN, "x-1", "x-2", ""]))


@given(ANY_IDS, ANY_IDS, st.integers(-3, 40), st.sampled_from(Policy))
def test_whatever_is_asked_there_is_an_answer(
    available: list[str], required: list[str], size: int, policy: Policy
) -> None:
    answer = preference(shared(gpus(), SHARE), policy=policy).prefer(available, required, size)
    assert len(answer) == len(set(answer)) == max(0, min(size, len({*available, *required})))
    assert set(answer) <= {*available, *required}
    assert set(required) <= set(answer) or set(answer) <= set(required)


@given(ANY_IDS, st.integers(0, 40), st.sampled_from(Policy), st.randoms(use_true_random=False))
def test_the_order_of_the_question_does_not_matter(
    available: list[str], size: int, policy: Policy, chance: Random
) -> None:
    shuffled = sorted(available, key=lambda _: chance.random())
    one, other = (preference(shared(gpus(), SHARE), policy=policy) for _ in range(2))
    assert one.prefer(available, [], size) == other.prefer(shuffled, [], size)
