"""Plugins for ordinary devices, made of what the operator's file says."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plugwright.cli.config_generic import (
    DrmEntry,
    FpgaEntry,
    GenericKeys,
    GroupEntry,
    HealthEntry,
    HostEntry,
    NetEntry,
    NvmeEntry,
    PathEntry,
    PciEntry,
    RdmaEntry,
    UsbEntry,
)
from plugwright.errors import ConfigError
from plugwright.plugins.generic import checks, danger, templates, virtual_functions
from plugwright.plugins.generic.answers import Handing
from plugwright.plugins.generic.checks import Check, Question
from plugwright.plugins.generic.drm import DrmFilter, DrmSelector
from plugwright.plugins.generic.fpga import FpgaFilter, FpgaSelector
from plugwright.plugins.generic.globbing import has_wildcard
from plugwright.plugins.generic.grouping import By, Group, GroupSelector, Together
from plugwright.plugins.generic.health import Hysteresis
from plugwright.plugins.generic.ids import Naming
from plugwright.plugins.generic.net import NetFilter, NetSelector
from plugwright.plugins.generic.nvme import NvmeFilter, NvmeSelector
from plugwright.plugins.generic.paths import PathPattern, PathSelector, PathType
from plugwright.plugins.generic.pci import FunctionFilter, PciSelector
from plugwright.plugins.generic.plugin import Generic, Options, Surroundings
from plugwright.plugins.generic.rdma import RdmaFilter, RdmaSelector
from plugwright.plugins.generic.units import PciFilter, Selector
from plugwright.plugins.generic.usb import UsbFilter, UsbSelector
from plugwright.sdk import cdi
from plugwright.sdk.ears import Ears
from plugwright.sdk.plugin import Plugin
from plugwright.sdk.sysfs import Host

__all__ = ["Shared", "plugin", "selector"]

_ID = re.compile("(0x)?[0-9a-fA-F]{4}")


@dataclass(frozen=True, slots=True)
class Shared:
    """What all resources of a file have in common; `above` are those further up that keep their devices."""

    host: HostEntry
    ears: Ears
    above: Sequence[GenericKeys] = ()


def plugin(resource: str, entry: GenericKeys, shared: Shared) -> Plugin:
    kind = _kind(entry)
    naming = Naming(entry.ids)
    options = Options(
        selector=selector(entry),
        count=entry.count or 1,
        naming=naming,
        handing=_handing(entry, kind),
        checks=[_check(each) for each in _list(entry.health)],
        taken=[selector(each) for each in shared.above],
        topology=entry.topology,
        dangerous=entry.dangerous,
        specs=_spec_directory(resource, shared.host) if entry.cdi else None,
        info_directory=Path(shared.host.device_info) if kind == "pci" else None,
    )
    if not entry.dangerous:
        _refuse_danger(entry)
    return Generic(resource, options, Surroundings(host=Host(Path(shared.host.root)), ears=shared.ears))


def selector(entry: GenericKeys) -> Selector:
    kind = _kind(entry)
    made = _SELECTORS[kind](getattr(entry, kind), entry)
    return Together(made) if entry.together else made


def _kind(entry: GenericKeys) -> str:
    return next(kind for kind in _SELECTORS if getattr(entry, kind) is not None)


def _list(given: Any) -> list[Any]:
    """One, several or none, as a list."""
    return [] if given is None else list(given) if isinstance(given, list | tuple) else [given]


def _handing(entry: GenericKeys, kind: str) -> Handing:
    return Handing(
        permissions=entry.permissions,
        env=entry.env,
        annotations=entry.annotations,
        remap=entry.remap,
        pci=kind == "pci",
        info=entry.info,
    )


def _spec_directory(resource: str, host: HostEntry) -> cdi.SpecDirectory:
    cdi.qualified_name(resource, "x")  # refuses a resource that CDI has no kind for
    return cdi.SpecDirectory(Path(host.cdi))


def _refuse_danger(entry: GenericKeys) -> None:
    """What a file names outright is refused when it is read; what a pattern finds, when it is found."""
    patterns = [*_list(entry.paths), *(each for group in entry.groups or [] for each in group.paths)]
    for each in patterns:
        path = each if isinstance(each, str) else each.path
        why = "" if has_wildcard(path) else danger.by_name(path.rstrip("/") or "/")
        if why:
            raise ConfigError(f"{why}: needs 'dangerous: true'")


def _ids(name: str, given: str | list[str] | None) -> list[str]:
    """Hexadecimal ids; YAML takes 0403 without quotes for an octal number."""
    texts: list[str] = _list(given)
    for text in texts:
        if not _ID.fullmatch(text):
            raise ConfigError(f'{name} is four hexadecimal digits in quotes, such as "0403", not {text!r}')
    return texts


def _pci_filter(entry: DrmEntry | FpgaEntry | NetEntry | PciEntry | RdmaEntry) -> PciFilter:
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


def _usb_filter(entry: UsbEntry) -> UsbFilter:
    return UsbFilter(
        vendor=_ids("vendor", entry.vendor),
        product=_ids("product", entry.product),
        serial=_list(entry.serial),
        manufacturer=_list(entry.manufacturer),
        name=_list(entry.name),
        class_code=_list(entry.class_),
        port=_list(entry.port),
        nodes=_list(entry.nodes),
    )


def _function_filter(entry: PciEntry) -> FunctionFilter:
    return FunctionFilter(
        pci=_pci_filter(entry),
        class_code=_list(entry.class_),
        acpi_index=_list(entry.acpi_index),
        parents=[virtual_functions.parse(each) for each in _list(entry.pf)],
        virtual=entry.vf,
        mdev=_list(entry.mdev),
        link_type=_list(entry.link_type),
        pkey=_list(entry.pkey),
        rdma=entry.rdma,
        vhost=entry.vhost,
        nodes=_list(entry.nodes),
    )


def _rdma_filter(entry: RdmaEntry) -> RdmaFilter:
    return RdmaFilter(
        name=_list(entry.name),
        interface=_list(entry.interface),
        pci=_pci_filter(entry),
        link_type=_list(entry.link_type),
        nodes=entry.nodes,
        required=entry.required,
    )


def _net_filter(entry: NetEntry) -> NetFilter:
    return NetFilter(
        name=_list(entry.name), pci=_pci_filter(entry), link_type=_list(entry.link_type), virtual=entry.virtual
    )


def _fpga_filter(entry: FpgaEntry) -> FpgaFilter:
    return FpgaFilter(
        layout=entry.layout or "",
        afu=_list(entry.afu),
        region=_list(entry.region),
        pci=_pci_filter(entry),
        nodes=entry.nodes,
    )


def _nvme_filter(entry: NvmeEntry) -> NvmeFilter:
    return NvmeFilter(
        model=_list(entry.model),
        serial=_list(entry.serial),
        transport=_list(entry.transport),
        address=_list(entry.address),
        nodes=entry.nodes,
    )


def _group(entry: GroupEntry, sort: bool) -> Group:
    if not entry.paths and not _list(entry.usb):
        raise ConfigError("a group has paths, usb, or both")
    return Group(
        patterns=[_pattern(each) for each in entry.paths],
        usb=[_usb_filter(each) for each in _list(entry.usb)],
        by=By(entry.by),
        count=entry.count,
        sort=sort,
    )


def _check(entry: HealthEntry) -> Check:
    given = [name for name in _QUESTIONS if getattr(entry, name) is not None]
    if len(given) != 1:
        raise ConfigError(f"a health check asks one thing, one of: {', '.join(_QUESTIONS)}")
    return Check(
        question=_QUESTIONS[given[0]](entry),
        every=entry.every,
        timeout=entry.timeout,
        hysteresis=Hysteresis(entry.failures, entry.successes),
    )


def _file_question(entry: HealthEntry) -> Question:
    path = entry.file or ""
    templates.check(path)
    if entry.equals is None and entry.not_ is None and entry.below is None and entry.above is None:
        raise ConfigError(f"a health check of {path} says what it must be: equals, not, below or above")
    return checks.File(
        path=path, equals=_list(entry.equals), differs=_list(entry.not_), below=entry.below, above=entry.above
    )


def _http_question(entry: HealthEntry) -> Question:
    address = entry.http or ""
    templates.check(address)
    if not address.startswith(("http://", "https://")):
        raise ConfigError(f"an address to ask looks like http://127.0.0.1:8080/health, not {address!r}")
    return checks.Http(address, entry.timeout)


def _command_question(entry: HealthEntry) -> Question:
    words = entry.command or []
    for each in words:
        templates.check(each)
    if not words or not words[0].startswith("/"):
        raise ConfigError("a command to check with is a list of words, an absolute path first")
    return checks.Command(tuple(words))


_QUESTIONS: Mapping[str, Callable[[HealthEntry], Question]] = {
    "link": lambda entry: checks.Link(),
    "driver": lambda entry: checks.Driver(entry.driver or "*"),
    "file": _file_question,
    "http": _http_question,
    "command": _command_question,
}
_SELECTORS: Mapping[str, Callable[[Any, GenericKeys], Selector]] = {
    "paths": lambda given, entry: PathSelector([_pattern(each) for each in given]),
    "usb": lambda given, entry: UsbSelector([_usb_filter(each) for each in _list(given)]),
    "pci": lambda given, entry: PciSelector([_function_filter(each) for each in _list(given)]),
    "rdma": lambda given, entry: RdmaSelector([_rdma_filter(each) for each in _list(given)]),
    "net": lambda given, entry: NetSelector([_net_filter(each) for each in _list(given)]),
    "fpga": lambda given, entry: FpgaSelector([_fpga_filter(each) for each in _list(given)]),
    "drm": lambda given, entry: DrmSelector(
        [DrmFilter(pci=_pci_filter(each), nodes=each.nodes) for each in _list(given)]
    ),
    "nvme": lambda given, entry: NvmeSelector([_nvme_filter(each) for each in _list(given)]),
    "groups": lambda given, entry: GroupSelector([_group(each, entry.ids == "gdp") for each in given]),
}
