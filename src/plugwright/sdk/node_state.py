"""A plugin's state at its start: the kubelet's stored answers, and a directory for its own files.

The kubelet stores the answer to Allocate in its checkpoint and reuses it without a call whenever it starts the
container, also after a reboot (3.49). Everything an answer refers to must then exist and mean the same. Containers with
claims have no such answers: `StoredAllocation` is a plain value; other sources can fill it as well.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from plugwright.errors import PlugwrightError
from plugwright.protocol import messages
from plugwright.protocol.checkpoint import PodDevicesEntry
from plugwright.sdk.holdings.resource_holdings import ResourceHoldings
from plugwright.system.log_once import LogOnce
from plugwright.text import clean

__all__ = ["NodeState", "StoredAllocation", "stored_allocations"]

logger = logging.getLogger(__name__)


class StoredAllocation(msgspec.Struct, frozen=True):
    """The stored answer for a container, unchecked: another plugin could have given it."""

    pod_uid: str
    container: str
    device_ids: tuple[str, ...]
    env: Mapping[str, str] = {}
    annotations: Mapping[str, str] = {}
    cdi: tuple[str, ...] = ()
    mounts: tuple[str, ...] = ()  # paths of the host
    nodes: tuple[str, ...] = ()  # paths of the host

    def __hash__(self) -> int:
        return hash((self.pod_uid, self.container, self.device_ids))


class NodeState:
    """`directory` is for the plugin's files, kept over restarts and reboots; None if nothing is kept."""

    def __init__(self, holdings: ResourceHoldings, directory: Path | None = None) -> None:
        self.resource, self.directory = holdings.resource, directory
        self._holdings = holdings
        self._problems = LogOnce(logger)

    async def allocations(self, current: bool = False) -> Sequence[StoredAllocation] | None:
        """Allocations of containers with devices of the resource; None, after a log line, if they cannot be read.

        Without `current`, as in the checkpoint, including ended containers.
        """
        try:
            if current:
                await self._holdings.pods()  # the kubelet frees the devices of ended pods
                await self._holdings.rewritten()
            allocations = stored_allocations(await self._holdings.entries(), self.resource)
        except PlugwrightError as error:
            facts = {"resource": self.resource, "error": clean(error)}
            self._problems.warning("allocations of containers cannot be read", str(error), extra=facts)
            return None
        self._problems.recovered()
        return allocations


def stored_allocations(entries: Iterable[PodDevicesEntry], resource: str) -> list[StoredAllocation]:
    """The stored allocations of a resource; MalformedMessage if an answer cannot be decoded."""
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
