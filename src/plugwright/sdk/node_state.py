"""What a plugin finds on its node when it starts: the kubelet's stored answers, and a directory for files of its own.

The kubelet keeps the answer to Allocate in its checkpoint and uses it again whenever it starts the container, after a
reboot too, without a call (3.49). What an answer refers to must then be there and mean the same. Containers that get
devices by a claim have no such answers: `StoredAllocation` is a plain value that other sources can fill as well.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from plugwright.errors import PlugwrightError
from plugwright.protocol import messages
from plugwright.protocol.checkpoint import PodDevicesEntry
from plugwright.sdk.kubelet_checkpoint import KubeletCheckpoint
from plugwright.sdk.removed_devices import held_by_pods
from plugwright.text import clean

__all__ = ["NodeState", "StoredAllocation", "stored_allocations"]

logger = logging.getLogger(__name__)

_CHECKPOINT_DELAY = 1.0  # seconds within which a kubelet has written its checkpoint after a list


@dataclass(frozen=True, slots=True)
class StoredAllocation:
    """The answer that is stored for a container, unchecked: another plugin may have given it."""

    pod_uid: str
    container: str
    device_ids: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict, hash=False)
    annotations: Mapping[str, str] = field(default_factory=dict, hash=False)
    cdi: tuple[str, ...] = ()
    mounts: tuple[str, ...] = ()  # paths of the host
    nodes: tuple[str, ...] = ()  # paths of the host


class NodeState:
    """`directory` is where the plugin may keep files over restarts and reboots; None if nothing is kept.

    `send_again` has the kubelet get the device list once more.
    """

    def __init__(
        self,
        resource: str,
        pod_resources: Path,
        checkpoint: KubeletCheckpoint,
        directory: Path | None = None,
        send_again: Callable[[], None] = lambda: None,
    ) -> None:
        self.resource, self.directory = resource, directory
        self._pod_resources, self._checkpoint, self._send_again = pod_resources, checkpoint, send_again
        self._logged = ""

    async def allocations(self, current: bool = False) -> Sequence[StoredAllocation] | None:
        """Of containers that hold devices of the resource; None, and a line in the log, if that cannot be read.

        Without `current` as the checkpoint has them, with containers among them that have ended.
        """
        try:
            if current:
                # The kubelet frees what ended pods held when it is asked who holds what, and writes no checkpoint when
                # it frees a device (3.60), but after every device list (4.31).
                await held_by_pods(self._pod_resources, self.resource)
                self._send_again()
                await asyncio.sleep(_CHECKPOINT_DELAY)
            return stored_allocations(await self._checkpoint.entries(), self.resource)
        except (OSError, PlugwrightError) as error:
            if str(error) != self._logged:
                facts = {"resource": self.resource, "error": clean(error)}
                logger.warning("what containers were given cannot be read", extra=facts)
            self._logged = str(error)
            return None


def stored_allocations(entries: Iterable[PodDevicesEntry], resource: str) -> list[StoredAllocation]:
    """MalformedMessage where an answer of the resource is none."""
    return [_allocation(entry) for entry in entries if entry.resource == resource and entry.answer is not None]


def _allocation(entry: PodDevicesEntry) -> StoredAllocation:
    ids = {device_id for device_ids in (entry.devices or {}).values() for device_id in device_ids or ()}
    answer = messages.decode(entry.answer or b"")
    return StoredAllocation(
        pod_uid=entry.pod_uid,
        container=entry.container,
        device_ids=tuple(sorted(ids)),
        env=answer.env,
        annotations=answer.annotations,
        cdi=answer.cdi,
        mounts=tuple(mount.host_path for mount in answer.mounts),
        nodes=tuple(node.host_path for node in answer.nodes),
    )
