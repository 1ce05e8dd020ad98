"""Removal of resources from a node, and the check that their keys stay away."""

from dataclasses import replace

import pytest
from tests.extended_resources.imitation import Cluster, Refusal, Time, pod
from tests.extended_resources.kubelet import Kubelet

from plugwright.errors import PeerGone, PeerRefused
from plugwright.extended_resources.changes import (
    ChangeContext,
    ChangeOptions,
    ChangeOutcome,
    ChangeResult,
    ChangeTarget,
    NodesClient,
)
from plugwright.extended_resources.removal import remove

GPU = ChangeTarget("n1", "mock/gpu")
WAIT = ChangeOptions(wait=True)


@pytest.fixture
def context(api: NodesClient, time: Time) -> ChangeContext:
    return ChangeContext(api, clock=time.clock)


@pytest.fixture
def kubelet(kubelet_of_n1: Kubelet) -> Kubelet:
    return kubelet_of_n1


def removed(context: ChangeContext, options: ChangeOptions, *targets: ChangeTarget) -> list[tuple[ChangeResult, str]]:
    return [(outcome.result, outcome.detail) for outcome in remove(context, targets or [GPU], options)]


def test_removal_waits_for_the_grace_period_and_the_key_stays_away(
    context: ChangeContext, cluster: Cluster, kubelet: Kubelet, time: Time
) -> None:
    kubelet.serve("mock/gpu", 10)
    kubelet.stop("mock/gpu")
    assert cluster.counts("n1", "mock/gpu") == ("10", "0")
    ((result, detail),) = removed(context, WAIT)
    assert (result, cluster.counts("n1", "mock/gpu")) == (ChangeResult.REMOVED, (None, None))
    assert "not put back within two status updates" in detail
    assert 300 < time.now < 350
    time.sleep(60)
    assert cluster.counts("n1", "mock/gpu") == (None, None)


def test_removal_of_a_key_with_0_is_retried_until_it_stays_away(
    context: ChangeContext, cluster: Cluster, kubelet: Kubelet, time: Time
) -> None:
    kubelet.serve("mock/gpu", 0)
    kubelet.stop("mock/gpu")
    ((result, _),) = removed(context, WAIT)
    assert (result, cluster.counts("n1", "mock/gpu")) == (ChangeResult.REMOVED, (None, None))
    assert cluster.asked.count("patch nodes/status") > 2
    assert 300 < time.now < 400


def test_without_waiting_a_key_that_would_come_back_is_refused(
    context: ChangeContext, cluster: Cluster, kubelet: Kubelet
) -> None:
    kubelet.serve("mock/gpu", 10)
    kubelet.stop("mock/gpu")
    ((result, detail),) = removed(context, ChangeOptions())
    assert result is ChangeResult.REFUSED
    assert "try again when 5 minutes are over, or use --wait" in detail
    assert "patch nodes/status" not in cluster.asked


def test_without_waiting_a_key_with_0_is_removed_with_a_warning(
    context: ChangeContext, cluster: Cluster, kubelet: Kubelet
) -> None:
    kubelet.serve("mock/gpu", 0)
    kubelet.stop("mock/gpu")
    ((result, detail),) = removed(context, ChangeOptions())
    assert (result, cluster.counts("n1", "mock/gpu")) == (ChangeResult.REMOVED, (None, None))
    assert "puts it back if the plugin stopped less than 5 minutes ago" in detail
    kubelet.round()
    assert cluster.counts("n1", "mock/gpu") == ("0", "0")


def test_removal_of_a_served_resource_is_refused(context: ChangeContext, cluster: Cluster, kubelet: Kubelet) -> None:
    kubelet.serve("mock/gpu", 10)
    ((result, detail),) = removed(context, ChangeOptions())
    assert (result, cluster.counts("n1", "mock/gpu")) == (ChangeResult.REFUSED, ("10", "10"))
    assert detail == "a live plugin serves it: the kubelet counts 10 of 10 devices healthy; stop the plugin first"


def test_forced_removal_of_a_served_resource_warns_that_it_comes_back(
    context: ChangeContext, cluster: Cluster, kubelet: Kubelet
) -> None:
    kubelet.serve("mock/gpu", 10)
    ((result, detail),) = removed(context, ChangeOptions(force=True))
    assert (result, cluster.counts("n1", "mock/gpu")) == (ChangeResult.REMOVED, (None, None))
    assert "puts it back at its next status update" in detail
    kubelet.round()
    assert cluster.counts("n1", "mock/gpu") == ("10", "10")


def test_forced_removal_with_wait_times_out_when_the_key_comes_back(context: ChangeContext, kubelet: Kubelet) -> None:
    kubelet.serve("mock/gpu", 10)
    ((result, detail),) = removed(context, ChangeOptions(force=True, wait=True, timeout=60))
    assert result is ChangeResult.TIMED_OUT
    assert "a live plugin serves it" in detail


def test_removal_of_a_held_resource_is_refused_or_waits_for_the_pods(
    context: ChangeContext, cluster: Cluster, kubelet: Kubelet, time: Time
) -> None:
    cluster.set("n1", "curl", {"mock/gpu": 2}, {})
    cluster.pods = [pod("p1", "n1", {"mock/gpu": 2}), pod("done", "n1", {"mock/gpu": 2}, phase="Succeeded")]
    assert removed(context, ChangeOptions()) == [
        (ChangeResult.REFUSED, "held by default/p1:2; --force removes it anyway")
    ]
    time.every_second.append(lambda: cluster.pods.clear() if time.now > 100 else None)
    ((result, _),) = removed(context, WAIT)
    assert result is ChangeResult.REMOVED
    assert 100 < time.now < 140


def test_force_with_stale_overrides_pods_alone(
    context: ChangeContext, cluster: Cluster, kubelet: Kubelet, time: Time
) -> None:
    cluster.pods = [pod("p1", "n1", {"mock/gpu": 2})]
    kubelet.serve("mock/gpu", 10)
    kubelet.stop("mock/gpu")
    ((result, _),) = removed(context, ChangeOptions(wait=True, stale=True, force=True))
    assert (result, cluster.counts("n1", "mock/gpu")) == (ChangeResult.REMOVED, (None, None))
    assert (time.now > 300, cluster.asked.count("patch nodes/status")) == (True, 1)


def test_a_plugin_that_comes_back_while_we_wait_keeps_its_key(
    context: ChangeContext, cluster: Cluster, kubelet: Kubelet, time: Time
) -> None:
    kubelet.serve("mock/gpu", 10)
    kubelet.stop("mock/gpu")
    time.every_second.append(lambda: kubelet.serve("mock/gpu", 10) if time.now == 50 else None)
    ((result, _),) = removed(context, ChangeOptions(wait=True, stale=True, named=False))
    assert (result, cluster.counts("n1", "mock/gpu")) == (ChangeResult.LEFT, ("10", "10"))
    assert time.now < 60


def test_live_plugin_with_unhealthy_devices_alone_is_recognised_after_the_grace_period(
    context: ChangeContext, kubelet: Kubelet, time: Time
) -> None:
    kubelet.serve("mock/gpu", 0, unhealthy=4)
    ((result, detail),) = removed(context, ChangeOptions(wait=True, stale=True, named=False))
    assert result is ChangeResult.LEFT
    assert "so its plugin runs" in detail
    assert 300 < time.now < 360


def test_live_plugin_without_devices_is_recognised_after_the_grace_period(
    context: ChangeContext, cluster: Cluster, kubelet: Kubelet, time: Time
) -> None:
    kubelet.serve("mock/gpu", 0)
    ((result, detail),) = removed(context, ChangeOptions(wait=True, stale=True, named=False))
    assert (result, cluster.counts("n1", "mock/gpu")) == (ChangeResult.LEFT, ("0", "0"))
    assert "so its plugin runs and lists no device" in detail
    assert 300 < time.now < 400


def test_timeout_reports_the_last_reason(context: ChangeContext, kubelet: Kubelet, time: Time) -> None:
    kubelet.serve("mock/gpu", 10)
    kubelet.stop("mock/gpu")
    ((result, detail),) = removed(context, ChangeOptions(wait=True, timeout=100))
    assert result is ChangeResult.TIMED_OUT
    assert detail.startswith("after 100 s: capacity 10, allocatable 0: ")
    assert 100 <= time.now < 110


def test_a_named_live_plugin_is_waited_for_and_at_last_left(
    context: ChangeContext, kubelet: Kubelet, time: Time
) -> None:
    kubelet.serve("mock/gpu", 10)
    ((result, _),) = removed(context, ChangeOptions(wait=True, stale=True, named=True, timeout=100))
    assert result is ChangeResult.LEFT
    assert time.now >= 100


def test_manual_resource_is_removed_by_name_but_is_not_stale(
    context: ChangeContext, cluster: Cluster, kubelet: Kubelet
) -> None:
    cluster.set("n1", "kubectl-patch", {"mock/gpu": 4}, {"mock/gpu": 4})
    assert removed(context, ChangeOptions(stale=True))[0][0] is ChangeResult.LEFT
    assert removed(context, ChangeOptions())[0][0] is ChangeResult.REMOVED
    assert cluster.counts("n1", "mock/gpu") == (None, None)


def test_several_targets_are_waited_for_together(
    context: ChangeContext, kubelet: Kubelet, cluster: Cluster, time: Time
) -> None:
    cluster.set("n1", "curl", {"example.com/dongle": 4}, {})
    kubelet.serve("mock/gpu", 10)
    kubelet.stop("mock/gpu")
    outcomes = removed(context, WAIT, ChangeTarget("n1", "example.com/dongle"), GPU)
    assert [result for result, _ in outcomes] == [ChangeResult.REMOVED, ChangeResult.REMOVED]
    assert time.now < 350


def test_plugin_that_comes_back_between_read_and_patch_keeps_its_key(
    context: ChangeContext, cluster: Cluster, kubelet: Kubelet
) -> None:
    kubelet.serve("mock/gpu", 0)
    kubelet.stop("mock/gpu")
    cluster.before = lambda asked: kubelet.serve("mock/gpu", 10) if asked == "patch nodes/status" else None
    ((result, _),) = removed(context, ChangeOptions())
    assert (result, cluster.counts("n1", "mock/gpu")) == (ChangeResult.REFUSED, ("10", "10"))


def test_removal_gives_up_after_five_conflicts(context: ChangeContext, cluster: Cluster, kubelet: Kubelet) -> None:
    cluster.set("n1", "curl", {"mock/gpu": 4}, {})
    cluster.before = lambda asked: cluster.touch("n1") if asked.startswith("patch") else None
    with pytest.raises(PeerRefused, match="node n1 was changed by others 5 times"):
        removed(context, ChangeOptions())
    assert removed(context, ChangeOptions(wait=True, timeout=30))[0][0] is ChangeResult.TIMED_OUT


def test_a_server_that_is_busy_for_a_while_is_waited_for(context: ChangeContext, cluster: Cluster, time: Time) -> None:
    def busy(asked: str) -> None:
        if time.now < 50:
            raise Refusal(503, "ServiceUnavailable", "etcd is away")

    cluster.set("n1", "curl", {"mock/gpu": 4}, {})
    cluster.before = busy
    with pytest.raises(PeerGone, match="etcd is away"):
        removed(context, ChangeOptions())
    assert removed(context, WAIT)[0][0] is ChangeResult.REMOVED


def test_a_node_that_is_deleted_has_nothing_left(
    context: ChangeContext, cluster: Cluster, kubelet: Kubelet, time: Time
) -> None:
    kubelet.serve("mock/gpu", 10)
    kubelet.stop("mock/gpu")
    time.every_second.append(lambda: cluster.nodes.clear() if time.now > 20 else None)
    assert removed(context, WAIT) == [(ChangeResult.ABSENT, "the node was deleted")]


def test_a_key_that_others_removed_is_watched_as_well(
    context: ChangeContext, cluster: Cluster, kubelet: Kubelet
) -> None:
    ((result, detail),) = removed(context, WAIT)
    assert result is ChangeResult.ABSENT
    assert "not put back" in detail


def test_a_silent_kubelet_is_waited_for(context: ChangeContext, cluster: Cluster, kubelet: Kubelet, time: Time) -> None:
    kubelet.serve("mock/gpu", 0)
    ready = cluster.nodes["n1"]["status"]["conditions"][0]
    ready["status"] = "Unknown"
    ((result, detail),) = removed(context, ChangeOptions())
    assert result is ChangeResult.REFUSED
    assert "its kubelet has not reported since 2026-11-15T09:00:00Z" in detail
    kubelet.stop("mock/gpu")
    time.every_second.append(lambda: ready.update(status="True") if time.now > 30 else None)
    assert removed(context, WAIT)[0][0] is ChangeResult.REMOVED


def test_a_dry_run_says_what_it_would_send(context: ChangeContext, cluster: Cluster, kubelet: Kubelet) -> None:
    kubelet.serve("mock/gpu", 0)
    would = "remove /status/capacity/mock~1gpu, remove /status/allocatable/mock~1gpu"
    assert removed(context, ChangeOptions(dry_run=True, wait=True)) == [(ChangeResult.WOULD_REMOVE, would)]
    assert cluster.counts("n1", "mock/gpu") == ("0", "0")
    kubelet.serve("mock/gpu", 10)
    assert removed(context, ChangeOptions(dry_run=True, wait=True))[0][0] is ChangeResult.REFUSED


def test_progress_is_reported_at_every_poll(context: ChangeContext, cluster: Cluster, kubelet: Kubelet) -> None:
    reported: list[str] = []
    kubelet.serve("mock/gpu", 10)
    kubelet.stop("mock/gpu")
    remove(replace(context, report_progress=lambda target, text: reported.append(f"{target}: {text}")), [GPU], WAIT)
    distinct = list(dict.fromkeys(reported))
    assert distinct[0].startswith("n1 mock/gpu: capacity 10, allocatable 0: either the plugin stopped")
    assert distinct[1:] == ["n1 mock/gpu: removed; checking whether the kubelet puts it back"]


def test_outcomes_keep_the_order_of_the_targets(context: ChangeContext, cluster: Cluster) -> None:
    names = ["c/c", "a/a", "b/b"]
    cluster.set("n1", "curl", dict.fromkeys(names, 1), {})
    outcomes = remove(context, [ChangeTarget("n1", name) for name in names], ChangeOptions())
    assert [outcome.target.resource for outcome in outcomes] == names
    assert isinstance(outcomes[0], ChangeOutcome)
