"""Rules of `plugwright verify` about calls that take long, come late or never: what pods meet on a real kubelet."""

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import pytest
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.enclosure import Process
from tests.kubernetes.images import BUSYBOX
from tests.kubernetes.kubectl import Object
from tests.kubernetes.node import Node
from tests.kubernetes.pods import Pod, Pods
from tests.kubernetes.rule_plugins import have, held, marked, refused, resource, started, tell
from tests.kubernetes.serving import Plugins
from tests.kubernetes.waiting import until

# Go begins at a random place of a small map: ids that were put into it in order come out so in five of eight calls.
CALLS = 40
DROPPING = ("starts-unknown", "drops-failed")  # they leave a device that has failed out of their lists


@dataclass(frozen=True)
class Holding:
    """Pods of mutants whose calls are held."""

    cluster: Cluster
    pods: Pods
    processes: Mapping[str, Process]

    @contextmanager
    def held(self, call: str, *mutants: str) -> Iterator[list[Pod]]:
        with held(self.pods, self.cluster, call, {mutant: self.processes[mutant] for mutant in mutants}) as made:
            yield made

    def holds_others_up(self, call: str, mutant: str) -> None:
        """No other pod is admitted meanwhile, although the device manager works on."""
        with self.held(call, mutant) as [pod]:
            beside = self.pods.create(f"beside-{mutant}", {})
            until("it is bound", lambda: beside.read()["spec"].get("nodeName"))
            with self.failing("part-3"):
                assert "startTime" not in beside.read()["status"]
        pod.runs()
        beside.runs()

    @contextmanager
    def fails_meanwhile(self, call: str, *mutants: str) -> Iterator[list[Pod]]:
        """The first device fails between the kubelet's choice and the plugin's answer, until the end of the block."""
        with ExitStack() as failing:
            with self.held(call, *mutants) as made:
                failing.enter_context(self.failing("part-0"))
            yield made

    @contextmanager
    def failing(self, device_id: str) -> Iterator[None]:
        """Every plugin has one device less while inside; the node shows it, and then that it is back."""
        with marked(self.cluster, f"fail-{device_id}"):
            less = {mutant: (4 if mutant in DROPPING else 5, 3) for mutant in self.processes}
            have(self.cluster, {**less})
            yield
        have(self.cluster, dict.fromkeys(self.processes, (5, 4)))


def init_container(number: int, mutant: str, devices: int) -> Object:
    made = {"name": f"before-{number}", "image": BUSYBOX, "imagePullPolicy": "Never", "command": ["true"]}
    return {**made, "resources": {"limits": {resource(mutant): str(devices)}}}


@pytest.mark.plays("REG-10", "LST-08", "ALO-06", "ALO-10", "ALO-12", "PST-03", "PST-04", "PRF-04", "PRF-10", "HOT-05")
def test_calls_that_wait_come_late_or_are_never_made(
    plugins: Plugins, pods: Pods, cluster: Cluster, node: Node
) -> None:
    slowest = started(plugins, "starts-slowly")
    have(cluster, {"starts-slowly": (5, 4)})
    with held(pods, cluster, "pre-start", slowest):  # for half a minute, and other containers start
        late = ("prefers-slowly", "allocates-slowly", "allocates-unhealthy", "allocates-failed", *DROPPING)
        others = ("other-options", "needs-order", "ignores-required", "empty-topology")
        processes = started(plugins, *late, *others)
        processes["correct"] = plugins.mutant("", resource("correct"))
        have(cluster, dict.fromkeys(processes, (5, 4)))
        unasked = pods.create("unasked", {resource("other-options"): 1})
        first = init_container(0, "ignores-required", 1)
        required = pods.create("required", {resource("ignores-required"): 2}, initContainers=[first])
        many = [init_container(number, "needs-order", 4) for number in range(CALLS)]
        pods.create("any-order", {resource("needs-order"): 4}, initContainers=many)
        refused(pods, {"any-order": "not in order"})
        unasked.runs()
        kept, chosen = required.runs().devices("PARTS")
        assert kept == "part-0", "the plugin has left it out"
        assert chosen in ("part-1", "part-2"), "it has named both"

        holding = Holding(cluster, pods, processes)
        holding.holds_others_up("prefer", "prefers-slowly")
        holding.holds_others_up("allocate", "allocates-slowly")
        for careless in ("allocates-unhealthy", "allocates-failed"):
            with holding.fails_meanwhile("allocate", careless) as [pod]:
                assert pod.runs().devices("PARTS") == ["part-0"]
        with holding.fails_meanwhile("allocate", "correct"):
            refused(pods, {"held-correct": "not healthy devices, each once: part-0"})
        with holding.fails_meanwhile("pre-start", *DROPPING) as [starting, _]:
            assert starting.runs().devices("PARTS") == ["part-0"]
            tell(pods, "Failed", {"held-drops-failed": "not healthy devices, each once: part-0"})
        tell(pods, "Failed", {"held-starts-slowly": "DeadlineExceeded"})
    listed = [device.resource for device in asyncio.run(node.allocatable())]
    assert listed.count(resource("other-options")) == 4
    assert resource("empty-topology") not in listed
