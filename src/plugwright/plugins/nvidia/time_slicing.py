"""Whole devices, and time-slicing: containers take turns, and each can use all the memory."""

from collections.abc import Callable, Mapping, Sequence

from plugwright.attributes import Capacity
from plugwright.plugins.nvidia import share_capacity, sharing
from plugwright.plugins.nvidia.config import NvidiaShare
from plugwright.plugins.nvidia.sharing import ContainerExtras, GpuUnit
from plugwright.sdk.share_usage import ShareUsage

__all__ = ["TimeSlicing"]


class TimeSlicing:
    """A `SharingBackend`; without `share`, for whole devices."""

    is_lasting = True

    def __init__(self, resource: str, share: NvidiaShare | None) -> None:
        self._resource, self._share = resource, share

    def units(self, whole: Sequence[GpuUnit]) -> list[GpuUnit]:
        sharing.check_list_size(self._resource, whole, self._share)
        return sharing.split_all(whole, self._share)

    def claimable(self, whole: Sequence[GpuUnit]) -> list[GpuUnit]:
        share = self._share
        return [unit for unit in whole if share is None or sharing.replica_count(unit, share)]

    def capacity(self, unit: GpuUnit) -> Mapping[str, Capacity]:
        """One claim per share. Their requested memory is added up, but never limited."""
        if self._share is None:
            return {}
        turns = share_capacity.slots(sharing.replica_count(unit, self._share), self._share.most)
        return share_capacity.known(slots=turns, memory=share_capacity.unlimited_memory(unit))

    def fault(self, unit: GpuUnit) -> str:
        return ""

    def note(self, unit: GpuUnit) -> str:
        """Without sizes, which would look like limits."""
        return "time-slicing: containers take turns, memory is not limited" if self._share else ""

    def extras(self, units: Sequence[GpuUnit]) -> ContainerExtras:
        """Contains no sizes, because nothing limits a container to them."""
        if self._share and units[0].replica is not None:
            sharing.check_request(self._resource, self._share.most, units)
        return ContainerExtras(env=sharing.device_env(units))

    def restored(self, units: Sequence[GpuUnit]) -> ContainerExtras:
        return self.extras(units)

    def renew(self, units: Sequence[GpuUnit]) -> bool:
        return True

    def release(self, keys: Sequence[str]) -> None:
        """Does nothing: a container has no files."""

    def usage(self, keys: Sequence[str]) -> Sequence[ShareUsage]:
        return ()

    async def follow(self, changed: Callable[[], object], driver: object = None) -> None:
        return
