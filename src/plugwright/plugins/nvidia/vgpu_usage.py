"""Reads the counts of our limiter: the usage file of a container, and the limits next to it.

The container can write anything into its usage file, and lock any part of it: the numbers are for information, and only
the driver's numbers decide whether a share is exceeded. The layout is `struct usage` in `native/vgpu/share.c`.
"""

import fcntl
import os
import stat
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

__all__ = ["ContainerCount", "GpuCount", "read_limits", "read_usage"]

_GPUS, _PROCESSES, _RECORDS = 16, 1024, 1024
_MAGIC = 0x70777631
_STATES = 8 + 8 * _GPUS
_USED = _STATES + 8 * _PROCESSES
_RECORD_COUNT = _USED + 8 * _PROCESSES * (_GPUS + 3)
_RECORD = struct.Struct(f"=QQQiiII{_PROCESSES // 8}s")
_PEAKS = _RECORD_COUNT + 8 + _RECORDS * _RECORD.size
_END = _PEAKS + 16 * _GPUS
_FIRST_LOCK = 1  # the byte locked by the owner of slot 0
_LOCK = struct.Struct("=hhxxxxqqixxxx")  # struct flock of 64-bit Linux
_F_OFD_GETLK = 36
_LOST = -1  # the owner of a record that has ended while others hold the memory
_LARGEST = 2**63 - 1
_LIMITS_SIZE = 16 * 80


class GpuCount(msgspec.Struct, frozen=True):
    """The limiter's counts for one GPU, in bytes; None if the container's limiter is too old to count them."""

    used: int = 0
    peak: int | None = 0
    refusals: int | None = 0


class ContainerCount(msgspec.Struct, frozen=True):
    """The counts of the running processes of one container; `gpus` in the order of the limits."""

    processes: int
    gpus: tuple[GpuCount, ...]


def read_limits(path: Path) -> dict[str, int]:
    """The limits by UUID, in the order of the file. OSError, ValueError."""
    with path.open("rb") as file:
        lines = file.read(_LIMITS_SIZE).decode("ascii").splitlines()
    return {uuid: int(size) for uuid, size in (line.split(" ") for line in lines[:_GPUS])}


def read_usage(path: Path, gpus: int) -> ContainerCount | None:
    """The counts; None if the file is not the limiter's; OSError. A file is empty until a process opens it."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            return None
        return _read(descriptor, gpus) if status.st_size else ContainerCount(0, (GpuCount(),) * gpus)
    finally:
        os.close(descriptor)


def _read(descriptor: int, gpus: int) -> ContainerCount | None:
    try:
        magic, slots = struct.unpack("=II", os.pread(descriptor, 8, 0))
        if magic != _MAGIC:
            return None
        slots = min(slots, _PROCESSES)
        states = _numbers(descriptor, _STATES, slots)
        living = [slot for slot in range(slots) if states[slot] and _is_locked(descriptor, _FIRST_LOCK + slot)]
        used = [_numbers(descriptor, _USED + 8 * _PROCESSES * gpu, slots) for gpu in range(gpus)]
        lost = list(_lost_records(descriptor)) if living else []
        # A file made by an earlier limiter is shorter.
        is_complete = os.fstat(descriptor).st_size >= _END
        peaks: Sequence[int | None] = _numbers(descriptor, _PEAKS, 2 * _GPUS) if is_complete else (None,) * 2 * _GPUS
    except struct.error:  # cut off
        return None
    totals = [
        sum(used[gpu][slot] for slot in living) + sum(size for where, size in lost if where == gpu)
        for gpu in range(gpus)
    ]
    counts = (GpuCount(min(totals[gpu], _LARGEST), peaks[gpu], peaks[_GPUS + gpu]) for gpu in range(gpus))
    return ContainerCount(len(living), tuple(counts))


def _numbers(descriptor: int, offset: int, count: int) -> Sequence[int]:
    content = os.pread(descriptor, 8 * count, offset)
    return [min(number, _LARGEST) for number in struct.unpack(f"={count}Q", content)]


def _lost_records(descriptor: int) -> Iterator[tuple[int, int]]:
    """GPU and bytes of memory whose owner has ended, while others hold it."""
    [count] = struct.unpack("=Q", os.pread(descriptor, 8, _RECORD_COUNT))
    content = os.pread(descriptor, _RECORD.size * min(count, _RECORDS), _RECORD_COUNT + 8)
    for record_id, size, _, gpu, owner, *_ in _RECORD.iter_unpack(content):
        if record_id and owner == _LOST:
            yield gpu, size


def _is_locked(descriptor: int, byte: int) -> bool:
    """Whether the process with this slot is running, in whichever PID namespace."""
    question = _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0)
    answer: bytes = fcntl.fcntl(descriptor, _F_OFD_GETLK, question)
    return int(_LOCK.unpack(answer)[0]) != fcntl.F_UNLCK
