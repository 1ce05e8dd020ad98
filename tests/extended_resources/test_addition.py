"""Offering resources by hand."""

import pytest
from tests.extended_resources.imitation import Cluster, Time, pod
from tests.extended_resources.kubelet import Kubelet

from plugwright.errors import ConfigError
from plugwright.extended_resources.changes import Plan, Result, Site, add
from plugwright.extended_resources.client import Api
from plugwright.extended_resources.resources import World

DONGLE = "example.com/dongle"


@pytest.fixture
def site(api: Api, time: Time) -> Site:
    return Site(api, clock=time.clock)


def added(site: Site, plan: Plan | None = None, **counts: int) -> list[tuple[Result, str]]:
    named = {f"example.com/{name}": count for name, count in counts.items()}
    return [(each.result, each.detail) for each in add(site, "n1", named, plan or Plan())]


def test_capacity_is_set_and_the_kubelet_makes_allocatable_of_it(
    site: Site, cluster: Cluster, kubelet_of_n1: Kubelet
) -> None:
    assert added(site, dongle=4) == [(Result.ADDED, "the kubelet offers it from its next status round on")]
    assert cluster.counts("n1", DONGLE) == ("4", None)
    kubelet_of_n1.round()
    assert cluster.counts("n1", DONGLE) == ("4", "4")


def test_waiting_ends_when_the_kubelet_offers_it(
    site: Site, cluster: Cluster, kubelet_of_n1: Kubelet, time: Time
) -> None:
    assert added(site, Plan(wait=True), dongle=4, tape=2) == [
        (Result.ADDED, "the kubelet offers 4"),
        (Result.ADDED, "the kubelet offers 2"),
    ]
    assert time.now <= 20


def test_a_count_can_be_changed(site: Site, cluster: Cluster, kubelet_of_n1: Kubelet) -> None:
    added(site, Plan(wait=True), dongle=4)
    added(site, Plan(wait=True), dongle=6)
    assert cluster.counts("n1", DONGLE) == ("6", "6")


def test_a_node_without_any_capacity_gets_it(site: Site, cluster: Cluster) -> None:
    del cluster.nodes["n1"]["status"]["capacity"]
    added(site, dongle=4)
    assert cluster.counts("n1", DONGLE)[0] == "4"


def test_what_a_plugin_serves_is_refused_and_nothing_else_is_set_either(
    site: Site, cluster: Cluster, kubelet_of_n1: Kubelet
) -> None:
    kubelet_of_n1.serve(DONGLE, 10)
    (first, second) = added(site, dongle=4, tape=1)
    assert first[0] is second[0] is Result.REFUSED
    assert "the kubelet would set it back" in first[1]
    assert cluster.counts("n1", "example.com/tape") == (None, None)


def test_with_force_it_is_set_and_waiting_shows_who_set_it_back(
    site: Site, cluster: Cluster, kubelet_of_n1: Kubelet
) -> None:
    kubelet_of_n1.serve(DONGLE, 10)
    ((result, detail),) = added(site, Plan(force=True, wait=True), dongle=4)
    assert (result, detail) == (Result.REFUSED, "somebody has set capacity to 10: kubelet")


def test_a_resource_of_a_device_class_is_refused(site: Site, cluster: Cluster, api: Api) -> None:
    classes = World({DONGLE: ("dongles",)})
    ((result, detail),) = added(Site(api, lambda: classes), dongle=4)
    assert result is Result.REFUSED
    assert "through DRA" in detail


def test_less_than_pods_hold_is_refused(site: Site, cluster: Cluster, kubelet_of_n1: Kubelet) -> None:
    added(site, Plan(wait=True), dongle=4)
    cluster.pods = [pod("p1", "n1", {DONGLE: 3})]
    refusal = "pods ask for 3 already: default/p1:3; --force sets it all the same"
    assert added(site, dongle=2) == [(Result.REFUSED, refusal)]
    assert added(site, dongle=3)[0][0] is Result.ADDED


def test_a_kubelet_that_does_not_take_it_up_is_waited_for_until_the_timeout(
    site: Site, cluster: Cluster, time: Time
) -> None:
    assert added(site, Plan(wait=True, timeout=60), dongle=4) == [(Result.TIMED_OUT, "capacity 4, allocatable None")]
    assert 60 <= time.now < 70


def test_a_silent_node_is_said_to_be_silent(site: Site, cluster: Cluster) -> None:
    cluster.nodes["n1"]["status"]["conditions"] = []
    ((result, detail),) = added(site, dongle=4)
    assert (result, detail) == (
        Result.ADDED,
        "the kubelet offers it when it reports again: no kubelet has ever reported",
    )


def test_over_what_a_plugin_left_it_is_set_with_a_warning(
    site: Site, cluster: Cluster, kubelet_of_n1: Kubelet, time: Time
) -> None:
    kubelet_of_n1.serve(DONGLE, 0)
    kubelet_of_n1.stop(DONGLE)
    assert "sets it back if its plugin went less than five minutes ago" in added(site, dongle=4)[0][1]
    assert added(site, Plan(wait=True), dongle=4) == [(Result.REFUSED, "somebody has set capacity to 0: kubelet")]
    time.sleep(330)
    assert added(site, Plan(wait=True), dongle=4) == [(Result.ADDED, "the kubelet offers 4")]


def test_a_change_in_between_is_no_obstacle(site: Site, cluster: Cluster, kubelet_of_n1: Kubelet) -> None:
    once = iter([lambda: cluster.touch("n1")])
    cluster.before = lambda asked: next(once, lambda: None)() if asked.startswith("patch") else None
    assert added(site, dongle=4)[0][0] is Result.ADDED


def test_a_dry_run_changes_nothing(site: Site, cluster: Cluster) -> None:
    assert added(site, Plan(dry_run=True), dongle=4) == [
        (Result.WOULD_ADD, "add /status/capacity/example.com~1dongle 4")
    ]
    assert cluster.counts("n1", DONGLE) == (None, None)


def test_an_unknown_node_is_an_error(site: Site) -> None:
    with pytest.raises(ConfigError, match="there is no node n2"):
        add(site, "n2", {DONGLE: 1}, Plan())
