"""The kubelet's directories and sockets: why no plugin can register, or why holders are unknown."""

import asyncio
import os
import shlex
import stat
from pathlib import Path

from plugwright.doctor.doctor_report import DoctorCheck, found, healthy
from plugwright.doctor.examined_node import ExaminedNode
from plugwright.doctor.node_processes import processes, unix_listeners
from plugwright.doctor.permissions import EXECUTE, FULL, WRITE, is_closed, mode_of, other_writer
from plugwright.errors import CheckpointCorrupt, NotVisible, PeerRefused, PeerSilent, PlugwrightError
from plugwright.model import some
from plugwright.protocol import pod_resources, transport
from plugwright.sdk import cdi
from plugwright.system import sockets

__all__ = [
    "daemon_mounts",
    "deprecation_file",
    "device_checkpoint",
    "kubelet_directory",
    "kubelet_root",
    "kubelet_socket",
    "lost_plugins",
    "plugin_answers",
    "plugin_sockets",
    "pod_resources_socket",
    "registry_sockets",
]

_ANSWER = 5.0  # seconds
_OPTIONS = "/v1beta1.DevicePlugin/GetDevicePluginOptions"  # changes nothing; the kubelet calls it at registration
_OWN = "plugwright-"  # sockets of daemons, which have a check of their own
_RESTART = "systemctl restart kubelet"


def kubelet_root(view: ExaminedNode) -> DoctorCheck:
    """Whether the kubelet's --root-dir is the directory that plugwright uses."""
    name, expected = "kubelet-root", view.kubelet.root
    view.need_node()
    kubelets = processes(view, "kubelet")
    if not kubelets:
        raise NotVisible("no kubelet process is visible")
    roots = {kubelet.flag("root-dir") or "/var/lib/kubelet" for kubelet in kubelets}
    if any(view.path(root) == view.path(expected) for root in roots):
        return healthy(name, str(expected))
    actual = some(sorted(roots))
    return found(
        name,
        f"the kubelet runs with --root-dir {actual}, plugwright uses {expected}",
        "pod-resources and plugins_registry are in the kubelet's root directory: holders of devices stay unknown",
        f"plugwright run --kubelet-dir {actual} --device-plugins-dir {view.kubelet.device_plugins}; "
        f"with Helm: --set kubelet.dir={actual},kubelet.devicePluginsDir={view.kubelet.device_plugins}",
    )


def kubelet_directory(view: ExaminedNode) -> DoctorCheck:
    name, directory = "kubelet-directory", view.kubelet.device_plugins
    why = "the kubelet and its plugins meet in this directory: no plugin can register"
    try:
        status = view.path(directory).stat()
    except FileNotFoundError:
        fix = "mount it in the pod (chart: kubelet.devicePluginsDir)" if view.target.in_pod else "start the kubelet"
        fix = f"{fix}, or set --device-plugins-dir: systemctl status kubelet"
        return found(name, f"{directory} does not exist", why, fix)
    if not stat.S_ISDIR(status.st_mode):
        return found(name, f"{directory} is not a directory", why, f"rm {directory} && {_RESTART}")
    if not status.st_nlink:  # the mount of a container outlives the directory
        fix = "delete the daemon's pod, whose next container mounts the new one: kubectl delete pod -n NAMESPACE POD"
        return found(name, f"{directory} was removed on the node, and is still mounted here", why, fix)
    if (intruder := other_writer(status, 0o750)) is not None:
        writer, command = intruder
        why = "any user of the node can replace a plugin and hand out devices of its own"
        return found(name, f"{writer} may write to {directory}", why, f"{command} {directory}")
    if not view.target.in_pod and os.statvfs(view.path(directory)).f_flag & os.ST_RDONLY:
        fix = f"mount -o remount,rw $(findmnt -no TARGET -T {directory}) && {_RESTART}"
        return found(name, f"{directory} is on a read-only file system", why, fix)
    if not os.access(view.path(directory), os.R_OK | os.X_OK):
        return found(name, f"no permission to read {directory}", why, "run as root; in a pod: runAsUser: 0")
    if is_closed(view.path(directory), FULL):
        return _closed(view, name, directory, why)
    return healthy(name, str(directory))


def _closed(view: ExaminedNode, name: str, directory: Path, why: str) -> DoctorCheck:
    text = f"{mode_of(view.path(directory))} closes {directory} to plugins without capabilities"
    return found(name, text, why, f"chown 0:0 {directory} && chmod 0750 {directory}; restart the plugins")


def kubelet_socket(view: ExaminedNode) -> DoctorCheck:
    why = "plugins register through this socket: resources stay 0"
    return _listening(view, "kubelet-socket", view.kubelet.kubelet_socket, why)


def _listening(view: ExaminedNode, name: str, socket: Path, why: str) -> DoctorCheck:
    """Whether a process listens on one of the kubelet's sockets."""
    path = view.path(socket)
    try:
        status = path.stat()
    except FileNotFoundError:
        return found(name, f"{socket} does not exist", why, f"{_RESTART}; journalctl -u kubelet -n 50")
    if not stat.S_ISSOCK(status.st_mode):
        return found(name, f"{socket} is not a socket", why, f"rm -r {socket} && {_RESTART}")
    if not os.access(path, os.W_OK):
        return found(name, f"no permission to open {socket}", why, "run as root; in a pod: runAsUser: 0")
    if is_closed(path.parent, EXECUTE):
        return _closed(view, name, socket.parent, why)
    if is_closed(path, WRITE):
        text = f"{mode_of(path)} closes {socket} to plugins without capabilities"
        return found(name, text, why, f"{_RESTART}: the kubelet makes the socket again")
    if not sockets.is_listening(path):
        text = f"no process listens on {socket}: the kubelet is not running, or uses another directory"
        return found(name, text, why, "systemctl start kubelet; journalctl -u kubelet -n 50")
    return healthy(name, f"{socket} is served")


def plugin_sockets(view: ExaminedNode) -> DoctorCheck:
    directory = view.kubelet.device_plugins
    apart = {view.kubelet.kubelet_socket.name}
    return _stale(view, "plugin-sockets", directory, apart)


def plugin_answers(view: ExaminedNode) -> DoctorCheck:
    """Third-party plugins that accept connections and answer nothing."""
    name, directory = "plugin-answers", view.kubelet.device_plugins
    others = [entry for entry in view.names(directory) if not entry.startswith(_OWN)]
    paths = [view.path(directory / entry) for entry in others if entry != view.kubelet.kubelet_socket.name]
    asked = [path for path in paths if path.is_socket() and sockets.is_listening(path)]
    silent = [str(directory / path.name) for path in asyncio.run(_silent(asked, view.target.plugin_limit))]
    if silent:
        return found(
            name,
            f"the plugin behind {some(silent)} does not answer",
            "pods that request its devices stay in admission, and its devices are not updated",
            f"find and restart that plugin: ss -xlp | grep {shlex.quote(silent[0])}; kubectl get ds -A",
        )
    return healthy(name, f"{len(asked)} third-party plugins answer")


async def _silent(paths: list[Path], limit: float) -> list[Path]:
    async with asyncio.TaskGroup() as group:
        answers = [group.create_task(_is_silent(path, limit)) for path in paths]
    return [path for path, answer in zip(paths, answers, strict=True) if answer.result()]


async def _is_silent(socket: Path, limit: float) -> bool:
    """Whether no answer comes in time; any error is an answer."""
    try:
        async with transport.connect(socket) as plugin:
            await plugin.call_encoded(_OPTIONS, b"", limit)
    except (PeerSilent, TimeoutError):
        return True
    except (OSError, PlugwrightError):
        return False
    return False


def lost_plugins(view: ExaminedNode) -> DoctorCheck:
    """Running plugins whose socket was removed: they have not registered again since the kubelet's start (1.16)."""
    name, paths, directory = "lost-plugins", view.kubelet, view.kubelet.device_plugins
    view.need_node()
    lost = []
    for pid, listening in unix_listeners(view).items():
        others = [path for path in map(Path, listening) if path.parent == directory and path != paths.kubelet_socket]
        removed = [path for path in others if not view.exists(path)]
        if removed and _has_directory(view, pid, directory):
            lost.append((pid, removed[0]))
    if lost:
        pid, _ = lost[0]
        return found(
            name,
            some([f"process {pid} listens on {path}, which was removed" for pid, path in lost]),
            "the kubelet removes all sockets when it starts, and this plugin did not register again: its resource is 0",
            f"restart that plugin; its unit or container: systemctl status {pid}",
        )
    return healthy(name, "no plugin has lost its socket")


def daemon_mounts(view: ExaminedNode) -> DoctorCheck:
    """Whether a daemon in a container sees the node's directories: a mount keeps a directory that was replaced."""
    name, pid = "daemon-mounts", view.containerised_daemon
    view.need_node()
    if pid is None:
        return healthy(name, "the daemon runs outside of a container")
    paths = view.kubelet
    places = (paths.device_plugins, paths.plugins_registry, paths.pod_resources_socket.parent, cdi.DYNAMIC)
    other = [str(place) for place in places if _sees_another(view, pid, place)]
    if other:
        return found(
            name,
            f"the daemon (process {pid}) sees other directories than the node's at {some(other)}",
            "its sockets and CDI specs are where neither the kubelet nor the container runtime looks",
            "correct kubelet.dir, kubelet.devicePluginsDir or config.host.cdi of the chart; if the directory is newer "
            "than the daemon's pod: kubectl delete pod -n NAMESPACE POD",
        )
    return healthy(name, f"the daemon (process {pid}) sees the node's directories")


def _sees_another(view: ExaminedNode, pid: int, directory: Path) -> bool:
    inside = view.path("/proc") / str(pid) / "root" / directory.relative_to("/")
    return inside.is_dir() and view.path(directory).is_dir() and not _has_directory(view, pid, directory)


def _has_directory(view: ExaminedNode, pid: int, directory: Path) -> bool:
    """Whether this process sees the same directory, not that of another node in a container."""
    try:
        other = (view.path("/proc") / str(pid) / "root" / directory.relative_to("/")).stat()
        own = view.path(directory).stat()
    except OSError:
        return False
    return (other.st_dev, other.st_ino) == (own.st_dev, own.st_ino)


def registry_sockets(view: ExaminedNode) -> DoctorCheck:
    """A missing or closed plugins_registry; stale sockets in it, which the kubelet retries repeatedly."""
    name, directory = "plugins-registry", view.kubelet.plugins_registry
    why = "DRA drivers and CSI drivers register in this directory: claims wait"
    if view.target.in_pod or not view.exists(view.kubelet.root):
        if not view.exists(directory):
            raise NotVisible(f"{directory} does not exist")
    elif not view.path(directory).is_dir():
        text = "is not a directory" if view.exists(directory) else "does not exist"
        return found(name, f"{directory} {text}", why, f"rm -f {directory} && {_RESTART}; restart the drivers")
    if is_closed(view.path(directory), FULL):
        return _closed(view, name, directory, why)
    return _stale(view, name, directory, set())


def _stale(view: ExaminedNode, name: str, directory: Path, apart: set[str]) -> DoctorCheck:
    served, stale = 0, []
    for entry in view.names(directory):
        path = view.path(directory / entry)
        if entry in apart or not path.is_socket():
            continue
        if sockets.is_listening(path):
            served += 1
        else:
            stale.append(str(directory / entry))
    if stale:
        return found(
            name,
            f"no process listens on {some(stale)}",
            "the plugin or driver behind the socket has ended without removing it: its devices are not available",
            f"start that plugin again, or remove its socket: rm {shlex.join(stale[:8])}",
        )
    return healthy(name, f"{served} plugin sockets in {directory} are served")


def deprecation_file(view: ExaminedNode) -> DoctorCheck:
    """The file DEPRECATION: plugins based on upstream's sample do not register if it exists (1.19)."""
    name, file = "deprecation-file", view.kubelet.device_plugins / "DEPRECATION"
    if not view.exists(file):
        return healthy(name, "there is none")
    why = "kubelets up to 1.24 left it; many third-party plugins never register where it exists"
    return found(name, f"{file} exists", why, f"rm {file}, then restart the plugins")


def pod_resources_socket(view: ExaminedNode) -> DoctorCheck:
    """Requests the allocatable devices, because List would free the devices of an open Allocate (3.58)."""
    name, socket = "pod-resources", view.kubelet.pod_resources_socket
    why = "without the kubelet's pod-resources service, plugwright cannot know which pod holds which device"
    result = _listening(view, name, socket, why)
    if result.state != "ok":
        return result
    try:
        devices = asyncio.run(_allocatable(view.path(socket)))
    except PeerRefused:
        return healthy(name, f"{socket} answers, without GetAllocatableResources")
    except (OSError, PlugwrightError) as error:
        return found(name, f"{socket} does not answer: {error}", why, f"{_RESTART}; journalctl -u kubelet -n 50")
    resources = sorted({device.resource for device in devices})
    return healthy(name, f"the kubelet knows {len(devices)} healthy devices of {some(resources)}")


async def _allocatable(socket: Path) -> list[pod_resources.AllocatableDevice]:
    async with pod_resources.connect(socket) as kubelet:
        return await kubelet.allocatable(timeout=_ANSWER)


def device_checkpoint(view: ExaminedNode) -> DoctorCheck:
    """The kubelet's record of the holders of devices."""
    name, file = "kubelet-checkpoint", view.kubelet.checkpoint
    why = "a kubelet that cannot read it at its next start forgets which pods hold devices, and gives them out again"
    fix = f"plugwright checkpoint verify {file}; drain the node, then {_RESTART}: the kubelet writes it again"
    try:
        content = view.checkpoint
    except CheckpointCorrupt as error:
        return found(name, f"{file} is damaged: {error}", why, fix)
    except (OSError, ValueError) as error:
        return found(name, f"{file} cannot be read: {error}", why, fix)
    if content is None:
        return healthy(name, "none yet: no device plugin has registered")
    registered = some(sorted(content.registered or ()))
    return healthy(name, f"{len(content.entries or ())} containers hold devices; registered: {registered}")
