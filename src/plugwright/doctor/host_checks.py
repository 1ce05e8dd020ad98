"""The machine: kernel limits, disks, the clock, and denials by SELinux and AppArmor."""

import os
import re
import shlex
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from plugwright.doctor.doctor_report import DoctorCheck, found, healthy
from plugwright.doctor.examined_node import DAEMON, ON_THE_NODE, ExaminedNode
from plugwright.doctor.permissions import FULL, is_closed, mode_of
from plugwright.errors import NotVisible, PlugwrightError
from plugwright.model import some
from plugwright.sdk import cdi

__all__ = [
    "apparmor",
    "clock",
    "disk_space",
    "inotify_instances",
    "open_files",
    "process_count",
    "selinux",
    "state_directory",
]

_INOTIFY = "/proc/sys/fs/inotify"
_FEWEST_INSTANCES, _FEWEST_WATCHES = 4, 64  # left, for a kubelet and a plugin that start
_FEWEST_FILES = 256  # that a daemon may open
_MOST_DESCRIPTORS = 500_000  # of all processes
_NEARLY = 0.95  # of a limit
_FUTURE = 120.0  # seconds
_LOG_TAIL = 512 * 1024  # bytes
_RECENT = 24 * 3600.0  # seconds
_CONTAINER_TYPE = "container_t"
_AUDIT_LOG = "/var/log/audit/audit.log"
_KERNEL_LOGS = (_AUDIT_LOG, "/var/log/kern.log", "/var/log/syslog", "/var/log/messages")
_CONCERNED = ("device-plugins", "kubelet.sock", "pod-resources", "plugins_registry", "/dev/nvidia", "plugwright")


def inotify_instances(view: ExaminedNode) -> DoctorCheck:
    """Instances used per user: without free ones, the kubelet and the plugins no longer see changes of files."""
    name = "inotify"
    view.need_node()
    limit = int(view.read(f"{_INOTIFY}/max_user_instances"))
    watch_limit = int(view.read_if_there(f"{_INOTIFY}/max_user_watches") or 0)
    instances, watches = _inotify_use(view)
    user, most = max(instances.items(), key=lambda item: item[1], default=(0, 0))
    if most >= limit * _NEARLY or limit - most < _FEWEST_INSTANCES:
        return found(
            name,
            f"user {user} has {most} of {limit} inotify instances",
            "plugins poll instead of waiting; a kubelet or container that starts fails with `too many open files`",
            _raised("fs.inotify.max_user_instances", max(8192, 2 * limit)),
        )
    watcher, watched = max(watches.items(), key=lambda item: item[1], default=(0, 0))
    if watch_limit and (watched >= watch_limit * _NEARLY or watch_limit - watched < _FEWEST_WATCHES):
        return found(
            name,
            f"user {watcher} has {watched} of {watch_limit} inotify watches",
            "plugins poll instead of waiting; a kubelet or container that starts fails with `no space left on device`",
            _raised("fs.inotify.max_user_watches", max(524_288, 2 * watch_limit)),
        )
    return healthy(name, f"at most {most} of {limit} instances of a user are in use, and {watched} watches")


def _raised(setting: str, value: int) -> str:
    """The command that sets a limit of the kernel, now and after the next boot."""
    return f"sysctl -w {setting}={value} && echo {setting}={value} > /etc/sysctl.d/90-{setting.rpartition('.')[2]}.conf"


def _inotify_use(view: ExaminedNode) -> tuple[Counter[int], Counter[int]]:
    """inotify instances and watches by user."""
    users, watches, looked = Counter[int](), Counter[int](), 0
    for pid in _pids(view):
        directory = view.path("/proc") / pid / "fd"
        try:
            owner = directory.stat().st_uid
            for descriptor in os.scandir(directory):
                looked += 1
                if looked > _MOST_DESCRIPTORS:
                    raise ValueError(f"more than {_MOST_DESCRIPTORS} open files")
                if str(Path(descriptor.path).readlink()) == "anon_inode:inotify":
                    users[owner] += 1
                    watches[owner] += _watches(directory.parent / "fdinfo" / descriptor.name)
        except OSError:
            continue  # it has ended
    return users, watches


def _watches(information: Path) -> int:
    try:
        with information.open("rb") as lines:
            return sum(line.startswith(b"inotify ") for line in lines)
    except FileNotFoundError:
        return 0


def _pids(view: ExaminedNode) -> list[str]:
    return [path.name for path in view.path("/proc").iterdir() if path.name.isdecimal()]


def open_files(view: ExaminedNode) -> DoctorCheck:
    """Open files of the whole machine, the daemon and the kubelet."""
    name = "open-files"
    used, _, limit = map(int, view.read("/proc/sys/fs/file-nr").split())
    why = "sockets and device nodes can no longer be opened: registrations and pods fail"
    if used >= limit * _NEARLY:
        fix = f"sysctl fs.file-max={limit * 2}; find the user: lsof -nP | awk '{{print $1}}' | sort | uniq -c | sort -n"
        return found(name, f"the machine has {used} of {limit} open files", why, fix)
    for pid, program in view.programs.items():
        directory = view.path("/proc") / pid
        try:
            most, own = _open_files_limit(directory), len(list((directory / "fd").iterdir()))
        except OSError:
            continue  # it has ended, or this user may not look
        if most is None:
            continue
        if own >= most * _NEARLY or (most < _FEWEST_FILES and program == DAEMON):
            fix = f"LimitNOFILE=65536 in the systemd unit, or the container runtime's; then restart {program}"
            return found(name, f"{program} (process {pid}) has {own} of {most} open files", why, fix)
    return healthy(name, f"the machine has {used} of {limit} open files")


def _open_files_limit(directory: Path) -> int | None:
    match = re.search(r"^Max open files\s+(\d+)", (directory / "limits").read_text(), re.MULTILINE)
    return int(match[1]) if match else None


def process_count(view: ExaminedNode) -> DoctorCheck:
    """Threads of the whole machine: without free ones, no process and no container starts."""
    name = "processes"
    view.need_node()
    used = int(view.read("/proc/loadavg").split()[3].partition("/")[2])
    limits = {limit: int(view.read(f"/proc/sys/kernel/{limit}")) for limit in ("pid_max", "threads-max")}
    lowest, most = min(limits.items(), key=lambda item: item[1])
    if used >= most * _NEARLY:
        return found(
            name,
            f"the machine has {used} of {most} threads (kernel.{lowest})",
            "plugins, the kubelet and containers fail with `resource temporarily unavailable`",
            f"sysctl -w kernel.{lowest}={2 * most}; find the user: ps -eo nlwp,pid,user,comm --sort=-nlwp | head",
        )
    return healthy(name, f"the machine has {used} of {most} threads")


def state_directory(view: ExaminedNode) -> DoctorCheck:
    """The directory in which the daemon stores cordons, splits and its last valid configuration."""
    name, why = "state-directory", "cordons, splits and the last good configuration are lost at the next restart"
    there = []
    for directory in _state_directories(view):
        path, quoted = view.path(directory), shlex.quote(str(directory))
        if not path.exists():
            if (view.path(directory.parent) / directory.name).is_symlink():
                fix = f"mkdir -p $(readlink -m {quoted}); restart the daemon"
                return found(name, f"{directory} is a link to a directory that does not exist", why, fix)
            continue
        there.append(str(directory))
        if not path.is_dir():
            return found(name, f"{directory} is not a directory", why, f"mv {quoted} {quoted}.old; restart the daemon")
        if os.statvfs(path).f_flag & os.ST_RDONLY:
            text = f"{directory} is on a read-only file system"
            fix = f"dmesg | grep -i remount; mount -o remount,rw $(findmnt -no TARGET -T {quoted})"
            return found(name, text, why, fix)
        if not os.access(path, os.W_OK | os.X_OK):
            return found(name, f"no permission to write to {directory}", why, f"chown root: {quoted}; run as root")
        if is_closed(path, FULL):
            text = f"{mode_of(path)} closes {directory} to a daemon without capabilities"
            return found(name, text, why, f"chown 0:0 {quoted} && chmod 0700 {quoted}; restart the daemon")
    return healthy(name, f"{some(there)} can be written" if there else "none yet")


def _state_directories(view: ExaminedNode) -> list[Path]:
    return sorted({view.target.state_dir, view.node_dir})


def disk_space(view: ExaminedNode) -> DoctorCheck:
    name, why = "disk-space", "state, checkpoints and CDI specs cannot be written: pods are refused, cordons are lost"
    places = [*_state_directories(view), view.kubelet.device_plugins, cdi.DYNAMIC]
    for place in places:
        path = view.path(place)
        if not path.is_dir():
            continue
        disk = os.statvfs(path)
        free = disk.f_bavail * disk.f_frsize
        if free < view.target.least_free and not disk.f_flag & os.ST_RDONLY:
            fix = f"df -h {place}; crictl rmi --prune; journalctl --vacuum-size=200M"
            return found(name, f"{place} has {free // 2**20} MiB left", why, fix)
        if disk.f_files and not disk.f_favail:
            return found(name, f"{place} has no inodes left", why, f"df -i {place}; remove small files")
    return healthy(name, f"at least {view.target.least_free // 2**20} MiB are free for state, sockets and specs")


def clock(view: ExaminedNode) -> DoctorCheck:
    """Files with future times: the clock was set back, or is wrong since the last boot."""
    name, now = "clock", time.time()
    newest, ahead = "", 0.0
    for path in _written_files(view):
        try:
            later = view.path(path).stat().st_mtime - now
        except OSError:
            continue
        if later > ahead:
            newest, ahead = str(path), later
    if ahead > _FUTURE:
        return found(
            name,
            f"{newest} was written {ahead:.0f} s in the future",
            "certificates, leases and times of health are wrong: the node may be NotReady and cordons end late",
            "timedatectl set-ntp true; chronyc makestep; date -u",
        )
    return healthy(name, "no file of the kubelet or the daemon is of the future")


def _written_files(view: ExaminedNode) -> Iterator[Path]:
    yield view.kubelet.checkpoint
    for directory in (*_state_directories(view), cdi.DYNAMIC):
        yield from (directory / name for name in view.names(directory))


def selinux(view: ExaminedNode) -> DoctorCheck:
    name, mode = "selinux", view.read_if_there("/sys/fs/selinux/enforce")
    if mode is None or mode.strip() != "1":
        return healthy(name, "not enabled" if mode is None else "permissive")
    if (pid := _confined_daemon(view)) and not _is_registered(view):
        return found(
            name,
            f"plugwright (process {pid}) runs as {_CONTAINER_TYPE}, which SELinux keeps from the kubelet's sockets",
            "it cannot register: resources stay 0",
            "chart: --set security.seLinuxType=container_device_plugin_t; as a service: restorecon -v the program",
        )
    lines = _denials(view, _KERNEL_LOGS, "avc:  denied")
    if lines:
        return found(
            name,
            f"SELinux denied {len(lines)} times: {lines[-1]}",
            "plugins cannot reach the kubelet, or containers their devices",
            f"restorecon -R {view.kubelet.root}; ausearch -m avc -ts recent; "
            "chart: --set security.seLinuxType=container_device_plugin_t",
        )
    return healthy(name, "enforcing, no denial of devices in the last day")


def _confined_daemon(view: ExaminedNode) -> str | None:
    """The process of a daemon with the label of ordinary containers."""
    for pid, program in view.programs.items():
        label = view.read_if_there(f"/proc/{pid}/attr/current") if program == DAEMON else None
        if label and label.strip("\0\n").split(":")[2:3] == [_CONTAINER_TYPE]:
            return pid
    return None


def _is_registered(view: ExaminedNode) -> bool:
    """Whether the daemon has registered with the kubelet; a node's policy may allow this."""
    try:
        return any(resource.registrations for resource in view.report.resources)
    except (OSError, ValueError, PlugwrightError):
        return False


def apparmor(view: ExaminedNode) -> DoctorCheck:
    name, enabled = "apparmor", view.read_if_there("/sys/module/apparmor/parameters/enabled")
    if enabled is None or enabled.strip() != "Y":
        return healthy(name, "not enabled")
    lines = _denials(view, _KERNEL_LOGS, 'apparmor="DENIED"')
    if lines:
        return found(
            name,
            f"AppArmor denied {len(lines)} times: {lines[-1]}",
            "plugins cannot reach the kubelet, or containers their devices",
            "set securityContext.appArmorProfile.type: Unconfined for this container, or allow the path in its profile",
        )
    return healthy(name, "enabled, no denial of devices in the last day")


def _denials(view: ExaminedNode, logs: tuple[str, ...], words: str) -> list[str]:
    """Log lines of the last day about devices. NotVisible if there is no such log."""
    if view.target.in_pod:
        raise NotVisible(ON_THE_NODE)
    there = [log for log in logs if view.exists(log)]
    if not there:
        raise NotVisible(f"no log at {some(logs)}: look with journalctl -k | grep -i denied")
    lines = [line for log in there for line in view.tail(log, _LOG_TAIL).splitlines()]
    return [
        line[line.find(words) :]
        for line in lines
        if words in line and any(word in line for word in _CONCERNED) and _is_recent(line)
    ]


def _is_recent(line: str) -> bool:
    """Whether a line is recent, by the kernel's time in it: audit(1794936501.551:123)."""
    stamp = re.search(r"audit\((\d{1,12})(?:\.\d+)?:", line)
    return stamp is not None and time.time() - float(stamp[1]) < _RECENT
