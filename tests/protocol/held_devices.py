"""A pod-resources service that knows held devices and nothing else."""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Protocol

from plugwright.errors import PeerRefused
from plugwright.protocol import pod_resources
from plugwright.protocol.pod_resources import (
    AllocatableDevice,
    ContainerDevices,
    ContainerResources,
    HeldDevice,
    PodResources,
)
from plugwright.system.sockets import SocketFile

__all__ = ["HeldDevices", "serve_held_devices"]


class HeldDevices(Protocol):
    async def held_devices(self) -> Sequence[HeldDevice]: ...


def serve_held_devices(service: HeldDevices, socket: Path) -> AbstractAsyncContextManager[SocketFile]:
    return pod_resources.serve(_Lister(service), socket)


class _Lister:
    def __init__(self, service: HeldDevices) -> None:
        self._service = service

    async def pods(self) -> list[PodResources]:
        return [_pod(device) for device in await self._service.held_devices()]

    async def allocatable(self) -> list[AllocatableDevice]:
        return []

    async def pod(self, name: str, namespace: str) -> PodResources:
        raise PeerRefused("UNKNOWN", f"no pod {namespace}/{name}")

    async def alpha_pods(self) -> list[PodResources]:
        return await self.pods()


def _pod(device: HeldDevice) -> PodResources:
    devices = (ContainerDevices(device.resource, device.device_id),)
    return PodResources(device.pod, device.namespace, (ContainerResources(device.container, devices),))
