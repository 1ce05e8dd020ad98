"""The kubelet's device checkpoint: which container holds which devices, bytes to values and back.

`decode` takes what the kubelet's own reader takes, `encode` gives the bytes that the kubelet would write. The
checksum is made from a text that Go prints of the values, not from the file. Reading and writing the file, and
the message inside an `answer`, are left to the callers.
"""

import base64
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NoReturn, TypeVar

from plugwright.errors import CheckpointCorrupt

__all__ = ["Checkpoint", "Entry", "checksum", "decode", "encode", "held"]

_NUMA_NODE = re.compile(r"[+-]?[0-9]{1,64}")
_BASE64 = re.compile(r"[A-Za-z0-9+/]*={0,2}")
_SURROGATE = re.compile(r"[\ud800-\udfff]")
_CHECKSUM_DIGITS = 20  # of 2^64 - 1
# Go's JSON can stand inside HTML and JavaScript.
_ESCAPED = {ord(character): f"\\u{ord(character):04x}" for character in "<>&\u2028\u2029"}
_KINDS: dict[type, str] = {bool: "a boolean", str: "a text", bytes: "a number", list: "a list", tuple: "an object"}
_Key = TypeVar("_Key", int, str)
_Kind = TypeVar("_Kind")


@dataclass(frozen=True, slots=True)
class Entry:
    """What one container holds of one resource: its devices by NUMA node, and the plugin's answer.

    Node -1 means none; a device near several nodes stands under each. `answer` is a ContainerAllocateResponse.
    """

    pod_uid: str
    container: str
    resource: str
    devices: Mapping[int, tuple[str, ...] | None] | None
    answer: bytes | None


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The whole file. None is JSON's null: the checksum tells it from empty, so it is kept.

    `registered` has the healthy devices of every resource. A kubelet without pods writes None for `entries`.
    """

    entries: tuple[Entry, ...] | None
    registered: Mapping[str, tuple[str, ...] | None] | None


def decode(data: bytes) -> Checkpoint:
    """Raises `CheckpointCorrupt` for whatever does not parse or is not what its checksum was made from."""
    document = _members(_parse(data), "the file")
    content = _members(document.get("data"), "Data")  # a member that is absent is empty, which is not null
    checkpoint = Checkpoint(
        entries=_entries(content.get("poddeviceentries", [])),
        registered=_registered(content.get("registereddevices", ())),
    )
    stored, computed = _stored_checksum(document.get("checksum")), checksum(checkpoint)
    if stored != computed:
        raise CheckpointCorrupt(f"checkpoint is not what was written: checksum stored {stored}, computed {computed}")
    return checkpoint


def encode(checkpoint: Checkpoint) -> bytes:
    entries, registered = checkpoint.entries, checkpoint.registered
    content = {
        "PodDeviceEntries": None if entries is None else [_entry_members(entry) for entry in entries],
        "RegisteredDevices": None if registered is None else dict(sorted(registered.items())),
    }
    document = {"Data": content, "Checksum": checksum(checkpoint)}
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    return text.translate(_ESCAPED).encode()


def checksum(checkpoint: Checkpoint) -> int:
    """FNV-1a, 32 bits, of the text that Go prints of the values."""
    value = 2166136261
    for byte in _dump(checkpoint).encode():
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


def _entry_members(entry: Entry) -> dict[str, object]:
    return {
        "PodUID": entry.pod_uid,
        "ContainerName": entry.container,
        "ResourceName": entry.resource,
        "DeviceIDs": _devices_members(entry.devices),
        "AllocResp": None if entry.answer is None else base64.b64encode(entry.answer).decode(),
    }


def _devices_members(devices: Mapping[int, tuple[str, ...] | None] | None) -> dict[str, object] | None:
    if devices is None:
        return None
    # As texts, as Go does: -1, 0, 10, 2.
    return dict(sorted((str(node), device_ids) for node, device_ids in devices.items()))


def _dump(checkpoint: Checkpoint) -> str:
    entries = None if checkpoint.entries is None else map(_dump_entry, checkpoint.entries)
    return (
        f"(checkpoint.checkpointData){{PodDeviceEntries:([]checkpoint.PodDevicesEntry){_dump_list(entries)}"
        f" RegisteredDevices:(map[string][]string){_dump_map(checkpoint.registered)}}}"
    )


def _dump_entry(entry: Entry) -> str:
    answer = None if entry.answer is None else map(str, entry.answer)
    return (
        f"{{PodUID:(string){entry.pod_uid} ContainerName:(string){entry.container}"
        f" ResourceName:(string){entry.resource} DeviceIDs:(checkpoint.DevicesPerNUMA){_dump_map(entry.devices)}"
        f" AllocResp:([]uint8){_dump_list(answer)}}}"
    )


def _dump_list(items: Iterable[str] | None) -> str:
    return "<nil>" if items is None else f"[{' '.join(items)}]"


def _dump_map(lists: Mapping[_Key, tuple[str, ...] | None] | None) -> str:
    if lists is None:
        return "<nil>"
    return f"map[{' '.join(f'{key}:{_dump_list(items)}' for key, items in sorted(lists.items()))}]"


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
        raise _unparsable(f"byte {error.start} is not UTF-8") from None
    except json.JSONDecodeError as error:
        raise _unparsable(f"{error}" if data else "the file is empty") from None
    except RecursionError:
        raise _unparsable("it is nested too deeply") from None


def _refuse_constant(name: str) -> NoReturn:
    raise _unparsable(f"{name} is not a number")


def _members(value: object, name: str) -> dict[str, object]:
    return {} if value is None else {key.casefold(): member for key, member in _expect(value, tuple, name)}


def _entries(value: object) -> tuple[Entry, ...] | None:
    return None if value is None else tuple(map(_entry, _expect(value, list, "PodDeviceEntries")))


def _entry(value: object) -> Entry:
    members = _members(value, "an entry of PodDeviceEntries")
    return Entry(
        pod_uid=_text(members.get("poduid"), "PodUID"),
        container=_text(members.get("containername"), "ContainerName"),
        resource=_text(members.get("resourcename"), "ResourceName"),
        devices=_devices(members.get("deviceids")),
        answer=_answer(members.get("allocresp")),
    )


def _devices(value: object) -> Mapping[int, tuple[str, ...] | None] | None:
    if value is None:
        return None
    pairs = _expect(value, tuple, "DeviceIDs")
    return {_numa_node(key): _texts(ids, f"DeviceIDs[{key!r:.40}]") for key, ids in pairs}


def _registered(value: object) -> Mapping[str, tuple[str, ...] | None] | None:
    if value is None:
        return None
    pairs = _expect(value, tuple, "RegisteredDevices")
    return {_text(key, "RegisteredDevices"): _texts(ids, f"RegisteredDevices[{key!r:.40}]") for key, ids in pairs}


def _numa_node(key: str) -> int:
    if _NUMA_NODE.fullmatch(key) and -(2**63) <= int(key) < 2**63:
        return int(key)
    raise _unparsable(f"DeviceIDs has NUMA node {key!r:.40}, which is no integer of 64 bits")


def _answer(value: object) -> bytes | None:
    if value is None:
        return None
    text = _text(value, "AllocResp").replace("\r", "").replace("\n", "")  # as Go's base64 does
    if len(text) % 4 or not _BASE64.fullmatch(text):
        raise _unparsable("AllocResp is not padded base64")
    return base64.b64decode(text)


def _stored_checksum(value: object) -> int:
    if value is None:
        return 0
    digits = _expect(value, bytes, "Checksum")
    if not digits.isdigit() or len(digits) > _CHECKSUM_DIGITS:
        raise _unparsable(f"Checksum is {digits.decode():.40}, not an unsigned integer of 64 bits")
    return int(digits)


def _texts(value: object, name: str) -> tuple[str, ...] | None:
    return None if value is None else tuple(_text(item, name) for item in _expect(value, list, name))


def _text(value: object, name: str) -> str:
    if value is None:  # Go reads null as an empty text; only lists and maps can be nil
        return ""
    text = _expect(value, str, name)
    if _SURROGATE.search(text):
        raise _unparsable(f"{name} has half of a surrogate pair")
    return text


def _expect(value: object, kind: type[_Kind], name: str) -> _Kind:
    if not isinstance(value, kind):
        raise _unparsable(f"{name} holds {_KINDS[type(value)]} instead of {_KINDS[kind]}")
    return value


def _unparsable(reason: str) -> CheckpointCorrupt:
    return CheckpointCorrupt(f"checkpoint does not parse: {reason}")
