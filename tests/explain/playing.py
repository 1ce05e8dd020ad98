"""Waiting pods as files, played to a cluster over its API: what `why` answers, and what its cures make of the pod.

The comments at the top of a file are its facts: `nodes` of the cluster, `setup` beyond the objects, words of the first
line (`answer`) and the kinds of the first `cure`. The waiting pod is the last object. Each node has ten `mock/gpu`.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml
from msgspec import Struct

from plugwright.errors import PeerRefused
from plugwright.explain.counterfactual import REMOVED, edited
from plugwright.explain.cure_report import CureReport, CureStep
from plugwright.explain.explanation import Explanation, explain_pod
from plugwright.explain.reading import read_world
from plugwright.kube.access import ClusterAccess
from plugwright.kube.api_client import ApiClient, BlockingClient

__all__ = ["CASES", "ONLY_ON_KUBERNETES", "ONLY_WITH_KUBELETS", "Case", "Player", "named_case"]

Object = dict[str, Any]
_DIRECTORY = Path(__file__).parent / "cases"
_RESOURCES = {
    "Node": "/api/v1/nodes", "Pod": "/api/v1/namespaces/default/pods",
    "ResourceQuota": "/api/v1/namespaces/default/resourcequotas",
    "DeviceClass": "/apis/resource.k8s.io/v1/deviceclasses",
    "ResourceSlice": "/apis/resource.k8s.io/v1/resourceslices",
    "ResourceClaim": "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims",
    "ResourceClaimTemplate": "/apis/resource.k8s.io/v1/namespaces/default/resourceclaimtemplates",
}  # fmt: skip
_CONTAINERS = [{"name": "main", "image": "demo"}]
_PROBE = {"metadata": {"name": "probe"}, "spec": {"tolerations": [{"operator": "Exists"}], "containers": _CONTAINERS}}


class Case(Struct, frozen=True):
    name: str
    facts: tuple[tuple[str, str], ...]
    text: str

    @property
    def objects(self) -> tuple[Object, ...]:
        return tuple(yaml.safe_load_all(self.text))

    def all(self, key: str) -> list[str]:
        return [value for name, value in self.facts if name == key]

    def fact(self, key: str, default: str = "") -> str:
        return next(iter(self.all(key)), default)

    @property
    def kinds(self) -> tuple[str, ...]:
        cure = self.fact("cure")
        return () if cure == "none" else tuple(cure.split("+"))


def named_case(name: str) -> Case:
    text = (_DIRECTORY / f"{name}.yaml").read_text()
    comments = [line[1:].partition(":") for line in text.splitlines() if line.startswith("#")]
    facts = tuple((key.strip(), value.strip()) for key, _, value in comments)
    return Case(name, facts, text)


_ALL = sorted(path.stem for path in _DIRECTORY.glob("*.yaml"))
ONLY_ON_KUBERNETES = [name for name in _ALL if named_case(name).fact("only") == "kubernetes"]
ONLY_WITH_KUBELETS = [name for name in _ALL if named_case(name).fact("only") == "kubelets"]
CASES = [name for name in _ALL if name not in ONLY_ON_KUBERNETES]


class Player:
    """Plays a case to a cluster. `until` waits for a fact about its objects; `runs` tells when a pod runs."""

    def __init__(self, case: Case, kubeconfig: Path, is_running: Callable[[Object], bool]) -> None:
        self.case, self._kubeconfig, self._is_running = case, kubeconfig, is_running
        self.reports: Callable[[], Awaitable[Mapping[str, Object]]] | None = None  # NodeReports by node
        self._api = ApiClient.of_kubeconfig(kubeconfig)
        self._entries = case.objects
        self.waiting: str = self._entries[-1]["metadata"]["name"]

    def close(self) -> None:
        self._api.close()

    async def apply(self) -> None:
        """Creates the objects; each other pod runs before the next object is created."""
        for entry in self._entries[:-1]:
            await self._create(entry)
        for setup in self.case.all("setup"):
            if setup.startswith("allocate "):
                await self._allocate(*setup.split()[1:])
        await self._create(self._entries[-1])
        await self.settled()

    async def _is_refused(self) -> bool:
        """By the kubelet, which never tries the pod again."""
        pod = await self._get("Pod", self.waiting)
        return pod is not None and pod["status"].get("phase") == "Failed"

    async def settled(self) -> None:
        """Once the scheduler has tried the waiting pod after everything before, and the kubelet if it found a node."""
        with suppress(PeerRefused):
            await self._api.delete(f"{_RESOURCES['Pod']}/probe", grace=0)
            await self._until_gone("Pod", "probe")
        await self._api.create(_RESOURCES["Pod"], _PROBE)
        await self._until("Pod", "probe", self._is_bound)
        if self.case.fact("only") == "kubelets":
            await self._until("Pod", self.waiting, lambda pod: pod["status"].get("phase") in ("Running", "Failed"))

    async def explain(self) -> Explanation:
        reports = await self.reports() if self.reports is not None else {}

        def ask() -> Explanation:
            access = ClusterAccess.of_kubeconfig(self._kubeconfig)
            assert access is not None
            with BlockingClient(access) as client:
                pod = client.get(f"{_RESOURCES['Pod']}/{self.waiting}")
                return explain_pod(read_world(client, "default", reports), pod)

        return await asyncio.to_thread(ask)

    async def make(self, cure: CureReport) -> None:
        """Applies exactly the steps of a cure."""
        edits = _by_object(step for step in cure.changes if step.verb == "edit")
        made = await self._removed_all(edits) if edits or await self._is_refused() else {}
        for step in cure.changes:
            if step.verb == "delete":
                await self._end(step.kind, step.name)
            elif step.verb == "recover":
                await self._recover(step)
        for key, entry in reversed(made.items()):
            changed = entry
            for step in edits.get(key, ()):
                changed = edited(changed, step.path, REMOVED if step.removes else step.value)
            await self._create(changed, waits=False)

    async def restore(self, cure: CureReport) -> None:
        """Takes the edits of a cure back."""
        for entry in reversed((await self._removed_all(_by_object(cure.changes))).values()):
            await self._create(entry, waits=False)
        await self.settled()

    async def _removed_all(self, edits: Iterable[tuple[str, str]]) -> dict[tuple[str, str], Object]:
        """The waiting pod and the edited objects, as they were created; they are deleted, the pod first."""
        recreated = dict.fromkeys([*(key for key in edits if key[0] != "Pod"), ("Pod", self.waiting)])
        return {(kind, name): await self._removed(kind, name) for kind, name in reversed(recreated)}

    async def runs(self) -> None:
        await self._until("Pod", self.waiting, self._is_running)

    async def waits(self) -> bool:
        """Whether the scheduler has found no node for the pod."""
        await self.settled()
        pod = await self._get("Pod", self.waiting)
        return pod is not None and (not self._is_bound(pod) or pod["status"].get("phase") == "Failed")

    @staticmethod
    def _is_bound(pod: Object) -> bool:
        return bool(pod["spec"].get("nodeName"))

    async def _create(self, entry: Object, waits: bool = True) -> None:
        path, name = _RESOURCES[entry["kind"]], entry["metadata"]["name"]
        if entry["kind"] == "Node":
            await self._api.patch(f"{path}/{name}", entry, "merge-patch")
            return
        await self._api.create(path, entry)
        if entry["kind"] == "Pod" and waits and name != self.waiting:
            await self._until("Pod", name, self._is_running)

    async def _allocate(self, claim: str, node: str, device: str) -> None:
        """Plays a scheduler that has allocated a claim and ended."""
        path = f"{_RESOURCES['ResourceClaim']}/{claim}"
        protected = {"metadata": {"finalizers": ["resource.kubernetes.io/delete-protection"]}}
        stored = await self._api.patch(path, protected, "merge-patch")
        result = {"request": "gpu", "driver": "gpu.example.com", "pool": node, "device": device}
        await self._api.update(
            f"{path}/status", {**stored, "status": {"allocation": {"devices": {"results": [result]}}}}
        )

    async def _removed(self, kind: str, name: str) -> Object:
        """The object as it was created, which is deleted."""
        await self._end(kind, name)
        found = next(entry for entry in self._entries if (entry["kind"], entry["metadata"]["name"]) == (kind, name))
        return json.loads(json.dumps(found))  # type: ignore[no-any-return]

    async def _end(self, kind: str, name: str) -> None:
        freed = []
        if kind == "Pod":
            claims = await self._objects("ResourceClaim")
            freed = [entry["metadata"]["name"] for entry in claims if _users(entry) == [name]]
        await self._api.delete(f"{_RESOURCES[kind]}/{name}", grace=0)
        await self._until_gone(kind, name)
        for claim in freed:
            await self._until("ResourceClaim", claim, lambda found: name not in _users(found))

    async def _recover(self, step: CureStep) -> None:
        path = f"{_RESOURCES[step.kind]}/{step.name}"
        stored = await self._api.get(path)
        if step.kind == "ResourceSlice":
            await self._api.update(path, {**stored, "spec": step.value})
        elif step.path:  # the configuration of a kubelet
            return
        elif not self.case.all("setup"):  # otherwise its devices recover
            await self._api.update(path, {**stored, "spec": step.value["spec"]})
        elif not (stored.get("status") or {}).get("nodeInfo", {}).get("kubeletVersion"):  # a Node without a kubelet
            status = {"allocatable": step.value["status"]["allocatable"]}
            await self._api.patch(f"{path}/status", {"status": status}, "merge-patch")

    async def _objects(self, kind: str) -> list[Object]:
        return (await self._api.list(_RESOURCES[kind]))[0]

    async def _get(self, kind: str, name: str) -> Object | None:
        return next((entry for entry in await self._objects(kind) if entry["metadata"]["name"] == name), None)

    async def _until(self, kind: str, name: str, fact: Callable[[Object], bool]) -> None:
        """Within the limit of the test."""
        while not ((found := await self._get(kind, name)) is None and kind == "ResourceClaim") and (
            found is None or not fact(found)
        ):
            await asyncio.sleep(0.02)

    async def _until_gone(self, kind: str, name: str) -> None:
        while await self._get(kind, name) is not None:
            await asyncio.sleep(0.02)


def _by_object(steps: Iterable[CureStep]) -> dict[tuple[str, str], list[CureStep]]:
    """Later entries of a list come first, so that the paths of the others stay valid."""
    found: dict[tuple[str, str], list[CureStep]] = {}
    for step in sorted(steps, key=lambda step: [(isinstance(part, int), part) for part in step.path], reverse=True):
        found.setdefault((step.kind, step.name), []).append(step)
    return found


def _users(claim: Object) -> list[str]:
    return [user["name"] for user in (claim.get("status") or {}).get("reservedFor") or ()]
