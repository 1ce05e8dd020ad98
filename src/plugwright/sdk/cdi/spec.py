"""The values of a CDI spec, as spec 1.1.0 has them; checked where they are made, so that one that exists can be used.

How they look in a file, and the version they need, is `encoding`'s work.

What CDI allows in names, paths and lists; each check returns the value it was given, or refuses it.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TypeVar

from plugwright.errors import InvalidValue
from plugwright.model import Allocation

__all__ = [
    "ContainerEdits",
    "Device",
    "DeviceNode",
    "Hook",
    "IntelRdt",
    "Mount",
    "NetDevice",
    "Spec",
    "absolute",
    "annotation",
    "check_kind",
    "device_name",
    "edits_of",
    "env",
    "one_of",
    "permissions",
    "qualified_name",
    "split_name",
    "texts",
    "values",
    "whole_number",
]

T = TypeVar("T")
_KIND = re.compile(r"[A-Za-z](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?/[A-Za-z](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?")
_DEVICE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.:-]*[A-Za-z0-9])?")
_PERMISSIONS = re.compile(r"(?!.*(.).*\1)[rwm]{0,3}|none")
_VENDOR_LIMIT, _CLASS_LIMIT = 253, 63


def check_kind(text: object) -> str:
    """`vendor.com/class`."""
    if not isinstance(text, str) or not _KIND.fullmatch(text):
        raise InvalidValue(f"a CDI kind looks like vendor.com/class, not {text!r}")
    vendor, _, of = text.partition("/")
    if len(vendor) > _VENDOR_LIMIT or len(of) > _CLASS_LIMIT:
        raise InvalidValue(f"a CDI vendor has at most {_VENDOR_LIMIT} characters and a class {_CLASS_LIMIT}: {text!r}")
    return text


def device_name(text: object) -> str:
    if not isinstance(text, str) or not _DEVICE.fullmatch(text):
        raise InvalidValue(
            "a CDI device name has letters, digits, '_', '.', ':' and '-', a letter or digit first and last, "
            f"not {text!r}"
        )
    return text


def absolute(what: str, text: object) -> str:
    if not isinstance(text, str) or not text.startswith("/") or not text.isprintable():
        raise InvalidValue(f"{what} is an absolute path, not {text!r}")
    return text


def permissions(text: object) -> str:
    if not isinstance(text, str) or not _PERMISSIONS.fullmatch(text):
        raise InvalidValue(f"CDI permissions are letters of 'rwm' or 'none', not {text!r}")
    return text


def one_of(what: str, text: object, allowed: Iterable[str]) -> str:
    allowed = list(allowed)
    if not isinstance(text, str) or text not in allowed:
        raise InvalidValue(f"{what} is one of {', '.join(each or 'nothing' for each in allowed)}, not {text!r}")
    return text


def whole_number(what: str, number: object) -> int | None:
    if number is None:
        return None
    if not isinstance(number, int) or isinstance(number, bool) or number < 0:
        raise InvalidValue(f"{what} is a whole number from 0 on, not {number!r}")
    return number


def values(what: str, items: object, of: type[T]) -> tuple[T, ...]:
    if isinstance(items, str | Mapping) or not isinstance(items, Iterable):
        raise InvalidValue(f"{what} is a list, not {items!r}")
    made = tuple(items)
    for item in made:
        if not isinstance(item, of) or (of is int and isinstance(item, bool)):
            raise InvalidValue(f"{what} holds {of.__name__} values, not {item!r}")
    return made


def texts(what: str, mapping: object) -> Mapping[str, str]:
    """A mapping of texts, sorted: the same content is always the same file."""
    if not isinstance(mapping, Mapping):
        raise InvalidValue(f"{what} is a mapping of texts, not {mapping!r}")
    for name, text in mapping.items():
        if not isinstance(name, str) or not name or not isinstance(text, str) or "\0" in name + text:
            raise InvalidValue(f"{what} maps texts to texts, not {name!r} to {text!r}")
    return MappingProxyType(dict(sorted(mapping.items())))


def env(mapping: object) -> Mapping[str, str]:
    checked = texts("env", mapping)
    for name in checked:
        if "=" in name:
            raise InvalidValue(f"an env name has no '=': {name!r}")
    return checked


_NODE_TYPES = ("", "b", "c", "u", "p")
_HOOKS = ("prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop")
_ANNOTATION_PREFIX = "cdi.k8s.io/"
_ANNOTATION_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")


@dataclass(frozen=True, slots=True)
class DeviceNode:
    """A node in the container. What is left out is read from the host's node by the runtime.

    `permissions` may be 'none', and nothing means 'rwm'. `host_path` is only needed where the paths differ.
    """

    path: str
    host_path: str = ""
    type: str = ""
    major: int | None = None
    minor: int | None = None
    file_mode: int | None = None
    permissions: str = ""
    uid: int | None = None
    gid: int | None = None

    def __post_init__(self) -> None:
        absolute("a device node's path", self.path)
        if self.host_path:
            absolute("a device node's host path", self.host_path)
        one_of("a device node's type", self.type, _NODE_TYPES)
        permissions(self.permissions)
        for name in ("major", "minor", "file_mode", "uid", "gid"):
            whole_number(f"{name} of {self.path}", getattr(self, name))


@dataclass(frozen=True, slots=True)
class Mount:
    """A path of the host that the container gets; at the same path unless told."""

    host_path: str
    container_path: str = ""
    type: str = ""
    options: Sequence[str] = ()

    def __post_init__(self) -> None:
        absolute("a mount's host path", self.host_path)
        _freeze(self, "container_path", self.container_path or self.host_path)
        absolute("a mount's container path", self.container_path)
        _freeze(self, "options", values("a mount's options", self.options, str))


@dataclass(frozen=True, slots=True)
class Hook:
    """A program of the host that the runtime calls; `name` says when."""

    name: str
    path: str
    args: Sequence[str] = ()
    env: Sequence[str] = ()
    timeout: int | None = None

    def __post_init__(self) -> None:
        one_of("a hook's name", self.name, _HOOKS)
        absolute("a hook's path", self.path)
        _freeze(self, "args", values("a hook's args", self.args, str))
        _freeze(self, "env", values("a hook's env", self.env, str))
        if any(not each.partition("=")[0] or "=" not in each for each in self.env):
            raise InvalidValue(f"a hook's env looks like NAME=value, not {self.env!r}")
        whole_number("a hook's timeout", self.timeout)


@dataclass(frozen=True, slots=True, kw_only=True)
class IntelRdt:
    """`enable_cmt` and `enable_mbm` are gone from 1.1.0 on, which has `enable_monitoring` and `schemata`."""

    clos_id: str = ""
    l3_cache_schema: str = ""
    mem_bw_schema: str = ""
    schemata: Sequence[str] = ()
    enable_monitoring: bool = False
    enable_cmt: bool = False
    enable_mbm: bool = False

    def __post_init__(self) -> None:
        _freeze(self, "schemata", values("schemata", self.schemata, str))
        if self.clos_id in (".", "..") or "/" in self.clos_id or "\n" in self.clos_id:
            raise InvalidValue(f"a closID is the name of a directory, not {self.clos_id!r}")
        if (self.enable_cmt or self.enable_mbm) and (self.schemata or self.enable_monitoring):
            raise InvalidValue("no CDI version has both enableCMT or enableMBM and schemata or enableMonitoring")


@dataclass(frozen=True, slots=True)
class NetDevice:
    """A network interface of the host that moves into the container."""

    host_interface_name: str
    name: str

    def __post_init__(self) -> None:
        for text in (self.host_interface_name, self.name):
            if not isinstance(text, str) or not text or "/" in text or len(text) > 15 or not text.isprintable():
                raise InvalidValue(f"a network interface has a name of 1 to 15 characters, not {text!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerEdits:
    """What a container gets."""

    env: Mapping[str, str] = field(default_factory=dict, hash=False)
    device_nodes: Sequence[DeviceNode] = ()
    net_devices: Sequence[NetDevice] = ()
    mounts: Sequence[Mount] = ()
    hooks: Sequence[Hook] = ()
    intel_rdt: IntelRdt | None = None
    additional_gids: Sequence[int] = ()

    def __post_init__(self) -> None:
        _freeze(self, "env", env(self.env))
        for name, kind in (
            ("device_nodes", DeviceNode),
            ("net_devices", NetDevice),
            ("mounts", Mount),
            ("hooks", Hook),
        ):
            _freeze(self, name, values(name, getattr(self, name), kind))
        gids = values("additional gids", self.additional_gids, int)
        if any(gid <= 0 for gid in gids):
            raise InvalidValue(f"additional gids are above 0 (a 0 is ignored by runtimes), not {list(gids)}")
        _freeze(self, "additional_gids", gids)
        for name in ("host_interface_name", "name"):
            _check_once("network interface", [getattr(each, name) for each in self.net_devices])

    def __bool__(self) -> bool:
        return self != ContainerEdits()


@dataclass(frozen=True, slots=True)
class Device:
    """One name that a container can ask for. Runtimes cannot resolve one without edits."""

    name: str
    edits: ContainerEdits
    annotations: Mapping[str, str] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        device_name(self.name)
        if not self.edits:
            raise InvalidValue(f"CDI device {self.name!r} has no edits, runtimes refuse it")
        _freeze(self, "annotations", texts("annotations", self.annotations))


@dataclass(frozen=True, slots=True)
class Spec:
    """Devices of one kind; `edits` are applied once to a container that gets any of them."""

    kind: str
    devices: Sequence[Device]
    edits: ContainerEdits = field(default_factory=ContainerEdits)
    annotations: Mapping[str, str] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        check_kind(self.kind)
        made = values("devices", self.devices, Device)
        if not made:
            raise InvalidValue(f"a CDI spec of {self.kind} has at least one device")
        _check_once("CDI device", [device.name for device in made])
        _freeze(self, "devices", tuple(sorted(made, key=lambda device: device.name)))
        _freeze(self, "annotations", texts("annotations", self.annotations))

    @property
    def names(self) -> list[str]:
        return [qualified_name(self.kind, device.name) for device in self.devices]


def qualified_name(kind: str, device: str) -> str:
    """`vendor.com/class=device`, as an allocation names it."""
    return f"{check_kind(kind)}={device_name(device)}"


def split_name(name: str) -> tuple[str, str]:
    """The kind and the device of a qualified name."""
    kind, _, device = name.partition("=")
    return check_kind(kind), device_name(device)


def annotation(plugin: str, device_id: str, names: Iterable[str]) -> dict[str, str]:
    """Names carried by an annotation, for kubelets that do not pass CDI names on (before 1.28)."""
    name = f"{plugin}_{device_id}".replace("/", "_")
    if not _ANNOTATION_NAME.fullmatch(name):
        raise InvalidValue(f"the name of a CDI annotation has 1 to 63 letters, digits, '_', '.' and '-', not {name!r}")
    return {_ANNOTATION_PREFIX + name: ",".join(qualified_name(*split_name(each)) for each in names)}


def edits_of(allocation: Allocation) -> ContainerEdits:
    """The same as an allocation, as edits; its annotations and CDI names have no place there."""
    return ContainerEdits(
        env=allocation.env,
        device_nodes=tuple(
            DeviceNode(
                node.container_path,
                "" if node.host_path == node.container_path else node.host_path,
                permissions=node.permissions,
            )
            for node in allocation.nodes
        ),
        mounts=tuple(
            Mount(mount.host_path, mount.container_path, options=("ro" if mount.read_only else "rw", "nosuid", "bind"))
            for mount in allocation.mounts
        ),
    )


def _freeze(value: object, name: str, content: object) -> None:
    object.__setattr__(value, name, content)


def _check_once(what: str, names: list[str]) -> None:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InvalidValue(f"{what} {twice[0]!r} stands there twice")
