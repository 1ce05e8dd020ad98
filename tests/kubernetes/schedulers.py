"""Our scheduler and controllers, and the real ones, behind one interface: tests play the same objects to both.

The nodes are objects without a kubelet, in both clusters, so that nothing has to start: a bound pod stays Pending.
"""

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from tests.kubernetes.cluster import Cluster
from tests.kubernetes.kubectl import KubectlFailed, Object
from tests.kubernetes.waiting import until

from plugwright.apiserver import KUBERNETES_VERSION, clock, schema
from plugwright.apiserver.kinds import KINDS, NAMESPACES
from plugwright.apiserver.registry import DeleteOptions, ResourcePath, Writer
from plugwright.apiserver.store import Store
from plugwright.cluster.controllers.controller_manager import ControllerManager
from plugwright.cluster.events import ClusterClient
from plugwright.cluster.scheduling.scheduler import Scheduler
from plugwright.errors import StatusError

__all__ = ["Ours", "Real", "Seen", "condition", "is_settled", "lease", "node", "nodes", "ours", "pod", "seen"]

OFFER = {"cpu": "4", "memory": "8Gi", "pods": "110"}
READY = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "kubelet is posting ready status"}
Seen = dict[str, Any]

_HEARTBEAT = 10.0  # seconds


def node(name: str, zone: str) -> Object:
    labels = {"sched/lab": "yes", "sched/zone": zone, "kubernetes.io/hostname": name}
    status = {"capacity": OFFER, "allocatable": OFFER, "conditions": [READY]}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}, "status": status}


def pod(name: str, where: Mapping[str, str] | None = None, app: str = "", **spec: Any) -> Object:
    """On one of the two nodes; `ports` and `resources` are its container's."""
    parts = {part: spec.pop(part) for part in ("ports", "resources") if part in spec}
    pod_spec: Object = {
        "containers": [{"name": "main", "image": "sched:1", **parts}],
        "nodeSelector": {"sched/lab": "yes", **(where or {})},
        "automountServiceAccountToken": False,
        **({"resources": spec.pop("pod_resources")} if "pod_resources" in spec else {}),
        **spec,
    }
    metadata = {"name": f"sched-{name}", "namespace": "default", **({"labels": {"app": app}} if app else {})}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod_spec}


THE_REAL_NODE = {**node("node", ""), "metadata": {"name": "node"}}


def condition(found: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(str(found.get(key)) for key in ("type", "status", "reason", "message"))


_ADVICE = (
    "consider using CEL optional chaining (.? followed by orValue()) or guarding the check with has() "
    "for optional fields"
)


def in_words_of(version: str, played: Any) -> Any:
    """What was played to ours, with the words of that version.

    1.37 no longer says what claims could be deallocated, and has advice for missing keys.
    """
    text = json.dumps(played)
    if version != KUBERNETES_VERSION:
        text = text.replace("no new claims to deallocate, ", "").replace("still not schedulable, ", "")
        text = re.sub(r"CEL runtime error: no such key: \w+", rf"\g<0>. {_ADVICE}", text)
    return json.loads(text)


def seen(found: Object) -> Seen:
    status = found["status"]
    return {
        "phase": status["phase"],
        "node": found["spec"].get("nodeName", ""),
        "conditions": sorted(map(condition, status.get("conditions") or ())),
    }


def is_settled(found: Object) -> bool:
    """Bound, or with a condition that says why not."""
    return bool(found["spec"].get("nodeName") or found["status"].get("conditions"))


def forbidden(text: str) -> str:
    match = re.search(r'pods "sched-[a-z]+" is forbidden: .*', text)
    return match[0] if match else text


class Ours:
    """Scheduler and controllers over a store."""

    def __init__(self, *found: Object) -> None:
        self.store = Store()
        self.writer = Writer(self.store)
        for name in ("default", "kube-node-lease"):
            self.writer.create(ResourcePath(NAMESPACES, "", name), {"metadata": {"name": name}}, "test")
        for made in (THE_REAL_NODE, *found):
            self.writer.create(self._path("Node", made["metadata"]["name"], ""), made, "test")

    def create(self, made: Object) -> str:
        """The refusal, if it is refused."""
        path = self._path(made["kind"], made["metadata"]["name"], made["metadata"].get("namespace", "default"))
        try:
            checked, _ = schema.checked_object(path.kind, made, "Strict")
            self.writer.create(path, checked, "test")
        except StatusError as error:
            return forbidden(error.message)
        return ""

    def get(self, kind: str, name: str, namespace: str = "default") -> Object | None:
        return self.store.get(self._path(kind, name, namespace).key)

    def objects(self, kind: str) -> list[Object]:
        return list(self.store.objects(self._path(kind, "", "").kind.qualified))

    def delete(self, kind: str, name: str, propagation: str = "Background") -> None:
        self.writer.delete(self._path(kind, name, "default"), DeleteOptions(propagation=propagation))

    def change(self, kind: str, name: str, namespace: str, **changes: Object) -> None:
        def changed(found: Object) -> Object:
            return {**found, **{part: {**found[part], **values} for part, values in changes.items()}}

        self.writer.change(self._path(kind, name, namespace), changed, "test")

    async def until(self, what: str, fact: Callable[[], bool]) -> None:
        async with asyncio.timeout(30):
            while not fact():
                await self.store.changes(self.store.revision)

    @staticmethod
    def _path(kind: str, name: str, namespace: str) -> ResourcePath:
        (found,) = [each for each in KINDS if each.name == kind and each.storage is each]
        return ResourcePath(found, namespace if found.namespaced else "", name)


class Real:
    """The same by kubectl; a node that nobody runs has its heartbeats from here."""

    def __init__(self, cluster: Cluster, *nodes: Object) -> None:
        self._kubectl = cluster.kubectl
        self._nodes = [each["metadata"]["name"] for each in nodes]
        self._renewed = time.monotonic()

    def create(self, made: Object) -> str:
        try:
            self._kubectl.create(made)
        except KubectlFailed as error:
            return forbidden(str(error))
        return ""

    def get(self, kind: str, name: str, namespace: str = "default") -> Object | None:
        text = self._kubectl("get", kind, name, "-n", namespace, "--output=json", "--ignore-not-found")
        return dict(json.loads(text)) if text else None

    def objects(self, kind: str) -> list[Object]:
        return self._kubectl.every(kind, "--all-namespaces")

    def delete(self, kind: str, name: str, propagation: str = "Background") -> None:
        self._kubectl("delete", kind, name, f"--cascade={propagation.lower()}", "--wait=false")

    def change(self, kind: str, name: str, namespace: str, **changes: Object) -> None:
        self._kubectl("patch", kind, name, "-n", namespace, "--type=merge", f"--patch={json.dumps(changes)}")

    async def until(self, what: str, fact: Callable[[], bool]) -> None:
        until(what, fact)
        if self._nodes and time.monotonic() - self._renewed > _HEARTBEAT:
            self._renewed = time.monotonic()
            leases = {"apiVersion": "v1", "kind": "List", "items": [lease(name) for name in self._nodes]}
            self._kubectl("apply", "-f", "-", given=json.dumps(leases))


def lease(node: str) -> Object:
    spec = {"holderIdentity": node, "leaseDurationSeconds": 40, "renewTime": clock.micro_time(clock.now())}
    metadata = {"name": node, "namespace": "kube-node-lease"}
    return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}


@asynccontextmanager
async def ours(*found: Object, release: str = KUBERNETES_VERSION) -> AsyncIterator[Ours]:
    lab = Ours(*found)
    client = ClusterClient(lab.store, lab.writer)
    async with asyncio.TaskGroup() as tasks:
        running = [
            tasks.create_task(work)
            for work in (Scheduler(client, release=release).run(), ControllerManager(client).run())
        ]
        yield lab
        for task in running:
            task.cancel()


@contextmanager
def nodes(cluster: Cluster, *made: Object) -> Iterator[None]:
    """Once the taint is gone that a new node has until its controller has seen that it is ready.

    Names are used once: a node of the same name that comes back without a heartbeat is taken for a silent one.
    """
    names = [each["metadata"]["name"] for each in made]

    def are_untainted() -> bool:
        found = [cluster.kubectl.get("node", name) for name in names]
        return not any(each is None or each["spec"].get("taints") for each in found)

    cluster.kubectl.create(*made)
    try:
        until("the nodes are without taints", are_untainted)
        yield
    finally:
        pods = [each["metadata"]["name"] for each in cluster.kubectl.every("pods")]
        ours = [name for name in pods if name.startswith("sched-")]
        if ours:
            cluster.kubectl("delete", "pods", "--force", "--grace-period=0", "--wait=false", *ours)
        cluster.kubectl("delete", "nodes", *names)
