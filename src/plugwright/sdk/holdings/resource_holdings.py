"""The ledger from the view of one resource: the devices that pods hold. Raises instead of answering "none"."""

from collections.abc import Callable, Collection, Sequence

import msgspec

from plugwright.errors import HoldersUnknown
from plugwright.protocol.checkpoint import PodDevicesEntry
from plugwright.sdk.holdings import sources
from plugwright.sdk.holdings.kubelet_checkpoint import Held
from plugwright.sdk.holdings.ledger import Ledger
from plugwright.text import clean

__all__ = ["ResourceHoldings"]

_PATIENCE = 1.0  # seconds to wait for the end of an Allocate


class ResourceHoldings(msgspec.Struct, frozen=True):
    """Holdings of one resource; `resend` sends its device list to the kubelet again. HoldersUnknown."""

    resource: str
    ledger: Ledger
    resend: Callable[[], None]

    async def pods(self) -> dict[str, str]:
        """The pod of each device that pod-resources lists, as `namespace/name`."""
        pods = sources.pods_by_device(await self.ledger.list_pods(_PATIENCE))
        return {key: clean("/".join(pod)) for (resource, key), pod in pods.items() if resource == self.resource}

    async def stored(self) -> Held:
        """Devices in the checkpoint, including those of ended pods; empty if no kubelet has run yet."""
        try:
            return (await self.ledger.read_checkpoint()).held.get(self.resource, {})
        except FileNotFoundError:
            return {}

    async def held(self, device_ids: Collection[str]) -> set[str]:
        """The devices that pods hold according to pod-resources or the checkpoint.

        `device_ids` are the devices whose release matters: if only the checkpoint contains one, it is rewritten first.
        """
        active, stored = await self.pods(), await self._written()
        if any(device_id in stored and device_id not in active for device_id in device_ids):
            await self.rewritten()
            stored = await self._written()
        return active.keys() | stored.keys()

    async def entries(self) -> Sequence[PodDevicesEntry]:
        """The stored answers of the kubelet, for all resources."""
        try:
            return (await self.ledger.read_checkpoint()).entries
        except FileNotFoundError as error:
            raise HoldersUnknown(clean(f"the checkpoint cannot be read: {error}")) from error

    async def rewritten(self) -> None:
        """Returns when the kubelet has rewritten its checkpoint, after the list that it has by now (4.31)."""
        await self.ledger.checkpoint.rewritten(self.resend)

    async def _written(self) -> Held:
        """The devices in the checkpoint; a missing checkpoint proves nothing about existing pods."""
        try:
            return (await self.ledger.read_checkpoint()).held.get(self.resource, {})
        except FileNotFoundError as error:
            raise HoldersUnknown(clean(f"the checkpoint cannot be read: {error}")) from error
