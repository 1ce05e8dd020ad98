"""The allocation of ordinary devices to a container: nodes, mounts, variables and annotations.

`HandoutOptions` contains the keys of such a resource in the operator's file. Its texts can contain templates such as
`{pci}`, which are checked when the file is read and filled in for each device. For PCI functions there is also the
device-info file of the network plumbing group, in which Multus finds the properties of a function for CNI plugins.
"""

import json
import logging
import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Annotated, TypeVar

import msgspec

from plugwright.errors import ConfigError, InvalidSetting, InvalidValue, PluginError
from plugwright.model import Allocation, DeviceNode, Mount
from plugwright.plugins.generic.hardware import HostPath, IdScheme, Unit, facts_of, pattern
from plugwright.plugins.generic.health import HealthCheck
from plugwright.sdk import sysfs
from plugwright.sdk.device_family import AbsolutePath
from plugwright.system import files

__all__ = [
    "TEMPLATE_FIELDS",
    "HandoutOptions",
    "WrittenUnits",
    "allocation_of",
    "check_options",
    "check_template",
    "container_paths",
    "fill",
    "write_device_info",
]

logger = logging.getLogger(__name__)

TEMPLATE_FIELDS = (
    "class", "device", "driver", "id", "index", "interface", "model", "name", "node", "nodes", "numa", "pci", "port",
    "product", "rdma", "resource", "serial", "uuid", "vendor",
)  # fmt: skip

_SAMPLE = dict.fromkeys(TEMPLATE_FIELDS, "x")
_DEVICE_INFO_VERSION = "1.1.0"

MountOrNode = TypeVar("MountOrNode", Mount, DeviceNode)


class HandoutOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How devices are allocated to containers.

    `count`: number of containers per device. `together`: all found devices are one device. `exclusive`: resources
    further down in the file do not get these devices. `ids`: `stable`, or the ids of another plugin, with which running
    pods keep their devices. `remap`: host path (a pattern) to path in the container. `topology`: report NUMA nodes to
    the kubelet. `cdi`: allocate by CDI names. `info`: additional entries of PCIDEVICE_…_INFO, by address or for all
    (`"*"`). `dangerous`: also allow devices with control of the node.
    """

    count: Annotated[int, msgspec.Meta(ge=1, le=100_000)] | None = None
    together: bool = False
    exclusive: bool = False
    ids: IdScheme = "stable"
    permissions: Annotated[str, msgspec.Meta(pattern="^[rwm]{1,3}$")] = "rw"
    env: dict[str, str] = {}
    annotations: dict[str, str] = {}
    remap: dict[AbsolutePath, str] = {}
    health: HealthCheck | list[HealthCheck] = []
    topology: bool = True
    cdi: bool = False
    info: dict[str, dict[str, str]] = {}
    dangerous: bool = False


class WrittenUnits(msgspec.Struct, frozen=True):
    """The CDI names of units by their ids, and the reasons why others have none."""

    names: Mapping[str, str] = {}
    faults: Mapping[str, str] = {}


def check_options(options: HandoutOptions) -> None:
    """Rejects options with which no container could be started, by their keys."""
    checks: dict[str, Callable[[], object]] = {
        "permissions": lambda: DeviceNode("/dev/null", permissions=options.permissions),
        "env": lambda: _check_env(options.env),
        "annotations": lambda: check_template(*options.annotations, *options.annotations.values()),
        "remap": lambda: check_template(*options.remap.values()),
    }
    for key, check in checks.items():
        try:
            check()
        except (ConfigError, InvalidValue) as error:
            raise InvalidSetting(str(error), key) from error


def check_template(*texts: str) -> None:
    for text in texts:
        try:
            fields = [(name, extra or conversion) for _, name, extra, conversion in string.Formatter().parse(text)]
        except ValueError as error:
            raise InvalidValue(f"template must be valid, got {text!r}: {error}; write a brace itself twice") from error
        for name, extra in fields:
            if name is not None and (name not in TEMPLATE_FIELDS or extra):
                raise InvalidValue(f"{text!r} has {{{name}}}{_meant(name)}")


def _meant(name: str) -> str:
    from difflib import get_close_matches  # only needed after a mistake

    close = get_close_matches(name, TEMPLATE_FIELDS, n=1)
    return (
        f": did you mean {{{close[0]}}}?"
        if close
        else f", templates have {', '.join(TEMPLATE_FIELDS)}; a brace itself is written twice"
    )


def fill(text: str, facts: Mapping[str, str]) -> str:
    """The text with its templates filled in; a fact unknown for a device is empty."""
    return text.format_map({**dict.fromkeys(TEMPLATE_FIELDS, ""), **facts})


def allocation_of(resource: str, options: HandoutOptions, units: Sequence[Unit]) -> Allocation:
    """The allocation of one container with these units; several copies of a unit count once."""
    paths = [path for index, unit in enumerate(units) for path in container_paths(options, unit, index)]
    facts = [_container_facts(resource, options, unit, index) for index, unit in enumerate(units)]
    mounts = [Mount(path.host_path, path.container_path, path.read_only) for path in paths if path.mount]
    nodes = [DeviceNode(path.host_path, path.container_path, path.permissions) for path in paths if not path.mount]
    return Allocation(
        env={**_filled(options.env, facts), **_pci_env(resource, options, units)},
        mounts=_distinct(mounts),
        nodes=_distinct(nodes),
        annotations=_filled(options.annotations, facts),
    )


def container_paths(options: HandoutOptions, unit: Unit, index: int) -> list[HostPath]:
    """The paths of a unit on the host and in the container, in which it is device number `index`."""
    facts = {**facts_of(unit), "index": str(index)}
    return [
        HostPath(
            path.path,
            path.host_path,
            _container_path(options, path, facts),
            path.permissions or options.permissions,
            path.mount,
            path.read_only,
        )
        for path in unit.paths
    ]


def write_device_info(directory: Path, resource: str, device_id: str, unit: Unit) -> None:
    """Writes the file of a PCI function. Networks work without it, so a failure is logged and does not fail the pod."""
    path = directory / f"{resource.replace('/', '-')}-{device_id}-device.json"
    pci = {"pci-address": unit.facts["pci"].partition(",")[0], "rdma-device": unit.facts.get("rdma", "")}
    if unit.directory is not None:
        pci["pf-pci-address"] = sysfs.link_name(unit.directory, "physfn")
    info = {
        "type": "pci",
        "version": _DEVICE_INFO_VERSION,
        "pci": {name: value for name, value in pci.items() if value},
    }
    try:
        files.write_atomically(path, json.dumps(info, sort_keys=True), mode=0o444, sync=False)
    except OSError as error:
        logger.warning("no device-info file for Multus", extra={"file": str(path), "error": str(error)})


def _check_env(env: Mapping[str, str]) -> None:
    check_template(*env, *env.values())
    Allocation(env=dict.fromkeys((fill(name, _SAMPLE) for name in env), ""))


def _container_path(options: HandoutOptions, path: HostPath, facts: Mapping[str, str]) -> str:
    remapped = next((to for host, to in options.remap.items() if pattern(host)(path.path)), "")
    template = remapped or path.container_path
    # The name of a node is not a template, even if it has braces.
    filled = fill(template, facts) if template else path.path
    return f"{filled}{PurePosixPath(path.path).name}" if filled.endswith("/") else filled


def _container_facts(resource: str, options: HandoutOptions, unit: Unit, index: int) -> dict[str, str]:
    """The facts of a unit, with its nodes as the container sees them."""
    nodes = [path.container_path for path in container_paths(options, unit, index)]
    own = {"resource": resource, "index": str(index), "node": nodes[0] if nodes else "", "nodes": ",".join(nodes)}
    return {**facts_of(unit), **own}


def _filled(texts: Mapping[str, str], facts: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """The filled-in texts; a name common to several devices has all their values, separated by commas."""
    values: dict[str, list[str]] = {}
    for device_facts in facts:
        for name, text in texts.items():
            values.setdefault(fill(name, device_facts), []).append(fill(text, device_facts))
    return {name: ",".join(dict.fromkeys(filter(None, texts))) for name, texts in values.items()}


def _pci_env(resource: str, options: HandoutOptions, units: Sequence[Unit]) -> dict[str, str]:
    """The variables of the SR-IOV network device plugin; only PCI functions have entries."""
    if not any(unit.details for unit in units):
        return {}
    name = "PCIDEVICE_" + resource.upper().replace("/", "_").replace(".", "_")
    details = {unit.details.get("generic", {}).get("deviceID", unit.id): dict(unit.details) for unit in units}
    for address, detail in details.items():
        extra = {**options.info.get("*", {}), **options.info.get(address, {})}
        if extra:
            detail["extra"] = extra
    info = json.dumps(details, sort_keys=True, separators=(",", ":"))
    return {name: ",".join(details), f"{name}_INFO": info}


def _distinct(handed_out: Iterable[MountOrNode]) -> list[MountOrNode]:
    """The distinct mounts and nodes. Devices can share nodes, but two nodes at one container path are a mistake."""
    by_path: dict[str, MountOrNode] = {}
    for new in handed_out:
        known = by_path.setdefault(new.container_path, new)
        if known.host_path != new.host_path:
            paths = f"{known.host_path} and {new.host_path}"
            raise PluginError(f"{paths} would both be {new.container_path}: distinguish them with {{index}}")
    return list(by_path.values())
