"""NVIDIA GPUs of the node: on the bus, with a driver, and with device nodes that containers can open."""

import errno
import os
import re
import stat
from collections.abc import Iterator

from plugwright.doctor.doctor_report import DoctorCheck, found, healthy
from plugwright.doctor.examined_node import ON_THE_NODE, ExaminedNode
from plugwright.doctor.node_processes import processes
from plugwright.errors import NotVisible
from plugwright.model import some

__all__ = [
    "device_access",
    "device_numbers",
    "nvidia_fabric",
    "nvidia_gpus",
    "nvidia_module",
    "nvidia_nodes",
    "nvidia_versions",
]

_PCI = "/sys/bus/pci/devices"
_VENDOR, _DISPLAY, _BRIDGE = "0x10de", ("0x0300", "0x0302"), ("0x0680",)
_FABRIC_MANAGER = "nv-fabricmanage"  # its name in /proc, which has 15 characters
_DRIVER_GPUS = "/proc/driver/nvidia/gpus"
_PARAMETERS = "/proc/driver/nvidia/params"
_OTHERS = stat.S_IROTH | stat.S_IWOTH
_LIBRARIES = ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib")
_LIBRARY = "libnvidia-ml.so"
_ENOUGH = {
    "nvidia_uvm",
    "nvidia_vgpu_vfio",
}  # of these modules beside `nvidia`; hosts of vGPUs have the second one only
_CONTROL_MINOR = 255
_FABRIC = 2  # fewest GPUs that need one
_NONE = "no NVIDIA GPU on the PCI bus"
_LOST = b"\xff\xff\xff\xff"  # read from a device that does not respond on the bus
_MAKE_NODES = "nvidia-modprobe -c 0 -u && nvidia-smi"


def _gpus(view: ExaminedNode) -> list[str]:
    """PCI addresses, without GPUs passed to virtual machines."""
    return [address for address in _functions(view, _DISPLAY) if not _is_passed_through(view, address)]


def _functions(view: ExaminedNode, classes: tuple[str, ...]) -> Iterator[str]:
    """Addresses of NVIDIA's PCI functions of these classes."""
    for address in view.names(_PCI):
        if (view.read_if_there(f"{_PCI}/{address}/vendor") or "").strip() != _VENDOR:
            continue
        if (view.read_if_there(f"{_PCI}/{address}/class") or "").strip().startswith(classes):
            yield address


def _is_passed_through(view: ExaminedNode, address: str) -> bool:
    driver = view.path(f"{_PCI}/{address}") / "driver"
    return driver.is_symlink() and driver.readlink().name == "vfio-pci"


def _no_gpus(view: ExaminedNode) -> str:
    others = len(list(_functions(view, _DISPLAY)))
    return f"{_NONE} apart from {others} bound to vfio-pci, for virtual machines" if others else _NONE


def _modules(view: ExaminedNode) -> set[str]:
    return {line.split(" ", 1)[0] for line in view.read("/proc/modules", 2**22).splitlines()}


def _driver_version(view: ExaminedNode) -> str | None:
    """The version of the loaded kernel module."""
    text = view.read_if_there("/proc/driver/nvidia/version")
    match = re.search(r"Kernel Module.*?\s(\d+\.\d+(?:\.\d+)?)\s", text or "")
    return match[1] if match else None


def _need_driver(view: ExaminedNode) -> None:
    if _driver_version(view) is None:
        raise NotVisible("NVIDIA's kernel module is not loaded")


def nvidia_module(view: ExaminedNode) -> DoctorCheck:
    name, gpus = "nvidia-module", _gpus(view)
    if not gpus:
        return healthy(name, _no_gpus(view))
    modules, version = _modules(view), _driver_version(view)
    if version is not None and "nvidia" in modules and not modules & _ENOUGH:
        why = "CUDA fails to initialise in every container (error 999)"
        fix = "modprobe nvidia-uvm && nvidia-modprobe -c 0 -u; if that fails: dmesg | grep -i nvidia"
        return found(name, f"NVIDIA's driver {version} is loaded without the module nvidia_uvm", why, fix)
    if version is not None:
        return healthy(name, f"NVIDIA's driver {version} is loaded for {len(gpus)} GPUs")
    why = "nothing on this node can use the GPUs: their resource is idle or 0"
    if "nouveau" in modules:
        fix = "echo blacklist nouveau > /etc/modprobe.d/nouveau.conf; rebuild the initramfs, reboot, modprobe nvidia"
        return found(name, f"{len(gpus)} GPUs, and nouveau is loaded in place of NVIDIA's driver", why, fix)
    if "nvidia" in modules:
        raise NotVisible("the nvidia module is loaded, and /proc/driver/nvidia/version does not name its version")
    fix = "modprobe nvidia; if that fails: dmesg | grep -i nvrm, and install the driver for this kernel"
    return found(name, f"{len(gpus)} GPUs on the bus ({some(gpus, 4)}), and no NVIDIA kernel module", why, fix)


def nvidia_gpus(view: ExaminedNode) -> DoctorCheck:
    """Whether the driver lists every GPU on the bus, and each GPU still responds there."""
    name, gpus = "nvidia-gpus", _gpus(view)
    if not gpus:
        return healthy(name, _NONE)
    why = "the GPU has fallen off the bus or failed to initialise: pods cannot get it"
    silent = [address for address in gpus if _first_bytes(view, address) == _LOST]
    if silent:
        fix = "dmesg | grep -i xid; drain the node and power-cycle it"
        return found(name, f"{some(silent)} do not answer on the PCI bus", why, fix)
    _need_driver(view)
    known = {address.lower() for address in view.names(_DRIVER_GPUS)}
    absent = [address for address in gpus if address.lower() not in known]
    if absent:
        fix = f"dmesg | grep -i -e nvrm -e xid; nvidia-smi --gpu-reset -i {absent[0]}, or reboot"
        return found(name, f"the driver does not list {some(absent)} of {len(gpus)} GPUs on the bus", why, fix)
    return healthy(name, f"the driver lists all {len(gpus)} GPUs")


def _first_bytes(view: ExaminedNode, address: str) -> bytes:
    try:
        with view.path(f"{_PCI}/{address}/config").open("rb", buffering=0) as file:
            return file.read(4)
    except FileNotFoundError:
        return b""


def nvidia_fabric(view: ExaminedNode) -> DoctorCheck:
    """GPUs behind NVSwitches need the fabric manager, which sets up the links between them."""
    name, gpus, switches = "nvidia-fabric", _gpus(view), list(_functions(view, _BRIDGE))
    if len(gpus) < _FABRIC or not switches:
        return healthy(name, "no NVSwitch between GPUs")
    view.need_node()
    _need_driver(view)
    if not processes(view, _FABRIC_MANAGER):
        return found(
            name,
            f"{len(gpus)} GPUs behind {len(switches)} NVSwitches, and no fabric manager runs",
            "CUDA fails to initialise in every container (error 802, system not yet initialized)",
            "install the fabric manager of the driver's version; systemctl enable --now nvidia-fabricmanager",
        )
    return healthy(name, f"the fabric manager runs for {len(switches)} NVSwitches")


def nvidia_versions(view: ExaminedNode) -> DoctorCheck:
    """Whether the libraries match the loaded module."""
    name = "nvidia-versions"
    if not _gpus(view):
        return healthy(name, _NONE)
    view.need_node()
    _need_driver(view)
    module = _driver_version(view)
    names = [version for path in _libraries() for version in _library_versions(view, path)]
    if not names:
        raise NotVisible(f"no libnvidia-ml.so.VERSION in {some(_libraries())}")
    if module not in names:
        return found(
            name,
            f"the kernel module is {module}, the libraries are {some(sorted(set(names)))}",
            "NVML fails with `Driver/library version mismatch`: every GPU is unavailable to new processes",
            "drain the node, then reboot it (or rmmod nvidia_uvm nvidia_drm nvidia_modeset nvidia && modprobe nvidia)",
        )
    return healthy(name, f"kernel module and libraries are {module}")


def _library_versions(view: ExaminedNode, directory: str) -> list[str]:
    """The version that programs load, or all installed versions if no link selects one of them."""
    pattern = re.compile(rf"{re.escape(_LIBRARY)}\.(\d+\.\d+(?:\.\d+)?)")
    link = view.path(directory) / f"{_LIBRARY}.1"
    chosen = [link.readlink().name] if link.is_symlink() else []
    versions = [match[1] for each in chosen if (match := pattern.fullmatch(each))]
    return versions or [match[1] for each in view.names(directory) if (match := pattern.fullmatch(each))]


def _libraries() -> Iterator[str]:
    yield from _LIBRARIES
    yield from (f"/run/nvidia/driver{path}" for path in _LIBRARIES)


def _device_directory(view: ExaminedNode) -> str:
    """The directory of device nodes: the driver container of the GPU Operator has its own."""
    return next((path for path in ("/dev", "/run/nvidia/driver/dev") if view.exists(f"{path}/nvidiactl")), "/dev")


def _nodes(view: ExaminedNode) -> list[str]:
    """Device nodes needed by programs: control, UVM, and one for each GPU of the driver."""
    minors = []
    for address in view.names(_DRIVER_GPUS):
        match = re.search(r"Device Minor:\s*(\d+)", view.read_if_there(f"{_DRIVER_GPUS}/{address}/information") or "")
        if match:
            minors.append(int(match[1]))
    directory = _device_directory(view)
    return [f"{directory}/{name}" for name in ("nvidiactl", "nvidia-uvm", *(f"nvidia{n}" for n in sorted(minors)))]


def nvidia_nodes(view: ExaminedNode) -> DoctorCheck:
    name = "nvidia-device-nodes"
    if not _gpus(view):
        return healthy(name, _NONE)
    _need_driver(view)
    nodes = _nodes(view)
    if view.target.in_pod and not view.exists(nodes[0]):
        raise NotVisible(ON_THE_NODE)
    missing = [node for node in nodes if not view.exists(node)]
    others = [node for node in nodes if node not in missing and not stat.S_ISCHR(view.path(node).stat().st_mode)]
    why = "no container can use the GPU: CUDA fails to initialise"
    if others:
        fix = f"rm -r {' '.join(others)} && {_MAKE_NODES}"
        return found(name, f"{some(others)} are no character devices", why, fix)
    if missing:
        return found(name, f"{some(missing)} do not exist", why, _MAKE_NODES)
    return healthy(name, f"{len(nodes)} device nodes exist")


def device_numbers(view: ExaminedNode) -> DoctorCheck:
    """Whether device nodes have the numbers of the loaded driver: the major number of UVM changes with every load."""
    name = "device-numbers"
    if not _gpus(view):
        return healthy(name, _NONE)
    _need_driver(view)
    majors, wrong = _majors(view), []
    for node in _nodes(view):
        if not view.exists(node):
            continue
        status = view.path(node).stat()
        expected = majors.get("nvidia-uvm" if node.endswith("uvm") else "nvidia", majors.get("nvidia-frontend"))
        if stat.S_ISCHR(status.st_mode) and expected is not None and os.major(status.st_rdev) != expected:
            wrong.append(f"{node} has {os.major(status.st_rdev)}, the driver {expected}")
        elif (minor := _minor(node)) is not None and os.minor(status.st_rdev) != minor:
            wrong.append(f"{node} has the minor number {os.minor(status.st_rdev)}, the driver {minor}")
    if wrong:
        paths = " ".join(text.split(" ", 1)[0] for text in wrong)
        return found(
            name,
            f"device nodes with other numbers than the driver's: {some(wrong)}",
            "they lead to no device, or to another one; usual after the driver was loaded again",
            f"rm {paths} && {_MAKE_NODES}; then restart the pods that have these nodes",
        )
    return healthy(name, "device nodes have the driver's numbers")


def _minor(node: str) -> int | None:
    """The minor number in a node's name; None for nodes of UVM."""
    name = node.rpartition("/")[2].removeprefix("nvidia")
    return int(name) if name.isdecimal() else _CONTROL_MINOR if name == "ctl" else None


def _majors(view: ExaminedNode) -> dict[str, int]:
    """Major numbers of character devices, by the name of their driver."""
    characters = view.read("/proc/devices").partition("Block devices:")[0]
    return {name: int(number) for number, name in re.findall(r"^\s*(\d+)\s+(\S+)$", characters, re.MULTILINE)}


def device_access(view: ExaminedNode) -> DoctorCheck:
    """Whether this process can open the control node: a cgroup's device rules deny it with EPERM."""
    name, node = "device-access", f"{_device_directory(view)}/nvidiactl"
    if not _gpus(view):
        return healthy(name, _NONE)
    if not view.exists(node) or not view.path(node).is_char_device():
        raise NotVisible(f"{node} is no device node here")
    if closed := _closed_nodes(view):
        why = "containers of other users cannot use the GPU: CUDA fails to initialise"
        return found(name, f"only their owner may open {some(closed)}", why, f"chmod 0666 {' '.join(closed)}")
    try:
        os.close(os.open(view.path(node), os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK))
    except PermissionError as error:
        if os.statvfs(view.path(node)).f_flag & os.ST_NODEV:
            raise NotVisible(f"{node} is on a file system without devices here") from error
        return refusal(node, error.errno or errno.EPERM)
    return healthy(name, f"{node} can be opened")


def _closed_nodes(view: ExaminedNode) -> list[str]:
    """Nodes that other users may not open, unless the driver is configured to make them so (DeviceFileMode)."""
    configured = re.search(r"^DeviceFileMode:\s*(\d+)$", view.read_if_there(_PARAMETERS) or "", re.MULTILINE)
    if configured and not int(configured[1]) & _OTHERS:
        return []
    nodes = [node for node in _nodes(view) if view.path(node).is_char_device()]
    return [node for node in nodes if not view.path(node).stat().st_mode & _OTHERS]


def refusal(node: str, code: int) -> DoctorCheck:
    """The finding for a device node that cannot be opened."""
    why = "NVML and CUDA need it: GPUs look lost from here"
    if code == errno.EPERM:
        fix = (
            "restart the pod; with systemd's cgroup driver, make the links in /dev/char too, or `systemctl "
            "daemon-reload` takes devices away again: nvidia-ctk system create-dev-char-symlinks --create-all"
        )
        return found("device-access", f"the device rules of this cgroup refuse {node}", why, fix)
    return found("device-access", f"no permission to open {node}", why, f"chmod 0666 {node}; see ModifyDeviceFiles")
