"""The pods that hold devices: as the kubelet's pod-resources API names them, for `status`; and by its checkpoint too.

Either of those alone may lack a device that a pod holds: what acts on the end of a pod asks `ResourceHolders`.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

import msgspec

from plugwright.errors import HoldersUnknown, PlugwrightError
from plugwright.protocol import pod_resources
from plugwright.sdk.kubelet_checkpoint import Held, KubeletCheckpoint
from plugwright.system.latest import InProgress
from plugwright.text import clean

__all__ = ["DeviceHolders", "Holders", "ResourceHolders"]

_LIMIT = 2.0  # seconds; an operator waits for it
_PODS_LIMIT = 5.0  # seconds, where no operator waits
_MOMENT = 0.01  # seconds
_ALLOCATE_LIMIT = 1.0  # seconds that an allocation is waited for
_FRESH = 1.0  # seconds; a watcher of `status` may get ten reports in that time


class Holders(msgspec.Struct, frozen=True):
    """The pods of each device, as `namespace/name`; `unreadable` is why they are not known, empty if they are."""

    pods: Mapping[tuple[str, str], tuple[str, ...]] = msgspec.field(
        default_factory=dict
    )  # (resource, device id) → pods
    unreadable: str = ""


class DeviceHolders:
    def __init__(self, socket: Path, limit: float = _LIMIT) -> None:
        self._socket, self._limit = socket, limit
        self._asking = asyncio.Lock()
        self._read = Holders(unreadable="they have not been read yet")
        self._read_at = -_FRESH

    async def read(self) -> Holders:
        """The kubelet is called once at a time, and not twice within a second. Never raises."""
        async with self._asking:
            if time.monotonic() - self._read_at >= _FRESH:
                self._read = await self._ask()
                self._read_at = time.monotonic()
            return self._read

    async def _ask(self) -> Holders:
        try:
            held = await pod_resources.held_devices(self._socket, self._limit)
        except (OSError, PlugwrightError) as error:
            return Holders(unreadable=clean(error))
        pods: dict[tuple[str, str], tuple[str, ...]] = {}
        for device in sorted(held):
            key, pod = (device.resource, device.device_id), clean(f"{device.namespace}/{device.pod}")
            pods[key] = tuple(dict.fromkeys((*pods.get(key, ()), pod)))  # once for all containers of a pod
        return Holders(pods)


class ResourceHolders(msgspec.Struct, frozen=True):
    """Of one resource; `resend` has the kubelet get its device list once more, `allocating` are calls of Allocate."""

    resource: str
    socket: Path
    checkpoint: KubeletCheckpoint
    resend: Callable[[], None]
    allocating: InProgress

    async def pods(self) -> dict[str, str]:
        """The pod of each device that pod-resources lists, as `namespace/name`.

        Not while the kubelet allocates: its List frees what ended pods held, and takes a device that is being
        allocated for free with them (3.57, 3.58). The next pod would get it too.
        """
        try:
            async with asyncio.timeout(_ALLOCATE_LIMIT):
                await asyncio.sleep(_MOMENT)  # after a stop of this process: calls that have come meanwhile are first
                await self.allocating.ended()
            held = await pod_resources.held_devices(self.socket, _PODS_LIMIT)
        except TimeoutError:
            raise HoldersUnknown("pod-resources cannot be read: the kubelet allocates devices") from None
        except (OSError, PlugwrightError) as error:
            raise HoldersUnknown(clean(f"pod-resources cannot be read: {error}")) from error
        return {
            device.device_id: clean(f"{device.namespace}/{device.pod}")
            for device in held
            if device.resource == self.resource
        }

    async def stored(self) -> Held:
        """By the checkpoint alone, with what pods held that have ended; nothing where no kubelet has been yet."""
        try:
            return await self.checkpoint.held(self.resource)
        except FileNotFoundError:
            return {}
        except Exception as error:  # one reading of whatever a checkpoint holds
            raise HoldersUnknown(clean(f"the checkpoint cannot be read: {error}")) from error

    async def held(self, device_ids: Collection[str]) -> set[str]:
        """The devices that pods hold, by pod-resources or by the checkpoint.

        `device_ids` are those whose end matters: where only the checkpoint has one, it is written again.
        """
        active, stored = await self.pods(), await self._written()
        if any(device_id in stored and device_id not in active for device_id in device_ids):
            await self.rewritten()
            stored = await self._written()
        return active.keys() | stored.keys()

    async def rewritten(self) -> None:
        """Returns when the kubelet has written its checkpoint again, after the list that it has by now (4.31)."""
        await self.checkpoint.rewritten(self.resend)

    async def _written(self) -> Held:
        """A checkpoint that is not there tells nothing about pods that are."""
        try:
            return await self.checkpoint.held(self.resource)
        except (OSError, RuntimeError, PlugwrightError) as error:  # RuntimeError: no thread could be started
            raise HoldersUnknown(clean(f"the checkpoint cannot be read: {error}")) from error
