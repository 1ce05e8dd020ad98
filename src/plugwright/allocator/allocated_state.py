"""The devices, shares and capacity that allocated claims hold."""

from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any

from plugwright.allocator.consumable_capacity import amount
from plugwright.allocator.published_slices import DeviceId

__all__ = ["AllocatedState"]


class AllocatedState:
    """The allocated devices. `add` and `remove` follow the allocation and deallocation of claims.

    A device with shares is not in `devices`: further claims can share it. Admin access allocates nothing.
    """

    __slots__ = ("capacity", "devices", "shares")

    def __init__(self) -> None:
        self.devices: set[DeviceId] = set()
        self.shares: dict[DeviceId, set[str]] = {}
        self.capacity: dict[DeviceId, dict[str, Decimal]] = {}

    @classmethod
    def of_claims(cls, claims: Iterable[Mapping[str, Any]]) -> "AllocatedState":
        """From ResourceClaims as the API server has them; those without an allocation hold nothing."""
        state = cls()
        for claim in claims:
            state.add((claim.get("status") or {}).get("allocation"))
        return state

    def add(self, allocation: Mapping[str, Any] | None) -> None:
        """Takes the devices of a claim's `status.allocation`."""
        for device, share, consumed in _held(allocation):
            if share is None:
                self.devices.add(device)
                continue
            self.shares.setdefault(device, set()).add(share)
            if consumed:
                used = self.capacity.setdefault(device, {})
                for name, value in consumed.items():
                    used[name] = used.get(name, Decimal(0)) + value

    def remove(self, allocation: Mapping[str, Any] | None) -> None:
        """Frees the devices of an allocation that was added."""
        for device, share, consumed in _held(allocation):
            if share is None:
                self.devices.discard(device)
                continue
            shares = self.shares.get(device, set())
            if share not in shares:
                continue
            shares.discard(share)
            if not shares:
                self.shares.pop(device, None)
            self._free(device, consumed)

    def _free(self, device: DeviceId, consumed: Mapping[str, Decimal]) -> None:
        used = self.capacity.get(device, {})
        for name, value in consumed.items():
            used[name] = used.get(name, Decimal(0)) - value
        if not any(used.values()):
            self.capacity.pop(device, None)

    def holds(self, device: DeviceId) -> bool:
        """Whether a claim has the device or a share of it."""
        return device in self.devices or device in self.shares or device in self.capacity


def _held(allocation: Mapping[str, Any] | None) -> Iterable[tuple[DeviceId, str | None, Mapping[str, Decimal]]]:
    for result in ((allocation or {}).get("devices") or {}).get("results") or ():
        if result.get("adminAccess"):
            continue
        consumed = result.get("consumedCapacity") or {}
        amounts = {name: amount(str(text)).value for name, text in consumed.items()}
        yield (result["driver"], result["pool"], result["device"]), result.get("shareID"), amounts
