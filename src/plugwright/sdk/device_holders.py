"""The pods that hold devices, as the kubelet's pod-resources API names them: for `status`.

Whether a removed device may leave the list is `removed_devices`, which also reads the checkpoint.
"""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from plugwright.errors import PlugwrightError
from plugwright.protocol import pod_resources
from plugwright.text import clean

__all__ = ["DeviceHolders", "Holders"]

_LIMIT = 2.0  # seconds; an operator waits for it
_FRESH = 1.0  # seconds; a watcher of `status` may get ten reports in that time


@dataclass(frozen=True, slots=True)
class Holders:
    """The pods of each device, as `namespace/name`; `unreadable` is why they are not known, empty if they are."""

    pods: Mapping[tuple[str, str], tuple[str, ...]] = field(default_factory=dict)  # (resource, device id) → pods
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
