"""The smallest patch between what a server has and what a node wants."""

from hypothesis import given, settings
from hypothesis import strategies as st

from plugwright.cluster.joined.differences import difference

READY = {"type": "Ready", "status": "True"}
DISK = {"type": "DiskPressure", "status": "False"}


def test_an_object_that_has_all_parts_needs_no_patch() -> None:
    assert difference({"status": {"phase": "Running"}}, {"status": {"phase": "Running"}}) == {}


def test_a_patch_has_what_has_changed_and_no_more() -> None:
    before = {"status": {"capacity": {"cpu": "16", "mock/gpu": "8"}, "addresses": []}}
    after = {"status": {"capacity": {"cpu": "16", "mock/gpu": "7"}, "addresses": []}}
    assert difference(before, after) == {"status": {"capacity": {"mock/gpu": "7"}}}


def test_only_conditions_that_changed_are_sent_and_others_stay() -> None:
    taken = {"type": "DisruptionTarget", "status": "True"}
    before = {"status": {"conditions": [{**READY, "status": "Unknown"}, DISK, taken]}}
    assert difference(before, {"status": {"conditions": [READY, DISK]}}) == {"status": {"conditions": [READY]}}
    assert difference({"status": {"conditions": [READY, taken]}}, {"status": {"conditions": [READY]}}) == {}


def test_fields_of_other_components_are_not_cleared() -> None:
    before = {"status": {"nominatedNodeName": "a", "reason": "Evicted", "phase": "Failed"}}
    assert difference(before, {"status": {"phase": "Failed"}}) == {"status": {"reason": None}}


def test_the_identity_of_an_object_is_never_in_a_patch() -> None:
    after = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "other"}, "spec": {"renewTime": "now"}}
    assert difference({"metadata": {"name": "one"}}, after) == {"spec": {"renewTime": "now"}}


MAPS = st.recursive(
    st.integers() | st.text(max_size=3), lambda inner: st.dictionaries(st.sampled_from("abcd"), inner), max_leaves=8
)


def merged(before: object, patch: object) -> object:
    if not isinstance(patch, dict) or not isinstance(before, dict):
        return patch
    result = {**before}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = merged(before.get(name), value)
    return result


@settings(max_examples=40)
@given(MAPS, MAPS)
def test_a_patched_part_is_what_was_wanted(before: object, after: object) -> None:
    document = {"spec": {"part": before}}
    assert merged(document, difference(document, {"spec": {"part": after}})) == {"spec": {"part": after}}
