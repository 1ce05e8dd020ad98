"""The kubelet's device checkpoint: which container holds which devices, bytes to values and back.

`decode` takes what the kubelet's own reader takes, `encode` gives the bytes that the kubelet would write. The
checksum is made from a text that Go prints of the values, not from the file. Reading and writing the file, and
the message inside an `answer`, are left to the callers; writing it often and fast is `checkpoint_encoder`'s work.

The checkpoint's values, and the two texts made from them: Go's JSON for the file, Go's print-out for its checksum.

Reading is `checkpoint`'s work, writing one file again and again `checkpoint_encoder`'s.
"""

import base64
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NoReturn, TypeVar

from plugwright.errors import CheckpointCorrupt

__all__ = [
    "Checkpoint",
    "Lists",
    "PodDevicesEntry",
    "Reading",
    "checksum",
    "decode",
    "encode",
    "entry_members",
    "go_json",
    "held",
    "printed",
    "printed_entry",
    "printed_list",
    "read",
]

# Go's JSON can stand inside HTML and JavaScript.
_ESCAPED = {ord(character): f"\\u{ord(character):04x}" for character in "<>&\u2028\u2029"}
_Key = TypeVar("_Key", int, str)
Lists = Mapping[_Key, tuple[str, ...] | None]


@dataclass(frozen=True, slots=True)
class PodDevicesEntry:
    """What one container holds of one resource: its devices by NUMA node, and the plugin's answer.

    Node -1 means none; a device near several nodes stands under each. `answer` is a ContainerAllocateResponse.
    """

    pod_uid: str
    container: str
    resource: str
    devices: Lists[int] | None
    answer: bytes | None


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The whole file. None is JSON's null: the checksum tells it from empty, so it is kept.

    `registered` has the healthy devices of every resource. A kubelet without pods writes None for `entries`.
    """

    entries: tuple[PodDevicesEntry, ...] | None
    registered: Lists[str] | None


def go_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).translate(_ESCAPED)


def entry_members(entry: PodDevicesEntry) -> dict[str, object]:
    return {
        "PodUID": entry.pod_uid,
        "ContainerName": entry.container,
        "ResourceName": entry.resource,
        "DeviceIDs": _devices_members(entry.devices),
        "AllocResp": None if entry.answer is None else base64.b64encode(entry.answer).decode(),
    }


def _devices_members(devices: Lists[int] | None) -> dict[str, object] | None:
    if devices is None:
        return None
    # As texts, as Go does: -1, 0, 10, 2.
    return dict(sorted((str(node), device_ids) for node, device_ids in devices.items()))


def printed(checkpoint: Checkpoint, plain_lists: bool = False) -> str:
    """What Go prints of the values. `plain_lists`: as 1.11 to 1.19 did, whose devices had no NUMA nodes."""
    entries = checkpoint.entries
    texts = None if entries is None else (printed_entry(entry, plain_lists) for entry in entries)
    return (
        f"(checkpoint.checkpointData){{PodDeviceEntries:([]checkpoint.PodDevicesEntry){printed_list(texts)}"
        f" RegisteredDevices:(map[string][]string){_printed_map(checkpoint.registered)}}}"
    )


def printed_entry(entry: PodDevicesEntry, plain_lists: bool = False) -> str:
    answer = None if entry.answer is None else map(str, entry.answer)
    devices = _printed_plain(entry.devices) if plain_lists else _printed_nodes(entry.devices)
    return (
        f"{{PodUID:(string){entry.pod_uid} ContainerName:(string){entry.container}"
        f" ResourceName:(string){entry.resource} DeviceIDs:{devices} AllocResp:([]uint8){printed_list(answer)}}}"
    )


def _printed_nodes(devices: Lists[int] | None) -> str:
    return f"(checkpoint.DevicesPerNUMA){_printed_map(devices)}"


def _printed_plain(devices: Lists[int] | None) -> str:
    return f"([]string){printed_list((devices or {}).get(0))}"


def printed_list(items: Iterable[str] | None) -> str:
    return "<nil>" if items is None else f"[{' '.join(items)}]"


def _printed_map(lists: Lists[_Key] | None) -> str:
    if lists is None:
        return "<nil>"
    return f"map[{' '.join(f'{key}:{printed_list(items)}' for key, items in sorted(lists.items()))}]"


_NUMA_NODE = re.compile(r"[+-]?[0-9]{1,64}")
_BASE64 = re.compile(r"[A-Za-z0-9+/]*={0,2}")
_SURROGATE = re.compile(r"[\ud800-\udfff]")
_CHECKSUM_DIGITS = 20  # of 2^64 - 1
_KINDS: dict[type, str] = {bool: "a boolean", str: "a text", bytes: "a number", list: "a list", tuple: "an object"}
_Kind = TypeVar("_Kind")


@dataclass(frozen=True, slots=True)
class Reading:
    """What a file says, with the checksum it has and the one it should have.

    `plain_lists`: written by 1.11 to 1.19, which knew no NUMA nodes; its devices stand under node 0.
    """

    checkpoint: Checkpoint
    stored: int
    computed: int
    plain_lists: bool


class _Unparsable(Exception):
    """Why, in a few words; never leaves this module."""


def decode(data: bytes, plain_lists: bool = False) -> Checkpoint:
    """Raises `CheckpointCorrupt` for whatever does not parse or is not what its checksum was made from.

    `plain_lists`: take the layout of 1.11 to 1.19 too, as kubelets before 1.31 do.
    """
    reading = read(data, plain_lists)
    if reading.stored != reading.computed:
        raise CheckpointCorrupt(
            f"checkpoint is not what was written: checksum stored {reading.stored}, computed {reading.computed}"
        )
    return reading.checkpoint


def read(data: bytes, plain_lists: bool = False) -> Reading:
    """As `decode`, but a wrong checksum is only told."""
    try:
        document = _members(_parse(data), "the file")
        content = _members(document.get("data"), "Data")  # a member that is absent is empty, which is not null
        entries, registered = content.get("poddeviceentries", []), content.get("registereddevices", ())
        plain = plain_lists and _has_plain_lists(entries)
        checkpoint = Checkpoint(_entries(entries, plain), _registered(registered))
        computed = checksum(checkpoint, plain)
        return Reading(checkpoint, _stored_checksum(document.get("checksum"), computed), computed, plain)
    except _Unparsable as error:
        raise CheckpointCorrupt(f"checkpoint does not parse: {error}") from None


def encode(checkpoint: Checkpoint) -> bytes:
    entries, registered = checkpoint.entries, checkpoint.registered
    content = {
        "PodDeviceEntries": None if entries is None else [entry_members(entry) for entry in entries],
        "RegisteredDevices": None if registered is None else dict(sorted(registered.items())),
    }
    return go_json({"Data": content, "Checksum": checksum(checkpoint)}).encode()


def checksum(checkpoint: Checkpoint, plain_lists: bool = False) -> int:
    """FNV-1a, 32 bits, of the text that Go prints of the values."""
    value = 2166136261
    for byte in printed(checkpoint, plain_lists).encode():
        value = ((value ^ byte) * 16777619) & 0xFFFFFFFF
    return value


def held(checkpoint: Checkpoint, resource: str) -> dict[str, tuple[int, ...]]:
    """Every device of the resource that some container holds, with its NUMA nodes; both sorted."""
    nodes: dict[str, set[int]] = {}
    for device_id, node in _placed(checkpoint, resource):
        nodes.setdefault(device_id, set()).update([node] if node >= 0 else [])
    return {device_id: tuple(sorted(found)) for device_id, found in sorted(nodes.items())}


def _placed(checkpoint: Checkpoint, resource: str) -> Iterator[tuple[str, int]]:
    for entry in checkpoint.entries or ():
        if entry.resource == resource:
            for node, device_ids in (entry.devices or {}).items():
                yield from ((device_id, node) for device_id in device_ids or ())


def _parse(data: bytes) -> object:
    # Objects become tuples of pairs, to know which of `Data` and `data` came last; numbers become the bytes
    # they were written with, so that 1.0 is no integer and one of a million digits costs nothing.
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
    found = []
    for number, item in enumerate(_expect(value, list, "PodDeviceEntries"), 1):
        try:
            found.append(_entry(item, plain_lists))
        except _Unparsable as error:
            raise _Unparsable(f"entry {number} of PodDeviceEntries: {error}") from None
    return tuple(found)


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


def _devices(value: object) -> Lists[int] | None:
    if value is None:
        return None
    pairs = _expect(value, tuple, "DeviceIDs")
    return {_numa_node(key): _texts(ids, f"DeviceIDs[{key!r:.40}]") for key, ids in pairs}


def _registered(value: object) -> Lists[str] | None:
    if value is None:
        return None
    pairs = _expect(value, tuple, "RegisteredDevices")
    return {_text(key, "RegisteredDevices"): _texts(ids, f"RegisteredDevices[{key!r:.40}]") for key, ids in pairs}


def _numa_node(key: str) -> int:
    if _NUMA_NODE.fullmatch(key) and -(2**63) <= int(key) < 2**63:
        return int(key)
    raise _Unparsable(f"DeviceIDs has NUMA node {key!r:.40}, which is no integer of 64 bits")


def _answer(value: object) -> bytes | None:
    if value is None:
        return None
    text = _text(value, "AllocResp").replace("\r", "").replace("\n", "")  # as Go's base64 does
    if len(text) % 4 or not _BASE64.fullmatch(text):
        raise _Unparsable("AllocResp is not padded base64")
    return base64.b64decode(text)


def _stored_checksum(value: object, computed: int) -> int:
    if value is None:
        return 0
    if not isinstance(value, bytes):
        raise _Unparsable(f"Checksum holds {_KINDS[type(value)]} instead of a number; it should be {computed}")
    if not value.isdigit() or len(value) > _CHECKSUM_DIGITS:
        shown = f"{value.decode():.40}"
        raise _Unparsable(f"Checksum is {shown}, not an unsigned integer of 64 bits; it should be {computed}")
    return int(value)


def _texts(value: object, name: str) -> tuple[str, ...] | None:
    return None if value is None else tuple(_text(item, name) for item in _expect(value, list, name))


def _text(value: object, name: str) -> str:
    if value is None:  # Go reads null as an empty text; only lists and maps can be nil
        return ""
    text = _expect(value, str, name)
    if _SURROGATE.search(text):
        raise _Unparsable(f"{name} has half of a surrogate pair")
    return text


def _expect(value: object, kind: type[_Kind], name: str) -> _Kind:
    if not isinstance(value, kind):
        raise _Unparsable(f"{name} holds {_KINDS[type(value)]} instead of {_KINDS[kind]}")
    return value
