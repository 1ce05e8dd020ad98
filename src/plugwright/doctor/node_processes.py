"""Processes of the node by name, and the configuration of its running kubelet."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
import yaml

from plugwright.doctor.examined_node import ExaminedNode
from plugwright.errors import ConfigError, NotVisible

__all__ = ["KubeletConfiguration", "NodeProcess", "kubelet_configuration", "processes", "unix_listeners"]

_MOST_PROCESSES = 65_536
_ACCEPTS = "00010000"  # flag of a listening socket in /proc/net/unix
_LARGEST_TABLE = 16 * 2**20  # bytes
_LONGEST_COMMAND = 65_536  # bytes


class NodeProcess(msgspec.Struct, frozen=True):
    pid: int
    arguments: tuple[str, ...]

    def flag(self, name: str) -> str | None:
        """The value of `--name=value` or `--name value`; the last one counts."""
        value = None
        for number, argument in enumerate(self.arguments):
            if argument == f"--{name}":
                value = self.arguments[number + 1] if number + 1 < len(self.arguments) else ""
            elif argument.startswith(f"--{name}="):
                value = argument.partition("=")[2]
        return value


class KubeletConfiguration(msgspec.Struct, frozen=True):
    """The configuration of the kubelet; `sources` are the files and flags that were read."""

    settings: Mapping[str, object]
    gates: Mapping[str, bool]
    sources: Sequence[str]

    def text(self, name: str) -> str:
        value = self.settings.get(name)
        return value if isinstance(value, str) else ""


def processes(view: ExaminedNode, name: str) -> list[NodeProcess]:
    """Visible processes with this name in `/proc/PID/comm`."""
    pids = [entry for entry in _entries(view) if entry.isdecimal()]
    found = []
    for pid in pids:
        try:
            if view.read(f"/proc/{pid}/comm").strip() == name:
                words = view.read(f"/proc/{pid}/cmdline", _LONGEST_COMMAND).split("\0")
                found.append(NodeProcess(int(pid), tuple(filter(None, words))))
        except (OSError, ValueError):
            continue  # it has ended
    return found


def unix_listeners(view: ExaminedNode) -> dict[int, list[str]]:
    """The unix sockets on which each process listens, including removed ones; without processes of other users."""
    inodes: dict[str, str] = {}
    pids = [entry for entry in _entries(view) if entry.isdecimal()]
    namespaces: dict[str, str] = {}
    for pid in pids:
        with suppress(OSError):
            namespaces.setdefault(str((view.path("/proc") / pid / "ns/net").readlink()), pid)
    for pid in namespaces.values():
        with suppress(OSError, ValueError):
            inodes |= dict(_listening(view.read(f"/proc/{pid}/net/unix", _LARGEST_TABLE)))
    wanted = {inode: path for inode, path in inodes.items() if path.startswith(f"{view.kubelet.device_plugins}/")}
    if all(view.exists(path) for path in wanted.values()):
        return {}  # the usual case, without a look at all open files
    found: dict[int, list[str]] = {}
    for pid in pids:
        listening = [wanted[inode] for inode in _open_sockets(view.path("/proc") / pid / "fd") if inode in wanted]
        if listening:
            found[int(pid)] = listening
    return found


def _open_sockets(directory: Path) -> Iterator[str]:
    """The inodes of the sockets that a process has open; fewer if it is of another user, or ends."""
    with suppress(OSError):
        for name in os.listdir(directory):  # noqa: PTH208  Path.iterdir() makes an object of each
            with suppress(OSError):
                yield os.readlink(directory / name).removeprefix("socket:[").removesuffix("]")  # noqa: PTH115


def _listening(table: str) -> Iterator[tuple[str, str]]:
    """The inodes and paths of listening sockets in the kernel's table /proc/net/unix."""
    for line in table.splitlines()[1:]:
        words = line.split(maxsplit=7)
        if len(words) == 8 and words[3] == _ACCEPTS:
            yield words[6], words[7]


def _entries(view: ExaminedNode) -> list[str]:
    directory = view.path("/proc")
    names = [path.name for path, _ in zip(directory.iterdir(), range(_MOST_PROCESSES), strict=False)]
    return sorted(names, key=lambda name: (len(name), name))


def kubelet_configuration(view: ExaminedNode) -> KubeletConfiguration:
    """Files first, then flags, as in the kubelet. NotVisible if neither a file nor a kubelet is visible."""
    view.need_node()
    running = processes(view, "kubelet")
    file = (running[0].flag("config") if running else None) or str(view.kubelet.root / "config.yaml")
    drop_ins = running[0].flag("config-dir") if running else None
    settings: dict[str, object] = {}
    gates: dict[str, bool] = {}
    sources: list[str] = []
    for path in [file, *_drop_ins(view, drop_ins)]:
        text = view.read_if_there(path)
        if text is not None:
            sources.append(path)
            content = _mapping(path, text)
            gates |= {key: bool(value) for key, value in _members(content.get("featureGates"))}
            settings |= content
    if running:
        sources.append(f"flags of process {running[0].pid}")
        gates |= dict(_gates(running[0].flag("feature-gates") or ""))
        for flag, key in (
            ("topology-manager-policy", "topologyManagerPolicy"),
            ("container-runtime-endpoint", "containerRuntimeEndpoint"),
            ("cpu-manager-policy", "cpuManagerPolicy"),
            ("memory-manager-policy", "memoryManagerPolicy"),
        ):
            if value := running[0].flag(flag):
                settings[key] = value
    if not sources:
        raise NotVisible(f"neither {file} nor a kubelet process is visible")
    return KubeletConfiguration(settings, gates, sources)


def _drop_ins(view: ExaminedNode, directory: str | None) -> Iterator[str]:
    if directory:
        yield from (f"{directory}/{name}" for name in view.names(directory) if name.endswith(".conf"))


def _mapping(path: str, text: str) -> dict[str, object]:
    try:
        content = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(f"{path} must be YAML: {error}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path} must be a mapping")
    return {str(key): value for key, value in content.items()}


def _members(value: object) -> Iterator[tuple[str, object]]:
    if isinstance(value, dict):
        yield from ((str(key), member) for key, member in value.items())


def _gates(text: str) -> Iterator[tuple[str, bool]]:
    for pair in filter(None, text.split(",")):
        name, _, value = pair.partition("=")
        yield name.strip(), value.strip().lower() in ("true", "t", "1")
