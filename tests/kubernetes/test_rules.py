"""The defects that rules of `plugwright verify` name have the effect on a real kubelet that the rules claim.

Each is a mutant of the small plugin of the rules' own tests: five devices, one of them unhealthy.
"""

import pytest
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.node import Node
from tests.kubernetes.pods import Pods, refusal
from tests.kubernetes.serving import Plugins
from tests.kubernetes.waiting import until


@pytest.mark.essential
@pytest.mark.plays("REG-03", "REG-09")
def test_a_refused_name_and_missing_options_are_the_kubelets_words(plugins: Plugins, node: Node) -> None:
    named = plugins.mutant("name-without-domain", "")
    until("the name is refused", lambda: named.lines('the ResourceName "part" is invalid'))
    silent = plugins.mutant("without-options", "example.com/rule-options")
    until("it is refused", lambda: silent.lines("failed to get device plugin options"))
    assert node.resource("example.com/rule-options") is None


@pytest.mark.essential
@pytest.mark.plays("REG-18", "REG-19")
def test_a_socket_that_is_connected_is_refused_from_1_37_on(cluster: Cluster, plugins: Plugins, node: Node) -> None:
    plugin = plugins.mutant("registers-twice", "example.com/rule-twice")
    node.shows("example.com/rule-twice", capacity=5, allocatable=4)
    if cluster.version.startswith("1.36"):
        assert not plugin.lines("already connected")
    else:
        until("it is refused", lambda: plugin.lines("device plugin already connected"))


@pytest.mark.plays("LST-03", "LST-04", "LST-06", "LST-09")
@pytest.mark.parametrize(
    ("mutant", "capacity", "allocatable"),
    [
        ("repeated-id", 5, 4),  # LST-04: six are listed
        ("other-health", 6, 4),  # LST-06: `healthy` is unhealthy
        ("empty-id", 6, 5),  # LST-03: a device without a name is counted
        ("ends-stream", 5, 0),  # LST-09
    ],
)
def test_a_wrong_list_is_counted_as_the_rule_says(
    plugins: Plugins, node: Node, mutant: str, capacity: int, allocatable: int
) -> None:
    plugins.mutant(mutant, f"example.com/rule-{mutant}")
    node.shows(f"example.com/rule-{mutant}", capacity, allocatable)


@pytest.mark.essential
@pytest.mark.plays("ALO-03")
def test_a_response_for_each_device_hands_out_the_first_alone(plugins: Plugins, node: Node, pods: Pods) -> None:
    plugins.mutant("response-per-device", "example.com/rule-response")
    node.shows("example.com/rule-response", capacity=5, allocatable=4)
    pod = pods.create("two", {"example.com/rule-response": 2}).runs()
    assert len(pod.devices("PARTS")) == 1


@pytest.mark.plays("ALO-02", "PRF-01")
@pytest.mark.parametrize(
    ("mutant", "words"),
    [
        ("empty-answer", "no containers return in allocation response"),  # ALO-02
        ("without-preference", "GetPreferredAllocation rpc failed"),  # PRF-01
    ],
)
def test_a_pod_is_refused_for_good(plugins: Plugins, node: Node, pods: Pods, mutant: str, words: str) -> None:
    resource = f"example.com/rule-{mutant}"
    plugins.mutant(mutant, resource)
    node.shows(resource, capacity=5, allocatable=4)
    pod = pods.create(mutant, {resource: 1})
    refused = until("it is refused", lambda: refusal(pod.read()))
    assert words in str(refused)


@pytest.mark.plays("ANS-01", "ANS-02", "PST-01")
@pytest.mark.parametrize("mutant", ["missing-node", "file-as-node", "without-pre-start"])
def test_a_container_does_not_start(plugins: Plugins, node: Node, pods: Pods, mutant: str) -> None:
    resource = f"example.com/rule-{mutant}"
    plugins.mutant(mutant, resource)
    node.shows(resource, capacity=5, allocatable=4)
    pod = pods.create(mutant, {resource: 1})

    def waits() -> str:
        statuses = pod.read().get("status", {}).get("containerStatuses", [])
        return next((waiting["reason"] for status in statuses if (waiting := status["state"].get("waiting"))), "")

    assert until("it waits", lambda: "Error" in waits() and waits()) in (
        "CreateContainerError",
        "RunContainerError",
        "CreateContainerConfigError",
    )
