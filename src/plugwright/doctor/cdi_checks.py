"""CDI specs: files that a container runtime rejects, unusable names, and missing paths."""

import os
import shlex
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from plugwright.doctor.doctor_report import DoctorCheck, found, healthy
from plugwright.doctor.examined_node import ExaminedNode
from plugwright.doctor.permissions import FULL, is_closed, mode_of, other_writer
from plugwright.errors import InvalidValue
from plugwright.model import some
from plugwright.sdk import cdi

__all__ = ["cdi_conflicts", "cdi_overrides", "cdi_paths", "cdi_specs"]

_LARGEST = 16 * 2**20  # bytes of a spec
_MOST = 1024  # specs of a directory
_SHOWN = 3
_NO_PROGRAM = "is not an executable program"
_AGAIN = "nvidia-ctk cdi generate --output=FILE for NVIDIA's, a restart of the plugin for its own"


class SpecFile(msgspec.Struct, frozen=True):
    directory: Path
    path: Path
    spec: cdi.Spec | None = None
    problem: str = ""


def _files(view: ExaminedNode) -> Iterator[SpecFile]:
    for directory in view.spec_directories:
        names = [name for name in view.names(directory) if name.endswith((".json", ".yaml"))]
        if len(names) > _MOST:
            raise ValueError(f"{directory} must have at most {_MOST} CDI specs, got {len(names)}")
        for name in names:
            yield _read(view, directory, directory / name)


def _read(view: ExaminedNode, directory: Path, path: Path) -> SpecFile:
    try:
        status = view.path(path).stat()
        if not stat.S_ISREG(status.st_mode) or status.st_size > _LARGEST:
            return SpecFile(directory, path, problem=f"it must be a regular file of at most {_LARGEST} bytes")
        return SpecFile(directory, path, cdi.read(view.path(path)))
    except OSError as error:
        return SpecFile(directory, path, problem=f"it cannot be read: {error.strerror}")
    except (ValueError, InvalidValue) as error:
        return SpecFile(directory, path, problem=str(error).removeprefix(f"{view.path(path)}: "))


def cdi_specs(view: ExaminedNode) -> DoctorCheck:
    """Directories, names and contents that a container runtime does not accept."""
    name = "cdi-specs"
    for directory in view.spec_directories:
        if os.path.lexists(view.path(directory.parent) / directory.name) and not view.path(directory).is_dir():
            why = "the container runtime finds no spec there, and plugins cannot write theirs"
            fix = f"rm {directory} && mkdir -m 0755 {directory}; restart the plugins"
            return found(name, f"{directory} is not a directory", why, fix)
        if not view.target.in_pod and _is_read_only(view, directory):
            why = "plugins cannot write their specs: containers with their devices do not start"
            fix = f"mount -o remount,rw $(findmnt -no TARGET -T {directory}); restart the plugins"
            return found(name, f"{directory} is on a read-only file system", why, fix)
        if directory == cdi.DYNAMIC and is_closed(view.path(directory), FULL):
            why = "plugins cannot write their specs: containers with their devices do not start"
            text = f"{mode_of(view.path(directory))} closes {directory} to plugins without capabilities"
            return found(name, text, why, f"chown 0:0 {directory} && chmod 0755 {directory}; restart the plugins")
    if (exposed := _exposed(view)) is not None:
        return exposed
    if misnamed := [f"{place}/{each}" for place in view.spec_directories for each in _misnamed(view, place)]:
        return found(
            name,
            f"{some(misnamed, _SHOWN)}: the name of a spec must end in .json or .yaml",
            "the container runtime ignores the file: containers with its devices do not start",
            "; ".join(shlex.join(["mv", file, f"{file.removesuffix('.yml')}.yaml"]) for file in misnamed[:_SHOWN]),
        )
    files = list(_files(view))
    broken = [f"{file.path}: {file.problem}" for file in files if file.spec is None]
    if broken:
        paths = [str(file.path) for file in files if file.spec is None]
        why = "the container runtime ignores the file: containers with its devices do not start"
        return found(name, "; ".join(broken[:_SHOWN]), why, f"generate again ({_AGAIN}) or rm {shlex.join(paths[:8])}")
    return healthy(name, f"{len(files)} specs in {' and '.join(map(str, view.spec_directories))}")


def _exposed(view: ExaminedNode) -> DoctorCheck | None:
    """A directory or file of specs that other users than root may write."""
    directories = [(directory, 0o755) for directory in view.spec_directories if view.path(directory).is_dir()]
    for path, usual in (*directories, *((file.path, 0o644) for file in _files(view))):
        with suppress(OSError):
            if (intruder := other_writer(view.path(path).stat(), usual)) is not None:
                writer, command = intruder
                why = "a spec can give any file of the node to a container, and run hooks as root"
                return found("cdi-specs", f"{writer} may write to {path}", why, f"{command} {shlex.quote(str(path))}")
    return None


def _is_read_only(view: ExaminedNode, directory: Path) -> bool:
    path = view.path(directory)
    return directory == cdi.DYNAMIC and path.is_dir() and bool(os.statvfs(path).f_flag & os.ST_RDONLY)


def _misnamed(view: ExaminedNode, directory: Path) -> list[str]:
    return [name for name in view.names(directory) if name.endswith(".yml")]


def cdi_conflicts(view: ExaminedNode) -> DoctorCheck:
    """Names that two files of one directory define, which makes them unusable."""
    name, owners = "cdi-conflicts", dict[tuple[Path, str], list[Path]]()
    for file in _files(view):
        for device in _names(file):
            owners.setdefault((file.directory, device), []).append(file.path)
    twice = {device: paths for (_, device), paths in owners.items() if len(paths) > 1}
    if twice:
        files = sorted({str(path) for paths in twice.values() for path in paths})
        return found(
            name,
            f"{some(sorted(twice), _SHOWN)} defined several times in {some(files)}",
            "the container runtime uses none of the definitions: containers with these devices do not start",
            f"keep one file and remove the others: rm {shlex.join(files[1:8])}",
        )
    return healthy(name, f"{len(owners)} CDI devices, each defined once")


def cdi_overrides(view: ExaminedNode) -> DoctorCheck:
    """Names defined in several directories: the later one wins, so a forgotten spec changes what containers get."""
    name, first = "cdi-overrides", dict[str, tuple[SpecFile, cdi.Device]]()
    hidden: dict[str, str] = {}
    for file in _files(view):
        for device in file.spec.devices if file.spec is not None else ():
            assert file.spec is not None
            full = cdi.qualified_name(file.spec.kind, device.name)
            earlier = first.setdefault(full, (file, device))
            if earlier[0].directory != file.directory and not _is_same(earlier, file, device):
                hidden[str(earlier[0].path)] = str(file.path)
    if hidden:
        pairs = [f"{path} is hidden by {other}" for path, other in sorted(hidden.items())]
        return found(
            name,
            f"{some(pairs, _SHOWN)}: same device names, different content",
            "containers get the definition of the later directory, possibly of an earlier driver",
            f"remove the file that is out of date: rm {shlex.join(sorted(hidden)[:8])}",
        )
    return healthy(name, "no spec hides another")


def _is_same(earlier: tuple[SpecFile, cdi.Device], file: SpecFile, device: cdi.Device) -> bool:
    assert earlier[0].spec is not None
    assert file.spec is not None
    return (earlier[1].edits, earlier[0].spec.edits) == (device.edits, file.spec.edits)


def cdi_paths(view: ExaminedNode) -> DoctorCheck:
    """The node's files named in specs."""
    name, missing, unusable, checked = "cdi-paths", dict[str, Path](), dict[str, str](), 0
    view.need_node()
    for file in _files(view):
        for path in _host_paths(file.spec) if file.spec is not None else ():
            checked += 1
            if not view.exists(path):
                missing[path] = file.path
        unusable |= dict(_unusable_paths(view, file.spec)) if file.spec is not None else {}
    if missing:
        files = sorted({str(path) for path in missing.values()})
        return found(
            name,
            f"{some(files, _SHOWN)} refer to paths that do not exist: {some(sorted(missing), _SHOWN)}",
            "containers with these devices do not start; usual after an update of a driver",
            f"generate the specs again: {_AGAIN}",
        )
    if unusable:
        text = some([f"{path} {problem}" for path, problem in sorted(unusable.items())], _SHOWN)
        why, fix = "containers with these devices do not start", _repair(unusable)
        return found(name, f"paths in specs cannot be used: {text}", why, fix)
    return healthy(name, f"{checked} paths in specs exist")


def _unusable_paths(view: ExaminedNode, spec: cdi.Spec) -> Iterator[tuple[str, str]]:
    """Existing paths with their defects: hooks that cannot be executed, and files in place of device nodes."""
    for edits in (spec.edits, *(device.edits for device in spec.devices)):
        for hook in edits.hooks:
            program = view.path(hook.path)
            if program.exists() and not (program.is_file() and os.access(program, os.X_OK)):
                yield hook.path, _NO_PROGRAM
        for node in edits.device_nodes:
            path = view.path(node.host_path or node.path)
            is_described = bool(node.type) and node.major is not None  # the runtime does not look at the file then
            if path.exists() and not is_described and not _is_device(path):
                yield node.host_path or node.path, "is not a device node"


def _is_device(path: Path) -> bool:
    return path.is_char_device() or path.is_block_device() or path.is_fifo()


def _repair(unusable: Mapping[str, str]) -> str:
    programs = sorted(path for path, problem in unusable.items() if problem == _NO_PROGRAM)
    nodes = sorted(set(unusable) - set(programs))
    commands = [shlex.join(["chmod", "0755", *programs[:8]])] if programs else []
    if nodes:
        commands.append(f"{shlex.join(['rm', '-r', *nodes[:8]])}, and let the driver make its device nodes again")
    return "; ".join(commands)


def _names(file: SpecFile) -> list[str]:
    spec = file.spec
    return [] if spec is None else [cdi.qualified_name(spec.kind, device.name) for device in spec.devices]


def _host_paths(spec: cdi.Spec) -> Iterator[str]:
    for edits in (spec.edits, *(device.edits for device in spec.devices)):
        yield from (node.host_path or node.path for node in edits.device_nodes)
        yield from (mount.host_path for mount in edits.mounts if mount.type in ("", "bind", "none"))
        yield from (hook.path for hook in edits.hooks)
