"""What a checkpoint means: who holds what, and how two of them differ.

The kubelet writes entries, ids and the maps inside an answer in any order: files that differ may mean the same. How
meaning is shown is left to the callers.

Why the checksum of a checkpoint may not fit.

It covers the whole content at once, so it never tells which part was changed. But the usual ways to spoil a file
without meaning to can be tried backwards: entries that were put in another order, null that became empty.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import combinations, islice, permutations
from zlib import crc32

from plugwright.errors import MalformedMessage
from plugwright.protocol import checkpoint, messages
from plugwright.protocol.checkpoint import Checkpoint, PodDevicesEntry, Reading
from plugwright.protocol.messages import AllocateResponse

__all__ = ["Difference", "Fact", "Holding", "Owner", "differences", "explain", "facts", "holdings"]

Fact = tuple[str, str]


@dataclass(frozen=True, slots=True, order=True)
class Owner:
    """A container and the resource that it holds something of; or, `registered`, the list of a resource's devices."""

    pod_uid: str
    container: str
    resource: str
    registered: bool = False


@dataclass(frozen=True, slots=True)
class Holding:
    """What one container holds of one resource. `number` is the entry's in the file, from 1.

    Without an answer that decodes `answer` is None, and `problem` says why: the kubelet drops such an entry.
    """

    number: int
    owner: Owner
    devices: Mapping[str, tuple[int, ...]]
    answer: AllocateResponse | None
    problem: str


@dataclass(frozen=True, slots=True)
class Difference:
    """What changed for one owner; `change` is `added`, `removed` or `changed`."""

    change: str
    owner: Owner
    removed: tuple[Fact, ...]
    added: tuple[Fact, ...]


def holdings(found: Checkpoint) -> tuple[Holding, ...]:
    """One for each entry, sorted by pod, container and resource."""
    made = (_holding(number, entry) for number, entry in enumerate(found.entries or (), 1))
    return tuple(sorted(made, key=lambda holding: (holding.owner, holding.number)))


def _holding(number: int, entry: PodDevicesEntry) -> Holding:
    answer, problem = _decoded(entry.answer)
    devices = checkpoint.held(Checkpoint((entry,), None), entry.resource)
    return Holding(number, Owner(entry.pod_uid, entry.container, entry.resource), devices, answer, problem)


def _decoded(answer: bytes | None) -> tuple[AllocateResponse | None, str]:
    try:
        return messages.decode(answer or b""), ""
    except MalformedMessage as error:
        told = f"{len(answer or b'')} bytes, CRC-32 {crc32(answer or b''):08x}"  # so that two of them can be told apart
        return None, f"{error} ({told})"


def facts(holding: Holding) -> Iterator[Fact]:
    """Each as a kind and a text, in a fixed order; those of the answer have the names that the wire gives them."""
    for device_id, nodes in holding.devices.items():
        yield "device", f"{device_id} (NUMA {','.join(map(str, nodes)) or 'none'})"
    if holding.answer:
        yield from _answer_facts(holding.answer)
    else:
        yield "answer", holding.problem


def _answer_facts(answer: AllocateResponse) -> Iterator[Fact]:
    yield from (("env", f"{name}={value}") for name, value in answer.env.items())
    for mount in answer.mounts:
        yield "mount", f"{mount.host_path} -> {mount.container_path}{' (read-only)' if mount.read_only else ''}"
    for node in answer.nodes:
        yield "node", f"{node.host_path} -> {node.container_path} ({node.permissions})"
    yield from (("annotation", f"{name}={value}") for name, value in answer.annotations.items())
    yield from (("cdi", name) for name in answer.cdi)


def differences(old: Checkpoint, new: Checkpoint) -> list[Difference]:
    """None where both mean the same, whatever the bytes."""
    before, after = _everything(old), _everything(new)
    owners = sorted(before.keys() | after.keys())
    return [difference for owner in owners if (difference := _difference(owner, before.get(owner), after.get(owner)))]


def _everything(found: Checkpoint) -> dict[Owner, list[Fact]]:
    registered = {
        Owner("", "", name, registered=True): [("healthy", device_id) for device_id in sorted(device_ids or ())]
        for name, device_ids in (found.registered or {}).items()
    }
    # Of entries for the same container and resource the kubelet keeps the last, as does this.
    in_file_order = sorted(holdings(found), key=lambda holding: holding.number)
    return registered | {holding.owner: list(facts(holding)) for holding in in_file_order}


def _difference(owner: Owner, old: list[Fact] | None, new: list[Fact] | None) -> Difference | None:
    removed = tuple((Counter(old or ()) - Counter(new or ())).elements())
    added = tuple((Counter(new or ()) - Counter(old or ())).elements())
    if old is not None and new is not None:
        return Difference("changed", owner, removed, added) if removed or added else None
    return Difference("added" if old is None else "removed", owner, removed, added)


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


def _entry_candidates(entry: PodDevicesEntry) -> Iterator[tuple[str, PodDevicesEntry]]:
    if not entry.answer:
        answer = b"" if entry.answer is None else None
        yield f"""{_null_or(answer, '""')} for AllocResp""", replace(entry, answer=answer)
    if not entry.devices:
        devices: dict[int, tuple[str, ...] | None] | None = {} if entry.devices is None else None
        yield f"{_null_or(devices, '{}')} for DeviceIDs", replace(entry, devices=devices)


def _null_or(value: object, empty: str) -> str:
    return "null" if value is None else empty
