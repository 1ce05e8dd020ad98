"""The node as a doctor sees it: its files below a root directory, each read with limits.

The root is `/` on the node and in a pod, or a directory where the node's file system is mounted. Symbolic links are
followed inside that root: `/var/run -> /run` of a mounted node must not lead to this container's own `/run`.
"""

import os
import stat
from collections import deque
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path

import msgspec

from plugwright.errors import NotVisible, PlugwrightError
from plugwright.protocol import checkpoint
from plugwright.protocol.checkpoint import Checkpoint
from plugwright.protocol.paths import KubeletPaths
from plugwright.sdk import cdi
from plugwright.sdk.node_report import NodeReport
from plugwright.system import files, json_lines

__all__ = ["DAEMON", "KUBELET", "ON_THE_NODE", "DoctorTarget", "ExaminedNode"]

DAEMON, KUBELET = "plugwright", "kubelet"  # names of programs

ON_THE_NODE = "only visible on the node: run this there, or with --root in a pod that mounts the node's root"
_LARGEST = 2**20  # bytes of a text file
_LARGEST_CHECKPOINT = 8 * 2**20  # bytes
_MOST_NAMES = 8192  # entries of a directory
_MOST_PROCESSES = 65_536  # with the other entries of /proc
_MOST_LINKS = 40  # same as the kernel


class DoctorTarget(msgspec.Struct, frozen=True, kw_only=True):
    """Where to examine. Paths are those of the node, without `root`."""

    root: Path = Path("/")
    kubelet: KubeletPaths | None = None  # None: as the daemon reports, else the default
    state_dir: Path = Path("/var/lib/plugwright")
    node_dir: Path | None = None  # None: as in the chart if it exists, else `state_dir`
    control_socket: Path = Path("/run/plugwright/control.sock")
    in_pod: bool = False  # only the node's mounted directories are visible
    node_name: str = ""
    response_limit: float = 15.0  # seconds for the daemon's report
    plugin_limit: float = 5.0  # seconds for a third-party plugin's answer
    rollout_limit: float = 10.0  # seconds for the older of two daemons to end
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
        except (OSError, ValueError, PlugwrightError):
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

    @property
    def report(self) -> NodeReport:
        """The report of the running daemon, requested only once, because a hanging daemon takes the full time limit."""
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer

    @cached_property
    def _answer(self) -> NodeReport | Exception:
        try:
            answer = json_lines.ask(self.control_socket, {"do": "report"}, self.target.response_limit)
            return msgspec.convert(answer, NodeReport)
        except (OSError, ValueError, PlugwrightError) as error:
            return error

    @cached_property
    def control_socket(self) -> Path:
        """The daemon's control socket. The chart's is in the container; the node reaches it through the process."""
        path = self.path(self.target.control_socket)
        if self.target.in_pod or os.path.lexists(path):
            return path
        pid = self.containerised_daemon
        return path if pid is None else self._socket_inside(pid)

    @cached_property
    def containerised_daemon(self) -> int | None:
        """The process of a daemon whose control socket is in its container; None if it is a file of the node."""
        if self.target.in_pod or os.path.lexists(self.path(self.target.control_socket)):
            return None
        daemons = (int(pid) for pid, program in self.programs.items() if program == DAEMON)
        return next((pid for pid in daemons if os.path.lexists(self._socket_inside(pid))), None)

    def _socket_inside(self, pid: int) -> Path:
        return self.path("/proc") / str(pid) / "root" / self.target.control_socket.relative_to("/")

    @cached_property
    def programs(self) -> Mapping[str, str]:
        """The visible daemons and kubelets, by process id."""
        pids = (name for name in self.names("/proc", _MOST_PROCESSES) if name.isdecimal())
        found = {pid: _program(self.path("/proc") / pid) for pid in pids}
        return {pid: program for pid, program in found.items() if program}

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

    def names(self, path: str | Path, most: int = _MOST_NAMES) -> list[str]:
        """The sorted entries of a directory; empty if it does not exist."""
        found: list[str] = []
        try:
            with os.scandir(self.path(path)) as entries:
                for entry in entries:
                    found.append(entry.name)
                    if len(found) > most:
                        raise ValueError(f"{path} must have at most {most} entries, got more")
        except (FileNotFoundError, NotADirectoryError):
            return []
        return sorted(found)

    def exists(self, path: str | Path) -> bool:
        return self.path(path).exists()


def _program(directory: Path) -> str:
    """The program of a directory of /proc: the daemon or the kubelet; empty for any other process."""
    try:
        with (directory / "cmdline").open("rb") as file:
            words = file.read(4096).split(b"\0")
    except OSError:
        return ""
    names = [word.rpartition(b"/")[2] for word in words[:4]]
    if names[0] == b"kubelet":
        return KUBELET
    return DAEMON if b"plugwright" in names and b"run" in words else ""
