"""The content of a CDI file as msgspec decodes it: its keys and their types.

A separate module because it loads msgspec, which is not needed for writing specs. An unknown key is an
error, as in the runtimes' own reader; null means absent. The values of `spec` check whether a value makes sense.
"""

from functools import partial
from typing import TypeVar

import msgspec
from msgspec import Struct

from plugwright.errors import InvalidValue
from plugwright.sdk.cdi import spec

__all__ = ["decode"]

T = TypeVar("T")


class _DeviceNode(Struct, rename=partial(spec.json_key, spec.DeviceNode), forbid_unknown_fields=True):
    path: str
    host_path: str | None = None
    type: str | None = None
    major: int | None = None
    minor: int | None = None
    file_mode: int | None = None
    permissions: str | None = None
    uid: int | None = None
    gid: int | None = None


class _Mount(Struct, rename=partial(spec.json_key, spec.Mount), forbid_unknown_fields=True):
    host_path: str
    container_path: str | None = None
    type: str | None = None
    options: list[str] | None = None


class _Hook(Struct, rename=partial(spec.json_key, spec.Hook), forbid_unknown_fields=True):
    name: str
    path: str
    args: list[str] | None = None
    env: list[str] | None = None
    timeout: int | None = None


class _IntelRdt(Struct, rename=partial(spec.json_key, spec.IntelRdt), forbid_unknown_fields=True):
    clos_id: str | None = None
    l3_cache_schema: str | None = None
    mem_bw_schema: str | None = None
    schemata: list[str] | None = None
    enable_monitoring: bool | None = None
    enable_cmt: bool | None = None
    enable_mbm: bool | None = None


class _NetDevice(Struct, rename=partial(spec.json_key, spec.NetDevice), forbid_unknown_fields=True):
    host_interface_name: str
    name: str


class _ContainerEdits(Struct, rename=partial(spec.json_key, spec.ContainerEdits), forbid_unknown_fields=True):
    env: list[str] | None = None
    device_nodes: list[_DeviceNode] | None = None
    net_devices: list[_NetDevice] | None = None
    mounts: list[_Mount] | None = None
    hooks: list[_Hook] | None = None
    intel_rdt: _IntelRdt | None = None
    additional_gids: list[int] | None = None


class _Device(Struct, rename=partial(spec.json_key, spec.Device), forbid_unknown_fields=True):
    name: str
    edits: _ContainerEdits | None = None
    annotations: dict[str, str] | None = None


class _Spec(Struct, rename=partial(spec.json_key, spec.Spec), forbid_unknown_fields=True):
    kind: str
    devices: list[_Device]
    edits: _ContainerEdits | None = None
    annotations: dict[str, str] | None = None


def decode(content: dict[str, object]) -> spec.Spec:
    """The spec in `content`, a CDI file without its version; InvalidValue names the invalid key."""
    try:
        return _spec(msgspec.convert(content, _Spec))
    except msgspec.ValidationError as error:
        raise InvalidValue(str(error).replace("`$", "`spec")) from None


def _spec(content: _Spec) -> spec.Spec:
    devices = [spec.Device(device.name, _edits(device.edits), device.annotations or {}) for device in content.devices]
    return spec.Spec(content.kind, devices, _edits(content.edits), content.annotations or {})


def _edits(content: _ContainerEdits | None) -> spec.ContainerEdits:
    if content is None:
        return spec.ContainerEdits()
    pairs = [pair.partition("=") for pair in content.env or ()]
    if any(not separator for _, separator, _ in pairs):
        raise InvalidValue("env of containerEdits must look like NAME=value")
    return spec.ContainerEdits(
        env={name: value for name, _, value in pairs},
        device_nodes=[_value(spec.DeviceNode, node) for node in content.device_nodes or ()],
        net_devices=[_value(spec.NetDevice, device) for device in content.net_devices or ()],
        mounts=[_value(spec.Mount, mount) for mount in content.mounts or ()],
        hooks=[_value(spec.Hook, hook) for hook in content.hooks or ()],
        intel_rdt=_value(spec.IntelRdt, content.intel_rdt) if content.intel_rdt is not None else None,
        additional_gids=[gid for gid in content.additional_gids or () if gid != 0],  # runtimes ignore a 0
    )


def _value(kind: type[T], content: Struct) -> T:
    """The value of `spec` with the same fields."""
    return kind(**{name: value for name, value in msgspec.structs.asdict(content).items() if value is not None})
