"""Adding resources by hand."""

import pytest
from tests.extended_resources.imitation import Cluster, Time, pod
from tests.extended_resources.kubelet import Kubelet

from plugwright.errors import ConfigError
from plugwright.extended_resources.changes import ChangeContext, ChangeOptions, ChangeResult, NodesClient, add
from plugwright.extended_resources.resources import ClusterContext

DONGLE = "example.com/dongle"


@pytest.fixture
def context(api: NodesClient, time: Time) -> ChangeContext:
    return ChangeContext(api, clock=time.clock)


def added(
    context: ChangeContext, options: ChangeOptions | None = None, **counts: int
) -> list[tuple[ChangeResult, str]]:
    named = {f"example.com/{name}": count for name, count in counts.items()}
    return [(outcome.result, outcome.detail) for outcome in add(context, "n1", named, options or ChangeOptions())]


def test_add_sets_capacity_and_the_kubelet_copies_it_to_allocatable(
    context: ChangeContext, cluster: Cluster, kubelet_of_n1: Kubelet
) -> None:
    assert added(context, dongle=4) == [(ChangeResult.ADDED, "the kubelet offers it from its next status update on")]
    assert cluster.counts("n1", DONGLE) == ("4", None)
    kubelet_of_n1.round()
    assert cluster.counts("n1", DONGLE) == ("4", "4")


def test_add_with_wait_returns_when_the_kubelet_offers_the_resource(
    context: ChangeContext, cluster: Cluster, kubelet_of_n1: Kubelet, time: Time
) -> None:
    assert added(context, ChangeOptions(wait=True), dongle=4, tape=2) == [
        (ChangeResult.ADDED, "the kubelet offers 4"),
        (ChangeResult.ADDED, "the kubelet offers 2"),
    ]
    assert time.now <= 20


def test_a_count_can_be_changed(context: ChangeContext, cluster: Cluster, kubelet_of_n1: Kubelet) -> None:
    added(context, ChangeOptions(wait=True), dongle=4)
    added(context, ChangeOptions(wait=True), dongle=6)
    assert cluster.counts("n1", DONGLE) == ("6", "6")


def test_add_creates_the_capacity_of_a_node_without_any(context: ChangeContext, cluster: Cluster) -> None:
    del cluster.nodes["n1"]["status"]["capacity"]
    added(context, dongle=4)
    assert cluster.counts("n1", DONGLE)[0] == "4"


def test_add_of_a_served_resource_is_refused_together_with_all_others(
    context: ChangeContext, cluster: Cluster, kubelet_of_n1: Kubelet
) -> None:
    kubelet_of_n1.serve(DONGLE, 10)
    (first, second) = added(context, dongle=4, tape=1)
    assert first[0] is second[0] is ChangeResult.REFUSED
    assert "the kubelet would set it back" in first[1]
    assert cluster.counts("n1", "example.com/tape") == (None, None)


def test_forced_add_of_a_served_resource_reports_the_kubelet_setting_it_back(
    context: ChangeContext, cluster: Cluster, kubelet_of_n1: Kubelet
) -> None:
    kubelet_of_n1.serve(DONGLE, 10)
    ((result, detail),) = added(context, ChangeOptions(force=True, wait=True), dongle=4)
    assert (result, detail) == (ChangeResult.REFUSED, "capacity was set to 10 by kubelet")


def test_a_resource_of_a_device_class_is_refused(context: ChangeContext, cluster: Cluster, api: NodesClient) -> None:
    classes = ClusterContext({DONGLE: ("dongles",)})
    ((result, detail),) = added(ChangeContext(api, lambda: classes), dongle=4)
    assert result is ChangeResult.REFUSED
    assert "through DRA" in detail


def test_add_of_less_than_pods_request_is_refused(
    context: ChangeContext, cluster: Cluster, kubelet_of_n1: Kubelet
) -> None:
    added(context, ChangeOptions(wait=True), dongle=4)
    cluster.pods = [pod("p1", "n1", {DONGLE: 3})]
    refusal = "pods request 3 already: default/p1:3; --force sets it anyway"
    assert added(context, dongle=2) == [(ChangeResult.REFUSED, refusal)]
    assert added(context, dongle=3)[0][0] is ChangeResult.ADDED


def test_add_waits_for_the_kubelet_until_the_timeout(context: ChangeContext, cluster: Cluster, time: Time) -> None:
    assert added(context, ChangeOptions(wait=True, timeout=60), dongle=4) == [
        (ChangeResult.TIMED_OUT, "capacity 4, allocatable None")
    ]
    assert 60 <= time.now < 70


def test_add_on_a_silent_node_reports_the_silence(context: ChangeContext, cluster: Cluster) -> None:
    cluster.nodes["n1"]["status"]["conditions"] = []
    ((result, detail),) = added(context, dongle=4)
    assert (result, detail) == (
        ChangeResult.ADDED,
        "the kubelet offers it when it reports again: no kubelet has ever reported",
    )


def test_add_over_a_stale_key_warns_about_the_grace_period(
    context: ChangeContext, cluster: Cluster, kubelet_of_n1: Kubelet, time: Time
) -> None:
    kubelet_of_n1.serve(DONGLE, 0)
    kubelet_of_n1.stop(DONGLE)
    assert "sets it back if its plugin stopped less than 5 minutes ago" in added(context, dongle=4)[0][1]
    assert added(context, ChangeOptions(wait=True), dongle=4) == [
        (ChangeResult.REFUSED, "capacity was set to 0 by kubelet")
    ]
    time.sleep(330)
    assert added(context, ChangeOptions(wait=True), dongle=4) == [(ChangeResult.ADDED, "the kubelet offers 4")]


def test_add_is_retried_after_a_conflict(context: ChangeContext, cluster: Cluster, kubelet_of_n1: Kubelet) -> None:
    once = iter([lambda: cluster.touch("n1")])
    cluster.before = lambda asked: next(once, lambda: None)() if asked.startswith("patch") else None
    assert added(context, dongle=4)[0][0] is ChangeResult.ADDED


def test_a_dry_run_changes_nothing(context: ChangeContext, cluster: Cluster) -> None:
    assert added(context, ChangeOptions(dry_run=True), dongle=4) == [
        (ChangeResult.WOULD_ADD, "add /status/capacity/example.com~1dongle 4")
    ]
    assert cluster.counts("n1", DONGLE) == (None, None)


def test_an_unknown_node_is_an_error(context: ChangeContext) -> None:
    with pytest.raises(ConfigError, match="there is no node n2"):
        add(context, "n2", {DONGLE: 1}, ChangeOptions())
