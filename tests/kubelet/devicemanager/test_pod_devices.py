"""The pod devices: entries and devices in use; numbers in comments are those of the facts."""

from hypothesis import given
from hypothesis import strategies as st
from tests.kubelet.actors import OTHER, TAPE

from plugwright.kubelet.devicemanager.pod_devices import AllocationKey, PodDevices, by_numa_node

FIRST, SECOND = AllocationKey("one", "main", TAPE), AllocationKey("two", "main", TAPE)
KEYS = st.builds(
    AllocationKey, st.sampled_from("123"), st.sampled_from(["init", "main"]), st.sampled_from([TAPE, OTHER])
)
HELD = st.dictionaries(st.sampled_from([-1, 0, 1]), st.lists(st.sampled_from("abcd"), min_size=1).map(tuple))


def test_marked_device_is_in_use_before_the_plugin_has_answered() -> None:  # 3.27
    pod_devices = PodDevices()
    pod_devices.mark_in_use(TAPE, {"a"})
    assert set(pod_devices.in_use(TAPE)) == {"a"}
    assert pod_devices.entries == ()


def test_a_mark_without_a_record_is_gone_when_the_table_is_rebuilt() -> None:  # 3.39, 3.43
    pod_devices = PodDevices()
    pod_devices.insert(FIRST, {0: ("a",)}, b"")
    pod_devices.mark_in_use(TAPE, {"b"})
    pod_devices.rebuild_in_use()
    assert set(pod_devices.in_use(TAPE)) == {"a"}


def test_resource_is_known_while_devices_are_held_or_allocated() -> None:  # 3.10
    pod_devices = PodDevices()
    assert not pod_devices.has_resource(TAPE)
    pod_devices.mark_in_use(TAPE, ())
    assert pod_devices.has_resource(TAPE)
    pod_devices.rebuild_in_use()
    assert not pod_devices.has_resource(TAPE)


def test_a_device_is_recorded_under_every_node_it_has_or_under_minus_one() -> None:  # 3.44
    nodes = {"near": (0,), "both": (0, 1), "empty": ()}
    assert by_numa_node(["near", "both", "empty", "unknown"], nodes) == {
        -1: ("empty", "unknown"),
        0: ("both", "near"),
        1: ("both",),
    }


def test_pods_that_are_not_active_lose_what_they_held() -> None:  # 3.57
    pod_devices = PodDevices()
    pod_devices.insert(FIRST, {0: ("a",)}, b"")
    pod_devices.insert(SECOND, {0: ("b",)}, b"")
    assert pod_devices.remove_inactive({"two"}) == ["one"]
    assert set(pod_devices.in_use(TAPE)) == {"b"}
    assert pod_devices.device_ids(FIRST) == ()
    assert pod_devices.device_ids(SECOND) == ("b",)


def test_marks_stay_when_every_pod_is_active() -> None:  # 3.43, 3.57
    pod_devices = PodDevices()
    pod_devices.mark_in_use(TAPE, {"leaked"})
    assert pod_devices.remove_inactive(set()) == []
    assert set(pod_devices.in_use(TAPE)) == {"leaked"}


def test_a_device_on_two_nodes_is_held_once() -> None:
    pod_devices = PodDevices()
    pod_devices.insert(FIRST, {0: ("a",), 1: ("a", "b")}, b"")
    assert pod_devices.device_ids(FIRST) == ("a", "b")


def test_a_holder_is_found_by_the_id_alone() -> None:  # 7.8
    pod_devices = PodDevices()
    pod_devices.insert(FIRST, {0: ("same",)}, b"")
    pod_devices.insert(AllocationKey("two", "main", OTHER), {0: ("same",)}, b"")
    assert list(pod_devices.holders()) == ["same"]  # one pod of the two, whatever the resource
    assert pod_devices.holders(OTHER) == {"same": "two"}


@given(st.dictionaries(KEYS, HELD), st.sets(st.sampled_from("123")))
def test_devices_in_use_are_those_recorded(
    recorded: dict[AllocationKey, dict[int, tuple[str, ...]]], active: set[str]
) -> None:  # 1.22, 3.57
    pod_devices = PodDevices()
    expected: dict[str, set[str]] = {TAPE: set(), OTHER: set()}
    for key, devices in recorded.items():
        pod_devices.mark_in_use(key.resource, [device_id for ids in devices.values() for device_id in ids])
        pod_devices.insert(key, devices, b"")
        if key.pod_uid in active:
            expected[key.resource].update(device_id for ids in devices.values() for device_id in ids)
    pod_devices.remove_inactive(active)
    assert {entry.pod_uid for entry in pod_devices.entries} <= active
    for same in (pod_devices, PodDevices(pod_devices.entries)):  # as it is, and as after a restart
        assert {resource: set(same.in_use(resource)) for resource in (TAPE, OTHER)} == expected
