"""Where CDI specs lie, and how they are written: whole or not at all, readable by everyone, ours known by name.

A CDI spec as its file has it: keys, order, and the lowest version that has all it uses.

The lowest, because a runtime refuses a file whose version its library does not know yet. Reading is as strict as the
runtimes' own: an unknown key is an error.
"""

import json
import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import TypeVar

from plugwright.errors import InvalidValue
from plugwright.sdk.cdi.spec import (
    ContainerEdits,
    Device,
    DeviceNode,
    Hook,
    IntelRdt,
    Mount,
    NetDevice,
    Spec,
    qualified_name,
)
from plugwright.system import files

__all__ = [
    "DYNAMIC",
    "STATIC",
    "SpecDirectory",
    "from_plain",
    "minimum_version",
    "read",
    "resolve",
    "to_json",
    "to_plain",
]

T = TypeVar("T")
_VERSIONS = ("0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0")
_NEWEST = _VERSIONS[-1]
_KEYS = {
    (Hook, "name"): "hookName",
    (IntelRdt, "clos_id"): "closID",
    (IntelRdt, "enable_cmt"): "enableCMT",
    (IntelRdt, "enable_mbm"): "enableMBM",
    (Device, "edits"): "containerEdits",
    (Spec, "edits"): "containerEdits",
}
_LISTS: dict[tuple[type, str], type] = {
    (Spec, "devices"): Device,
    (ContainerEdits, "device_nodes"): DeviceNode,
    (ContainerEdits, "net_devices"): NetDevice,
    (ContainerEdits, "mounts"): Mount,
    (ContainerEdits, "hooks"): Hook,
}
_PARTS: dict[tuple[type, str], type] = {
    (Spec, "edits"): ContainerEdits,
    (Device, "edits"): ContainerEdits,
    (ContainerEdits, "intel_rdt"): IntelRdt,
}


def minimum_version(spec: Spec) -> str:
    """The lowest `cdiVersion` that has every feature the spec uses."""
    every = [spec.edits, *(device.edits for device in spec.devices)]
    needs = {
        "0.4.0": any(mount.type for edits in every for mount in edits.mounts),
        "0.5.0": any(node.host_path for edits in every for node in edits.device_nodes)
        or any(device.name[0].isdecimal() for device in spec.devices),
        "0.6.0": bool(spec.annotations)
        or any(device.annotations for device in spec.devices)
        or "." in spec.kind.partition("/")[2],
        "0.7.0": any(edits.intel_rdt or edits.additional_gids for edits in every),
        "1.1.0": any(edits.net_devices or _has_new_rdt(edits.intel_rdt) for edits in every),
    }
    return max((version for version, needed in needs.items() if needed), default=_VERSIONS[0])


def to_plain(spec: Spec) -> dict[str, object]:
    plain = _plain(spec)
    return {"cdiVersion": minimum_version(spec), **plain}


def to_json(spec: Spec) -> str:
    return json.dumps(to_plain(spec), indent=2, ensure_ascii=False) + "\n"


def from_plain(plain: object) -> Spec:
    """The spec in `plain`, which JSON or YAML was read into; refuses what a runtime would refuse."""
    content = dict(_mapping("a CDI spec", plain))
    version = _text("cdiVersion", content.pop("cdiVersion", None)).removeprefix("v")
    if version not in _VERSIONS:
        raise InvalidValue(f"cdiVersion is one of {', '.join(_VERSIONS)}, not {version!r}")
    spec = _value(Spec, "spec", content)
    needed = minimum_version(spec)
    if _VERSIONS.index(version) < _VERSIONS.index(needed):
        raise InvalidValue(f"a CDI spec of {spec.kind} says cdiVersion {version}, what it uses needs {needed}")
    return spec


def _has_new_rdt(rdt: IntelRdt | None) -> bool:
    return rdt is not None and bool(rdt.schemata or rdt.enable_monitoring)


def _key(kind: type, name: str) -> str:
    return _KEYS.get((kind, name)) or re.sub(r"_(.)", lambda found: found[1].upper(), name)


def _plain(value: object) -> dict[str, object]:
    """Only what was said: empty texts, lists and mappings are left out. An interval of 0 or a gid of 0 is said."""
    plain: dict[str, object] = {}
    for each in fields(value):  # type: ignore[arg-type]
        content = getattr(value, each.name)
        if (content or content == 0) and content is not False:
            plain[_key(type(value), each.name)] = _plain_content(each.name, content)
    return plain


def _plain_content(name: str, content: object) -> object:
    if isinstance(content, Mapping):
        return [f"{key}={value}" for key, value in content.items()] if name == "env" else dict(content)
    if isinstance(content, tuple):
        return [_plain(each) if is_dataclass(each) else each for each in content]
    return _plain(content) if is_dataclass(content) else content


def _value(kind: type[T], place: str, plain: object) -> T:
    given = dict(_mapping(place, plain))
    arguments = {}
    for each in fields(kind):  # type: ignore[arg-type]
        key = _key(kind, each.name)
        if key in given:
            content = given.pop(key)
            if content is not None:
                arguments[each.name] = _content(kind, each.name, f"{place}.{key}", content)
    if given:
        raise InvalidValue(f"{place} has no key {min(given)!r}")
    if kind is Device:
        arguments.setdefault("edits", ContainerEdits())
    try:
        return kind(**arguments)
    except TypeError as error:
        missing = re.findall(r"'(\w+)'", str(error))
        raise InvalidValue(f"{place} needs {', '.join(_key(kind, each) for each in missing)}") from None


def _content(kind: type, name: str, place: str, plain: object) -> object:
    if (kind, name) in _LISTS:
        return [_value(_LISTS[kind, name], f"{place}[{n}]", each) for n, each in enumerate(_list(place, plain))]
    if (kind, name) in _PARTS:
        return _value(_PARTS[kind, name], place, plain)
    if (kind, name) == (ContainerEdits, "env"):
        return _env(place, plain)
    check = _PLAIN.get(name)
    return check(place, plain) if check else _text(place, plain)


def _env(place: str, plain: object) -> dict[str, str]:
    pairs = [_text(place, each).partition("=") for each in _list(place, plain)]
    if any(not separator for _, separator, _ in pairs):
        raise InvalidValue(f"{place} looks like NAME=value")
    return {name: value for name, _, value in pairs}


def _text(place: str, plain: object) -> str:
    if not isinstance(plain, str):
        raise InvalidValue(f"{place} is a text, not {plain!r}")
    return plain


def _switch(place: str, plain: object) -> bool:
    if not isinstance(plain, bool):
        raise InvalidValue(f"{place} is true or false, not {plain!r}")
    return plain


def _list(place: str, plain: object) -> list[object]:
    if not isinstance(plain, list):
        raise InvalidValue(f"{place} is a list, not {plain!r}")
    return plain


def _mapping(place: str, plain: object) -> Mapping[str, object]:
    if not isinstance(plain, Mapping):
        raise InvalidValue(f"{place} is a mapping, not {plain!r}")
    return plain


def _as_it_is(place: str, plain: object) -> object:
    """The value itself checks it."""
    return plain


_PLAIN: dict[str, Callable[[str, object], object]] = {
    **dict.fromkeys(("enable_monitoring", "enable_cmt", "enable_mbm"), _switch),
    **dict.fromkeys(("options", "args", "schemata", "env"), _list),
    **dict.fromkeys(("major", "minor", "file_mode", "uid", "gid", "timeout"), _as_it_is),
    "annotations": _mapping,
    "additional_gids": lambda place, plain: [gid for gid in _list(place, plain) if gid != 0],
}


logger = logging.getLogger(__name__)

STATIC = Path("/etc/cdi")
DYNAMIC = Path("/var/run/cdi")
_ENDINGS = (".json", ".yaml")
_MODE = 0o644  # runtimes and people who look are not all root


@dataclass(frozen=True, slots=True)
class SpecDirectory:
    """One writer's files in a directory of many: `owner` is a part of their names.

    Files stay when the writer ends: the kubelet uses stored answers again when a container restarts, and a name that
    no file has makes that fail. `remove` is for what no pod can hold any more.
    """

    path: Path = DYNAMIC
    owner: str = "plugwright"

    def __post_init__(self) -> None:
        if not self.owner or not self.owner.replace("-", "").replace("_", "").isalnum():
            raise InvalidValue(f"an owner of CDI files has letters, digits, '-' and '_', not {self.owner!r}")

    def file(self, kind: str, part: str = "") -> Path:
        """`vendor-class_owner[.part].json`; `part` tells several files of one kind apart."""
        part = f".{part.replace('/', '_')}" if part else ""
        return self.path / f"{_stem(kind, self.owner)}{part}.json"

    def write(self, spec: Spec, part: str = "") -> Path:
        """Writes the spec so that nobody ever reads half of it; a file that is right already is left alone."""
        path, content = self.file(spec.kind, part), to_json(spec).encode()
        if not _is(path, content):
            self.path.mkdir(mode=0o755, parents=True, exist_ok=True)
            files.write_atomically(path, content, mode=_MODE)
        return path

    def files(self) -> list[Path]:
        """This owner's files: no other is ever removed."""
        return [path for path in _specs_in(self.path) if self._owns(path)]

    def remove(self, keep: Iterable[Path] = ()) -> list[Path]:
        """Removes this owner's files but those to keep; returns which."""
        gone = sorted(set(self.files()) - set(keep))
        for path in gone:
            path.unlink(missing_ok=True)
        return gone

    def _owns(self, path: Path) -> bool:
        """A name alone could be another's: with the kind inside there is only one way to read it."""
        try:
            kind = read(path).kind
        except (OSError, InvalidValue):
            return False
        return path.suffix == ".json" and path.name.startswith(f"{_stem(kind, self.owner)}.")


def read(path: Path) -> Spec:
    """The spec of a JSON or YAML file."""
    text = path.read_text(encoding="utf-8")
    try:
        return from_plain(_parse(path, text))
    except InvalidValue as error:
        raise InvalidValue(f"{path}: {error}") from error


def resolve(directories: Sequence[Path] = (STATIC, DYNAMIC)) -> dict[str, Device]:
    """Every device that a runtime would find, by its qualified name.

    A later directory wins; a name that stands twice in one directory is unusable, there and before.
    """
    found: dict[str, Device] = {}
    for directory in directories:
        seen: set[str] = set()
        for name, device in _devices_in(directory):
            if name in seen:
                found.pop(name, None)
                logger.warning("CDI device in two files of one directory, unusable", extra={"device": name})
            else:
                found[name] = device
            seen.add(name)
    return dict(sorted(found.items()))


def _devices_in(directory: Path) -> Iterable[tuple[str, Device]]:
    for path in _specs_in(directory):
        try:
            spec = read(path)
        except (OSError, InvalidValue) as error:
            logger.warning("CDI spec not usable", extra={"file": str(path), "error": str(error)})
            continue
        for device in spec.devices:
            yield qualified_name(spec.kind, device.name), device


def _specs_in(directory: Path) -> list[Path]:
    try:
        return sorted(path for path in directory.iterdir() if path.suffix in _ENDINGS and path.is_file())
    except OSError:
        return []


def _stem(kind: str, owner: str) -> str:
    return f"{kind.replace('/', '-')}_{owner}"


def _parse(path: Path, text: str) -> object:
    if path.suffix == ".json":
        try:
            return json.loads(text)
        except ValueError as error:
            raise InvalidValue(f"not JSON: {error}") from error
    import yaml

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise InvalidValue(f"not YAML: {' '.join(str(error).split())}") from error


def _is(path: Path, content: bytes) -> bool:
    try:
        return path.read_bytes() == content and path.stat().st_mode & 0o777 == _MODE
    except OSError:
        return False
