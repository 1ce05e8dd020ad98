"""The controllers over a store, with a clock that the test advances: garbage, namespaces, nodes, NoExecute taints."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

import pytest
from tests.cluster.pods_and_nodes import node_object, pod_object

from plugwright.apiserver.kinds import CONFIG_MAPS, EVENTS, LEASES, NAMESPACES, NODES, PODS, Kind
from plugwright.apiserver.registry import DeleteOptions, ResourcePath, Writer
from plugwright.apiserver.store import Change, Object, ObjectKey, Store
from plugwright.cluster.controllers.controller_manager import ControllerManager
from plugwright.cluster.events import ClusterClient
from plugwright.errors import ClusterError, StatusError

WAIT = "example.com/wait"


class Unwritable:
    """Storage that takes no deletion while it is full."""

    is_full = False

    def load(self) -> tuple[int, list[tuple[ObjectKey, Object]]]:
        return 1, []

    def save(self, change: Change) -> None:
        if self.is_full and change.type == "DELETED":
            raise ClusterError("cannot write objects.db: database or disk is full")


class Lab:
    def __init__(self, disk: Unwritable | None = None) -> None:
        self.time = datetime(2026, 11, 15, 12, tzinfo=UTC)
        self.store = Store(disk)
        self.writer = Writer(self.store, self.now)
        self.manager = ControllerManager(ClusterClient(self.store, self.writer, self.now))
        for name in ("default", "kube-node-lease", "other"):
            self.writer.create(ResourcePath(NAMESPACES, "", name), {"metadata": {"name": name}}, "test")
        self.manager.resync()

    def now(self) -> datetime:
        return self.time

    async def settle(self, seconds: float = 0) -> None:
        """Lets the controllers work until they have nothing to do."""
        self.time += timedelta(seconds=seconds)
        revision = -1
        while revision != self.store.revision:
            revision = self.store.revision
            await self.manager.step(0)

    def map(self, name: str, *owners: Object, namespace: str = "default", finalizers: tuple[str, ...] = ()) -> Object:
        metadata = {"name": name, "ownerReferences": list(owners), "finalizers": list(finalizers)}
        return self.writer.create(ResourcePath(CONFIG_MAPS, namespace, name), {"metadata": metadata}, "test")

    def get(self, name: str, kind: Kind = CONFIG_MAPS, namespace: str = "default") -> Object | None:
        return self.store.get(ObjectKey(kind.qualified, namespace, name))

    def delete(self, name: str, propagation: str = "", kind: Kind = CONFIG_MAPS) -> None:
        namespace = "default" if kind.namespaced else ""
        self.writer.delete(ResourcePath(kind, namespace, name), DeleteOptions(propagation=propagation))

    def node(self, *taints: Mapping[str, str]) -> Object:
        return self.writer.create(ResourcePath(NODES, "", "n1"), node_object("n1", taints=list(taints)), "kubelet")

    def taint(self, *taints: Mapping[str, str]) -> None:
        path = ResourcePath(NODES, "", "n1")
        self.writer.change(path, lambda node: {**node, "spec": {"taints": list(taints)}}, "test")

    def pod(self, name: str, *tolerations: Mapping[str, object]) -> None:
        path = ResourcePath(PODS, "default", name)
        self.writer.create(path, pod_object(name, tolerations=list(tolerations)), "test")
        self.writer.bind(path, "n1")

    def is_evicted(self, name: str) -> bool:
        found = self.get(name, PODS)
        return found is None or "deletionTimestamp" in found["metadata"]

    def messages(self) -> list[str]:
        return [event["message"] for event in self.store.objects(EVENTS.qualified)]


def owner(found: Object, **more: object) -> Object:
    metadata = found["metadata"]
    return {"apiVersion": "v1", "kind": found["kind"], "name": metadata["name"], "uid": metadata["uid"], **more}


async def test_dependents_go_after_their_owner() -> None:
    lab = Lab()
    first = lab.map("first")
    second = lab.map("second", owner(first))
    lab.map("third", owner(second))
    await lab.settle()
    lab.delete("first")
    await lab.settle()
    assert [lab.get(name) for name in ("first", "second", "third")] == [None, None, None]


async def test_an_object_of_an_owner_that_does_not_exist_goes_at_once() -> None:
    lab = Lab()
    lab.map("lost", {"apiVersion": "v1", "kind": "ConfigMap", "name": "never", "uid": "1"})
    lab.map("kept", {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "of-a-kind-not-served", "uid": "2"})
    await lab.settle()
    assert lab.get("lost") is None
    assert lab.get("kept") is not None


async def test_an_owner_in_another_namespace_is_none() -> None:
    lab = Lab()
    elsewhere = lab.map("first", namespace="other")
    lab.map("second", owner(elsewhere))
    await lab.settle()
    assert lab.get("second") is None
    uid = elsewhere["metadata"]["uid"]
    text = f"[v1/ConfigMap, namespace: default, name: first, uid: {uid}] does not exist in namespace"
    assert f'ownerRef {text} "default"' in lab.messages()


async def test_an_object_with_another_owner_stays() -> None:
    lab = Lab()
    one, two = lab.map("one"), lab.map("two")
    lab.map("both", owner(one), owner(two))
    lab.delete("one")
    await lab.settle()
    left = lab.get("both")
    assert left is not None
    assert [entry["name"] for entry in left["metadata"]["ownerReferences"]] == ["two"]


async def test_an_owner_deleted_in_the_foreground_waits_for_those_that_block_it() -> None:
    lab = Lab()
    first = lab.map("first")
    lab.map("blocks", owner(first, blockOwnerDeletion=True), finalizers=(WAIT,))
    lab.delete("first", "Foreground")
    await lab.settle()
    waiting = lab.get("first")
    assert waiting is not None
    assert waiting["metadata"]["finalizers"] == ["foregroundDeletion"]
    path = ResourcePath(CONFIG_MAPS, "default", "blocks")
    lab.writer.change(path, lambda found: {**found, "metadata": {**found["metadata"], "finalizers": []}}, "test")
    await lab.settle()
    assert [lab.get(name) for name in ("first", "blocks")] == [None, None]


async def test_an_owner_can_leave_its_dependents() -> None:
    lab = Lab()
    first = lab.map("first")
    lab.map("second", owner(first))
    await lab.settle()
    lab.delete("first", "Orphan")
    await lab.settle()
    assert lab.get("first") is None
    left = lab.get("second")
    assert left is not None
    assert "ownerReferences" not in left["metadata"]


async def test_a_deletion_that_could_not_be_written_is_tried_again() -> None:
    disk = Unwritable()
    lab = Lab(disk)
    first = lab.map("first")
    lab.map("second", owner(first))
    await lab.settle()
    lab.delete("first")
    disk.is_full = True
    await lab.settle()
    assert lab.get("second") is not None
    disk.is_full = False
    await lab.settle(1)
    assert lab.get("second") is None


async def test_a_namespace_is_terminating_until_it_is_empty() -> None:
    lab = Lab()
    lab.map("kept", namespace="other", finalizers=(WAIT,))
    lab.map("plain", namespace="other")
    lab.delete("other", kind=NAMESPACES)
    await lab.settle()
    namespace = lab.get("other", NAMESPACES, "")
    assert namespace is not None
    assert namespace["status"]["phase"] == "Terminating"
    messages = {entry["type"]: entry["message"] for entry in namespace["status"]["conditions"]}
    remaining = "Some resources are remaining: configmaps. has 1 resource instances"
    assert messages["NamespaceContentRemaining"] == remaining
    finalizers = f"Some content in the namespace has finalizers remaining: {WAIT} in 1 resource instances"
    assert messages["NamespaceFinalizersRemaining"] == finalizers
    path = ResourcePath(CONFIG_MAPS, "other", "kept")
    lab.writer.change(path, lambda found: {**found, "metadata": {**found["metadata"], "finalizers": []}}, "test")
    await lab.settle()
    assert lab.get("other", NAMESPACES, "") is None


async def test_a_namespace_with_a_finalizer_of_its_own_waits_for_it() -> None:
    lab = Lab()
    path = ResourcePath(NAMESPACES, "", "kept")
    lab.writer.create(path, {"metadata": {"name": "kept", "finalizers": [WAIT]}}, "test")
    lab.delete("kept", kind=NAMESPACES)
    await lab.settle()
    assert lab.get("kept", NAMESPACES, "") is not None
    lab.writer.change(path, lambda found: {**found, "metadata": {**found["metadata"], "finalizers": []}}, "test")
    assert lab.get("kept", NAMESPACES, "") is None


async def test_the_pods_and_the_lease_of_a_deleted_node_go() -> None:
    lab = Lab()
    node = lab.node()
    metadata = {"name": "n1", "ownerReferences": [owner(node)]}
    lab.writer.create(ResourcePath(LEASES, "kube-node-lease", "n1"), {"metadata": metadata}, "kubelet")
    lab.pod("p")
    lab.delete("n1", kind=NODES)
    await lab.settle()
    assert lab.get("n1", LEASES, "kube-node-lease") is None
    await lab.settle(39)
    assert lab.get("p", PODS) is not None
    revision = lab.store.revision
    await lab.settle(1)
    assert lab.get("p", PODS) is None
    (failed, *_) = await lab.store.changes(revision)
    (condition,) = [entry for entry in failed.object["status"]["conditions"] if entry["type"] == "DisruptionTarget"]
    assert failed.object["status"]["phase"] == "Failed"
    assert (condition["reason"], condition["message"]) == ("DeletionByPodGC", "PodGC: node no longer exists")


async def test_a_node_that_comes_back_in_time_keeps_its_pods() -> None:
    lab = Lab()
    lab.node()
    lab.pod("p")
    lab.delete("n1", kind=NODES)
    await lab.settle(30)
    lab.node()
    await lab.settle(30)
    assert lab.get("p", PODS) is not None


TAINT = {"key": "maintenance", "value": "now", "effect": "NoExecute"}
FOREVER = {"key": "maintenance", "operator": "Exists", "effect": "NoExecute"}


@pytest.mark.parametrize(
    ("tolerations", "seconds"),
    [
        ([], 0),
        ([{**FOREVER, "tolerationSeconds": 0}], 0),
        ([{**FOREVER, "tolerationSeconds": 60}], 60),
        ([FOREVER, {**FOREVER, "tolerationSeconds": 20}], 20),
        ([{**FOREVER, "effect": "NoSchedule"}], 0),
    ],
)
async def test_pods_leave_a_node_with_a_no_execute_taint(tolerations: list[Mapping[str, object]], seconds: int) -> None:
    lab = Lab()
    lab.node()
    lab.pod("p", *tolerations)
    await lab.settle()
    lab.taint(TAINT)
    await lab.settle()
    if seconds:
        await lab.settle(seconds - 1)
        assert not lab.is_evicted("p")
        await lab.settle(1)
    assert lab.is_evicted("p")
    assert lab.messages() == ["Marking for deletion Pod default/p"]
    found = lab.get("p", PODS)
    assert found is not None
    (condition,) = [entry for entry in found["status"]["conditions"] if entry["type"] == "DisruptionTarget"]
    expected = ("DeletionByTaintManager", "Taint manager: deleting due to NoExecute taint")
    assert (condition["reason"], condition["message"]) == expected


async def test_a_pod_that_tolerates_the_taint_stays() -> None:
    lab = Lab()
    lab.node(TAINT)
    lab.pod("p", FOREVER)
    await lab.settle(9999)
    assert not lab.is_evicted("p")


async def test_a_pod_bound_to_a_tainted_node_leaves_it() -> None:
    lab = Lab()
    lab.node(TAINT)
    await lab.settle()
    lab.pod("p", {**FOREVER, "tolerationSeconds": 5})
    await lab.settle()
    await lab.settle(5)
    assert lab.is_evicted("p")


async def test_an_eviction_is_cancelled_with_the_taint() -> None:
    lab = Lab()
    lab.node(TAINT)
    lab.pod("p", {**FOREVER, "tolerationSeconds": 60})
    await lab.settle(30)
    lab.taint()
    await lab.settle()
    await lab.settle(60)
    assert not lab.is_evicted("p")
    assert lab.messages() == ["Cancelling deletion of Pod default/p"]


async def test_pods_of_a_node_that_is_unreachable_leave_after_five_minutes() -> None:
    lab = Lab()
    lab.node()
    lab.pod("p")
    lab.taint({"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"})
    await lab.settle()
    await lab.settle(299)
    assert not lab.is_evicted("p")
    await lab.settle(1)
    assert lab.is_evicted("p")


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (
            {"serviceAccountName": "nobody"},
            'error looking up service account default/nobody: serviceaccount "nobody" not found',
        ),
        ({"priorityClassName": "high"}, "no PriorityClass with name high was found"),
        ({"priority": 5}, "the integer value of priority (5) must not be provided in pod spec; priority admission"),
        ({"runtimeClassName": "gvisor"}, 'pod rejected: RuntimeClass "gvisor" not found'),
        ({"overhead": {"cpu": "1"}}, "pod rejected: Pod Overhead set without corresponding RuntimeClass defined"),
        (
            {"nodeName": "n1", "volumes": [{"name": "data", "nfs": {"server": "a", "path": "/b"}}]},
            "plugwright does not emulate volumes.nfs; use `plugwright join` with a real API server",
        ),
    ],
)
def test_a_pod_that_asks_for_what_there_is_not_is_forbidden(spec: dict[str, object], words: str) -> None:
    lab = Lab()
    with pytest.raises(StatusError) as refused:
        lab.writer.create(ResourcePath(PODS, "default", "p"), pod_object("p", None, **spec), "test")
    assert (refused.value.code, refused.value.reason) == (403, "Forbidden")
    assert refused.value.message.startswith(f'pods "p" is forbidden: {words}')
