"""Rules of the answers to Allocate: values that a container runtime accepts.

The kubelet forwards paths, permissions and names unchanged; a runtime that rejects them rejects the container, long
after the pod was admitted.
"""

import itertools
import re
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

import yaml

from plugwright.conformance.asking import allocate, answered, answers, expect, outcome, with_devices
from plugwright.conformance.dra.cdi_specs import cdi_devices, refused_specs, spec_files, spec_paths_on_host
from plugwright.conformance.rule import Level, Rule
from plugwright.conformance.verifier import Verifier
from plugwright.errors import PlugwrightError, RuleNotApplicable
from plugwright.grammars import CDI_NAME, PERMISSIONS
from plugwright.model import some
from plugwright.protocol.messages import AllocateResponse

__all__ = ["RULES", "cdi_names"]

CDI_ANNOTATION = "cdi.k8s.io/"
_LIMIT = 4 * 1024 * 1024
_TOGETHER = 16  # devices of one container
_ANNOTATION_NAME = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_ENDINGS = (".json", ".yaml")
_WORD = "CDI device in an answer"


class NodesExist(Rule):
    id, level, facts = "ANS-01", Level.MUST, ("3.55",)
    title = "Device nodes in an answer exist on the host"
    why = "The runtime opens the node when it creates the container, and fails: no such file."
    fix = "Check the node in Allocate, and return an error or mark the device Unhealthy if it is missing."

    async def check(self, verifier: Verifier) -> None:
        def missing(response: AllocateResponse) -> Iterator[str]:
            return (node.host_path for node in response.nodes if not verifier.on_host(node.host_path).exists())

        await answered(verifier, missing, "device nodes that exist", "nodes")


class NodesAreDevices(Rule):
    id, level, facts = "ANS-02", Level.MUST, ("3.55",)
    title = "Device nodes in an answer are device nodes"
    why = "A runtime rejects files as devices: not a device node."
    fix = "Hand out files and sockets as mounts."

    async def check(self, verifier: Verifier) -> None:
        def other(response: AllocateResponse) -> Iterator[str]:
            for node in response.nodes:
                path = verifier.on_host(node.host_path)
                if path.exists() and not _is_device(path):
                    yield f"{node.host_path}, which is not a device"

        await answered(verifier, other, "character or block devices, or directories of them", "nodes")


class NodePathsAreAbsolute(Rule):
    id, level, facts = "ANS-03", Level.MUST, ("3.55",)
    title = "Paths of device nodes are absolute, on the host and in the container"
    why = (
        "Runtimes require absolute paths: runc resolves a relative path from the container's root, and another "
        "runtime may reject it."
    )
    fix = "Send absolute paths in both fields."

    async def check(self, verifier: Verifier) -> None:
        def relative(response: AllocateResponse) -> Iterator[str]:
            for node in response.nodes:
                yield from (repr(path) for path in (node.host_path, node.container_path) if not _is_absolute(path))

        await answered(verifier, relative, "absolute paths", "nodes")


class PermissionsAreLetters(Rule):
    id, level, facts = "ANS-04", Level.MUST, ("3.55",)
    title = "Permissions of a device node are letters of rwm"
    why = "A runtime drops unknown letters, and creates no container if no letter is left."
    fix = "Use rw, or rwm if the container creates device nodes itself."

    async def check(self, verifier: Verifier) -> None:
        def odd(response: AllocateResponse) -> Iterator[str]:
            return (repr(node.permissions) for node in response.nodes if not PERMISSIONS.fullmatch(node.permissions))

        await answered(verifier, odd, "r, w and m, each at most once", "nodes")


class MountsExist(Rule):
    id, level, facts = "ANS-05", Level.MUST, ("3.55", "8.12")
    title = "Host paths of mounts exist"
    why = "The runtime fails to mount the path, or creates an empty directory in its place."
    fix = (
        "Create the file or directory before you answer, and keep it: the kubelet uses the answer again after restarts."
    )

    async def check(self, verifier: Verifier) -> None:
        def missing(response: AllocateResponse) -> Iterator[str]:
            return (mount.host_path for mount in response.mounts if not verifier.on_host(mount.host_path).exists())

        await answered(verifier, missing, "paths that exist", "mounts")


class MountPathsAreAbsolute(Rule):
    id, level, facts = "ANS-06", Level.MUST, ("3.55",)
    title = "Paths of mounts are absolute, on the host and in the container"
    why = (
        "Runtimes require absolute paths: runc resolves a relative path from the container's root, and another "
        "runtime may reject it."
    )
    fix = "Send absolute paths in both fields."

    async def check(self, verifier: Verifier) -> None:
        def relative(response: AllocateResponse) -> Iterator[str]:
            for mount in response.mounts:
                yield from (repr(path) for path in (mount.host_path, mount.container_path) if not _is_absolute(path))

        await answered(verifier, relative, "absolute paths", "mounts")


class VariablesHaveNames(Rule):
    id, level, facts = "ANS-07", Level.MUST, ("3.55",)
    title = "Environment variables have names that a process can have"
    why = (
        "A name with = sets another variable; with an empty name or a zero byte, the variable is lost or the "
        "runtime rejects the container."
    )
    fix = "Use letters, digits and underscores."

    async def check(self, verifier: Verifier) -> None:
        def odd(response: AllocateResponse) -> Iterator[str]:
            return (
                f"variable {name!r}"
                for name, value in response.env.items()
                if not name or "=" in name or "\0" in name + value
            )

        await answered(verifier, odd, "names without = and zero bytes", "env")


class CdiNamesAreQualified(Rule):
    id, level, facts = "ANS-08", Level.MUST, ("3.56",)
    title = "CDI devices have qualified names"
    why = "A runtime rejects a container if a name is not of the form vendor/class=device."
    fix = "Send the kind of the spec, an equals sign and the name of the device."

    async def check(self, verifier: Verifier) -> None:
        def odd(response: AllocateResponse) -> Iterator[str]:
            return (repr(name) for name in response.cdi if not CDI_NAME.fullmatch(name))

        await answered(verifier, odd, "names such as example.com/gpu=0", "cdi")


class CdiNamesResolve(Rule):
    id, level, facts, since = "ANS-09", Level.MUST, ("3.56",), "1.28"
    title = "CDI devices are in a spec on the host"
    why = "The runtime fails to create the container: unresolvable CDI devices."
    fix = "Write the spec before you list the device, atomically, to /var/run/cdi."

    async def check(self, verifier: Verifier) -> None:
        used = [
            name
            for plugin in await with_devices(verifier)
            for _, response in await answers(verifier, plugin)
            for name in response.cdi
        ]
        if not used:
            raise RuleNotApplicable("no answer has CDI devices")
        known = cdi_names(verifier.cdi_dirs)
        missing = [name for name in dict.fromkeys(used) if CDI_NAME.fullmatch(name) and name not in known]
        directories = ", ".join(map(str, verifier.options.cdi_dirs))
        expect(not missing, f"a spec in {directories} for each", f"none for {some(missing)}")


class CdiIsNotAlone(Rule):
    id, level, facts, until = "ANS-10", Level.MUST, ("3.56",), "1.27"
    title = "An answer does not consist only of CDI devices"
    why = "Kubelets before 1.28 drop the field: the container starts without its device."
    fix = "Also send device nodes or the CDI annotations, or document that you require 1.28."

    async def check(self, verifier: Verifier) -> None:
        def alone(response: AllocateResponse) -> Iterator[str]:
            others = (response.nodes, response.mounts, response.annotations, response.env)
            if response.cdi and not any(others):
                yield f"CDI devices alone: {some(response.cdi)}"

        await answered(verifier, alone, "device nodes, mounts, variables or annotations", "cdi")


class PathsDoNotConflict(Rule):
    id, level, facts = "ANS-11", Level.MUST, ("3.54",)
    title = "No two nodes or mounts of an answer have the same path in the container, even with several devices"
    why = "The kubelet keeps only one of them, and the container lacks the other."
    fix = "Give each its own container path; number the paths if a container gets several devices."

    async def check(self, verifier: Verifier) -> None:
        def twice(response: AllocateResponse) -> Iterator[str]:
            for items in (response.nodes, response.mounts):
                paths: dict[str, str] = {}
                for item in items:
                    if paths.setdefault(item.container_path, item.host_path) != item.host_path:
                        yield f"{item.container_path} for two host paths"

        await answered(verifier, twice, "different container paths", "nodes", "mounts")
        for plugin in await verifier.plugins():
            ids = plugin.ids[:_TOGETHER]
            if len(ids) > 1 and await outcome(allocate(verifier, plugin, ids)) is None:
                found = [text for response in await allocate(verifier, plugin, ids) for text in twice(response)]
                expect(
                    not found, "different container paths", f"Allocate of {some(ids)} was answered with {some(found)}"
                )


class AnnotationsHaveNames(Rule):
    id, level, facts = "ANS-12", Level.SHOULD, ("3.55",)
    title = "Annotations have the names of Kubernetes annotations"
    why = "The kubelet passes them to the container runtime and its plugins, which apply these rules."
    fix = "Use a domain, a slash and a name of at most 63 characters."

    async def check(self, verifier: Verifier) -> None:
        def odd(response: AllocateResponse) -> Iterator[str]:
            names = ((key, key.rpartition("/")[2]) for key in response.annotations)
            return (repr(key) for key, name in names if not _ANNOTATION_NAME.fullmatch(name))

        await answered(verifier, odd, "names such as example.com/mode", "annotations")


class CdiAnnotationsResolve(Rule):
    id, level, facts = "ANS-14", Level.MUST, ("3.55",)
    title = f"CDI devices in {CDI_ANNOTATION} annotations have qualified names, and are in a spec on the host"
    why = "containerd and CRI-O treat such annotations as CDI devices: without the spec, the container is not created."
    fix = "Write the spec before you list the device; omit the annotation if there is no spec."

    async def check(self, verifier: Verifier) -> None:
        def unknown(response: AllocateResponse) -> Iterator[str]:
            used = {key: value for key, value in response.annotations.items() if key.startswith(CDI_ANNOTATION)}
            names = [name for value in used.values() for name in value.split(",")]
            verifier.examine(names, f"{CDI_ANNOTATION} annotation in an answer")
            return (repr(name) for name in names if name not in known)

        await with_devices(verifier)
        known = cdi_names(verifier.cdi_dirs)
        directories = ", ".join(map(str, verifier.options.cdi_dirs))
        await answered(verifier, unknown, f"a spec in {directories} for each name")


class CdiSpecsWork(Rule):
    id, level, facts, since = "ANS-15", Level.MUST, ("3.56",), "1.28"
    title = "Runtimes accept the specs of CDI devices in answers: valid, each name in one file, nodes and mounts there"
    why = "A runtime ignores files that are invalid or define a device again: unresolvable CDI devices."
    fix = (
        "Write one file under one name, which the next start of the program replaces; the Go library of CDI checks it."
    )

    async def check(self, verifier: Verifier) -> None:
        plugins = await with_devices(verifier)
        found = [response.cdi for plugin in plugins for _, response in await answers(verifier, plugin)]
        names = verifier.examine(dict.fromkeys(itertools.chain(*found)), _WORD)
        known = cdi_devices(verifier.cdi_dirs)
        names = [name for name in names if name in known]  # ANS-09 otherwise
        refused = refused_specs(verifier.cdi_dirs, names)
        expect(not refused, "valid specs", some(refused))
        twice = [name for name in names if spec_files(verifier.cdi_dirs, name) > 1]
        expect(not twice, "each name in one file", f"{some(twice)} in several")
        paths = dict.fromkeys(path for name in names for path in spec_paths_on_host(known[name]))
        gone = [path for path in paths if not verifier.on_host(path).exists()]
        expect(not gone, "nodes and mounts of specs that exist", f"no {some(gone)}")


class AnswerFits(Rule):
    id, level, facts = "ANS-13", Level.MUST, ("8.17",)
    title = "An answer for all devices is smaller than 4 MiB"
    why = "The kubelet rejects a larger message, and refuses the pod permanently."
    fix = "Mount a directory instead of many files."

    async def check(self, verifier: Verifier) -> None:
        for plugin in await with_devices(verifier):
            async with plugin.connect() as client:
                try:
                    size = sum(map(len, await client.allocate_encoded(plugin.ids)))
                except PlugwrightError as error:
                    if "larger than max" not in str(error):
                        raise RuleNotApplicable(f"all devices at once were refused: {error}") from error
                    expect(False, "at most 4 MiB", str(error))
            expect(size <= _LIMIT, "at most 4 MiB", f"{size} bytes")


def _is_absolute(path: str) -> bool:
    return path.startswith("/") and ".." not in path.split("/")


def _is_device(path: Path) -> bool:
    mode = path.stat().st_mode
    return stat.S_ISCHR(mode) or stat.S_ISBLK(mode) or stat.S_ISDIR(mode)


def cdi_names(directories: Sequence[Path]) -> set[str]:
    """The qualified name of every device in the specs of these directories; unreadable files are omitted."""
    specs = [path for directory in directories if directory.is_dir() for path in sorted(directory.iterdir())]
    return {name for path in specs if path.suffix in _ENDINGS for name in _names_in(path)}


def _names_in(path: Path) -> Iterator[str]:
    try:
        spec = yaml.safe_load(path.read_text())
    except (OSError, ValueError, yaml.YAMLError):
        return
    devices = spec.get("devices") if isinstance(spec, dict) else None
    for device in devices if isinstance(devices, list) else ():
        if isinstance(device, dict):
            yield f"{spec.get('kind')}={device.get('name')}"


RULES: tuple[type[Rule], ...] = (
    NodesExist,
    NodesAreDevices,
    NodePathsAreAbsolute,
    PermissionsAreLetters,
    MountsExist,
    MountPathsAreAbsolute,
    VariablesHaveNames,
    CdiNamesAreQualified,
    CdiNamesResolve,
    CdiIsNotAlone,
    PathsDoNotConflict,
    AnnotationsHaveNames,
    AnswerFits,
    CdiAnnotationsResolve,
    CdiSpecsWork,
)
