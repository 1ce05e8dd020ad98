"""Why the checksum of a checkpoint may not fit.

It covers the whole content at once, so it never tells which part was changed. But the usual ways to spoil a file
without meaning to can be tried backwards: entries that were put in another order, null that became empty.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import combinations, islice, permutations

from plugwright.protocol import checkpoint
from plugwright.protocol.checkpoint import Checkpoint, Entry, Reading

__all__ = ["explain"]

_WORK = 5_000_000  # bytes that may be hashed: some half a second
_FEW = 5  # entries whose every order is tried


def explain(reading: Reading) -> str:
    """What would make the checksum fit, where that is one of the usual changes; else nothing."""
    size = len(checkpoint.encode(reading.checkpoint))
    for text, candidate in islice(_candidates(reading.checkpoint), _WORK // size):
        if checkpoint.checksum(candidate, reading.plain_lists) == reading.stored:
            return text
    return ""


def _candidates(found: Checkpoint) -> Iterator[tuple[str, Checkpoint]]:
    entries = found.entries or ()
    if not entries:
        other = () if found.entries is None else None
        yield f"with {_null_or(other, '[]')} for PodDeviceEntries", replace(found, entries=other)
    if not found.registered:
        lists: dict[str, tuple[str, ...] | None] | None = {} if found.registered is None else None
        yield f"with {_null_or(lists, '{}')} for RegisteredDevices", replace(found, registered=lists)
    for number, entry in enumerate(entries, 1):
        for text, other_entry in _entry_candidates(entry):
            changed = (*entries[: number - 1], other_entry, *entries[number:])
            yield f"with {text} in entry {number} of PodDeviceEntries", replace(found, entries=changed)
    for text, order in _orders(len(entries)):
        moved = tuple(entries[position] for position in order)
        yield f"with {text}", replace(found, entries=moved)


def _orders(count: int) -> Iterator[tuple[str, Iterable[int]]]:
    if count <= _FEW:
        for order in permutations(range(count)):
            yield f"PodDeviceEntries in the order {', '.join(str(position + 1) for position in order)}", order
        return
    yield "PodDeviceEntries in reverse order", range(count - 1, -1, -1)
    for first, second in combinations(range(count), 2):
        swapped = list(range(count))
        swapped[first], swapped[second] = second, first
        yield f"entries {first + 1} and {second + 1} of PodDeviceEntries in each other's place", swapped


def _entry_candidates(entry: Entry) -> Iterator[tuple[str, Entry]]:
    if not entry.answer:
        answer = b"" if entry.answer is None else None
        yield f"""{_null_or(answer, '""')} for AllocResp""", replace(entry, answer=answer)
    if not entry.devices:
        devices: dict[int, tuple[str, ...] | None] | None = {} if entry.devices is None else None
        yield f"{_null_or(devices, '{}')} for DeviceIDs", replace(entry, devices=devices)


def _null_or(value: object, empty: str) -> str:
    return "null" if value is None else empty
