"""The node as a doctor sees it: its files below a root directory, each read with limits.

The root is `/` on the node and in a pod, or a directory where the node's file system is mounted. Symbolic links are
followed inside that root: `/var/run -> /run` of a mounted node must not lead to this container's own `/run`.
"""

import os
import stat
from collections import deque
from functools import cached_property
from pathlib import Path

import msgspec

from plugwright.errors import NotVisible
from plugwright.protocol import checkpoint
from plugwright.protocol.checkpoint import Checkpoint
from plugwright.protocol.paths import KubeletPaths
from plugwright.sdk import cdi
from plugwright.sdk.node_report import NodeReport
from plugwright.system import files, json_lines

__all__ = ["ON_THE_NODE", "DoctorTarget", "ExaminedNode"]

ON_THE_NODE = "only visible on the node: run this there, or with --root in a pod that mounts the node's root"
_LARGEST = 2**20  # bytes of a text file
_LARGEST_CHECKPOINT = 8 * 2**20  # bytes
_MOST_NAMES = 8192  # entries of a directory
_MOST_LINKS = 40  # same as the kernel
_RESPONSE_LIMIT = 15.0  # seconds for the daemon's report


class DoctorTarget(msgspec.Struct, frozen=True, kw_only=True):
    """Where to examine. Paths are those of the node, without `root`."""

    root: Path = Path("/")
    kubelet: KubeletPaths | None = None  # None: as the daemon reports, else the default
    state_dir: Path = Path("/var/lib/plugwright")
    node_dir: Path | None = None  # None: as in the chart if it exists, else `state_dir`
    control_socket: Path = Path("/run/plugwright/control.sock")
    in_pod: bool = False  # only the node's mounted directories are visible
    node_name: str = ""
    least_free: int = 16 * 2**20  # bytes that each file system must have available


class ExaminedNode:
    """Methods take paths of the node. OSError, ValueError, or NotVisible if this process cannot know."""

    def __init__(self, target: DoctorTarget) -> None:
        self.target = target

    @cached_property
    def kubelet(self) -> KubeletPaths:
        """The kubelet's directories: as configured, as used by the daemon, or the default ones."""
        if self.target.kubelet is not None:
            return self.target.kubelet
        try:
            used = self.report.kubelet
        except (OSError, ValueError, NotVisible):
            return KubeletPaths()
        directory = Path(used.directory)
        if used.registration != "direct" or not directory.is_absolute():
            return KubeletPaths()
        is_usual = directory.name == "device-plugins"
        return KubeletPaths(directory.parent if is_usual else KubeletPaths().root, directory)

    @cached_property
    def node_dir(self) -> Path:
        chart = Path("/var/lib/plugwright-node")
        return self.target.node_dir or (chart if self.path(chart).is_dir() else self.target.state_dir)

    @property
    def spec_directories(self) -> tuple[Path, ...]:
        """Directories of CDI specs; a pod has only the dynamic one mounted."""
        return (cdi.DYNAMIC,) if self.target.in_pod else (cdi.STATIC, cdi.DYNAMIC)

    @cached_property
    def report(self) -> NodeReport:
        """The report of the running daemon."""
        answer = json_lines.ask(self.path(self.target.control_socket), {"do": "report"}, _RESPONSE_LIMIT)
        return msgspec.convert(answer, NodeReport)

    @cached_property
    def checkpoint(self) -> Checkpoint | None:
        """The kubelet's device checkpoint; None if it does not exist yet. CheckpointCorrupt if it is damaged."""
        try:
            return checkpoint.decode(files.read(self.path(self.kubelet.checkpoint), _LARGEST_CHECKPOINT))
        except FileNotFoundError:
            return None

    def need_node(self) -> None:
        """NotVisible in a pod, for facts outside the mounted directories."""
        if self.target.in_pod:
            raise NotVisible(ON_THE_NODE)

    def path(self, path: str | Path) -> Path:
        """The file of the node at `path`, with links followed inside the root."""
        root = self.target.root
        if root == Path("/"):
            return Path(path)
        current, parts, links = root, deque(Path(path).parts), 0
        while parts:
            part = parts.popleft()
            if part in ("/", "."):
                continue
            if part == "..":
                current = current.parent if current != root else root
                continue
            following = current / part
            if not following.is_symlink():
                current = following
                continue
            links += 1
            if links > _MOST_LINKS:
                raise OSError(f"too many symbolic links in {path}")
            goal = following.readlink()
            current = root if goal.is_absolute() else current
            parts.extendleft(reversed(goal.parts))
        return current

    def read(self, path: str | Path, limit: int = _LARGEST) -> str:
        """A small text file; files of /proc and /sys report no size."""
        descriptor = os.open(self.path(path), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise ValueError(f"{path} must be a regular file")
            content = bytearray()
            while piece := os.read(descriptor, limit + 1 - len(content)):
                content += piece
                if len(content) > limit:
                    raise ValueError(f"{path} must have at most {limit} bytes, got more")
        finally:
            os.close(descriptor)
        return content.decode(errors="replace")

    def read_if_there(self, path: str | Path) -> str | None:
        try:
            return self.read(path)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def tail(self, path: str | Path, size: int) -> str:
        """The last `size` bytes of a log."""
        descriptor = os.open(self.path(path), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise ValueError(f"{path} must be a regular file")
            return os.pread(descriptor, size, max(0, status.st_size - size)).decode(errors="replace")
        finally:
            os.close(descriptor)

    def names(self, path: str | Path) -> list[str]:
        """The sorted entries of a directory; empty if it does not exist."""
        found: list[str] = []
        try:
            with os.scandir(self.path(path)) as entries:
                for entry in entries:
                    found.append(entry.name)
                    if len(found) > _MOST_NAMES:
                        raise ValueError(f"{path} must have at most {_MOST_NAMES} entries, got more")
        except (FileNotFoundError, NotADirectoryError):
            return []
        return sorted(found)

    def exists(self, path: str | Path) -> bool:
        return self.path(path).exists()
