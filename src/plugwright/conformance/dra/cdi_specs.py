"""CDI devices as found by a runtime in its directories: the names, and the edits of each."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from plugwright.grammars import CDI_DEVICE, CDI_KIND, PERMISSIONS

__all__ = ["CdiDevice", "cdi_devices", "cdi_devices_of", "refused_specs", "spec_files", "spec_paths_on_host"]

CdiDevice = Mapping[str, Any]
_ENDINGS = (".json", ".yaml")
_VERSIONS = ("0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0")
_NODE_TYPES = ("", "b", "c", "u", "p")
_HOOKS = ("prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop")


def cdi_devices(directories: Sequence[Path]) -> dict[str, CdiDevice]:
    """The entry of each device by its qualified name; unreadable files are ignored."""
    found: dict[str, CdiDevice] = {}
    for path in _spec_paths(directories):
        found |= cdi_devices_of(path)
    return found


def spec_files(directories: Sequence[Path], name: str) -> int:
    """How many files define the device of this qualified name."""
    return sum(name in cdi_devices_of(path) for path in _spec_paths(directories))


def spec_paths_on_host(device: CdiDevice) -> list[str]:
    """The host paths of a device's nodes and mounts."""
    edits = device.get("containerEdits") or {}
    nodes = [str(node.get("hostPath") or node.get("path")) for node in edits.get("deviceNodes") or ()]
    return nodes + [str(mount.get("hostPath")) for mount in edits.get("mounts") or () if mount.get("type") != "tmpfs"]


def refused_specs(directories: Sequence[Path], names: Sequence[str]) -> list[str]:
    """Why runtimes refuse the files of these devices: what the Go library of CDI checks when it reads a spec."""
    paths = [path for path in _spec_paths(directories) if set(names) & set(cdi_devices_of(path))]
    return [f"{path.name}: {problem}" for path in paths for problem in _problems(_content(path))]


def _problems(spec: Any) -> Iterator[str]:
    version = str(spec.get("cdiVersion")).removeprefix("v")
    if version not in _VERSIONS:
        yield f"cdiVersion {version}, which must be one of {', '.join(_VERSIONS)}"
    if not CDI_KIND.fullmatch(spec["kind"]):
        yield f"kind {spec['kind']!r}, which must be a vendor and a class"
    yield from _newer_features(spec, version)
    counts = Counter(str(device["name"]) for device in spec["devices"])
    for name in (name for name, count in counts.items() if count > 1):
        yield f"the device {name!r} {counts[name]} times"
    for device in spec["devices"]:
        if not any((device.get("containerEdits") or {}).values()):
            yield f"no containerEdits of the device {device['name']!r}"
        if not CDI_DEVICE.fullmatch(str(device["name"])):
            yield f"the name {device['name']!r} of a device"
        yield from _problems_of_edits(device.get("containerEdits") or {}, version)
    yield from _problems_of_edits(spec.get("containerEdits") or {}, version)


def _newer_features(spec: Any, version: str) -> Iterator[str]:
    """Fields that need a later cdiVersion than the spec's."""
    if version not in _VERSIONS:
        return
    entries = [*spec["devices"], spec]
    edits = [entry.get("containerEdits") or {} for entry in entries]
    features = {
        "type of a mount": ("0.4.0", any(mount.get("type") for one in edits for mount in one.get("mounts") or ())),
        "a name that starts with a digit": ("0.5.0", any(str(one["name"])[:1].isdigit() for one in spec["devices"])),
        "annotations": ("0.6.0", any(entry.get("annotations") for entry in entries)),
        "a class with a dot": ("0.6.0", "." in spec["kind"].partition("/")[2]),
        "intelRdt or additionalGids": ("0.7.0", any(one.get("intelRdt") or one.get("additionalGids") for one in edits)),
    }
    for feature, (needed, used) in features.items():
        if used and _VERSIONS.index(version) < _VERSIONS.index(needed):
            yield f"{feature}, which needs cdiVersion {needed}"


def _problems_of_edits(edits: CdiDevice, version: str) -> Iterator[str]:
    for variable in edits.get("env") or ():
        if not str(variable).partition("=")[0] or "=" not in str(variable):
            yield f"the variable {variable!r}, which must look like NAME=value"
    for node in edits.get("deviceNodes") or ():
        yield from _problems_of_node(node, version)
    for mount in edits.get("mounts") or ():
        if not mount.get("hostPath") or not mount.get("containerPath"):
            yield f"a mount without hostPath or containerPath: {mount}"
    for hook in edits.get("hooks") or ():
        if hook.get("hookName") not in _HOOKS or not hook.get("path"):
            yield f"a hook without a known hookName or a path: {hook}"


def _problems_of_node(node: CdiDevice, version: str) -> Iterator[str]:
    path, permissions = node.get("path"), node.get("permissions") or "rwm"
    if not path:
        yield "a device node without a path"
    if permissions != "none" and not PERMISSIONS.fullmatch(permissions):
        yield f"permissions {permissions!r} of {path}"
    if node.get("type", "") not in _NODE_TYPES:
        yield f"type {node['type']!r} of {path}"
    if node.get("hostPath") and version in _VERSIONS[: _VERSIONS.index("0.5.0")]:
        yield f"hostPath of {path}, which needs cdiVersion 0.5.0"


def _spec_paths(directories: Sequence[Path]) -> list[Path]:
    paths = [path for directory in directories if directory.is_dir() for path in sorted(directory.iterdir())]
    return [path for path in paths if path.suffix in _ENDINGS]


def cdi_devices_of(path: Path) -> dict[str, CdiDevice]:
    try:
        spec = _content(path)
        return {f"{spec['kind']}={device['name']}": device for device in spec["devices"]}
    except (OSError, ValueError, KeyError, TypeError, yaml.YAMLError):
        return {}


def _content(path: Path) -> Any:
    text = path.read_text()
    return json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
