"""The defects that rules of `plugwright verify` name have the effect on a real kubelet that the rules claim.

Each is a mutant of the small plugin of the rules' own tests: five devices, one of them unhealthy.
"""

import signal

import pytest
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.node import Node
from tests.kubernetes.pods import Pods
from tests.kubernetes.rule_plugins import have, refusals, refused, resource, started, tell
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


@pytest.mark.essential
@pytest.mark.plays("ALO-03")
def test_a_response_for_each_device_hands_out_the_first_alone(plugins: Plugins, node: Node, pods: Pods) -> None:
    plugins.mutant("response-per-device", "example.com/rule-response")
    node.shows("example.com/rule-response", capacity=5, allocatable=4)
    pod = pods.create("two", {"example.com/rule-response": 2}).runs()
    assert len(pod.devices("PARTS")) == 1


@pytest.mark.plays("REG-01", "REG-04", "REG-06", "REG-22", "REG-23", "REG-24", "LST-01", "LST-02")
@pytest.mark.plays("LST-03", "LST-04", "LST-05", "LST-06", "LST-09")
def test_a_node_has_no_devices_of_a_plugin_or_other_counts(plugins: Plugins, cluster: Cluster) -> None:
    words = {
        "old-version": "is not supported by kubelet",
        "absolute-endpoint": "failed to dial device plugin",
        "announces-other-type": "refused: ",
        "announces-other-version": "refused: ",
    }
    deprecated = cluster.kubelet_dir / "device-plugins" / "DEPRECATION"
    deprecated.touch()
    silent = ("never-registers", "heeds-deprecation", "sends-no-list")
    counts = {
        "list-too-large": (0, 0),
        "refuses-status": (5, 0),
        "ends-stream": (5, 0),
        "repeated-id": (5, 4),  # six are listed
        "other-health": (6, 4),  # `healthy` is unhealthy
        "empty-id": (6, 5),  # a device without a name is counted
        "long-id": (6, 5),
    }
    processes = started(plugins, *words, *silent, *counts)
    for mutant, text in words.items():
        until(f"{mutant} is refused", lambda: processes[mutant].lines(text), last=processes[mutant].lines)  # noqa: B023
    none: dict[str, tuple[int, int] | None] = dict.fromkeys((*words, *silent))
    have(cluster, {**none, **counts})
    deprecated.unlink()


@pytest.mark.plays("ANS-01", "ANS-02", "PST-01")
@pytest.mark.plays("ANS-03", "ANS-04", "ANS-05", "ANS-06", "ANS-07", "ANS-08", "ANS-09", "ANS-11")
def test_a_container_is_not_created_or_not_as_was_meant(plugins: Plugins, pods: Pods, cluster: Cluster) -> None:
    failing = {
        "missing-node": "no such file",
        "file-as-node": "not a device node",
        "no-permissions": "cannot be empty",
        "unqualified-cdi": "unresolvable CDI devices part-0",
        "unresolved-cdi": "unresolvable CDI devices example.com/part=part-0",
        "without-pre-start": "PreStartContainer rpc failed",
    }
    seen = {
        "relative-node": ("ls /dev/part", "/dev/part"),
        "other-permissions": ("ls /dev/part-0", "/dev/part-0"),
        "missing-mount": ("ls -A /etc/part", ""),
        "relative-mount": ("ls -d /part", "/part"),
        "variable-with-equals": ("echo $PART", "ONE=1"),
        "conflicting-paths": ("ls /dev | grep ^part", "part-0"),
    }
    started(plugins, *failing, *seen)
    have(cluster, dict.fromkeys((*failing, *seen), (5, 4)))
    made = {mutant: pods.create(f"answer-{mutant}", {resource(mutant): 1}) for mutant in (*failing, *seen)}
    try:
        shown = {mutant: made[mutant].runs().exec("sh", "-c", command).strip() for mutant, (command, _) in seen.items()}
        assert shown == {mutant: text for mutant, (_, text) in seen.items()}
        tell(pods, "Failed", {f"answer-{mutant}": words for mutant, words in failing.items()})
    finally:
        for path in ("/no/such/part", "/no/such", "/no"):  # what the runtime has made for `missing-mount`
            cluster.run("rmdir", path)


@pytest.mark.plays("ALO-02", "PRF-01")
@pytest.mark.plays("ALO-01", "ALO-08", "ANS-13", "LST-14", "PRF-02", "PRF-03", "PRF-05", "PRF-09")
def test_pods_are_refused_or_have_other_devices_than_was_preferred(
    plugins: Plugins, pods: Pods, cluster: Cluster
) -> None:
    mutants = ("refuses-one-device", "allocates-once", "huge-answer", "needs-choice", "empty-answer")
    arbitrary = ("prefers-too-few", "prefers-one-twice", "prefers-taken")
    processes = started(plugins, *mutants, *arbitrary, "without-preference", "random-ids")
    have(cluster, {**dict.fromkeys((*mutants, *arbitrary, "without-preference"), (5, 4)), "random-ids": (4, 4)})
    pods.create("empty", {resource("empty-answer"): 1})
    pods.create("no-preference", {resource("without-preference"): 1})
    pods.create("all-of-them", {resource("refuses-one-device"): 4})
    pods.create("no-choice", {resource("needs-choice"): 4})
    pods.create("huge", {resource("huge-answer"): 2})
    given = [pods.create(f"preferred-{mutant}", {resource(mutant): 3}) for mutant in arbitrary]
    holder = pods.create("old-id", {resource("random-ids"): 1}).runs()
    for number in range(3):
        pods.create(f"taken-{number}", {resource("allocates-once"): 1})
    processes["random-ids"].stop()
    have(cluster, {"random-ids": (4, 0)})
    started(plugins, "random-ids")
    have(cluster, {"random-ids": (4, 4)})
    words = {
        "all-of-them": "it is not there",
        "taken-2": "it is in use",
        "huge": "larger than max",
        "empty": "no containers return in allocation response",
        **dict.fromkeys(("no-choice", "no-preference"), "GetPreferredAllocation rpc failed"),
    }
    refused(pods, words)
    assert [len(pod.runs().devices("PARTS")) for pod in given] == [3, 3, 3]
    others = pods.create("new-ids", {resource("random-ids"): 3}).runs()
    numbers = [[name.rpartition("-")[2] for name in pod.devices("PARTS")] for pod in (holder, others)]
    assert numbers == [["0"], ["0", "1", "2"]], "both have the first device, under two names"


@pytest.mark.plays("HOT-01", "HOT-02", "HOT-03", "HOT-04")
def test_a_device_fails_and_recovers(plugins: Plugins, cluster: Cluster) -> None:
    mutants = ("ignores-failure", "drops-failed", "never-recovers", "fails-together")
    started(plugins, *mutants)
    have(cluster, dict.fromkeys(mutants, (5, 4)))
    failed = cluster.kubelet_dir / "fail-part-0"
    failed.touch()
    counts = {"ignores-failure": (5, 4), "drops-failed": (4, 3), "never-recovers": (5, 3), "fails-together": (5, 0)}
    have(cluster, {**counts})
    failed.unlink()
    have(cluster, {**dict.fromkeys(mutants, (5, 4)), "never-recovers": (5, 3)})


@pytest.mark.plays("REG-14", "REG-20", "REG-25", "LST-12", "ALO-13", "END-05", "END-08", "HOT-07")
def test_plugins_and_kubelets_that_are_restarted(plugins: Plugins, pods: Pods, node: Node, cluster: Cluster) -> None:
    again = ("dies-of-left-socket", "registers-only-first-time")
    lost = ("ignores-restart", "ends-with-the-kubelet")
    kept = ("renames-itself", "shrinks-after-restart", "forgets-after-restart", "dead-stream-takes-update")
    processes = started(plugins, *kept, *lost, *again)
    have(cluster, dict.fromkeys((*kept, *lost, *again), (5, 4)))
    for mutant in again:
        processes[mutant].stop(signal.SIGKILL)
    pods.create("first-kubelet", {resource("forgets-after-restart"): 4}).runs().delete()
    started(plugins, *again)
    have(cluster, dict.fromkeys(again, (5, 0)))
    cluster.restart("kubelet")
    have(cluster, {**dict.fromkeys(kept[2:], (5, 4)), kept[1]: (4, 3), **dict.fromkeys(lost, (0, 0))})
    until("another name is there", lambda: any("example.com/part-" in name for name in node.resources()))
    words = refusals(pods, "second-kubelet", "forgets-after-restart")
    # A kubelet that does not know all pods yet counts the devices of one that is gone, and refuses a pod itself (3.72).
    until("the plugin refuses", lambda: "it belongs to the last kubelet" in next(words))
    failed = cluster.kubelet_dir / "fail-part-3"
    failed.touch()
    have(cluster, {"forgets-after-restart": (5, 3), "dead-stream-takes-update": (5, 4)})
    failed.unlink()


@pytest.mark.full("the kubelet restarts a crashed container with a back-off")
@pytest.mark.plays("PST-02")
def test_a_container_that_crashed_never_starts_again(plugins: Plugins, pods: Pods, cluster: Cluster) -> None:
    started(plugins, "starts-once")
    have(cluster, {"starts-once": (5, 4)})
    pods.create("started-once", {resource("starts-once"): 1}, command="exit 0", restartPolicy="Always")
    tell(pods, "Failed", {"started-once": "it was started before"})
