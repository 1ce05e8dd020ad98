"""Selectors of ordinary devices, made of what the operator's file says.

Each kind is loaded when a file asks for it: all of them together cost a daemon 2 MiB and a good part of its start.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

from plugwright.cli.config_generic import (
    DrmEntry,
    FpgaEntry,
    GenericKeys,
    GroupEntry,
    NetEntry,
    NvmeEntry,
    PathEntry,
    PciEntry,
    RdmaEntry,
    UsbEntry,
)
from plugwright.errors import ConfigError
from plugwright.plugins.generic import templates
from plugwright.plugins.generic.paths import PathPattern, PathSelector, PathType
from plugwright.plugins.generic.units import PciFilter, Selector

__all__ = ["selector"]

_ID = re.compile("(0x)?[0-9a-fA-F]{4}")


def selector(entry: GenericKeys) -> Selector:
    kind = next(kind for kind in _SELECTORS if getattr(entry, kind) is not None)
    wanted = _list(getattr(entry, kind))
    if not wanted:
        raise ConfigError("an empty list finds nothing")
    made = _SELECTORS[kind](wanted, entry)
    if not entry.together:
        return made
    from plugwright.plugins.generic.grouping import Together

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
    templates.check(entry.to)
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
    from plugwright.plugins.generic import virtual_functions
    from plugwright.plugins.generic.pci import FunctionFilter, PciSelector

    filters = [
        FunctionFilter(
            pci=_behind(each),
            class_code=_list(each.class_),
            acpi_index=_list(each.acpi_index),
            parents=[virtual_functions.parse(parent) for parent in _list(each.pf)],
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
    from plugwright.plugins.generic.grouping import By, Group, GroupSelector

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
