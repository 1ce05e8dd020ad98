"""Further rules for device plugins, many mutants of the small plugin at a time beside a real kubelet."""

import signal

import pytest
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.enclosure import Process
from tests.kubernetes.node import Node
from tests.kubernetes.pods import Pod, Pods, refusal
from tests.kubernetes.serving import Plugins
from tests.kubernetes.waiting import until

_OPEN = "for n in $(ls /dev | grep ^part); do echo > /dev/$n && echo opened; done"


def resource(mutant: str) -> str:
    return f"example.com/{mutant}"


def started(plugins: Plugins, *mutants: str) -> dict[str, Process]:
    return {mutant: plugins.mutant(mutant, resource(mutant)) for mutant in mutants}


def shown(node: Node, *mutants: str) -> None:
    for mutant in mutants:
        node.shows(resource(mutant), capacity=5, allocatable=4)


def waiting(pods: Pods) -> dict[str, str]:
    """The pods whose container waits, with the reason."""
    return {
        name: status["state"]["waiting"]["reason"]
        for name, pod in pods.every().items()
        for status in pod["status"].get("containerStatuses", [])
        if "waiting" in status["state"]
    }


def refused(pods: Pods, words: dict[str, str]) -> None:
    """Waits until these pods are refused for good with these words."""

    def missing() -> dict[str, str]:
        texts = {name: str(refusal(pod)) for name, pod in pods.every().items()}
        return {name: texts[name] for name, wanted in words.items() if wanted not in texts[name]}

    until("they are refused", lambda: not missing(), last=missing)


@pytest.mark.plays("REG-04", "REG-06", "REG-23", "REG-24", "LST-01", "LST-02", "LST-05")
def test_a_node_has_no_devices_of_a_plugin(plugins: Plugins, node: Node) -> None:
    words = {
        "old-version": "is not supported by kubelet",
        "absolute-endpoint": "failed to dial device plugin",
        "announces-other-type": "refused: ",
        "announces-other-version": "refused: ",
    }
    processes = started(plugins, *words, "refuses-status", "sends-no-list", "list-too-large", "long-id")
    for mutant, text in words.items():
        until(f"{mutant} is refused", lambda: processes[mutant].lines(text), last=processes[mutant].lines)  # noqa: B023
    node.shows(resource("long-id"), capacity=6, allocatable=5)
    node.shows(resource("refuses-status"), capacity=0, allocatable=0)
    assert {mutant: node.resource(resource(mutant)) for mutant in words} == dict.fromkeys(words)
    assert {node.resource(resource(mutant)) for mutant in ("sends-no-list", "list-too-large")} <= {None, (0, 0)}


@pytest.mark.plays("ANS-03", "ANS-04", "ANS-05", "ANS-06", "ANS-07", "ANS-08", "ANS-09", "ANS-11")
def test_a_container_is_not_created_or_misses_something(plugins: Plugins, node: Node, pods: Pods) -> None:
    failing = ("relative-node", "other-permissions", "missing-mount", "relative-mount", "variable-with-equals")
    cdi = ("unqualified-cdi", "unresolved-cdi")
    starting = ("no-permissions", "conflicting-paths")
    mutants = (*failing, *cdi, *starting)
    started(plugins, *mutants)
    shown(node, *mutants)
    made = {mutant: pods.create(f"answer-{mutant}", {resource(mutant): 1}) for mutant in mutants}
    conflicting, closed = made["conflicting-paths"].runs(), made["no-permissions"].runs()
    assert conflicting.exec("sh", "-c", "ls /dev | grep ^part | wc -l").strip() == "1"
    assert "opened" not in closed.exec("sh", "-c", f"{_OPEN}; true")
    names = {f"answer-{mutant}" for mutant in (*failing, *cdi)}
    until("they wait", lambda: names <= set(waiting(pods)), last=lambda: waiting(pods))
    assert set(waiting(pods).values()) <= {"CreateContainerError", "RunContainerError", "ContainerCreating"}


@pytest.mark.plays("ALO-01", "ALO-08", "ANS-13", "PRF-02", "PRF-05", "PRF-08", "PRF-09", "PST-02")
def test_pods_are_refused_or_have_other_devices_than_was_preferred(plugins: Plugins, node: Node, pods: Pods) -> None:
    mutants = ("refuses-one-device", "allocates-once", "huge-answer", "needs-choice", "starts-once")
    arbitrary = ("prefers-too-few", "prefers-one-twice", "one-preference")
    started(plugins, *mutants, *arbitrary)
    shown(node, *mutants, *arbitrary)
    pods.create("all-of-them", {resource("refuses-one-device"): 4})
    pods.create("no-choice", {resource("needs-choice"): 4})
    pods.create("huge", {resource("huge-answer"): 2})
    given = [pods.create(f"preferred-{mutant}", {resource(mutant): 3}) for mutant in arbitrary]
    restarted = pods.create("started-once", {resource("starts-once"): 1}, command="exit 0", restartPolicy="Always")
    for number in range(3):
        pods.create(f"taken-{number}", {resource("allocates-once"): 1})
    words = {"all-of-them": "it is not there", "taken-2": "it is in use", "huge": "larger than max"}
    refused(pods, {**words, "no-choice": "GetPreferredAllocation rpc failed"})
    assert [len(pod.runs().devices("PARTS")) for pod in given] == [3, 3, 3]
    until("it does not start again", lambda: "PreStartContainer" in _messages(restarted), last=restarted.read)


@pytest.mark.plays("REG-20", "REG-25", "LST-12", "END-05", "END-08")
def test_plugins_and_kubelets_that_are_restarted(plugins: Plugins, node: Node, cluster: Cluster) -> None:
    again = ("dies-of-left-socket", "registers-only-first-time")
    kept = ("renames-itself", "ends-with-the-kubelet", "shrinks-after-restart")
    processes = started(plugins, *kept, *again)
    shown(node, *kept, *again)
    for mutant in again:
        processes[mutant].stop(signal.SIGKILL)
    started(plugins, *again)
    for mutant in again:
        node.shows(resource(mutant), capacity=5, allocatable=0)
    cluster.restart("kubelet")
    node.shows(resource("renames-itself"), capacity=5, allocatable=4)
    node.shows("example.com/part-2", capacity=5, allocatable=4)
    node.shows(resource("shrinks-after-restart"), capacity=4, allocatable=3)
    node.shows(resource("ends-with-the-kubelet"), capacity=0, allocatable=0)


def _messages(pod: Pod) -> str:
    statuses = pod.read()["status"].get("containerStatuses", [])
    return " ".join(str(status["state"].get("waiting", {}).get("message", "")) for status in statuses)
