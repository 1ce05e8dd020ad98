"""The kubelet's device checkpoint: which container holds which devices, from bytes to values and back.

`decode` accepts the same files as the kubelet's reader, and `encode` returns the bytes the kubelet would write.
The checksum covers Go's print-out of the values, not the file. This module produces both formats, Go's JSON and Go's
print-out, and the hash, also for `checkpoint_encoder`, which writes one file often and fast. Callers read and write the
file, and decode the message inside an `answer`.
"""

import binascii
import json
import re
from array import array
from collections.abc import Iterable, Iterator, Mapping
from typing import NoReturn, TypeVar

import msgspec

from plugwright.errors import CheckpointCorrupt

__all__ = [
    "FNV_MASK",
    "FNV_OFFSET",
    "FNV_PRIME",
    "GO_ENTRIES",
    "GO_NIL",
    "GO_REGISTERED",
    "Checkpoint",
    "CheckpointReading",
    "DeviceLists",
    "PodDevicesEntry",
    "checksum",
    "decode",
    "encode",
    "entry_members",
    "fnv1a",
    "go_json",
    "go_printed",
    "go_printed_entry",
    "go_printed_list",
    "held_by_resource",
    "read",
]

# FNV-1a of 32 bits.
FNV_OFFSET, FNV_PRIME, FNV_MASK = 2166136261, 16777619, 0xFFFFFFFF
# The parts of Go's print-out; items of a list and pairs of a map are separated by a space.
GO_ENTRIES = "(checkpoint.checkpointData){PodDeviceEntries:([]checkpoint.PodDevicesEntry)"
GO_REGISTERED = " RegisteredDevices:(map[string][]string)"
GO_NIL = "<nil>"
# Go escapes these for embedding its JSON in HTML and JavaScript.
_ESCAPED = {ord(character): f"\\u{ord(character):04x}" for character in "<>&\u2028\u2029"}
_NUMA_NODE = re.compile(r"[+-]?[0-9]{1,64}")
_BASE64 = re.compile(r"[A-Za-z0-9+/]*={0,2}")
_BYTE, _MAX_BYTE = re.compile(rb"[0-9]{1,3}"), 255
_SURROGATE = re.compile(r"[\ud800-\udfff]")
_CHECKSUM_DIGITS = 20  # of 2^64 - 1
_KINDS: dict[type, str] = {bool: "a boolean", str: "a text", bytes: "a number", list: "a list", tuple: "an object"}
_Kind = TypeVar("_Kind")
_Key = TypeVar("_Key", int, str)
DeviceLists = Mapping[_Key, tuple[str, ...] | None]


class PodDevicesEntry(msgspec.Struct, frozen=True):
    """A container's devices of one resource, by NUMA node, and the plugin's response.

    Node -1 means none; a device near several nodes is listed under each. `answer` is an encoded
    ContainerAllocateResponse.
    """

    pod_uid: str
    container: str
    resource: str
    devices: DeviceLists[int] | None
    answer: bytes | None


class Checkpoint(msgspec.Struct, frozen=True):
    """The whole file. None is JSON's null, which the checksum distinguishes from empty.

    `registered` has the healthy devices of every resource. A kubelet without pods writes None for `entries`.
    """

    entries: tuple[PodDevicesEntry, ...] | None
    registered: DeviceLists[str] | None


class CheckpointReading(msgspec.Struct, frozen=True):
    """The content of a file, with its stored and its correct checksum.

    `plain_lists`: written by Kubernetes 1.11 to 1.19, which had no NUMA nodes; its devices are under node 0.
    """

    checkpoint: Checkpoint
    stored: int
    computed: int
    plain_lists: bool


def decode(data: bytes, plain_lists: bool = False) -> Checkpoint:
    """Raises `CheckpointCorrupt` if the file does not parse or its checksum does not match.

    `plain_lists` accepts the layout of 1.11 to 1.19 too, as kubelets before 1.31 do.
    """
    reading = read(data, plain_lists)
    if reading.stored != reading.computed:
        raise CheckpointCorrupt(
            f"checkpoint does not match its checksum: stored {reading.stored}, computed {reading.computed}"
        )
    return reading.checkpoint


def read(data: bytes, plain_lists: bool = False) -> CheckpointReading:
    """Decodes a file without comparing the checksums."""
    try:
        document = _members(_parse(data), "the file")
        content = _members(document.get("data"), "Data")  # an absent member is empty, which is not null
        entries, registered = content.get("poddeviceentries", []), content.get("registereddevices", ())
        plain = plain_lists and _has_plain_lists(entries)
        checkpoint = Checkpoint(_entries(entries, plain), _registered(registered))
        computed = checksum(checkpoint, plain)
        return CheckpointReading(checkpoint, _stored_checksum(document.get("checksum"), computed), computed, plain)
    except _Unparsable as error:
        raise CheckpointCorrupt(f"checkpoint does not parse: {error}") from None


def encode(checkpoint: Checkpoint) -> bytes:
    entries, registered = checkpoint.entries, checkpoint.registered
    content = {
        "PodDeviceEntries": None if entries is None else [entry_members(entry) for entry in entries],
        "RegisteredDevices": None if registered is None else dict(sorted(registered.items())),
    }
    return go_json({"Data": content, "Checksum": checksum(checkpoint)}).encode()


def held_by_resource(checkpoint: Checkpoint) -> dict[str, dict[str, tuple[int, ...]]]:
    """Every held device, by resource, with its NUMA nodes; devices and nodes are sorted."""
    found: dict[str, dict[str, set[int]]] = {}
    for entry in checkpoint.entries or ():
        devices = found.setdefault(entry.resource, {})
        for node, device_ids in (entry.devices or {}).items():
            for device_id in device_ids or ():
                devices.setdefault(device_id, set()).update([node] if node >= 0 else [])
    return {
        resource: {device_id: tuple(sorted(nodes)) for device_id, nodes in sorted(devices.items())}
        for resource, devices in found.items()
    }


def checksum(checkpoint: Checkpoint, plain_lists: bool = False) -> int:
    state, printed = FNV_OFFSET, _PrintedBytes()
    for part in _go_parts(checkpoint, plain_lists):
        state = printed.after(state, part) if isinstance(part, bytes) else fnv1a(state, part.encode())
    return state


def fnv1a(state: int, data: bytes) -> int:
    """The state of the hash after `data`; the first state is `FNV_OFFSET`."""
    prime, mask = FNV_PRIME, FNV_MASK
    for byte in data:
        state = ((state ^ byte) * prime) & mask
    return state


class _PrintedBytes:
    """The hash of bytes as Go prints them, `10 3 71`, one number at a time: a checkpoint consists mostly of answers.

    FNV-1a multiplies the state by the prime at every character; the rest of a string's effect depends only on the
    lowest byte of the state. So each number is one multiplication and one addition, computed on first use.
    """

    def __init__(self) -> None:
        self._texts = [b" %d" % byte for byte in range(256)]
        self._factors = [pow(FNV_PRIME, len(text), FNV_MASK + 1) for text in self._texts]
        self._additions = array("I", bytes(4 * 256 * 256))  # 0: not computed yet

    def after(self, state: int, data: bytes) -> int:
        """The state of the hash after `data`."""
        factors, additions, mask = self._factors, self._additions, FNV_MASK
        state = fnv1a(state, b"%d" % data[0]) if data else state
        for byte in data[1:]:
            addition = additions[byte << 8 | state & 0xFF]
            if not addition:
                addition = self._add(byte, state & 0xFF)
            state = (state * factors[byte] + addition) & mask
        return state

    def _add(self, byte: int, low: int) -> int:
        addition = (fnv1a(low, self._texts[byte]) - low * self._factors[byte]) & FNV_MASK
        self._additions[byte << 8 | low] = addition
        return addition


def go_json(value: object) -> str:
    """The value as Go's encoding/json writes it."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).translate(_ESCAPED)


def entry_members(entry: PodDevicesEntry) -> dict[str, object]:
    """The members of an entry in the file, in Go's order."""
    return {
        "PodUID": entry.pod_uid,
        "ContainerName": entry.container,
        "ResourceName": entry.resource,
        "DeviceIDs": _devices_members(entry.devices),
        "AllocResp": None if entry.answer is None else binascii.b2a_base64(entry.answer, newline=False).decode(),
    }


def _devices_members(devices: DeviceLists[int] | None) -> dict[str, object] | None:
    if devices is None:
        return None
    # Go sorts the keys as strings: -1, 0, 10, 2.
    return dict(sorted((str(node), device_ids) for node, device_ids in devices.items()))


def go_printed(checkpoint: Checkpoint, plain_lists: bool = False) -> str:
    """The values as Go prints them; with `plain_lists` in the layout of 1.11 to 1.19."""
    return "".join(map(_as_text, _go_parts(checkpoint, plain_lists)))


def go_printed_entry(entry: PodDevicesEntry) -> str:
    return "".join(map(_as_text, _go_entry_parts(entry, plain_lists=False)))


def _as_text(part: str | bytes) -> str:
    return part if isinstance(part, str) else " ".join(map(str, part))


def _go_parts(checkpoint: Checkpoint, plain_lists: bool) -> Iterator[str | bytes]:
    """The parts of the print-out; bytes are printed as numbers."""
    yield GO_ENTRIES
    if checkpoint.entries is None:
        yield GO_NIL
    else:
        yield "["
        for number, entry in enumerate(checkpoint.entries):
            if number:
                yield " "
            yield from _go_entry_parts(entry, plain_lists)
        yield "]"
    yield f"{GO_REGISTERED}{_go_printed_map(checkpoint.registered)}}}"


def _go_entry_parts(entry: PodDevicesEntry, plain_lists: bool) -> Iterator[str | bytes]:
    if plain_lists:
        devices = f"([]string){go_printed_list((entry.devices or {}).get(0))}"
    else:
        devices = f"(checkpoint.DevicesPerNUMA){_go_printed_map(entry.devices)}"
    yield (
        f"{{PodUID:(string){entry.pod_uid} ContainerName:(string){entry.container}"
        f" ResourceName:(string){entry.resource} DeviceIDs:{devices} AllocResp:([]uint8)"
    )
    if entry.answer is None:
        yield f"{GO_NIL}}}"
    else:
        yield "["
        yield entry.answer
        yield "]}"


def go_printed_list(items: Iterable[str] | None) -> str:
    return GO_NIL if items is None else f"[{' '.join(items)}]"


def _go_printed_map(lists: DeviceLists[_Key] | None) -> str:
    if lists is None:
        return GO_NIL
    return f"map[{' '.join(f'{key}:{go_printed_list(items)}' for key, items in sorted(lists.items()))}]"


class _Unparsable(Exception):
    """The reason in a few words; never leaves this module."""


def _parse(data: bytes) -> object:
    # Objects become tuples of pairs, because of `Data` and `data` the last counts. Numbers become their original bytes,
    # so 1.0 is not an integer and a million digits cost nothing.
    try:
        return json.loads(
            data.decode(),
            object_pairs_hook=tuple,
            parse_int=str.encode,
            parse_float=str.encode,
            parse_constant=_refuse_constant,
        )
    except UnicodeDecodeError as error:
        raise _Unparsable(f"byte {error.start} is not UTF-8") from None
    except json.JSONDecodeError as error:
        raise _Unparsable(f"{error}" if data else "the file is empty") from None
    except RecursionError:
        raise _Unparsable("it is nested too deeply") from None


def _refuse_constant(name: str) -> NoReturn:
    raise _Unparsable(f"{name} is not a number")


def _members(value: object, name: str) -> dict[str, object]:
    return {} if value is None else {key.casefold(): member for key, member in _expect(value, tuple, name)}


def _has_plain_lists(entries: object) -> bool:
    objects = (item for item in entries if isinstance(item, tuple)) if isinstance(entries, list) else ()
    return any(isinstance(_members(item, "it").get("deviceids"), list) for item in objects)


def _entries(value: object, plain_lists: bool) -> tuple[PodDevicesEntry, ...] | None:
    if value is None:
        return None
    entries = []
    for number, item in enumerate(_expect(value, list, "PodDeviceEntries"), 1):
        try:
            entries.append(_entry(item, plain_lists))
        except _Unparsable as error:
            raise _Unparsable(f"entry {number} of PodDeviceEntries: {error}") from None
    return tuple(entries)


def _entry(value: object, plain_lists: bool) -> PodDevicesEntry:
    members = _members(value, "it")
    devices = members.get("deviceids")
    return PodDevicesEntry(
        pod_uid=_text(members.get("poduid"), "PodUID"),
        container=_text(members.get("containername"), "ContainerName"),
        resource=_text(members.get("resourcename"), "ResourceName"),
        devices={0: _texts(devices, "DeviceIDs")} if plain_lists else _devices(devices),
        answer=_answer(members.get("allocresp")),
    )


def _devices(value: object) -> DeviceLists[int] | None:
    if value is None:
        return None
    pairs = _expect(value, tuple, "DeviceIDs")
    return {_numa_node(key): _texts(ids, f"DeviceIDs[{key!r:.40}]") for key, ids in pairs}


def _registered(value: object) -> DeviceLists[str] | None:
    if value is None:
        return None
    pairs = _expect(value, tuple, "RegisteredDevices")
    return {_text(key, "RegisteredDevices"): _texts(ids, f"RegisteredDevices[{key!r:.40}]") for key, ids in pairs}


def _numa_node(key: str) -> int:
    if _NUMA_NODE.fullmatch(key) and -(2**63) <= int(key) < 2**63:
        return int(key)
    raise _Unparsable(f"NUMA node in DeviceIDs must be an integer of 64 bits, got {key!r:.40}")


def _answer(value: object) -> bytes | None:
    if value is None:
        return None
    if isinstance(value, list):  # Go reads bytes from an array of numbers too
        return bytes(_byte(item) for item in value)
    text = _text(value, "AllocResp").replace("\r", "").replace("\n", "")  # as Go's base64 does
    if len(text) % 4 or not _BASE64.fullmatch(text):
        raise _Unparsable("AllocResp is not padded base64")
    return binascii.a2b_base64(text)


def _byte(value: object) -> int:
    if value is None:  # Go leaves the zero that was there
        return 0
    if isinstance(value, bytes) and _BYTE.fullmatch(value) and int(value) <= _MAX_BYTE:
        return int(value)
    shown = f"{value.decode():.40}" if isinstance(value, bytes) else _KINDS[type(value)]
    raise _Unparsable(f"AllocResp must be base64 or bytes, 0 to {_MAX_BYTE}, got {shown}")


def _stored_checksum(value: object, computed: int) -> int:
    if value is None:
        return 0
    if not isinstance(value, bytes):
        raise _Unparsable(f"Checksum must be a number ({computed} for this content), got {_KINDS[type(value)]}")
    if not value.isdigit() or len(value) > _CHECKSUM_DIGITS:
        shown = f"{value.decode():.40}"
        raise _Unparsable(f"Checksum must be an unsigned integer of 64 bits ({computed} for this content), got {shown}")
    return int(value)


def _texts(value: object, name: str) -> tuple[str, ...] | None:
    return None if value is None else tuple(_text(item, name) for item in _expect(value, list, name))


def _text(value: object, name: str) -> str:
    if value is None:  # Go reads null as an empty string; only lists and maps can be nil
        return ""
    text = _expect(value, str, name)
    if _SURROGATE.search(text):
        raise _Unparsable(f"{name} has half of a surrogate pair")
    return text


def _expect(value: object, kind: type[_Kind], name: str) -> _Kind:
    if not isinstance(value, kind):
        raise _Unparsable(f"{name} must be {_KINDS[kind]}, got {_KINDS[type(value)]}")
    return value
