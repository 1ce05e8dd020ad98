"""The values of a CDI spec as in version 1.1.0 of the specification, and their names in a file.

They are checked when they are made, so every existing value is valid. `files` finds the required version of a spec.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TypeVar

import msgspec

from plugwright.errors import InvalidValue
from plugwright.grammars import CDI_DEVICE, CDI_KIND, PERMISSIONS
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
    "annotation",
    "edits_of",
    "json_key",
    "qualified_name",
    "split_name",
]

T = TypeVar("T")

_VENDOR_LIMIT, _CLASS_LIMIT = 253, 63
_NODE_TYPES = ("", "b", "c", "u", "p")
_HOOKS = ("prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop")
_ANNOTATION_PREFIX = "cdi.k8s.io/"
_ANNOTATION_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")


class DeviceNode(msgspec.Struct, frozen=True):
    """A device node in the container. The runtime takes omitted fields from the host's node.

    `permissions` can be 'none'; empty means 'rwm'. `host_path` is needed only if the paths differ.
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
        _check_absolute("device node's path", self.path)
        if self.host_path:
            _check_absolute("device node's host path", self.host_path)
        _check_one_of("device node's type", self.type, _NODE_TYPES)
        if self.permissions not in ("", "none") and not PERMISSIONS.fullmatch(str(self.permissions)):
            raise InvalidValue(
                f"permissions of {self.path} must be letters of 'rwm' or 'none', got {self.permissions!r}"
            )
        for name in ("major", "minor", "file_mode", "uid", "gid"):
            _check_whole_number(f"{name} of {self.path}", getattr(self, name))


class Mount(msgspec.Struct, frozen=True):
    """A path of the host, mounted in the container, by default at the same path."""

    host_path: str
    container_path: str = ""
    type: str = ""
    options: Sequence[str] = ()

    def __post_init__(self) -> None:
        _check_absolute("mount's host path", self.host_path)
        _freeze(self, "container_path", self.container_path or self.host_path)
        _check_absolute("mount's container path", self.container_path)
        _freeze(self, "options", _tuple("mount's options", self.options, str))


class Hook(msgspec.Struct, frozen=True):
    """A program of the host, called by the runtime; `name` is the time of the call."""

    name: str
    path: str
    args: Sequence[str] = ()
    env: Sequence[str] = ()
    timeout: int | None = None

    def __post_init__(self) -> None:
        _check_one_of("hook's name", self.name, _HOOKS)
        _check_absolute("hook's path", self.path)
        _freeze(self, "args", _tuple("hook's args", self.args, str))
        _freeze(self, "env", _tuple("hook's env", self.env, str))
        if any(not pair.partition("=")[0] or "=" not in pair for pair in self.env):
            raise InvalidValue(f"hook's env must look like NAME=value, got {self.env!r}")
        _check_whole_number("hook's timeout", self.timeout)


class IntelRdt(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of Intel RDT. CDI 1.1.0 replaced `enable_cmt` and `enable_mbm` by `enable_monitoring` and `schemata`."""

    clos_id: str = ""
    l3_cache_schema: str = ""
    mem_bw_schema: str = ""
    schemata: Sequence[str] = ()
    enable_monitoring: bool = False
    enable_cmt: bool = False
    enable_mbm: bool = False

    def __post_init__(self) -> None:
        _freeze(self, "schemata", _tuple("schemata", self.schemata, str))
        if self.clos_id in (".", "..") or "/" in self.clos_id or "\n" in self.clos_id:
            raise InvalidValue(f"closID must be the name of a directory, got {self.clos_id!r}")
        if (self.enable_cmt or self.enable_mbm) and (self.schemata or self.enable_monitoring):
            raise InvalidValue(
                "enableCMT and enableMBM must not be used with schemata or enableMonitoring: no CDI version has both"
            )


class NetDevice(msgspec.Struct, frozen=True):
    """A network interface of the host, moved into the container."""

    host_interface_name: str
    name: str

    def __post_init__(self) -> None:
        for text in (self.host_interface_name, self.name):
            if not isinstance(text, str) or not text or "/" in text or len(text) > 15 or not text.isprintable():
                raise InvalidValue(f"network interface must have a name of 1 to 15 characters, got {text!r}")


class ContainerEdits(msgspec.Struct, frozen=True, kw_only=True):
    """The changes to a container's OCI spec."""

    env: Mapping[str, str] = {}
    device_nodes: Sequence[DeviceNode] = ()
    net_devices: Sequence[NetDevice] = ()
    mounts: Sequence[Mount] = ()
    hooks: Sequence[Hook] = ()
    intel_rdt: IntelRdt | None = None
    additional_gids: Sequence[int] = ()

    def __post_init__(self) -> None:
        variables = _strings("env", self.env)
        for name in variables:
            if "=" in name:
                raise InvalidValue(f"env name must have no '=', got {name!r}")
        _freeze(self, "env", variables)
        for name, kind in (
            ("device_nodes", DeviceNode),
            ("net_devices", NetDevice),
            ("mounts", Mount),
            ("hooks", Hook),
        ):
            _freeze(self, name, _tuple(name, getattr(self, name), kind))
        gids = _tuple("additional gids", self.additional_gids, int)
        if any(gid <= 0 for gid in gids):
            raise InvalidValue(f"additional gids must be above 0 (runtimes ignore a 0), got {list(gids)}")
        _freeze(self, "additional_gids", gids)
        for name in ("host_interface_name", "name"):
            _check_once("network interface", [getattr(device, name) for device in self.net_devices])

    def __bool__(self) -> bool:
        return self != _NO_EDITS


class Device(msgspec.Struct, frozen=True):
    """One device of a spec. Runtimes reject a device without edits."""

    name: str
    edits: ContainerEdits
    annotations: Mapping[str, str] = {}

    def __post_init__(self) -> None:
        _check_device_name(self.name)
        if not self.edits:
            raise InvalidValue(f"CDI device {self.name!r} must have edits: runtimes refuse one without")
        _freeze(self, "annotations", _strings("annotations", self.annotations))


class Spec(msgspec.Struct, frozen=True):
    """Devices of one kind; `edits` are applied once to a container with any of them.

    `SpecDirectory.write` removes a spec without devices, for example after the last card was removed.
    """

    kind: str
    devices: Sequence[Device]
    edits: ContainerEdits = msgspec.field(default_factory=ContainerEdits)
    annotations: Mapping[str, str] = {}

    def __post_init__(self) -> None:
        _check_kind(self.kind)
        made = _tuple("devices", self.devices, Device)
        _check_once("CDI device", [device.name for device in made])
        _freeze(self, "devices", tuple(sorted(made, key=lambda device: device.name)))
        _freeze(self, "annotations", _strings("annotations", self.annotations))

    @property
    def names(self) -> list[str]:
        return [qualified_name(self.kind, device.name) for device in self.devices]


_KEYS = {
    (Hook, "name"): "hookName",
    (IntelRdt, "clos_id"): "closID",
    (IntelRdt, "enable_cmt"): "enableCMT",
    (IntelRdt, "enable_mbm"): "enableMBM",
    (Device, "edits"): "containerEdits",
    (Spec, "edits"): "containerEdits",
}


def json_key(kind: type[msgspec.Struct], field: str) -> str:
    """The key of a field in a file: camel case, except for those above."""
    return _KEYS.get((kind, field)) or re.sub("_(.)", lambda match: match[1].upper(), field)


def qualified_name(kind: str, device: str) -> str:
    """`vendor.com/class=device`, as used in an allocation."""
    return f"{_check_kind(kind)}={_check_device_name(device)}"


def split_name(name: str) -> tuple[str, str]:
    """The kind and the device of a qualified name."""
    kind, _, device = name.partition("=")
    return _check_kind(kind), _check_device_name(device)


def annotation(plugin: str, device_id: str, names: Iterable[str]) -> dict[str, str]:
    """An annotation with the names, for kubelets without support for CDI names (before 1.28)."""
    key = f"{plugin}_{device_id}".replace("/", "_")
    if not _ANNOTATION_NAME.fullmatch(key):
        raise InvalidValue(f"name of a CDI annotation must have 1 to 63 letters, digits, '_', '.' and '-', got {key!r}")
    return {_ANNOTATION_PREFIX + key: ",".join(qualified_name(*split_name(name)) for name in names)}


def edits_of(allocation: Allocation) -> ContainerEdits:
    """An allocation as edits, without its annotations and CDI names, which edits cannot contain."""
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


def _check_kind(text: object) -> str:
    """`vendor.com/class`."""
    if not isinstance(text, str) or not CDI_KIND.fullmatch(text):
        raise InvalidValue(f"CDI kind must look like vendor.com/class, got {text!r}")
    vendor, _, class_ = text.partition("/")
    if len(vendor) > _VENDOR_LIMIT or len(class_) > _CLASS_LIMIT:
        raise InvalidValue(
            f"CDI kind must have at most {_VENDOR_LIMIT} and {_CLASS_LIMIT} characters around the '/', got {text!r}"
        )
    return text


def _check_device_name(text: object) -> str:
    if not isinstance(text, str) or not CDI_DEVICE.fullmatch(text):
        raise InvalidValue(
            "CDI device name must have letters, digits, '_', '.', ':' and '-', a letter or digit first and last, "
            f"got {text!r}"
        )
    return text


def _check_absolute(what: str, text: object) -> None:
    if not isinstance(text, str) or not text.startswith("/") or not text.isprintable():
        raise InvalidValue(f"{what} must be an absolute path, got {text!r}")


def _check_one_of(what: str, text: object, allowed: Sequence[str]) -> None:
    if not isinstance(text, str) or text not in allowed:
        raise InvalidValue(f"{what} must be one of {', '.join(name or 'nothing' for name in allowed)}, got {text!r}")


def _check_whole_number(what: str, number: object) -> None:
    if number is not None and (not isinstance(number, int) or isinstance(number, bool) or number < 0):
        raise InvalidValue(f"{what} must be an integer >= 0, got {number!r}")


def _tuple(what: str, items: object, of: type[T]) -> tuple[T, ...]:
    if isinstance(items, str | Mapping) or not isinstance(items, Iterable):
        raise InvalidValue(f"{what} must be a list, got {items!r}")
    checked = tuple(items)
    for item in checked:
        if not isinstance(item, of) or (of is int and isinstance(item, bool)):
            raise InvalidValue(f"{what} must hold {of.__name__} values, got {item!r}")
    return checked


def _strings(what: str, mapping: object) -> Mapping[str, str]:
    """A mapping of strings, sorted, so the same content always gives the same file."""
    if not isinstance(mapping, Mapping):
        raise InvalidValue(f"{what} must be a mapping of strings, got {mapping!r}")
    for name, text in mapping.items():
        if not isinstance(name, str) or not name or not isinstance(text, str) or "\0" in name + text:
            raise InvalidValue(f"{what} must map strings to strings, got {name!r}: {text!r}")
    return MappingProxyType(dict(sorted(mapping.items())))


def _freeze(value: msgspec.Struct, name: str, content: object) -> None:
    msgspec.structs.force_setattr(value, name, content)


def _check_once(what: str, names: list[str]) -> None:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InvalidValue(f"{what} {twice[0]!r} must be there once, got it twice")


_NO_EDITS = ContainerEdits()
