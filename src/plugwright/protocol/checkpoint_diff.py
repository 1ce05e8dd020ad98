"""The meaning of a checkpoint: its decoded entries, differences between two files, and causes of a wrong checksum.

The kubelet writes entries, ids and the maps inside a response in any order, so different files can mean the same. A
checksum covers the whole content and does not show the changed part, but the usual accidents can be tried in reverse:
reordered entries, empty lists in place of null. Callers format the results.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations, islice, permutations
from zlib import crc32

from msgspec.structs import replace

from plugwright.errors import MalformedMessage
from plugwright.protocol import checkpoint, messages
from plugwright.protocol.checkpoint import Checkpoint, CheckpointReading, PodDevicesEntry
from plugwright.protocol.messages import AllocateResponse

__all__ = ["DecodedEntry", "Detail", "Difference", "EntryKey", "decoded_entries", "details", "differences", "explain"]

Detail = tuple[str, str]  # a kind, such as `device` or `env`, and its text
_MAX_HASHED_BYTES = 5_000_000  # about half a second
_MAX_PERMUTED_ENTRIES = 5  # up to this number of entries, every order is tried


@dataclass(frozen=True, slots=True, order=True)
class EntryKey:
    """A container and a resource of which it holds devices; or, if `registered`, the healthy devices of a resource."""

    pod_uid: str
    container: str
    resource: str
    registered: bool = False


@dataclass(frozen=True, slots=True)
class DecodedEntry:
    """A container's devices of one resource; `number` is the position in the file, from 1.

    If the response cannot be decoded, `answer` is None and `problem` the reason: the kubelet drops such an entry.
    """

    number: int
    key: EntryKey
    devices: Mapping[str, tuple[int, ...]]
    answer: AllocateResponse | None
    problem: str


@dataclass(frozen=True, slots=True)
class Difference:
    """The changed details of one key; `change` is `added`, `removed` or `changed`."""

    change: str
    key: EntryKey
    removed: tuple[Detail, ...]
    added: tuple[Detail, ...]


def decoded_entries(content: Checkpoint) -> tuple[DecodedEntry, ...]:
    """The entries, sorted by pod, container and resource."""
    decoded = (_decode(number, entry) for number, entry in enumerate(content.entries or (), 1))
    return tuple(sorted(decoded, key=lambda entry: (entry.key, entry.number)))


def _decode(number: int, entry: PodDevicesEntry) -> DecodedEntry:
    key = EntryKey(entry.pod_uid, entry.container, entry.resource)
    devices = checkpoint.held_by_resource(Checkpoint((entry,), None))[entry.resource]
    data = entry.answer or b""
    try:
        return DecodedEntry(number, key, devices, messages.decode(data), "")
    except MalformedMessage as error:
        # Size and CRC distinguish two undecodable responses.
        problem = f"{error} ({len(data)} bytes, CRC-32 {crc32(data):08x})"
        return DecodedEntry(number, key, devices, None, problem)


def details(entry: DecodedEntry) -> Iterator[Detail]:
    """The devices and the response of an entry in a fixed order."""
    for device_id, nodes in entry.devices.items():
        yield "device", f"{device_id} (NUMA {','.join(map(str, nodes)) or 'none'})"
    if entry.answer:
        yield from _response_details(entry.answer)
    else:
        yield "answer", entry.problem


def _response_details(response: AllocateResponse) -> Iterator[Detail]:
    yield from (("env", f"{name}={value}") for name, value in response.env.items())
    for mount in response.mounts:
        yield "mount", f"{mount.host_path} -> {mount.container_path}{' (read-only)' if mount.read_only else ''}"
    for node in response.nodes:
        yield "node", f"{node.host_path} -> {node.container_path} ({node.permissions})"
    yield from (("annotation", f"{name}={value}") for name, value in response.annotations.items())
    yield from (("cdi", name) for name in response.cdi)


def differences(old: Checkpoint, new: Checkpoint) -> list[Difference]:
    """Empty if both mean the same, regardless of their bytes."""
    before, after = _details_by_key(old), _details_by_key(new)
    keys = sorted(before.keys() | after.keys())
    return [difference for key in keys if (difference := _difference(key, before.get(key), after.get(key)))]


def _details_by_key(content: Checkpoint) -> dict[EntryKey, list[Detail]]:
    registered = {
        EntryKey("", "", name, registered=True): [("healthy", device_id) for device_id in sorted(device_ids or ())]
        for name, device_ids in (content.registered or {}).items()
    }
    # Of several entries for one container and resource the kubelet keeps the last in the file.
    in_file_order = sorted(decoded_entries(content), key=lambda entry: entry.number)
    return registered | {entry.key: list(details(entry)) for entry in in_file_order}


def _difference(key: EntryKey, old: list[Detail] | None, new: list[Detail] | None) -> Difference | None:
    removed = tuple((Counter(old or ()) - Counter(new or ())).elements())
    added = tuple((Counter(new or ()) - Counter(old or ())).elements())
    if old is not None and new is not None:
        return Difference("changed", key, removed, added) if removed or added else None
    return Difference("added" if old is None else "removed", key, removed, added)


def explain(reading: CheckpointReading) -> str:
    """The usual accident behind the wrong checksum; empty if none matches."""
    size = len(checkpoint.encode(reading.checkpoint))
    for text, candidate in islice(_candidates(reading.checkpoint), _MAX_HASHED_BYTES // size):
        if checkpoint.checksum(candidate, reading.plain_lists) == reading.stored:
            return text
    return ""


def _candidates(content: Checkpoint) -> Iterator[tuple[str, Checkpoint]]:
    entries = content.entries or ()
    if not entries:
        other = () if content.entries is None else None
        yield f"with {_null_or(other, '[]')} for PodDeviceEntries", replace(content, entries=other)
    if not content.registered:
        lists: dict[str, tuple[str, ...] | None] | None = {} if content.registered is None else None
        yield f"with {_null_or(lists, '{}')} for RegisteredDevices", replace(content, registered=lists)
    for number, entry in enumerate(entries, 1):
        for text, other_entry in _entry_candidates(entry):
            changed = (*entries[: number - 1], other_entry, *entries[number:])
            yield f"with {text} in entry {number} of PodDeviceEntries", replace(content, entries=changed)
    for text, order in _orders(len(entries)):
        reordered = tuple(entries[position] for position in order)
        yield f"with {text}", replace(content, entries=reordered)


def _orders(count: int) -> Iterator[tuple[str, Iterable[int]]]:
    if count <= _MAX_PERMUTED_ENTRIES:
        for order in permutations(range(count)):
            yield f"PodDeviceEntries in the order {', '.join(str(position + 1) for position in order)}", order
        return
    yield "PodDeviceEntries in reverse order", range(count - 1, -1, -1)
    for first, second in combinations(range(count), 2):
        swapped = list(range(count))
        swapped[first], swapped[second] = second, first
        yield f"entries {first + 1} and {second + 1} of PodDeviceEntries swapped", swapped


def _entry_candidates(entry: PodDevicesEntry) -> Iterator[tuple[str, PodDevicesEntry]]:
    if not entry.answer:
        answer = b"" if entry.answer is None else None
        yield f"""{_null_or(answer, '""')} for AllocResp""", replace(entry, answer=answer)
    if not entry.devices:
        devices: dict[int, tuple[str, ...] | None] | None = {} if entry.devices is None else None
        yield f"{_null_or(devices, '{}')} for DeviceIDs", replace(entry, devices=devices)


def _null_or(value: object, empty: str) -> str:
    return "null" if value is None else empty
