"""Two kubelets that a scenario can be played to: the real one of the cluster, and the emulated one.

Both tell what they did in the same words, so that a test compares them by `==`. What a real kubelet does at random
(the order of ids) is sorted, what differs by nature (uids, addresses) is left out.
"""

import asyncio
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

from msgspec.structs import replace
from tests.kubernetes import pods as real_pods
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.images import BUSYBOX
from tests.kubernetes.kubectl import Object
from tests.kubernetes.node import Node
from tests.kubernetes.waiting import until

from plugwright.errors import PodRefused
from plugwright.kubelet import Kubelet, Phase, Pod
from plugwright.kubelet.pod_table import Container
from plugwright.protocol import checkpoint, messages, pod_resources
from plugwright.protocol.checkpoint import Checkpoint
from plugwright.protocol.paths import KubeletPaths
from plugwright.protocol.pod_resources import AllocatableDevice, PodResources
from plugwright.system.sockets import is_listening

__all__ = ["EmulatedStage", "Held", "Outcome", "RealStage", "Stage", "manifest"]

_UID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_STOPPED = re.compile(r"endpoint .* has been stopped", re.DOTALL)
_STAY = "trap exit TERM; sleep 1000000 & wait"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a pod: its phase and why; for a container that waits, what it waits for."""

    phase: str
    reason: str = ""
    message: str = ""
    waiting: Mapping[str, tuple[str, str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, order=True)
class Held:
    """An entry of the checkpoint, without the pod's uid."""

    container: str
    resource: str
    devices: tuple[tuple[int, tuple[str, ...]], ...]
    env: tuple[tuple[str, str], ...]


class Stage(Protocol):
    paths: KubeletPaths

    async def shows(self, resource: str, capacity: int, allocatable: int) -> None: ...

    async def admit(self, pod: Object) -> Outcome: ...

    async def outcome(self, name: str) -> Outcome: ...

    async def becomes(self, name: str, phase: str) -> Outcome: ...

    async def environment(self, name: str) -> Mapping[str, str]: ...

    async def health(self, name: str) -> dict[str, str]: ...

    async def remove(self, name: str) -> None: ...

    async def restart(self) -> None: ...


def manifest(name: str, containers: Mapping[str, Mapping[str, int]], **kinds: str) -> Object:
    """A pod for this very node; `kinds` says which containers are `init` or `sidecar`."""
    made = {each: _container(each, wants, kinds.get(each, "main")) for each, wants in containers.items()}
    spec: dict[str, Any] = {
        "nodeName": "node",
        "terminationGracePeriodSeconds": 1,
        "initContainers": [made[each] for each in made if each in kinds],
        "containers": [made[each] for each in made if each not in kinds],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"}, "spec": spec}


def _container(name: str, wants: Mapping[str, int], kind: str) -> Object:
    return {
        "name": name,
        "image": BUSYBOX,
        "imagePullPolicy": "Never",
        "command": ["sh", "-c", "true" if kind == "init" else _STAY],
        "resources": {"limits": {resource: str(count) for resource, count in wants.items()}},
        **({"restartPolicy": "Always"} if kind == "sidecar" else {}),
    }


def plain(text: str) -> str:
    """Without what differs from pod to pod and from run to run."""
    return _STOPPED.sub("endpoint … has been stopped", _UID.sub("<uid>", text))


def held(written: Checkpoint, resource: str) -> list[Held]:
    return sorted(
        Held(
            entry.container,
            entry.resource,
            tuple(sorted((node, tuple(sorted(ids or ()))) for node, ids in (entry.devices or {}).items())),
            tuple(messages.decode(entry.answer or b"").env.items()),
        )
        for entry in written.entries or ()
        if entry.resource == resource
    )


def registered(written: Checkpoint, resource: str) -> list[str] | None:
    return sorted((written.registered or {})[resource] or ()) if resource in (written.registered or {}) else None


async def listed(paths: KubeletPaths, *pods: str) -> list[PodResources]:
    """What List says of these pods."""
    async with pod_resources.connect(paths.pod_resources_socket) as kubelet:
        found = [pod for pod in await kubelet.pods(timeout=5) if pod.name in pods]
        return sorted(map(_in_order, found), key=lambda pod: pod.name)


def _in_order(pod: PodResources) -> PodResources:
    sorted_ = (replace(each, devices=tuple(sorted(each.devices, key=str))) for each in pod.containers)
    return replace(pod, containers=tuple(sorted_))


async def allocatable(paths: KubeletPaths, resource: str) -> list[AllocatableDevice]:
    async with pod_resources.connect(paths.pod_resources_socket) as kubelet:
        found = [device for device in await kubelet.allocatable(timeout=5) if device.resource == resource]
        return sorted(found, key=lambda device: device.device_id)


def read(paths: KubeletPaths) -> Checkpoint:
    return checkpoint.decode(paths.checkpoint.read_bytes())


class EmulatedStage:
    def __init__(self, kubelet: Kubelet) -> None:
        self._kubelet = kubelet
        self.paths = kubelet.paths

    async def shows(self, resource: str, capacity: int, allocatable: int) -> None:
        await self._kubelet.capacity(resource, capacity)
        await self._kubelet.allocatable(resource, allocatable)

    async def admit(self, pod: Object) -> Outcome:
        with suppress(PodRefused):
            await self._kubelet.admit(pod)
        return await self.outcome(pod["metadata"]["name"])

    async def outcome(self, name: str) -> Outcome:
        pod = self._pod(name)
        return Outcome(str(pod.phase), pod.reason, plain(pod.message), _waiting(pod))

    async def becomes(self, name: str, phase: str) -> Outcome:
        return await self.outcome(name)

    async def environment(self, name: str) -> Mapping[str, str]:
        return self._pod(name).container("main").env

    async def health(self, name: str) -> dict[str, str]:
        found = self._kubelet.device_health(self._pod(name))
        return {each.device_id: str(each.health) for devices in found.values() for each in devices}

    async def remove(self, name: str) -> None:
        await self._kubelet.remove(self._pod(name))

    async def restart(self) -> None:
        await self._kubelet.restart()

    def _pod(self, name: str) -> Pod:
        return next(pod for pod in self._kubelet.pods if pod.name == name)


def _waiting(pod: Pod) -> dict[str, tuple[str, str]]:
    def waits(container: Container) -> bool:
        return container.reason == "CreateContainerConfigError"

    if pod.phase is Phase.FAILED:
        return {}
    found = {name: container for name, container in pod.containers.items() if waits(container)}
    return {name: (container.reason, plain(container.message)) for name, container in found.items()}


class RealStage:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._node = Node(cluster)
        self.paths = KubeletPaths.under(cluster.kubelet_dir)

    async def shows(self, resource: str, capacity: int, allocatable: int) -> None:
        await asyncio.to_thread(self._node.shows, resource, capacity, allocatable)

    async def admit(self, pod: Object) -> Outcome:
        await asyncio.to_thread(self._cluster.kubectl.create, pod)
        return await self.outcome(pod["metadata"]["name"])

    async def outcome(self, name: str) -> Outcome:
        """Once it is settled: it runs, it failed, or a container cannot be made."""
        return await asyncio.to_thread(
            until, f"pod {name} is settled", lambda: _settled(self._read(name)), 60, lambda: self._read(name)["status"]
        )

    async def becomes(self, name: str, phase: str) -> Outcome:
        """Once it is in this phase: after a restart it seems unchanged at first."""

        def outcome() -> Outcome | None:
            found = _settled(self._read(name))
            return found if found and found.phase == phase else None

        return await asyncio.to_thread(until, f"pod {name} is {phase}", outcome, 60, lambda: self._read(name)["status"])

    async def environment(self, name: str) -> Mapping[str, str]:
        """What the runtime gave the pod's first container."""
        return await asyncio.to_thread(real_pods.Pod(name, self._cluster.kubectl).environment)

    async def health(self, name: str) -> dict[str, str]:
        statuses = (await asyncio.to_thread(self._read, name))["status"].get("containerStatuses", [])
        return {
            str(device["resourceID"]): str(device["health"])
            for container in statuses
            for resource in container.get("allocatedResourcesStatus", [])
            for device in resource["resources"]
        }

    async def remove(self, name: str) -> None:
        await asyncio.to_thread(self._cluster.kubectl, "delete", "pod", name, "--wait", "--timeout=60s")

    async def restart(self) -> None:
        await asyncio.to_thread(self._cluster.restart, "kubelet")
        await self.listens()

    async def appears(self, name: str) -> None:
        await asyncio.to_thread(until, f"there is a pod {name}", lambda: self._cluster.kubectl.get("pod", name))

    async def vanishes(self, name: str) -> None:
        await asyncio.to_thread(until, f"pod {name} is gone", lambda: not self._cluster.kubectl.get("pod", name))

    async def listens(self) -> None:
        """Once a kubelet that was started serves both of its sockets."""
        for socket in (self.paths.kubelet_socket, self.paths.pod_resources_socket):
            await asyncio.to_thread(until, f"the kubelet serves {socket.name}", lambda at=socket: is_listening(at))

    def _read(self, name: str) -> Object:
        found = self._cluster.kubectl.get("pod", name)
        assert found is not None
        return found


def _settled(pod: Object) -> Outcome | None:
    status = pod["status"]
    statuses = [*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])]
    if status["phase"] == "Failed":
        return Outcome("Failed", status.get("reason", ""), plain(status.get("message", "")))
    waiting = {each["name"]: each["state"]["waiting"] for each in statuses if "waiting" in each["state"]}
    broken = {
        name: (each["reason"], plain(each.get("message", "")))
        for name, each in waiting.items()
        if each.get("reason") == "CreateContainerConfigError"
    }
    if broken or (statuses and not waiting and status["phase"] == "Running"):
        return Outcome(status["phase"], waiting=broken)
    return None
