"""CDI files: their encoding, and the files of one owner in a directory shared by several.

A spec gets the lowest version for its content, because a runtime rejects versions newer than its library. Files are
written atomically. `schema`, loaded only when a file is read, defines their content.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import msgspec

from plugwright.errors import InvalidValue
from plugwright.sdk.cdi.spec import IntelRdt, Spec, json_key
from plugwright.system import files

__all__ = [
    "DYNAMIC",
    "STATIC",
    "SpecDirectory",
    "from_plain",
    "minimum_version",
    "read",
    "to_json",
    "to_plain",
]

_VERSIONS = ("0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0")
STATIC = Path("/etc/cdi")
DYNAMIC = Path("/var/run/cdi")
_ENDINGS = (".json", ".yaml")
_LARGEST = 4 * 2**20  # bytes; a spec of a hundred GPUs has a few hundred thousand
_MODE = 0o644  # runtimes and users who read the files are not always root


def minimum_version(spec: Spec) -> str:
    """The lowest `cdiVersion` with every feature the spec uses."""
    all_edits = [spec.edits, *(device.edits for device in spec.devices)]
    needs = {
        "0.4.0": any(mount.type for edits in all_edits for mount in edits.mounts),
        "0.5.0": any(node.host_path for edits in all_edits for node in edits.device_nodes)
        or any(device.name[0].isdecimal() for device in spec.devices),
        "0.6.0": bool(spec.annotations)
        or any(device.annotations for device in spec.devices)
        or "." in spec.kind.partition("/")[2],
        "0.7.0": any(edits.intel_rdt or edits.additional_gids for edits in all_edits),
        "1.1.0": any(edits.net_devices or _has_new_rdt(edits.intel_rdt) for edits in all_edits),
    }
    return max((version for version, needed in needs.items() if needed), default=_VERSIONS[0])


def to_plain(spec: Spec) -> dict[str, object]:
    plain = _plain(spec)
    return {"cdiVersion": minimum_version(spec), **plain}


def to_json(spec: Spec) -> str:
    return json.dumps(to_plain(spec), indent=2, ensure_ascii=False) + "\n"


def from_plain(plain: object) -> Spec:
    """The spec in `plain`, the content of a JSON or YAML file; InvalidValue if a runtime would reject it."""
    from plugwright.sdk.cdi import schema  # loads msgspec

    if not isinstance(plain, Mapping):
        raise InvalidValue(f"CDI spec must be a mapping, got {plain!r}")
    content = dict(plain)
    version = content.pop("cdiVersion", None)
    version = version.removeprefix("v") if isinstance(version, str) else version
    if version not in _VERSIONS:
        raise InvalidValue(f"cdiVersion must be one of {', '.join(_VERSIONS)}, got {version!r}")
    spec = schema.decode(content)
    if not spec.devices:
        raise InvalidValue(f"CDI spec of {spec.kind} must have at least one device")
    needed = minimum_version(spec)
    if _VERSIONS.index(version) < _VERSIONS.index(needed):
        raise InvalidValue(f"cdiVersion of {spec.kind} must be at least {needed} for what it uses, got {version}")
    return spec


def _has_new_rdt(rdt: IntelRdt | None) -> bool:
    return rdt is not None and bool(rdt.schemata or rdt.enable_monitoring)


def _plain(value: msgspec.Struct) -> dict[str, object]:
    """The fields by key, without empty strings, lists and mappings. A number 0 is kept."""
    plain: dict[str, object] = {}
    for name in value.__struct_fields__:
        content = getattr(value, name)
        if (content or content == 0) and content is not False:
            plain[json_key(type(value), name)] = _plain_content(name, content)
    return plain


def _plain_content(name: str, content: object) -> object:
    if isinstance(content, Mapping):
        return [f"{key}={value}" for key, value in content.items()] if name == "env" else dict(content)
    if isinstance(content, tuple):
        return [_plain(item) if isinstance(item, msgspec.Struct) else item for item in content]
    return _plain(content) if isinstance(content, msgspec.Struct) else content


class SpecDirectory(msgspec.Struct, frozen=True):
    """The files of one owner in a directory shared by several; `owner` is a part of their names.

    Files stay when the owner ends: the kubelet reuses a stored AllocateResponse when a container restarts, which fails
    if no file defines its CDI names. `remove` is for devices without any possible holder.
    """

    path: Path = DYNAMIC
    owner: str = "plugwright"

    def __post_init__(self) -> None:
        if not self.owner or not self.owner.replace("-", "").replace("_", "").isalnum():
            raise InvalidValue(f"owner of CDI files must have letters, digits, '-' and '_', got {self.owner!r}")

    def file(self, kind: str, part: str = "") -> Path:
        """`vendor-class_owner[.part].json`; `part` distinguishes several files of one kind."""
        part = f".{part.replace('/', '_')}" if part else ""
        return self.path / f"{_stem(kind, self.owner)}{part}.json"

    def write(self, spec: Spec, part: str = "") -> Path:
        """Writes the spec atomically; keeps an equal file, and removes the file of a spec without devices."""
        path = self.file(spec.kind, part)
        if not spec.devices:
            path.unlink(missing_ok=True)
            return path
        content = to_json(spec).encode()
        if not _has_content(path, content):
            self.path.mkdir(mode=0o755, parents=True, exist_ok=True)
            files.write_atomically(path, content, mode=_MODE)
        return path

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Excludes other writers with this lock while a file is read and rewritten."""
        self.path.mkdir(mode=0o755, parents=True, exist_ok=True)
        with files.locked(self.path):
            yield

    def files(self) -> list[Path]:
        """This owner's files; files of other owners are never removed."""
        return [path for path in _specs_in(self.path) if self._owns(path)]

    def remove(self, keep: Iterable[Path] = ()) -> list[Path]:
        """Removes this owner's files except those in `keep`; returns the removed files."""
        removed = sorted(set(self.files()) - set(keep))
        for path in removed:
            path.unlink(missing_ok=True)
        return removed

    def _owns(self, path: Path) -> bool:
        """A name alone could be another owner's: the kind in the file shows where the owner starts in the name."""
        try:
            kind = read(path).kind
        except (OSError, InvalidValue):
            return False
        return path.suffix == ".json" and path.name.startswith(f"{_stem(kind, self.owner)}.")


def read(path: Path) -> Spec:
    """The spec of a JSON or YAML file."""
    try:
        return from_plain(_parse(path, files.read(path, _LARGEST).decode()))
    except (ValueError, RecursionError) as error:  # also a file that is too large, not regular or not UTF-8
        raise InvalidValue(f"{path}: {error}") from error


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
    import yaml  # only for files of other owners: ours are JSON

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise InvalidValue(f"not YAML: {' '.join(str(error).split())}") from error


def _has_content(path: Path, content: bytes) -> bool:
    try:
        return files.read(path, _LARGEST) == content and path.stat().st_mode & 0o777 == _MODE
    except (OSError, ValueError):
        return False
