"""Names, and what a pod asks for as the scheduler counts it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plugwright.extended_resources.resources import Container, is_extended, pod_requests

containers = st.lists(
    st.builds(Container, st.fixed_dictionaries({"a/b": st.integers(0, 9)}), st.booleans()), max_size=5
)
plain = st.lists(st.builds(Container, st.fixed_dictionaries({"a/b": st.integers(0, 9)})), max_size=5)


@pytest.mark.parametrize("name", ["mock/gpu", "Example.com/x", "deviceclass.resource.kubernetes.io/gpu"])
def test_extended_resources(name: str) -> None:
    assert is_extended(name)


@pytest.mark.parametrize("name", ["cpu", "hugepages-2Mi", "kubernetes.io/batch", "mykubernetes.io/x", "dongle"])
def test_resources_of_other_kinds(name: str) -> None:
    assert not is_extended(name)


def scheduler(init: list[Container], main: list[Container]) -> int:
    """As upstream's computation goes, step by step."""
    running = sum(each.requests["a/b"] for each in main)
    sidecars = most = 0
    for each in init:
        if each.sidecar:
            running += each.requests["a/b"]
            sidecars += each.requests["a/b"]
            moment = sidecars
        else:
            moment = each.requests["a/b"] + sidecars
        most = max(most, moment)
    return max(running, most)


@given(containers, plain)
def test_a_pod_asks_for_what_the_scheduler_counts(init: list[Container], main: list[Container]) -> None:
    assert pod_requests(init, main).get("a/b", 0) == scheduler(init, main)


def test_an_init_container_may_ask_for_another_resource() -> None:
    asked = pod_requests([Container({"a/b": 3})], [Container({"a/b": 1, "c/d": 2}), Container({"c/d": 2})])
    assert asked == {"a/b": 3, "c/d": 4}
