"""What a container gets with its devices: nodes, mounts, variables and annotations. Pure.

Texts with facts to be filled in, such as `{pci}`: checked when they are read, filled in for each device. Pure.

The device-info files of the network plumbing group: what Multus tells a CNI plugin of a PCI function.
"""

import json
import logging
import string
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TypeVar

from plugwright.errors import InvalidValue, PluginError
from plugwright.model import Allocation, DeviceNode, Mount
from plugwright.plugins.generic.hardware import Member, Unit, facts_of, pattern
from plugwright.sdk import sysfs
from plugwright.system import files

__all__ = ["FIELDS", "Handing", "answer", "check", "fill", "members_of", "write"]

FIELDS = (
    "class", "device", "driver", "id", "index", "interface", "model", "name", "node", "nodes", "numa", "pci", "port",
    "product", "rdma", "resource", "serial", "uuid", "vendor",
)  # fmt: skip


def check(text: str) -> None:
    try:
        fields = [(name, extra or conversion) for _, name, extra, conversion in string.Formatter().parse(text)]
    except ValueError as error:
        raise InvalidValue(f"not a template: {text!r}: {error}; a brace itself is written twice") from error
    for name, extra in fields:
        if name is not None and (name not in FIELDS or extra):
            raise InvalidValue(
                f"{text!r} has {{{name}}}, templates have {', '.join(FIELDS)}; a brace itself is written twice"
            )


def fill(text: str, facts: Mapping[str, str]) -> str:
    """What a device does not have is empty."""
    return text.format_map({**dict.fromkeys(FIELDS, ""), **facts})


_SAMPLE = dict.fromkeys(FIELDS, "x")
Given = TypeVar("Given", Mount, DeviceNode)


@dataclass(frozen=True, slots=True, kw_only=True)
class Handing:
    """How devices are handed out. `remap`: host path (a pattern) to path in the container, with templates.

    `pci`: tell of PCI addresses as the SR-IOV network device plugin does, with `info` by address, or `*` for all.
    """

    permissions: str = "rw"
    env: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    remap: Mapping[str, str] = field(default_factory=dict)
    pci: bool = False
    info: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for text in (
            *self.env,
            *self.env.values(),
            *self.annotations,
            *self.annotations.values(),
            *self.remap.values(),
        ):
            check(text)
        DeviceNode("/dev/null", permissions=self.permissions)
        Allocation(env=dict.fromkeys((fill(name, _SAMPLE) for name in self.env), ""))


def answer(resource: str, handing: Handing, units: Sequence[Unit]) -> Allocation:
    """What one container gets with these units; a unit that it has several copies of counts once."""
    members = [each for place, unit in enumerate(units) for each in members_of(handing, unit, place)]
    facts = [_facts(resource, handing, unit, place) for place, unit in enumerate(units)]
    return Allocation(
        env={**_filled(handing.env, facts), **(_pci_env(resource, handing, units) if handing.pci else {})},
        mounts=_once([Mount(each.host_path, each.container_path, each.read_only) for each in members if each.mount]),
        nodes=_once(
            [DeviceNode(each.host_path, each.container_path, each.permissions) for each in members if not each.mount]
        ),
        annotations=_filled(handing.annotations, facts),
    )


def members_of(handing: Handing, unit: Unit, place: int) -> list[Member]:
    """With the paths that they have in the container."""
    facts = {**facts_of(unit), "index": str(place)}
    return [
        Member(
            member.path,
            member.host_path,
            _inside(handing, member, facts),
            member.permissions or handing.permissions,
            member.mount,
            member.read_only,
        )
        for member in unit.members
    ]


def _inside(handing: Handing, member: Member, facts: Mapping[str, str]) -> str:
    remapped = next((to for host, to in handing.remap.items() if pattern(host)(member.path)), "")
    wanted = remapped or member.container_path
    # The name of a node is no template, even if it has braces.
    path = fill(wanted, facts) if wanted else member.path
    return f"{path}{PurePosixPath(member.path).name}" if path.endswith("/") else path


def _facts(resource: str, handing: Handing, unit: Unit, place: int) -> dict[str, str]:
    """As the container sees it: its nodes are where they are inside."""
    inside = [member.container_path for member in members_of(handing, unit, place)]
    own = {"resource": resource, "index": str(place), "node": inside[0] if inside else "", "nodes": ",".join(inside)}
    return {**facts_of(unit), **own}


def _filled(texts: Mapping[str, str], facts: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """A name that is the same for several devices has all their values, with commas."""
    found: dict[str, list[str]] = {}
    for each in facts:
        for name, text in texts.items():
            found.setdefault(fill(name, each), []).append(fill(text, each))
    return {name: ",".join(dict.fromkeys(filter(None, values))) for name, values in found.items()}


def _pci_env(resource: str, handing: Handing, units: Sequence[Unit]) -> dict[str, str]:
    name = "PCIDEVICE_" + resource.upper().replace("/", "_").replace(".", "_")
    details = {_address(unit): dict(unit.details) for unit in units}
    for address, detail in details.items():
        extra = {**handing.info.get("*", {}), **handing.info.get(address, {})}
        if extra:
            detail["extra"] = extra
    known = json.dumps(details, sort_keys=True, separators=(",", ":"))
    return {name: ",".join(details), f"{name}_INFO": known}


def _address(unit: Unit) -> str:
    return unit.details.get("generic", {}).get("deviceID", unit.id)


def _once(made: Iterable[Given]) -> list[Given]:
    """Devices share nodes; but two nodes at one place in the container are a mistake of the operator's."""
    found: dict[str, Given] = {}
    for each in made:
        if found.setdefault(each.container_path, each).host_path != each.host_path:
            paths = f"{found[each.container_path].host_path} and {each.host_path}"
            raise PluginError(f"{paths} would both be {each.container_path}: tell them apart with {{index}}")
    return list(found.values())


logger = logging.getLogger(__name__)

_VERSION = "1.1.0"


def write(directory: Path, resource: str, device_id: str, unit: Unit) -> None:
    """A network without the file still works; so failing to write it is said, and not the pod's problem."""
    path = directory / f"{resource.replace('/', '-')}-{device_id}-device.json"
    try:
        facts = {"type": "pci", "version": _VERSION, "pci": _network_facts(unit)}
        files.write_atomically(path, json.dumps(facts, sort_keys=True), mode=0o444, sync=False)
    except OSError as error:
        logger.warning("no device-info file for Multus", extra={"file": str(path), "error": str(error)})


def _network_facts(unit: Unit) -> dict[str, str]:
    facts = {"pci-address": unit.facts["pci"].partition(",")[0], "rdma-device": unit.facts.get("rdma", "")}
    if unit.directory is not None:
        facts["pf-pci-address"] = sysfs.link_name(unit.directory, "physfn")
    return {name: value for name, value in facts.items() if value}
