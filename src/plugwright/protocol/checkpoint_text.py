"""The checkpoint's values, and the two texts made from them: Go's JSON for the file, Go's print-out for its checksum.

Reading is `checkpoint`'s work, writing one file again and again `checkpoint_encoder`'s.
"""

import base64
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

__all__ = ["Checkpoint", "Entry", "Lists", "entry_members", "go_json", "printed", "printed_entry", "printed_list"]

# Go's JSON can stand inside HTML and JavaScript.
_ESCAPED = {ord(character): f"\\u{ord(character):04x}" for character in "<>&\u2028\u2029"}
_Key = TypeVar("_Key", int, str)
Lists = Mapping[_Key, tuple[str, ...] | None]


@dataclass(frozen=True, slots=True)
class Entry:
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

    entries: tuple[Entry, ...] | None
    registered: Lists[str] | None


def go_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).translate(_ESCAPED)


def entry_members(entry: Entry) -> dict[str, object]:
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


def printed_entry(entry: Entry, plain_lists: bool = False) -> str:
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
