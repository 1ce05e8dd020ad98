"""Measures the use by containers with vgpu shares, and finds those over their limit.

A tenant's process can evade the limiter's count, but not the driver's. A process belongs to the container whose usage
file it has mounted, as shown by `/proc`: the daemon needs the node's PID namespace (`hostPID`). Without it the driver's
count is unknown, and no share is reported as exceeded.
"""

import logging
import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Protocol

import msgspec
from msgspec.structs import replace

from plugwright.errors import DriverGone
from plugwright.plugins.nvidia.driver import GpuProcess, GpuUse
from plugwright.plugins.nvidia.vgpu_usage import ContainerCount
from plugwright.sdk.share_usage import ShareUsage
from plugwright.system.log_once import LogOnce

__all__ = ["CountedContainer", "GpuUser", "ShareWatch"]

logger = logging.getLogger(__name__)

# Tolerated bytes beyond a limit: memory taken by the driver between two checks of the limiter.
_SLACK = 32 * 2**20
_MOST_PIDS = 8  # in a log line
_MOUNTS_SIZE, _GROUPS_SIZE = 2**20, 4096
_POD_UID = re.compile(rb"pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12})")
_UNSEEN = "processes on shared GPUs belong to no container that this daemon can see: it needs the node's PID namespace"


class CountedContainer(msgspec.Struct, frozen=True):
    """A container's limits by UUID, and the limiter's count; None if unreadable."""

    limits: Mapping[str, int]
    count: ContainerCount | None


# The containers whose limiter has counted something, and those with these names; OSError.
CountContainers = Callable[[Collection[str]], Mapping[str, CountedContainer]]


class GpuUser(Protocol):
    """The required part of a `GpuDriver`."""

    def use(self, uuid: str) -> GpuUse | None: ...


class ShareWatch:
    """`look` is called in a thread, one at a time; all other methods from any thread.

    `mount_point` is the path of the usage file in containers; here it is named after the container.
    """

    def __init__(self, mount_point: str, proc: Path = Path("/proc"), clock: Callable[[], float] = time.time) -> None:
        self._mount_point, self._proc, self._clock = mount_point.encode(), proc, clock
        self._usages: Mapping[str, tuple[ShareUsage, ...]] = {}
        self._problems = LogOnce(logger)

    def usage(self, name: str) -> tuple[ShareUsage, ...]:
        return self._usages.get(name, ())

    def forget(self, name: str) -> None:
        """Discards a name's measurements, because another container gets the name."""
        self._usages = {other: usages for other, usages in self._usages.items() if other != name}

    def look(self, count: CountContainers, driver: GpuUser, uuids: Collection[str]) -> bool:
        """Measures the containers with shares of these devices; returns whether any of them is in use."""
        uses = {uuid: _use(driver, uuid) for uuid in uuids}
        pids = {process.pid for use in uses.values() if use is not None for process in use.processes}
        owners = {pid: name for pid in pids if (name := self._container_of(pid))}
        containers = count(set(owners.values()))
        self._usages = {
            name: tuple(self._measured(name, container, uses, owners)) for name, container in containers.items()
        }
        if pids and not owners and any(one.count and one.count.processes for one in containers.values()):
            self._problems.warning(_UNSEEN, _UNSEEN)
        return any(usage.processes or usage.driver for usages in self._usages.values() for usage in usages)

    def _measured(
        self, name: str, container: CountedContainer, uses: Mapping[str, GpuUse | None], owners: Mapping[int, str]
    ) -> Iterator[ShareUsage]:
        before = {usage.of: usage for usage in self.usage(name)}
        now, count = self._clock(), container.count
        for (uuid, limit), counted in zip_longest(container.limits.items(), count.gpus if count else ()):
            usage = ShareUsage(of=uuid, limit=limit, at=now, processes=count.processes if count else None)
            if counted is not None:
                usage = replace(usage, used=counted.used, peak=counted.peak, refusals=counted.refusals)
            use = uses.get(uuid)
            if use is not None:
                own = [process for process in use.processes if owners.get(process.pid) == name]
                usage = _compared(usage, use, own, can_see=bool(owners) or not use.processes)
            earlier = before.get(uuid)
            if earlier is not None and earlier.limit == limit:
                usage = _continued(usage, earlier)
            elif usage.exceeded:
                usage = replace(usage, incidents=1)
            if usage.exceeded and not (earlier and earlier.exceeded):
                self._report(name, usage, [pid for pid, owner in owners.items() if owner == name])
            yield usage

    def _report(self, name: str, usage: ShareUsage, pids: Sequence[int]) -> None:
        pods = sorted({pod for pid in pids if (pod := self._pod_uid(pid))})
        facts: dict[str, object] = {"gpu": usage.of, "limit": usage.limit, "used": usage.driver, "counted": usage.used}
        facts |= {"share": name, "pids": sorted(pids)[:_MOST_PIDS], "pod_uids": pods[:_MOST_PIDS]}
        logger.error("a container exceeds its share of a GPU", extra=facts)

    def _container_of(self, pid: int) -> str:
        """The name of the usage file mounted in the process; empty if there is none, or it cannot be read."""
        for line in self._read(pid, "mountinfo", _MOUNTS_SIZE).splitlines():
            fields = line.split(b" ", 5)
            if len(fields) == 6 and fields[4] == self._mount_point and not fields[3].endswith(b"//deleted"):
                return fields[3].rpartition(b"/")[2].decode("ascii", "replace")
        return ""

    def _pod_uid(self, pid: int) -> str:
        found = _POD_UID.search(self._read(pid, "cgroup", _GROUPS_SIZE))
        return found[1].decode().replace("_", "-") if found else ""

    def _read(self, pid: int, name: str, size: int) -> bytes:
        try:
            with (self._proc / str(pid) / name).open("rb") as file:
                return file.read(size)
        except OSError:  # it has ended, or is not in our PID namespace
            return b""


def _use(driver: GpuUser, uuid: str) -> GpuUse | None:
    try:
        return driver.use(uuid)
    except DriverGone:
        return None


def _compared(usage: ShareUsage, use: GpuUse, own: Sequence[GpuProcess], *, can_see: bool) -> ShareUsage:
    """The usage with the driver's count, if known. Memory of unknown owners could be anyone's."""
    sizes = [process.memory for process in own if process.memory is not None]
    if len(sizes) < len(own) or (not own and (usage.used or not can_see)):
        return usage
    # Shared memory counts for each process, so their sum can exceed the used memory by this amount.
    twice = max(0, sum(process.memory or 0 for process in use.processes) - use.used)
    total = sum(sizes)
    return replace(usage, driver=total, driver_peak=total, exceeded=total - twice > usage.limit + _SLACK)


def _continued(usage: ShareUsage, before: ShareUsage) -> ShareUsage:
    peaks = [peak for peak in (usage.driver_peak, before.driver_peak) if peak is not None]
    begins = usage.exceeded and not before.exceeded
    return replace(usage, driver_peak=max(peaks, default=None), incidents=before.incidents + begins)
