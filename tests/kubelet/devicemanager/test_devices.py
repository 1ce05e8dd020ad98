"""Device lists and their counts; numbers in comments are those of the facts."""

from hypothesis import given
from hypothesis import strategies as st
from tests.kubelet.actors import TAPE, device

from plugwright.kubelet.devicemanager.devices import DeviceCount, DeviceStore
from plugwright.model import natural_order
from plugwright.protocol.messages import ListedDevice

LISTED = st.lists(
    st.builds(
        ListedDevice,
        st.sampled_from(["a", "b", "c", "d10", "d9", ""]),
        st.sampled_from(["Healthy", "Unhealthy", "healthy", ""]),
        st.sampled_from([None, (), (0,), (0, 1)]),
    )
)


def store_of(*devices: ListedDevice) -> DeviceStore:
    store = DeviceStore()
    store.update(TAPE, devices)
    return store


def test_a_list_replaces_the_one_before() -> None:  # 2.5
    store = store_of(device("a"), device("b"))
    assert store.update(TAPE, [device("b"), device("c")]) == ["a"]
    assert store.of(TAPE).healthy == {"b", "c"}
    assert set(store.of(TAPE).known) == {"b", "c"}


def test_only_the_exact_string_is_healthy() -> None:  # 0.6, 2.6
    words = ["Healthy", "healthy", "HEALTHY", "Healthy ", "Unhealthy", "", "fine"]
    devices = store_of(*(device(word, health=word) for word in words)).of(TAPE)
    assert devices.healthy == {"Healthy"}
    assert devices.unhealthy == set(words) - {"Healthy"}


def test_any_id_is_a_device() -> None:  # 2.7, 2.9
    names = ["", "x" * 1000, "two words", "ünï/côde\n"]
    assert store_of(*map(device, names)).of(TAPE).count == DeviceCount(4, 4)


def test_a_repeated_id_counts_once_in_each_health() -> None:  # 2.8
    twice = store_of(device("a", 0), device("a", 1)).of(TAPE)
    assert twice.count == DeviceCount(1, 1)
    assert twice.nodes("a") == (1,)
    both = store_of(device("a"), device("a", health="Unhealthy")).of(TAPE)
    assert both.count == DeviceCount(2, 1)
    assert both.known["a"].health == "Unhealthy"


def test_capacity_is_every_device_and_allocatable_the_healthy_ones() -> None:  # 2.10
    assert store_of(device("a"), device("b"), device("c", health="Unhealthy")).of(TAPE).count == DeviceCount(3, 2)


def test_an_empty_list_is_a_resource_without_devices() -> None:  # 2.11
    assert TAPE in store_of()
    assert store_of().of(TAPE).count == DeviceCount(0, 0)


def test_devices_of_a_lost_plugin_are_unhealthy() -> None:  # 2.15
    store = store_of(device("a"), device("b", health="Unhealthy"))
    store.mark_unhealthy(TAPE)
    assert store.of(TAPE).count == DeviceCount(2, 0)
    assert store.of(TAPE).registered == ()


def test_a_stream_that_ends_before_its_first_list_is_a_resource_without_devices() -> None:  # 2.21
    store = DeviceStore()
    store.mark_unhealthy(TAPE)
    assert TAPE in store
    assert store.of(TAPE).count == DeviceCount(0, 0)


def test_known_devices_outlive_the_resource() -> None:  # 2.20
    store = store_of(device("a", 1, health="Unhealthy"))
    store.remove(TAPE)
    assert TAPE not in store
    assert store.of(TAPE).count == DeviceCount(0, 0)
    assert store.of(TAPE).known["a"] == device("a", 1, health="Unhealthy")


def test_resource_of_the_checkpoint_has_no_devices() -> None:  # 1.20, 1.22
    store = DeviceStore()
    store.restore([TAPE])
    assert TAPE in store
    assert store.of(TAPE).count == DeviceCount(0, 0)
    assert store.of(TAPE).known == {}


@given(LISTED, LISTED)
def test_numbers_are_those_of_the_newest_list(
    before: list[ListedDevice], newest: list[ListedDevice]
) -> None:  # 2.5, 2.8, 2.10
    store = store_of(*before)
    left_out = store.update(TAPE, newest)
    devices, ids = store.of(TAPE), {listed.id for listed in newest}
    assert devices.healthy | devices.unhealthy == devices.known.keys() == ids
    assert devices.count == DeviceCount(
        len({(listed.id, listed.health == "Healthy") for listed in newest}), len(devices.healthy)
    )
    assert left_out == sorted({listed.id for listed in before} - ids)
    assert devices.registered == tuple(sorted(devices.healthy))


@given(LISTED, st.sets(st.sampled_from(["a", "b", "d10", "d9", "z1", "z02"])), st.integers(-1, 8))
def test_the_first_devices_come_in_natural_order(newest: list[ListedDevice], among: set[str], count: int) -> None:
    devices = store_of(*newest).of(TAPE)
    known = sorted(among & devices.known.keys(), key=natural_order)
    others = sorted(among - devices.known.keys(), key=natural_order)
    assert devices.first(count, among) == [*known, *others][: max(count, 0)]
