"""The common values of all packages: devices, allocations, resource names.

They are frozen and checked when they are made: every existing value can be sent. `protocol.messages` encodes them.
"""

import os
import re
from collections.abc import Iterable, Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import TypeAlias, TypeVar

import msgspec

from plugwright.attributes import (
    NO_ATTRIBUTES,
    NO_CAPACITY,
    Capacity,
    ClaimReference,
    Consumption,
    Quantity,
    checked_attributes,
    checked_capacity,
    checked_consumption,
)
from plugwright.errors import InvalidValue
from plugwright.frozen import FrozenValue, freeze, frozen
from plugwright.grammars import (
    CDI_NAME,
    PERMISSIONS,
    broken_resource_rule,
    checked_flag,
    checked_list,
    checked_mapping,
    checked_path,
    checked_text,
    checked_texts,
)
from plugwright.text import clean

__all__ = [
    "DEVICE_ID_LIMIT",
    "NUMA_NODES",
    "Allocation",
    "Device",
    "DeviceNode",
    "Health",
    "Mount",
    "Options",
    "PreferenceRequest",
    "Resource",
    "natural_order",
    "some",
]

DEVICE_ID_LIMIT = 63  # by a comment in the API, enforced by other tools but not by kubelets
NUMA_NODES = range(1024)  # the largest number in a Linux build
_DIGITS = re.compile(r"(\d+)")
_NO_REASON = "no reason given"
_CODE = re.compile(r"(?=.{1,32}\Z)[a-z0-9]+(?:-[a-z0-9]+)*")
_OTHER = "other"
_NO_TEXT: Mapping[str, str] = MappingProxyType({})

AnyPath: TypeAlias = str | os.PathLike[str]


class Health(StrEnum):
    """A device's health as the kubelet sees it; the values are those on the wire."""

    HEALTHY = "Healthy"
    UNHEALTHY = "Unhealthy"


@frozen(unhashed=("attributes", "capacity", "parameters"))
class Device(FrozenValue):
    """A device that a plugin offers to containers.

    `numa` contains the nearby NUMA nodes; -1, which sysfs writes for none, is accepted. `code` is the kind of the
    reason in one stable word for programs, such as `xid-79` or `lost`; an Unhealthy device without a code has `other`,
    a Healthy device none.

    Claims select by `attributes` (strings, integers, booleans and `Version`s) and by `capacity`; attributes of
    other types are for the plugin's own methods. `allow_multiple`: several claims can share the device, each with its
    part of the capacity. `consumes` is its consumption from counter sets shared with other devices.

    In allocate() and release() for a claim, `claim` names the claim and its request, `capacity` is the claim's part of
    the capacity, `share_id` identifies its part of a device shared by several claims, and `parameters` is its opaque
    configuration. With `admin_access` the claim only monitors the device, which another pod can hold.

    `physical` contains names of the hardware behind the device, such as a PCI address; the name of a part starts with
    the name of the whole and `/`. While a pod holds hardware under a withdrawn id, other devices with the same hardware
    are Unhealthy, unless both have the same `sharing`, a text which is empty for an exclusive device.
    """

    __slots__ = __match_args__ = (
        "id",
        "health",
        "reason",
        "numa",
        "attributes",
        "code",
        "physical",
        "sharing",
        "capacity",
        "allow_multiple",
        "consumes",
        "parameters",
        "share_id",
        "claim",
        "admin_access",
    )

    id: str
    health: Health
    reason: str
    numa: tuple[int, ...]
    attributes: Mapping[str, object]
    code: str
    physical: tuple[str, ...]
    sharing: str
    capacity: Mapping[str, Capacity]
    allow_multiple: bool
    consumes: tuple[Consumption, ...]
    parameters: Mapping[str, object]
    share_id: str
    claim: ClaimReference | None
    admin_access: bool

    def __init__(
        self,
        id: str,  # noqa: A002  the Kubernetes word
        health: Health | str = Health.HEALTHY,
        reason: str = "",
        numa: Iterable[int] = (),
        attributes: Mapping[str, object] = NO_ATTRIBUTES,
        code: str = "",
        physical: Iterable[str] = (),
        sharing: str = "",
        capacity: Mapping[str, Capacity | Quantity] = NO_CAPACITY,
        allow_multiple: bool = False,
        consumes: Iterable[Consumption] = (),
        parameters: Mapping[str, object] = NO_ATTRIBUTES,
        share_id: str = "",
        claim: ClaimReference | None = None,
        admin_access: bool = False,
    ) -> None:
        _check_device_id(id)
        freeze(self, "id", id)
        freeze(self, "health", _health(id, health))
        freeze(self, "reason", _reason(id, reason))
        freeze(self, "numa", _numa(id, numa))
        freeze(self, "attributes", checked_attributes(id, attributes))
        freeze(self, "code", _code(id, self.health, code))
        freeze(self, "physical", _physical(id, physical))
        freeze(self, "sharing", sharing if sharing == "" else checked_text(f"sharing of {id!r}", sharing))
        freeze(self, "capacity", checked_capacity(id, capacity, self.attributes, allow_multiple))
        freeze(self, "allow_multiple", checked_flag(f"allow_multiple of {id!r}", allow_multiple))
        freeze(self, "consumes", () if consumes == () else checked_consumption(id, consumes))
        freeze(self, "parameters", checked_mapping(f"parameters of {id!r}", parameters))
        freeze(self, "share_id", share_id if share_id == "" else checked_text(f"share_id of {id!r}", share_id))
        freeze(self, "claim", claim)
        freeze(self, "admin_access", checked_flag(f"admin_access of {id!r}", admin_access))

    @property
    def healthy(self) -> bool:
        return self.health is Health.HEALTHY

    def unhealthy(self, reason: str, code: str = "") -> "Device":
        """The same device, Unhealthy for `reason`. Never raises, so a malformed reason cannot keep a device Healthy."""
        code = code if _is_code(code) else _OTHER
        # replace() would check everything again, for 60,000 devices if their driver fails.
        return self._replace_unchecked(health=Health.UNHEALTHY, reason=clean(reason) or _NO_REASON, code=code)


@frozen()
class Mount(FrozenValue):
    """A file or directory of the host, mounted in the container, by default at the same path."""

    __slots__ = __match_args__ = ("host_path", "container_path", "read_only")

    host_path: str
    container_path: str
    read_only: bool

    def __init__(self, host_path: AnyPath, container_path: AnyPath = "", read_only: bool = False) -> None:
        freeze(self, "host_path", checked_path("mount's host path", host_path))
        freeze(self, "container_path", checked_path("mount's container path", container_path or host_path))
        freeze(self, "read_only", checked_flag(f"read_only of {self.host_path}", read_only))


@frozen()
class DeviceNode(FrozenValue):
    """A device node of the host in the container, by default at the same path."""

    __slots__ = __match_args__ = ("host_path", "container_path", "permissions")

    host_path: str
    container_path: str
    permissions: str

    def __init__(self, host_path: AnyPath, container_path: AnyPath = "", permissions: str = "rw") -> None:
        freeze(self, "host_path", checked_path("device node's host path", host_path))
        freeze(self, "container_path", checked_path("device node's container path", container_path or host_path))
        if not isinstance(permissions, str) or not PERMISSIONS.fullmatch(permissions):
            raise InvalidValue(f"permissions of {self.host_path} must be letters of 'rwm', got {permissions!r}")
        freeze(self, "permissions", permissions)


@frozen(unhashed=("env", "annotations"))
class Allocation(FrozenValue):
    """The response for one container. A plain path means a mount or device node at the same path in the container.

    A pod's own `env` overrides `env` here; put settings into a CDI device if a tenant must not change them.
    """

    __slots__ = __match_args__ = ("env", "mounts", "nodes", "annotations", "cdi")

    env: Mapping[str, str]
    mounts: tuple[Mount, ...]
    nodes: tuple[DeviceNode, ...]
    annotations: Mapping[str, str]
    cdi: tuple[str, ...]

    def __init__(
        self,
        env: Mapping[str, str] = _NO_TEXT,
        mounts: Iterable[Mount | AnyPath] = (),
        nodes: Iterable[DeviceNode | AnyPath] = (),
        annotations: Mapping[str, str] = _NO_TEXT,
        cdi: Iterable[str] = (),
    ) -> None:
        freeze(self, "env", _env(env))
        freeze(self, "mounts", _mounts(mounts))
        freeze(self, "nodes", _nodes(nodes))
        freeze(self, "annotations", annotations if annotations is _NO_TEXT else _annotations(annotations))
        freeze(self, "cdi", _cdi_names(cdi))


class Options(msgspec.Struct, frozen=True):
    """The supported optional methods of a plugin."""

    pre_start: bool = False
    preference: bool = False


class PreferenceRequest(msgspec.Struct, frozen=True):
    """The kubelet's request to choose `size` of the devices `available`, with `required` among them."""

    available: tuple[str, ...]
    required: tuple[str, ...]
    size: int


class Resource(msgspec.Struct, frozen=True):
    """The name of an extended resource, such as `example.com/fpga`."""

    name: str

    def __post_init__(self) -> None:
        reason = broken_resource_rule(self.name)
        if reason:
            raise InvalidValue(f"{self.name!r} is not a resource name: it {reason}")

    def __str__(self) -> str:
        return self.name


_Path = TypeVar("_Path", Mount, DeviceNode)


def natural_order(text: str) -> tuple[tuple[int, int, str], ...]:
    """A sort key in natural order: `gpu`, `gpu-2`, `gpu-10`."""
    parts = [(part.lstrip("0"), part.isdecimal(), part) for part in _DIGITS.split(text)]
    # A number with fewer digits is smaller. The end comes before a number; the text decides between 01 and 1.
    return (*((1, len(digits), digits) if number else (0, 0, part) for digits, number, part in parts), (-1, 0, text))


def some(names: Iterable[str], most: int = 16) -> str:
    """The first `most` names, for the valid names in an error message."""
    names = list(names)
    shown = ", ".join(names[:most]) or "none"
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


def _check_device_id(device_id: object) -> None:
    if not isinstance(device_id, str) or not device_id:
        raise InvalidValue(f"device id must be a non-empty string, got {device_id!r}")
    if len(device_id) > DEVICE_ID_LIMIT:
        raise InvalidValue(
            f"device id must have at most {DEVICE_ID_LIMIT} characters, got {len(device_id)} in {device_id!r}"
        )
    if not device_id.isprintable() or " " in device_id:
        raise InvalidValue(f"device id must have no spaces and no unprintable characters, got {device_id!r}")


def _health(device_id: str, health: str) -> Health:
    if type(health) is Health:
        return health
    try:
        return Health(health)
    except ValueError:
        raise InvalidValue(f"health of {device_id!r} must be 'Healthy' or 'Unhealthy', got {health!r}") from None


def _reason(device_id: str, reason: object) -> str:
    """The reason, cleaned and not rejected, because it can quote another program or a device."""
    if not isinstance(reason, str):
        raise InvalidValue(f"the reason of {device_id!r} must be a string, got {reason!r}")
    return clean(reason) if reason else ""


def _code(device_id: str, health: Health, code: object) -> str:
    if code and not _is_code(code):
        raise InvalidValue(
            f"the code of {device_id!r} must have at most 32 lower-case letters, digits and '-', got {code!r}"
        )
    return "" if health is Health.HEALTHY else str(code) or _OTHER


def _is_code(code: object) -> bool:
    return isinstance(code, str) and _CODE.fullmatch(code) is not None


def _numa(device_id: str, nodes: Iterable[int]) -> tuple[int, ...]:
    if nodes == ():
        return ()
    numbers = nodes if isinstance(nodes, list | tuple) else checked_list(f"numa of {device_id!r}", nodes)
    for node in numbers:
        if not isinstance(node, int) or isinstance(node, bool) or (node != -1 and node not in NUMA_NODES):
            raise InvalidValue(
                f"NUMA nodes of {device_id!r} must be integers from 0 to {NUMA_NODES[-1]}, or -1 for none, got {node!r}"
            )
    return tuple(sorted({node for node in numbers if isinstance(node, int) and node >= 0}))


def _physical(device_id: str, names: Iterable[str]) -> tuple[str, ...]:
    if names == ():
        return ()
    if names and isinstance(names, tuple) and all(isinstance(name, str) and name for name in names):
        return names  # the same object for all shares of one GPU
    checked = checked_list(f"physical of {device_id!r}", names)
    for name in checked:
        if not isinstance(name, str) or not name:
            raise InvalidValue(f"physical names of {device_id!r} must be non-empty strings, got {name!r}")
    return tuple(str(name) for name in checked)


def _mounts(mounts: Iterable[Mount | AnyPath]) -> tuple[Mount, ...]:
    listed = checked_list("mounts", mounts)
    made = tuple([mount if isinstance(mount, Mount) else _made("mounts", mount, Mount) for mount in listed])
    _check_distinct("mounts", [mount.container_path for mount in made])
    return made


def _nodes(nodes: Iterable[DeviceNode | AnyPath]) -> tuple[DeviceNode, ...]:
    listed = checked_list("nodes", nodes)
    made = tuple([node if isinstance(node, DeviceNode) else _made("nodes", node, DeviceNode) for node in listed])
    _check_distinct("device nodes", [node.container_path for node in made])
    return made


def _made(what: str, item: object, kind: type[_Path]) -> _Path:
    if isinstance(item, str | os.PathLike):
        return kind(item)
    raise InvalidValue(f"{what} must be {kind.__name__} values or paths, got {item!r}")


def _check_distinct(what: str, paths: list[str]) -> None:
    if len(set(paths)) < len(paths):
        raise InvalidValue(f"two {what} at {min(path for path in paths if paths.count(path) > 1)}")


def _env(env: Mapping[str, str]) -> Mapping[str, str]:
    checked = checked_texts("env", env)
    for name in checked:
        if "=" in name:
            raise InvalidValue(f"env name must have no '=', got {name!r}")
    return checked


def _annotations(annotations: Mapping[str, str]) -> Mapping[str, str]:
    checked = checked_texts("annotation", annotations)
    for name in checked:
        if " " in name or not name.isprintable():
            raise InvalidValue(f"annotation name must have no spaces and no unprintable characters, got {name!r}")
    return checked


def _cdi_names(names: Iterable[str]) -> tuple[str, ...]:
    checked = []
    for name in checked_list("cdi", names):
        if not isinstance(name, str) or not CDI_NAME.fullmatch(name):
            raise InvalidValue(f"CDI name must look like vendor.com/class=name, got {name!r}")
        checked.append(name)
    return tuple(dict.fromkeys(checked))
