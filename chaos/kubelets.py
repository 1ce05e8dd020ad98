"""The kubelet beside the daemon, as a fault and its observer need it; here the emulated one, in this process.

The real one is `chaos.kubernetes`.
"""

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

from chaos.node import STEADY, Node
from tests.observed_kubelet import ObservedKubelet

from plugwright.errors import PeerGone, PodRefused
from plugwright.kubelet import Phase
from plugwright.testing import pod_requesting

__all__ = ["EmulatedKubelet", "KubeletUnderTest"]


class KubeletUnderTest(Protocol):
    """Started before the daemon, and stopped as if it were killed."""

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def healthy(self, resource: str) -> frozenset[str]:
        """The devices that a pod could be given now; none while the plugin is away."""
        ...

    async def allocate(self, resource: str, device_ids: Sequence[str]) -> None:
        """Calls Allocate, as for a pod that is admitted; raises where there is no good answer."""
        ...

    async def hold(self, resource: str, count: int) -> str:
        """Starts a pod with so many devices, which stays; what was wrong, if it was refused."""
        ...

    async def pass_through(self) -> str:
        """A pod comes, is given a device of the steady resource, and goes; what was wrong, if it was refused."""
        ...

    async def held(self) -> list[str]:
        """The devices that pods hold, one entry for each holder."""
        ...


class EmulatedKubelet:
    def __init__(self, node: Node) -> None:
        self.observed = ObservedKubelet(node.kubelet_dir)

    async def start(self) -> None:
        await self.observed.start()

    async def stop(self) -> None:
        await self.observed.stop()

    async def healthy(self, resource: str) -> frozenset[str]:
        endpoint = self.observed.endpoints.get(resource)
        if endpoint is None or endpoint.ended:
            return frozenset()
        return frozenset(device.id for device in endpoint.devices.values() if device.healthy)

    async def allocate(self, resource: str, device_ids: Sequence[str]) -> None:
        endpoint = self.observed.endpoints.get(resource)
        if endpoint is None:
            raise PeerGone(f"no plugin has registered {resource}")
        await endpoint.connected.allocate(device_ids)

    async def hold(self, resource: str, count: int) -> str:
        try:
            await self.observed.kubelet.admit(pod_requesting({resource: count}))
        except PodRefused as error:
            return str(error)
        return ""

    async def pass_through(self) -> str:
        kubelet = self.observed.kubelet
        try:
            pod = await kubelet.admit(pod_requesting({STEADY: 1}))
        except PodRefused as error:
            return str(error)
        given = kubelet.granted(pod, "main").env["MOCK_VISIBLE_DEVICES"]
        others = Counter(await self.held())
        await kubelet.remove(pod)
        return f"{given} is held already" if others[given] > 1 else ""

    async def held(self) -> list[str]:
        kubelet = self.observed.kubelet
        running = [pod for pod in kubelet.pods if pod.phase is Phase.RUNNING]
        found: list[str] = []
        for pod in running:
            for name in pod.containers:
                with suppress(KeyError):
                    found += kubelet.granted(pod, name).env["MOCK_VISIBLE_DEVICES"].split(",")
        return found
