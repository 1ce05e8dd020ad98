"""The embedded cluster: pods from their creation to their end, over emulated kubelets, plugins and sockets."""

import asyncio
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.cluster.embedding import Lab, embedded

from plugwright.apiserver.kinds import NODES
from plugwright.apiserver.registry import ResourcePath
from plugwright.apiserver.store import Object
from plugwright.cluster.embedded import ClusterOptions, EmbeddedCluster, mock_gpus
from plugwright.cluster.nodes.node_status import NodeShape
from plugwright.errors import ConfigError, PluginError, StatusError
from plugwright.kubelet import KubeletSettings, Timing
from plugwright.model import Allocation, Device
from plugwright.sdk.plugin import Plugin
from plugwright.sdk.run import serving
from plugwright.sdk.settings import Settings

PULLED = 'Container image "busybox:1" already present on machine and can be accessed by the pod'
FIRST = {"kubernetes.io/hostname": "node-1"}
STARTED = [("Pulled", PULLED), ("Created", "Container created"), ("Started", "Container started")]


def no_plugins(_: str) -> Iterable[Plugin]:
    return []


class Moody(Plugin):
    """Two devices; Allocate and PreStart can be made to fail."""

    resource = "example.com/moody"

    def __init__(self) -> None:
        self.refuses = False
        self.hangs = False
        self.fails_to_start = False

    async def discover(self):  # type: ignore[no-untyped-def]
        yield [Device("m0"), Device("m1")]

    async def allocate(self, devices):  # type: ignore[no-untyped-def]
        if self.hangs:
            await asyncio.Event().wait()
        if self.refuses:
            raise PluginError("hw fault")
        return Allocation(env={"MOODY": ",".join(device.id for device in devices)}, nodes=["/dev/null"])

    async def pre_start(self, devices):  # type: ignore[no-untyped-def]
        if self.fails_to_start:
            raise PluginError("not warm yet")


async def test_a_pod_gets_its_devices_and_its_status_shows_them() -> None:
    async with embedded() as lab:
        await lab.offered()
        lab.create("p", {"mock/gpu": "2"})
        status = await lab.phase("p")
        assert [(condition["type"], condition["status"]) for condition in status["conditions"]] == [
            ("PodReadyToStartContainers", "True"),
            ("Initialized", "True"),
            ("Ready", "True"),
            ("ContainersReady", "True"),
            ("PodScheduled", "True"),
        ]
        assert (status["hostIP"], status["podIP"]) == ("172.18.0.2", "10.244.0.2")
        (container,) = status["containerStatuses"]
        assert (container["ready"], container["restartCount"], list(container["state"])) == (True, 0, ["running"])
        (devices,) = container["allocatedResourcesStatus"]
        assert devices["name"] == "mock/gpu"
        assert [device["health"] for device in devices["resources"]] == ["Healthy", "Healthy"]
        assert lab.events("p") == [("Scheduled", "Successfully assigned default/p to node-1"), *STARTED]
        visible = ",".join(device["resourceID"] for device in devices["resources"])
        assert f"env MOCK_VISIBLE_DEVICES={visible}\n" in lab.cluster.log("default", "p", "main")


async def test_events_of_a_starting_node_are_those_of_a_real_kubelet() -> None:
    async with embedded() as lab:
        await lab.cluster.until(lambda: any(reason == "RegisteredNode" for reason, _ in lab.events("node-1")))
        now = "Node node-1 status is now:"
        assert sorted(lab.events("node-1")) == [
            ("NodeAllocatableEnforced", "Updated Node Allocatable limit across pods"),
            ("NodeHasNoDiskPressure", f"{now} NodeHasNoDiskPressure"),
            ("NodeHasSufficientMemory", f"{now} NodeHasSufficientMemory"),
            ("NodeHasSufficientPID", f"{now} NodeHasSufficientPID"),
            ("NodeReady", f"{now} NodeReady"),
            ("RegisteredNode", "Node node-1 event: Registered Node node-1 in Controller"),
            ("Starting", "Starting kubelet."),
        ]


async def test_a_cordoned_node_is_tainted_and_takes_no_pod_until_it_is_not() -> None:
    def set_unschedulable(lab: Lab, value: bool) -> None:
        place = ResourcePath(NODES, "", "node-1")
        lab.writer.change(place, lambda node: {**node, "spec": {**node["spec"], "unschedulable": value}}, "kubectl")

    async with embedded() as lab:
        set_unschedulable(lab, True)
        await lab.cluster.until(lambda: bool(lab.node()["spec"].get("taints")))
        (taint,) = lab.node()["spec"]["taints"]
        assert (taint["key"], taint["effect"]) == ("node.kubernetes.io/unschedulable", "NoSchedule")
        await lab.cluster.until(lambda: any(reason == "NodeNotSchedulable" for reason, _ in lab.events("node-1")))
        lab.create("p")
        await lab.cluster.until(lambda: any("1 node(s) were unschedulable" in text for _, text in lab.events("p")))
        set_unschedulable(lab, False)
        await lab.phase("p")
        assert "taints" not in lab.node()["spec"]
        await lab.cluster.until(lambda: any(reason == "NodeSchedulable" for reason, _ in lab.events("node-1")))


async def test_pods_are_spread_over_the_nodes() -> None:
    async with embedded(nodes=3) as lab:
        for node in ("node-1", "node-2", "node-3"):
            await lab.offered(node=node)
        for name in ("a", "b", "c"):
            lab.create(name, {"mock/gpu": "10"})
            await lab.phase(name)
        assert [lab.pod(name)["spec"]["nodeName"] for name in "abc"] == ["node-1", "node-2", "node-3"]  # type: ignore[index]
        assert len({lab.status(name)["podIP"] for name in "abc"}) == 3


async def test_a_pod_that_the_plugin_refuses_fails_for_good() -> None:
    plugin = Moody()
    plugin.refuses = True
    async with embedded(plugins=lambda _: [plugin]) as lab:
        await lab.offered("example.com/moody", "2")
        lab.create("p", {"example.com/moody": "1"})
        status = await lab.phase("p", "Failed")
        assert status["reason"] == "UnexpectedAdmissionError"
        assert status["message"].startswith("Pod was rejected: Allocate failed due to ")
        assert "containerStatuses" not in status
        reason, message = lab.events("p")[-1]
        assert reason == "UnexpectedAdmissionError"
        assert f"Pod was rejected: {message}" == status["message"]
        plugin.refuses = False
        lab.create("q", {"example.com/moody": "2"})
        await lab.phase("q")


GATES = [{"conditionType": "example.com/up"}]


@pytest.mark.parametrize(
    ("limits", "spec", "reason", "message"),
    [
        ({"cpu": "100"}, {}, "OutOfcpu", "resource: cpu, requested: 100000, used: 0, capacity: 16000"),
        ({"memory": "1Ti"}, {}, "OutOfmemory", "requested: 1099511627776, used: 0, capacity: 68719476736"),
        ({"mock/gpu": "11"}, {}, "UnexpectedAdmissionError", "Requested: 11, Available: 10, which is unexpected"),
        ({}, {"nodeSelector": {"a": "b"}}, "NodeAffinity", "Predicate NodeAffinity failed"),
        ({}, {"os": {"name": "windows"}}, "PodOSNotSupported", "the OS field doesn't match node OS"),
        # Devices are allocated before CPU is counted (3.1).
        ({"cpu": "100", "mock/gpu": "11"}, {}, "UnexpectedAdmissionError", "Requested: 11, Available: 10"),
    ],
)
async def test_a_pod_that_names_its_node_is_checked_by_its_kubelet(
    limits: dict[str, str], spec: dict[str, object], reason: str, message: str
) -> None:
    async with embedded() as lab:
        await lab.offered()
        lab.create("p", limits, nodeName="node-1", **spec)
        status = await lab.phase("p", "Failed")
        assert status["reason"] == reason
        assert message in status["message"]
        assert lab.events("p") == [(reason, status["message"].removeprefix("Pod was rejected: "))]


async def test_a_node_takes_no_more_pods_than_its_capacity() -> None:
    async with embedded(shape=NodeShape(pods=1)) as lab:
        lab.create("p", nodeName="node-1")
        await lab.phase("p")
        lab.create("q", nodeName="node-1")
        assert (await lab.phase("q", "Failed"))["reason"] == "OutOfpods"


async def test_a_pod_whose_plugin_hangs_can_be_deleted_and_the_next_is_admitted() -> None:
    plugin = Moody()
    plugin.hangs = True
    async with embedded(plugins=lambda _: [plugin]) as lab:
        await lab.offered("example.com/moody", "2")
        lab.create("p", {"example.com/moody": "2"})
        node = lab.cluster.nodes["node-1"]
        await lab.cluster.until(lambda: any(pod.name == "p" for pod in node.kubelet.pods))
        plugin.hangs = False
        lab.delete("p")
        await lab.gone("p")
        lab.create("q", {"example.com/moody": "2"})
        await lab.phase("q")


async def test_a_container_that_cannot_start_waits_and_is_started_again() -> None:
    plugin = Moody()
    plugin.fails_to_start = True
    async with embedded(plugins=lambda _: [plugin]) as lab:
        await lab.offered("example.com/moody", "2")
        lab.create("p", {"example.com/moody": "1"})

        def waiting() -> Object:
            (container,) = lab.status("p").get("containerStatuses") or [{"state": {}}]
            return dict(container["state"].get("waiting") or {})

        await lab.cluster.until(lambda: waiting().get("reason") == "CreateContainerConfigError")
        assert "not warm yet" in waiting()["message"]
        assert lab.status("p")["phase"] == "Pending"
        with pytest.raises(StatusError) as refused:
            lab.cluster.log("default", "p", "main")
        assert refused.value.message == 'container "main" in pod "p" is waiting to start: CreateContainerConfigError'
        await lab.cluster.until(lambda: any(reason == "Failed" for reason, _ in lab.events("p")))
        plugin.fails_to_start = False
        status = await lab.phase("p")
        assert status["containerStatuses"][0]["restartCount"] == 0


async def test_a_failed_device_shows_in_the_status_of_its_node_and_its_pod() -> None:
    async with embedded() as lab:
        await lab.offered()
        lab.create("p", {"mock/gpu": "1"})
        status = await lab.phase("p")
        device = status["containerStatuses"][0]["allocatedResourcesStatus"][0]["resources"][0]["resourceID"]

        def health() -> str:
            container = lab.status("p")["containerStatuses"][0]
            return str(container["allocatedResourcesStatus"][0]["resources"][0]["health"])

        await lab.command("fail", device)
        await lab.cluster.until(lambda: (lab.counts("mock/gpu"), health()) == (("10", "9"), "Unhealthy"))
        await lab.command("recover", device)
        await lab.cluster.until(lambda: (lab.counts("mock/gpu"), health()) == (("10", "10"), "Healthy"))
        assert lab.status("p")["phase"] == "Running"


async def test_a_deleted_pod_ends_and_its_devices_go_to_the_next() -> None:
    async with embedded() as lab:
        await lab.offered()
        lab.create("p", {"mock/gpu": "10"})
        await lab.phase("p")
        lab.create("q", {"mock/gpu": "10"})
        lab.delete("p")
        await lab.gone("p")
        assert lab.events("p")[-1] == ("Killing", "Stopping container main")
        await lab.phase("q")


async def test_a_pod_of_the_same_name_may_follow_at_once() -> None:
    async with embedded() as lab:
        await lab.offered()
        lab.create("p", {"mock/gpu": "10"})
        first = await lab.phase("p")
        lab.delete("p", grace=0)
        lab.create("p", {"mock/gpu": "10"})
        second = await lab.phase("p")
        assert first["containerStatuses"][0]["containerID"] != second["containerStatuses"][0]["containerID"]


async def test_init_containers_and_sidecars_have_a_status_of_their_own() -> None:
    async with embedded() as lab:
        await lab.offered()
        inits = [
            {"name": "first", "image": "busybox:1", "resources": {"limits": {"mock/gpu": "4"}}},
            {"name": "beside", "image": "busybox:1", "restartPolicy": "Always"},
        ]
        lab.create("p", {"mock/gpu": "2"}, initContainers=inits)
        status = await lab.phase("p")
        first, beside = status["initContainerStatuses"]
        assert (first["state"]["terminated"]["reason"], first["ready"]) == ("Completed", True)
        assert "running" in beside["state"]


async def test_a_stopped_node_becomes_not_ready_and_comes_back() -> None:
    async with embedded(nodes=2) as lab:
        await lab.offered()
        lab.create("p", {"mock/gpu": "1"}, nodeSelector=FIRST)
        await lab.phase("p")
        await lab.cluster.stop_node("node-1")
        await lab.is_ready("Unknown")
        ready = lab.condition("Ready")
        assert (ready["reason"], ready["message"]) == ("NodeStatusUnknown", "Kubelet stopped posting node status.")
        await lab.cluster.until(lambda: len(lab.node()["spec"].get("taints") or ()) == 2)
        assert {(taint["key"], taint["effect"]) for taint in lab.node()["spec"]["taints"]} == {
            ("node.kubernetes.io/unreachable", "NoSchedule"),
            ("node.kubernetes.io/unreachable", "NoExecute"),
        }
        with pytest.raises(StatusError, match="connection refused"):
            lab.cluster.log("default", "p", "main")
        await lab.cluster.start_node("node-1")
        await lab.is_ready("True")
        await lab.cluster.until(lambda: "taints" not in lab.node()["spec"])
        await lab.offered()
        assert "MOCK_VISIBLE_DEVICES" in lab.cluster.log("default", "p", "main")
        lab.create("q", {"mock/gpu": "9"}, nodeSelector=FIRST)
        await lab.phase("q")


async def test_a_pod_deleted_while_its_node_is_stopped_ends_when_the_node_is_back() -> None:
    async with embedded() as lab:
        await lab.offered()
        lab.create("p", {"mock/gpu": "1"})
        await lab.phase("p")
        await lab.cluster.stop_node("node-1")
        lab.delete("p")
        await lab.is_ready("Unknown")
        assert lab.pod("p") is not None
        await lab.cluster.start_node("node-1")
        await lab.gone("p")


async def test_pods_without_a_matching_toleration_are_evicted_from_a_stopped_node() -> None:
    async with embedded(nodes=2) as lab:
        tolerations = [{"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute"}]
        hurried = [{**tolerations[0], "tolerationSeconds": 0}]
        lab.create("patient", tolerations=tolerations, nodeSelector=FIRST)
        lab.create("hurried", tolerations=hurried, nodeSelector=FIRST)
        await lab.phase("patient")
        await lab.phase("hurried")
        await lab.cluster.stop_node("node-1")
        await lab.cluster.until(lambda: "deletionTimestamp" in (lab.pod("hurried") or {"metadata": {}})["metadata"])
        assert ("TaintManagerEviction", "Marking for deletion Pod default/hurried") in lab.events("hurried")
        assert "deletionTimestamp" not in lab.pod("patient")["metadata"]  # type: ignore[index]


async def test_pods_devices_and_logs_survive_a_restart(tmp_path: Path) -> None:
    async with embedded(state=tmp_path) as lab:
        await lab.offered()
        lab.create("p", {"mock/gpu": "2"})
        before = await lab.phase("p")
        text = lab.cluster.log("default", "p", "main")
    async with embedded(state=tmp_path) as lab:
        await lab.offered()
        after = await lab.phase("p")
        assert after["containerStatuses"] == before["containerStatuses"]
        assert lab.cluster.log("default", "p", "main") == text
        lab.create("q", {"mock/gpu": "9"})
        await lab.cluster.until(lambda: any(reason == "FailedScheduling" for reason, _ in lab.events("q")))
        lab.delete("p")
        await lab.phase("q")


async def test_a_deep_state_directory_has_working_sockets(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 60) / ("e" * 60)
    async with embedded(state=deep) as lab:
        await lab.offered()
    assert (deep / "nodes" / "node-1" / "device-plugins" / "kubelet_internal_checkpoint").is_file()


async def test_a_cluster_without_a_state_directory_leaves_nothing() -> None:
    async with embedded() as lab:
        directory = lab.cluster.directory("node-1")
        assert directory.is_dir()
    assert not directory.exists()


async def test_a_plugin_of_another_program_registers_in_the_node_s_directory() -> None:
    async with embedded(plugins=no_plugins) as lab:
        root = lab.cluster.directory("node-1")
        async with serving(*mock_gpus("other"), settings=Settings(kubelet_dir=root)):
            await lab.offered()


async def test_capacity_set_by_hand_becomes_allocatable_unless_a_plugin_serves_it() -> None:
    async with embedded() as lab:
        await lab.offered()

        def set_by_hand(node: Object) -> Object:
            capacity = {**node["status"]["capacity"], "example.com/dongle": "4", "mock/gpu": "99"}
            return {**node, "status": {**node["status"], "capacity": capacity}}

        lab.writer.change(ResourcePath(NODES, "", "node-1", "status"), set_by_hand, "kubectl-patch")
        await lab.cluster.until(lambda: lab.counts("example.com/dongle") == ("4", "4"))
        await lab.offered()
        lab.create("p", {"example.com/dongle": "4"})
        await lab.phase("p")


async def test_a_resource_whose_plugin_is_gone_becomes_0_after_the_grace_period() -> None:
    settings = KubeletSettings(numa=2, timing=Timing(grace=0.3, node_status=0.05))
    async with embedded(kubelet=settings) as lab:
        await lab.offered()
        await lab.cluster.serve("node-1", [])
        await lab.cluster.until(lambda: lab.counts("mock/gpu") == ("0", "0"))


async def test_containers_run_as_processes_with_the_option_processes() -> None:
    async with embedded(processes=True) as lab:
        await lab.offered()
        for name, script, phase in (("good", "echo got $MOCK_MODEL", "Succeeded"), ("bad", "exit 3", "Failed")):
            container = {
                "name": "main",
                "image": "busybox:1",
                "command": ["/bin/sh", "-c", script],
                "resources": {"limits": {"mock/gpu": "1"}},
            }
            lab.create(name, containers=[container], restartPolicy="Never")
            await lab.phase(name, phase)
        assert lab.cluster.log("default", "good", "main").splitlines()[-1] == "got Mock-A100"
        ended = lab.status("bad")["containerStatuses"][0]["state"]["terminated"]
        assert (ended["exitCode"], ended["reason"]) == (3, "Error")


async def test_an_init_process_that_fails_fails_its_pod() -> None:
    async with embedded(processes=True) as lab:
        init = {"name": "first", "image": "busybox:1", "command": ["/bin/sh", "-c", "exit 7"]}
        lab.create("p", initContainers=[init], restartPolicy="Never")
        status = await lab.phase("p", "Failed")
        assert status["initContainerStatuses"][0]["state"]["terminated"]["exitCode"] == 7


async def test_processes_are_started_again_with_their_devices_after_a_restart(tmp_path: Path) -> None:
    script = "echo got $MOCK_VISIBLE_DEVICES; sleep 1000"
    container: Object = {"name": "main", "image": "busybox:1", "command": ["/bin/sh", "-c", script]}
    container |= {"resources": {"limits": {"mock/gpu": "2"}}}

    async with embedded(processes=True, state=tmp_path) as lab:
        await lab.offered()
        lab.create("p", containers=[container])
        await lab.phase("p")
        first = await anext(lab.read_log("p", follow=True))
    async with embedded(processes=True, state=tmp_path) as lab:
        await lab.container("p", lambda shown: shown["restartCount"] == 1 and "running" in shown["state"])
        assert await anext(lab.read_log("p", follow=True)) == await anext(lab.read_log("p", previous=True)) == first
        assert lab.status("p")["containerStatuses"][0]["lastState"]["terminated"]["reason"] == "ContainerStatusUnknown"
        assert lab.status("p")["phase"] == "Running"


async def test_a_cluster_without_nodes_and_an_unknown_node_are_refused() -> None:
    with pytest.raises(ConfigError, match="at least one node"):
        ClusterOptions(nodes=0)
    async with embedded() as lab:
        with pytest.raises(ConfigError, match="there is no node 'node-2', only node-1"):
            await lab.cluster.stop_node("node-2")


async def test_a_state_directory_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    (tmp_path / "nodes").touch()
    with pytest.raises(ConfigError):
        async with EmbeddedCluster(replace(ClusterOptions(), state=tmp_path)):
            pass
