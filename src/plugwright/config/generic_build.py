"""Plugins for ordinary devices, made of what the operator's file says.

What to look for is read by `generic_selectors`, what to check by `generic_checks`.

Selectors of ordinary devices, made of what the operator's file says.

Each kind is loaded when a file asks for it: all of them together cost a daemon 2 MiB and a good part of its start.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from plugwright.config.generic import (
    DrmEntry,
    FpgaEntry,
    GenericKeys,
    GenericOptions,
    GroupEntry,
    NetEntry,
    NvmeEntry,
    PathEntry,
    PciEntry,
    RdmaEntry,
    UsbEntry,
)
from plugwright.errors import ConfigError, InvalidValue
from plugwright.plugins.generic import allocation, safety
from plugwright.plugins.generic.allocation import Handing
from plugwright.plugins.generic.hardware import Naming, PciFilter, Selector
from plugwright.plugins.generic.health import Check
from plugwright.plugins.generic.paths import PathPattern, PathSelector, PathType, has_wildcard
from plugwright.plugins.generic.plugin import Catalog, Generic, Options, Surroundings
from plugwright.sdk.families import (
    AbsolutePath,
    DeviceFamily,
    FamilyContext,
    HostSettings,
    InvalidSetting,
    ResourceEntry,
)
from plugwright.sdk.hotplug import HotplugSource
from plugwright.sdk.plugin import Plugin
from plugwright.sdk.sysfs import Host

__all__ = ["Shared", "plugin", "selector", "wrong"]

_ID = re.compile("(0x)?[0-9a-fA-F]{4}")


def selector(entry: GenericKeys) -> Selector:
    kind = next(kind for kind in _SELECTORS if getattr(entry, kind) is not None)
    wanted = _list(getattr(entry, kind))
    if not wanted:
        raise ConfigError("an empty list finds nothing")
    made = _SELECTORS[kind](wanted, entry)
    if not entry.together:
        return made
    from plugwright.plugins.generic.groups import Together

    return Together(made)


def _list(given: Any) -> list[Any]:
    """One, several or none, as a list."""
    return [] if given is None else list(given) if isinstance(given, list | tuple) else [given]


def _ids(name: str, given: str | list[str] | None) -> list[str]:
    """Hexadecimal ids; YAML takes 0403 without quotes for an octal number."""
    texts: list[str] = _list(given)
    for text in texts:
        if not _ID.fullmatch(text):
            raise ConfigError(f'{name} is four hexadecimal digits in quotes, such as "0403", not {text!r}')
    return texts


def _behind(entry: DrmEntry | FpgaEntry | NetEntry | PciEntry | RdmaEntry) -> PciFilter:
    return PciFilter(
        vendor=_ids("vendor", entry.vendor),
        device=_ids("device", entry.device),
        driver=_list(getattr(entry, "driver", None)),
        address=_list(entry.address),
    )


def _pattern(given: str | PathEntry) -> PathPattern:
    entry = PathEntry(path=given) if isinstance(given, str) else given
    allocation.check(entry.to)
    return PathPattern(
        path=entry.path,
        to=entry.to,
        type=PathType(entry.type),
        permissions=entry.permissions or "",
        read_only=entry.read_only,
        optional=entry.optional,
        limit=entry.limit,
    )


def _paths(given: list[str | PathEntry], _: GenericKeys) -> Selector:
    return PathSelector([_pattern(each) for each in given])


def _usb_filters(given: list[UsbEntry]) -> list[Any]:
    from plugwright.plugins.generic.usb import UsbFilter

    return [
        UsbFilter(
            vendor=_ids("vendor", each.vendor),
            product=_ids("product", each.product),
            serial=_list(each.serial),
            manufacturer=_list(each.manufacturer),
            name=_list(each.name),
            class_code=_list(each.class_),
            port=_list(each.port),
            nodes=_list(each.nodes),
        )
        for each in given
    ]


def _usb(given: list[UsbEntry], _: GenericKeys) -> Selector:
    from plugwright.plugins.generic.usb import UsbSelector

    return UsbSelector(_usb_filters(given))


def _pci(given: list[PciEntry], _: GenericKeys) -> Selector:
    from plugwright.plugins.generic import pci
    from plugwright.plugins.generic.pci import FunctionFilter, PciSelector

    filters = [
        FunctionFilter(
            pci=_behind(each),
            class_code=_list(each.class_),
            acpi_index=_list(each.acpi_index),
            parents=[pci.parse(parent) for parent in _list(each.pf)],
            virtual=each.vf,
            mdev=_list(each.mdev),
            link_type=_list(each.link_type),
            pkey=_list(each.pkey),
            rdma=each.rdma,
            vhost=each.vhost,
            nodes=_list(each.nodes),
        )
        for each in given
    ]
    return PciSelector(filters)


def _rdma(given: list[RdmaEntry], _: GenericKeys) -> Selector:
    from plugwright.plugins.generic.rdma import RdmaFilter, RdmaSelector

    filters = [
        RdmaFilter(
            name=_list(each.name),
            interface=_list(each.interface),
            pci=_behind(each),
            link_type=_list(each.link_type),
            nodes=each.nodes,
            required=each.required,
        )
        for each in given
    ]
    return RdmaSelector(filters)


def _net(given: list[NetEntry], _: GenericKeys) -> Selector:
    from plugwright.plugins.generic.net import NetFilter, NetSelector

    filters = [
        NetFilter(name=_list(each.name), pci=_behind(each), link_type=_list(each.link_type), virtual=each.virtual)
        for each in given
    ]
    return NetSelector(filters)


def _fpga(given: list[FpgaEntry], _: GenericKeys) -> Selector:
    from plugwright.plugins.generic.fpga import FpgaFilter, FpgaSelector

    filters = [
        FpgaFilter(
            layout=each.layout or "",
            afu=_list(each.afu),
            region=_list(each.region),
            pci=_behind(each),
            nodes=each.nodes,
        )
        for each in given
    ]
    return FpgaSelector(filters)


def _drm(given: list[DrmEntry], _: GenericKeys) -> Selector:
    from plugwright.plugins.generic.drm import DrmFilter, DrmSelector

    return DrmSelector([DrmFilter(pci=_behind(each), nodes=each.nodes) for each in given])


def _nvme(given: list[NvmeEntry], _: GenericKeys) -> Selector:
    from plugwright.plugins.generic.nvme import NvmeFilter, NvmeSelector

    filters = [
        NvmeFilter(
            model=_list(each.model),
            serial=_list(each.serial),
            transport=_list(each.transport),
            address=_list(each.address),
            nodes=each.nodes,
        )
        for each in given
    ]
    return NvmeSelector(filters)


def _groups(given: list[GroupEntry], entry: GenericKeys) -> Selector:
    from plugwright.plugins.generic.groups import By, Group, GroupSelector

    if any(not each.paths and not _list(each.usb) for each in given):
        raise ConfigError("a group has paths, usb, or both")
    groups = [
        Group(
            patterns=[_pattern(path) for path in each.paths],
            usb=_usb_filters(_list(each.usb)),
            by=By(each.by),
            count=each.count,
            sort=entry.ids == "gdp",
        )
        for each in given
    ]
    return GroupSelector(groups)


_SELECTORS: Mapping[str, Callable[[list[Any], GenericKeys], Selector]] = {
    "paths": _paths,
    "usb": _usb,
    "pci": _pci,
    "rdma": _rdma,
    "net": _net,
    "fpga": _fpga,
    "drm": _drm,
    "nvme": _nvme,
    "groups": _groups,
}


@dataclass(frozen=True, slots=True)
class Shared:
    """What all resources of a file have in common; `above` are those further up that keep their devices."""

    host: HostSettings
    ears: HotplugSource
    above: Sequence[GenericKeys] = ()


def plugin(resource: str, entry: GenericKeys, shared: Shared) -> Plugin:
    if not entry.dangerous:
        _refuse_danger(entry)
    options = Options(
        selector=selector(entry),
        count=entry.count or 1,
        naming=Naming(entry.ids),
        handing=_handing(entry),
        checks=_checks(entry),
        taken=[selector(each) for each in shared.above],
        topology=entry.topology,
        dangerous=entry.dangerous,
        catalog=_catalog(resource, shared.host) if entry.cdi else None,
        info_directory=Path(shared.host.device_info) if entry.pci is not None else None,
    )
    return Generic(resource, options, Surroundings(host=Host(Path(shared.host.root)), ears=shared.ears))


def wrong(entry: GenericKeys) -> tuple[str, str] | None:
    """The first key that says how devices are handed out and cannot be followed, and why."""
    makers: dict[str, Callable[[], object]] = {
        "permissions": lambda: Handing(permissions=entry.permissions),
        "env": lambda: Handing(env=entry.env),
        "annotations": lambda: Handing(annotations=entry.annotations),
        "remap": lambda: Handing(remap=entry.remap),
        "health": lambda: _checks(entry),
        "info": lambda: _check_info(entry),
    }
    for key, make in makers.items():
        try:
            make()
        except (ConfigError, InvalidValue) as error:
            return key, str(error)
    return None


def _handing(entry: GenericKeys) -> Handing:
    return Handing(
        permissions=entry.permissions,
        env=entry.env,
        annotations=entry.annotations,
        remap=entry.remap,
        pci=entry.pci is not None,
        info=entry.info,
    )


def _checks(entry: GenericKeys) -> Sequence[Check]:
    if not entry.health:
        return ()
    from plugwright.config import generic_checks  # for those who use it

    return generic_checks.checks(entry.health)


def _check_info(entry: GenericKeys) -> None:
    if entry.info and entry.pci is None:
        raise ConfigError("only containers with pci devices are told this")


def _catalog(resource: str, host: HostSettings) -> Catalog:
    from plugwright.plugins.generic.cdi import CdiCatalog  # for those who use it, as every kind is
    from plugwright.sdk import cdi

    return CdiCatalog(cdi.SpecDirectory(Path(host.cdi)), resource)


def _refuse_danger(entry: GenericKeys) -> None:
    """What a file names outright is refused when it is read; what a pattern finds, when it is found."""
    patterns = [*(entry.paths or []), *(each for group in entry.groups or [] for each in group.paths)]
    for each in patterns:
        path = each if isinstance(each, str) else each.path
        why = "" if has_wildcard(path) else safety.by_name(path.rstrip("/") or "/")
        if why:
            raise ConfigError(f"{why}: needs 'dangerous: true'")


class _Family(DeviceFamily[Any]):
    options = GenericOptions

    def plugin(self, entry: ResourceEntry[Any], context: FamilyContext) -> Plugin:
        keys = _keys(entry)
        if invalid := wrong(keys):
            raise InvalidSetting(invalid[1], invalid[0])
        above = [_keys(other) for other in self.context(context.earlier)]
        return plugin(entry.name, keys, Shared(context.host, context.hotplug, above))

    def context(self, entries: Iterable[ResourceEntry[Any]]) -> list[ResourceEntry[Any]]:
        return [entry for entry in entries if isinstance(entry.options, GenericOptions) and entry.options.exclusive]


def _keys(entry: ResourceEntry[Any]) -> GenericKeys:
    return GenericKeys(**{entry.key: entry.settings}, **msgspec.structs.asdict(entry.options))


def _family(kind: Any) -> DeviceFamily[Any]:
    family: DeviceFamily[Any] = type("_Family", (_Family,), {"settings": kind})()
    return family


DRM = _family(DrmEntry | list[DrmEntry])
FPGA = _family(FpgaEntry | list[FpgaEntry])
GROUPS = _family(list[GroupEntry])
NET = _family(NetEntry | list[NetEntry])
NVME = _family(NvmeEntry | list[NvmeEntry])
PATHS = _family(list[AbsolutePath | PathEntry])
PCI = _family(PciEntry | list[PciEntry])
RDMA = _family(RdmaEntry | list[RdmaEntry])
USB = _family(UsbEntry | list[UsbEntry])
