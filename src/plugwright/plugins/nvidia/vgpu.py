"""vgpu: shares whose limits a library enforces inside every process of the container.

The id of a share contains its size, so the kubelet's own allocation has all the information; a claim's size comes from
the scheduler. The library counts memory in the container's own processes, so it cannot stop deliberate evasion:
`vgpu_builtin` is ours, `vgpu_hami` is HAMi's.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from msgspec.structs import replace

from plugwright.attributes import Capacity
from plugwright.errors import PluginError, PlugwrightError
from plugwright.plugins.nvidia import share_capacity, sharing
from plugwright.plugins.nvidia.config import NvidiaShare, NvidiaVgpu, VgpuLibrary
from plugwright.plugins.nvidia.driver import digest
from plugwright.plugins.nvidia.sharing import NOT_CONFINED, ContainerExtras, GpuUnit
from plugwright.plugins.nvidia.vgpu_builtin import BuiltinLibrary
from plugwright.plugins.nvidia.vgpu_hami import HamiLibrary
from plugwright.plugins.nvidia.vgpu_sizes import LONGEST_SIZE, ContainerShare, device_shares, sized_id
from plugwright.plugins.nvidia.vgpu_watch import CountedContainer, GpuUser, ShareWatch
from plugwright.sdk.share_usage import ShareUsage
from plugwright.system.blocking import BlockingCalls
from plugwright.system.log_once import LogOnce
from plugwright.text import clean

__all__ = ["LimiterLibrary", "VgpuSharing"]

logger = logging.getLogger(__name__)

_MIB = 2**20
_PAUSE = 10.0  # seconds between two measurements while a share is in use
_UNUSED = 3  # multiple of that pause while none is
_LOOK_LIMIT = 10.0  # seconds


class LimiterLibrary(Protocol):
    compute: str  # the effect of the percentage, for `plugwright status`
    limits_compute: bool

    def fault(self, unit: GpuUnit) -> str:
        """Why the library could not limit this unit; empty if it could."""
        ...

    def extras(self, share: ContainerShare) -> ContainerExtras:
        """The extras of a container; OSError if the files cannot be made."""
        ...

    def renew(self, name: str) -> bool:
        """Empties the files to which a container writes; False if a file named in its answer is missing."""
        ...

    usage_path: str  # of the usage file in containers; empty if their use is not measured

    def containers(self, names: Collection[str] = ()) -> dict[str, CountedContainer]:
        """The containers whose limiter has counted something, and those with these names; OSError."""
        ...

    def discard(self, name: str) -> None:
        """Deletes the files of a removed container."""
        ...


class VgpuSharing:
    """A `SharingBackend`."""

    is_lasting = False  # every container starts with an empty usage file

    def __init__(self, resource: str, share: NvidiaShare, proc: Path = Path("/proc"), pause: float = _PAUSE) -> None:
        self._resource, self._share, self._pause = resource, share, pause
        config = share.vgpu or NvidiaVgpu()
        self._library: LimiterLibrary = (
            BuiltinLibrary(config) if share.library is VgpuLibrary.BUILTIN else HamiLibrary(config)
        )
        self._oversubscribed: set[str] = set()
        self._shared: tuple[str, ...] = ()  # UUIDs
        self._watch = ShareWatch(self._library.usage_path, proc)
        self._looks = BlockingCalls(f"use of {resource}", _LOOK_LIMIT, most_hung=1)
        self._problems = LogOnce(logger)

    def units(self, whole: Sequence[GpuUnit]) -> list[GpuUnit]:
        sharing.check_list_size(self._resource, whole, self._share, LONGEST_SIZE)
        self._shared = tuple(unit.uuid for unit in whole)
        shares = {unit.uuid: sharing.split(unit, self._share) for unit in whole}
        self._oversubscribed = {
            unit.uuid for unit in whole if sum(part.memory for part in shares[unit.uuid]) > unit.memory
        }
        return [replace(part, id=sized_id(part)) for parts in shares.values() for part in parts]

    def claimable(self, whole: Sequence[GpuUnit]) -> list[GpuUnit]:
        self._shared = tuple(unit.uuid for unit in whole)
        return [unit for unit in whole if sharing.replica_count(unit, self._share)]

    def capacity(self, unit: GpuUnit) -> Mapping[str, Capacity]:
        """The capacities; no percentage if the library does not limit it, which would exclude claims needlessly."""
        [share] = sharing.first_shares([unit], self._share)
        memory = share_capacity.any_memory(unit, share, self._share.most)
        percent = share_capacity.any_percent(share, self._share.most)
        return share_capacity.known(memory=memory, **({"percent": percent} if self._library.limits_compute else {}))

    def fault(self, unit: GpuUnit) -> str:
        if unit.memory < _MIB:
            return "a vgpu share has less than 1 MiB: that would be no limit"
        return self._library.fault(unit)

    def note(self, unit: GpuUnit) -> str:
        return f"vgpu, {NOT_CONFINED}: the limiter runs in the tenant's own process; {self._library.compute}"

    def extras(self, units: Sequence[GpuUnit]) -> ContainerExtras:
        """The extras. A claim can be prepared again while its containers run; its own files are new at first."""
        return self._extras(units, is_fresh=not any(unit.share_id for unit in units))

    def restored(self, units: Sequence[GpuUnit]) -> ContainerExtras:
        """Like `extras`, for a possibly running container with these units: its use stays counted."""
        return self._extras(units, is_fresh=False)

    def renew(self, units: Sequence[GpuUnit]) -> bool:
        name = _name([unit.key for unit in units])
        self._watch.forget(name)
        try:
            return self._library.renew(name)
        except OSError as error:
            raise PluginError(f"{self._resource}: cannot prepare a vgpu share: {error}") from error

    def release(self, keys: Sequence[str]) -> None:
        """Releases the files of one request, or of several, each with its own share."""
        for name in sorted({_name(keys), *(_name([key]) for key in keys)}):
            self._library.discard(name)

    def usage(self, keys: Sequence[str]) -> Sequence[ShareUsage]:
        return self._watch.usage(_name(keys))

    async def follow(self, changed: Callable[[], object], driver: GpuUser) -> None:
        """Measures the use by containers; `fault` is checked with every list."""
        while self._library.usage_path:
            is_used = False
            try:
                is_used = await self._looks.run(
                    lambda: self._watch.look(self._library.containers, driver, self._shared)
                )
                self._problems.recovered()
            except (OSError, PlugwrightError) as error:
                facts = {"resource": self._resource, "error": clean(error)}
                self._problems.warning("what vgpu shares use cannot be measured", clean(error), extra=facts)
            await asyncio.sleep(self._pause if is_used else _UNUSED * self._pause)

    def _extras(self, units: Sequence[GpuUnit], is_fresh: bool) -> ContainerExtras:
        if units[0].replica is not None:  # otherwise the scheduler has enforced the limits of claims
            sharing.check_request(self._resource, self._share.most, units)
        devices = device_shares(units)
        if is_fresh:
            self._watch.forget(_name([unit.key for unit in units]))
        share = ContainerShare(
            name=_name([unit.key for unit in units]),
            devices=devices,
            is_oversubscribed=not self._oversubscribed.isdisjoint(device.uuid for device in devices),
            is_fresh=is_fresh,
        )
        try:
            extras = self._library.extras(share)
        except OSError as error:
            raise PluginError(f"{self._resource}: cannot prepare a vgpu share: {error}") from error
        return replace(extras, env=sharing.share_env(units))


def _name(keys: Sequence[str]) -> str:
    """A name for files. The kubelet can allocate the same units again, which then have the same files."""
    return digest(keys, 24)
