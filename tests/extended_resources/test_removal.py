"""Taking resources off a node: when, when not, and for how long it is watched afterwards."""

from dataclasses import replace

import pytest
from tests.extended_resources.imitation import Cluster, Refusal, Time, pod
from tests.extended_resources.kubelet import Kubelet

from plugwright.errors import PeerGone, PeerRefused
from plugwright.extended_resources.changes import Outcome, Plan, Result, Site, Target
from plugwright.extended_resources.client import Api
from plugwright.extended_resources.removal import remove

GPU = Target("n1", "mock/gpu")
WAIT = Plan(wait=True)


@pytest.fixture
def site(api: Api, time: Time) -> Site:
    return Site(api, clock=time.clock)


@pytest.fixture
def kubelet(kubelet_of_n1: Kubelet) -> Kubelet:
    return kubelet_of_n1


def removed(site: Site, plan: Plan, *targets: Target) -> list[tuple[Result, str]]:
    return [(each.result, each.detail) for each in remove(site, targets or [GPU], plan)]


def test_a_plugin_that_went_is_waited_for_and_its_key_stays_away(
    site: Site, cluster: Cluster, kubelet: Kubelet, time: Time
) -> None:
    kubelet.serve("mock/gpu", 10)
    kubelet.stop("mock/gpu")
    assert cluster.counts("n1", "mock/gpu") == ("10", "0")
    ((result, detail),) = removed(site, WAIT)
    assert (result, cluster.counts("n1", "mock/gpu")) == (Result.REMOVED, (None, None))
    assert "not put back within two status rounds" in detail
    assert 300 < time.now < 350
    time.sleep(60)
    assert cluster.counts("n1", "mock/gpu") == (None, None)


def test_a_plugin_that_listed_nothing_when_it_went_is_tried_until_its_key_stays_away(
    site: Site, cluster: Cluster, kubelet: Kubelet, time: Time
) -> None:
    kubelet.serve("mock/gpu", 0)
    kubelet.stop("mock/gpu")
    ((result, _),) = removed(site, WAIT)
    assert (result, cluster.counts("n1", "mock/gpu")) == (Result.REMOVED, (None, None))
    assert cluster.asked.count("patch nodes/status") > 2
    assert 300 < time.now < 400


def test_without_waiting_a_key_that_would_come_back_is_refused(site: Site, cluster: Cluster, kubelet: Kubelet) -> None:
    kubelet.serve("mock/gpu", 10)
    kubelet.stop("mock/gpu")
    ((result, detail),) = removed(site, Plan())
    assert result is Result.REFUSED
    assert "try again when five minutes are over, or with --wait" in detail
    assert "patch nodes/status" not in cluster.asked


def test_without_waiting_a_key_with_0_is_removed_with_a_warning(site: Site, cluster: Cluster, kubelet: Kubelet) -> None:
    kubelet.serve("mock/gpu", 0)
    kubelet.stop("mock/gpu")
    ((result, detail),) = removed(site, Plan())
    assert (result, cluster.counts("n1", "mock/gpu")) == (Result.REMOVED, (None, None))
    assert "puts it back if the plugin went less than five minutes ago" in detail
    kubelet.round()
    assert cluster.counts("n1", "mock/gpu") == ("0", "0")


def test_what_a_live_plugin_serves_is_refused(site: Site, cluster: Cluster, kubelet: Kubelet) -> None:
    kubelet.serve("mock/gpu", 10)
    ((result, detail),) = removed(site, Plan())
    assert (result, cluster.counts("n1", "mock/gpu")) == (Result.REFUSED, ("10", "10"))
    assert detail == "a live plugin serves it: the kubelet counts 10 of 10 devices healthy; stop that first"


def test_with_force_it_is_removed_and_said_to_come_back(site: Site, cluster: Cluster, kubelet: Kubelet) -> None:
    kubelet.serve("mock/gpu", 10)
    ((result, detail),) = removed(site, Plan(force=True))
    assert (result, cluster.counts("n1", "mock/gpu")) == (Result.REMOVED, (None, None))
    assert "puts it back at its next status round" in detail
    kubelet.round()
    assert cluster.counts("n1", "mock/gpu") == ("10", "10")


def test_force_and_wait_together_do_not_call_it_done_when_it_comes_back(site: Site, kubelet: Kubelet) -> None:
    kubelet.serve("mock/gpu", 10)
    ((result, detail),) = removed(site, Plan(force=True, wait=True, timeout=60))
    assert result is Result.TIMED_OUT
    assert "a live plugin serves it" in detail


def test_what_pods_hold_is_refused_or_waited_for(site: Site, cluster: Cluster, kubelet: Kubelet, time: Time) -> None:
    cluster.set("n1", "curl", {"mock/gpu": 2}, {})
    cluster.pods = [pod("p1", "n1", {"mock/gpu": 2}), pod("done", "n1", {"mock/gpu": 2}, phase="Succeeded")]
    assert removed(site, Plan()) == [(Result.REFUSED, "held by default/p1:2; --force removes it all the same")]
    time.everywhen.append(lambda: cluster.pods.clear() if time.now > 100 else None)
    ((result, _),) = removed(site, WAIT)
    assert result is Result.REMOVED
    assert 100 < time.now < 140


def test_force_with_stale_means_pods_alone(site: Site, cluster: Cluster, kubelet: Kubelet, time: Time) -> None:
    cluster.pods = [pod("p1", "n1", {"mock/gpu": 2})]
    kubelet.serve("mock/gpu", 10)
    kubelet.stop("mock/gpu")
    ((result, _),) = removed(site, Plan(wait=True, stale=True, force=True))
    assert (result, cluster.counts("n1", "mock/gpu")) == (Result.REMOVED, (None, None))
    assert (time.now > 300, cluster.asked.count("patch nodes/status")) == (True, 1)


def test_a_plugin_that_comes_back_while_we_wait_keeps_its_key(
    site: Site, cluster: Cluster, kubelet: Kubelet, time: Time
) -> None:
    kubelet.serve("mock/gpu", 10)
    kubelet.stop("mock/gpu")
    time.everywhen.append(lambda: kubelet.serve("mock/gpu", 10) if time.now == 50 else None)
    ((result, _),) = removed(site, Plan(wait=True, stale=True, named=False))
    assert (result, cluster.counts("n1", "mock/gpu")) == (Result.LEFT, ("10", "10"))
    assert time.now < 60


def test_a_live_plugin_whose_devices_are_all_ill_is_told_from_one_that_went(
    site: Site, kubelet: Kubelet, time: Time
) -> None:
    kubelet.serve("mock/gpu", 0, unhealthy=4)
    ((result, detail),) = removed(site, Plan(wait=True, stale=True, named=False))
    assert result is Result.LEFT
    assert "so its plugin lives" in detail
    assert 300 < time.now < 360


def test_the_timeout_ends_it_with_the_last_reason(site: Site, kubelet: Kubelet, time: Time) -> None:
    kubelet.serve("mock/gpu", 10)
    kubelet.stop("mock/gpu")
    ((result, detail),) = removed(site, Plan(wait=True, timeout=100))
    assert result is Result.TIMED_OUT
    assert detail.startswith("after 100 s: capacity 10, allocatable 0: ")
    assert 100 <= time.now < 110


def test_a_named_live_plugin_is_waited_for_and_at_last_left(site: Site, kubelet: Kubelet, time: Time) -> None:
    kubelet.serve("mock/gpu", 10)
    ((result, _),) = removed(site, Plan(wait=True, stale=True, named=True, timeout=100))
    assert result is Result.LEFT
    assert time.now >= 100


def test_what_was_set_by_hand_goes_by_name_but_is_not_stale(site: Site, cluster: Cluster, kubelet: Kubelet) -> None:
    cluster.set("n1", "kubectl-patch", {"mock/gpu": 4}, {"mock/gpu": 4})
    assert removed(site, Plan(stale=True))[0][0] is Result.LEFT
    assert removed(site, Plan())[0][0] is Result.REMOVED
    assert cluster.counts("n1", "mock/gpu") == (None, None)


def test_several_targets_are_waited_for_together(site: Site, kubelet: Kubelet, cluster: Cluster, time: Time) -> None:
    cluster.set("n1", "curl", {"example.com/dongle": 4}, {})
    kubelet.serve("mock/gpu", 10)
    kubelet.stop("mock/gpu")
    outcomes = removed(site, WAIT, Target("n1", "example.com/dongle"), GPU)
    assert [result for result, _ in outcomes] == [Result.REMOVED, Result.REMOVED]
    assert time.now < 350


def test_who_changes_the_node_in_between_is_not_overwritten(site: Site, cluster: Cluster, kubelet: Kubelet) -> None:
    """A plugin comes back between our look and our patch."""
    kubelet.serve("mock/gpu", 0)
    kubelet.stop("mock/gpu")
    cluster.before = lambda asked: kubelet.serve("mock/gpu", 10) if asked == "patch nodes/status" else None
    ((result, _),) = removed(site, Plan())
    assert (result, cluster.counts("n1", "mock/gpu")) == (Result.REFUSED, ("10", "10"))


def test_after_five_conflicts_it_gives_up(site: Site, cluster: Cluster, kubelet: Kubelet) -> None:
    cluster.set("n1", "curl", {"mock/gpu": 4}, {})
    cluster.before = lambda asked: cluster.touch("n1") if asked.startswith("patch") else None
    with pytest.raises(PeerRefused, match="node n1 was changed by others 5 times"):
        removed(site, Plan())
    assert removed(site, Plan(wait=True, timeout=30))[0][0] is Result.TIMED_OUT


def test_a_server_that_is_busy_for_a_while_is_waited_for(site: Site, cluster: Cluster, time: Time) -> None:
    def busy(asked: str) -> None:
        if time.now < 50:
            raise Refusal(503, "ServiceUnavailable", "etcd is away")

    cluster.set("n1", "curl", {"mock/gpu": 4}, {})
    cluster.before = busy
    with pytest.raises(PeerGone, match="etcd is away"):
        removed(site, Plan())
    assert removed(site, WAIT)[0][0] is Result.REMOVED


def test_a_node_that_is_deleted_has_nothing_left(site: Site, cluster: Cluster, kubelet: Kubelet, time: Time) -> None:
    kubelet.serve("mock/gpu", 10)
    kubelet.stop("mock/gpu")
    time.everywhen.append(lambda: cluster.nodes.clear() if time.now > 20 else None)
    assert removed(site, WAIT) == [(Result.ABSENT, "the node is gone")]


def test_a_key_that_others_removed_is_watched_as_well(site: Site, cluster: Cluster, kubelet: Kubelet) -> None:
    ((result, detail),) = removed(site, WAIT)
    assert result is Result.ABSENT
    assert "not put back" in detail


def test_a_silent_kubelet_is_waited_for(site: Site, cluster: Cluster, kubelet: Kubelet, time: Time) -> None:
    kubelet.serve("mock/gpu", 0)
    ready = cluster.nodes["n1"]["status"]["conditions"][0]
    ready["status"] = "Unknown"
    ((result, detail),) = removed(site, Plan())
    assert result is Result.REFUSED
    assert "its kubelet has not reported since 2026-11-15T09:00:00Z" in detail
    kubelet.stop("mock/gpu")
    time.everywhen.append(lambda: ready.update(status="True") if time.now > 30 else None)
    assert removed(site, WAIT)[0][0] is Result.REMOVED


def test_a_dry_run_says_what_it_would_send(site: Site, cluster: Cluster, kubelet: Kubelet) -> None:
    kubelet.serve("mock/gpu", 0)
    would = "remove /status/capacity/mock~1gpu, remove /status/allocatable/mock~1gpu"
    assert removed(site, Plan(dry_run=True, wait=True)) == [(Result.WOULD_REMOVE, would)]
    assert cluster.counts("n1", "mock/gpu") == ("0", "0")
    kubelet.serve("mock/gpu", 10)
    assert removed(site, Plan(dry_run=True, wait=True))[0][0] is Result.REFUSED


def test_how_it_stands_is_said_again_and_again(site: Site, cluster: Cluster, kubelet: Kubelet) -> None:
    said: list[str] = []
    kubelet.serve("mock/gpu", 10)
    kubelet.stop("mock/gpu")
    remove(replace(site, say=lambda target, text: said.append(f"{target}: {text}")), [GPU], WAIT)
    distinct = list(dict.fromkeys(said))
    assert distinct[0].startswith("n1 mock/gpu: capacity 10, allocatable 0: either its plugin went")
    assert distinct[1:] == ["n1 mock/gpu: removed; looking whether the kubelet puts it back"]


def test_outcomes_keep_the_order_of_the_targets(site: Site, cluster: Cluster) -> None:
    names = ["c/c", "a/a", "b/b"]
    cluster.set("n1", "curl", dict.fromkeys(names, 1), {})
    outcomes = remove(site, [Target("n1", name) for name in names], Plan())
    assert [outcome.target.resource for outcome in outcomes] == names
    assert isinstance(outcomes[0], Outcome)
