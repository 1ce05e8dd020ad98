"""Names of extended resources, and the requests of a pod as the scheduler counts them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plugwright.extended_resources.resources import ContainerRequests, is_extended, pod_requests

containers = st.lists(
    st.builds(ContainerRequests, st.fixed_dictionaries({"a/b": st.integers(0, 9)}), st.booleans()), max_size=5
)
plain = st.lists(st.builds(ContainerRequests, st.fixed_dictionaries({"a/b": st.integers(0, 9)})), max_size=5)


@pytest.mark.parametrize("name", ["mock/gpu", "Example.com/x", "deviceclass.resource.kubernetes.io/gpu"])
def test_extended_resource_is_recognised(name: str) -> None:
    assert is_extended(name)


@pytest.mark.parametrize("name", ["cpu", "hugepages-2Mi", "kubernetes.io/batch", "mykubernetes.io/x", "dongle"])
def test_other_resource_is_not_extended(name: str) -> None:
    assert not is_extended(name)


def scheduler(init: list[ContainerRequests], main: list[ContainerRequests]) -> int:
    """As upstream's computation goes, step by step."""
    running = sum(container.requests["a/b"] for container in main)
    sidecars = most = 0
    for container in init:
        if container.sidecar:
            running += container.requests["a/b"]
            sidecars += container.requests["a/b"]
            moment = sidecars
        else:
            moment = container.requests["a/b"] + sidecars
        most = max(most, moment)
    return max(running, most)


@given(containers, plain)
def test_pod_requests_are_those_of_the_scheduler(init: list[ContainerRequests], main: list[ContainerRequests]) -> None:
    assert pod_requests(init, main).get("a/b", 0) == scheduler(init, main)


def test_init_container_may_request_another_resource() -> None:
    requests = pod_requests(
        [ContainerRequests({"a/b": 3})], [ContainerRequests({"a/b": 1, "c/d": 2}), ContainerRequests({"c/d": 2})]
    )
    assert requests == {"a/b": 3, "c/d": 4}
