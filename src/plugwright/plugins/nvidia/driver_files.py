"""The device nodes of GPUs and related nodes on the host, and the driver's files.

A missing node or file for a container is a PluginError, which makes the device Unhealthy. A simulated machine
has no files; its containers get /dev/null in place of every node.
"""

import logging
import os
import stat
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from plugwright.errors import PluginError
from plugwright.model import Allocation, DeviceNode, Mount
from plugwright.plugins.nvidia.config import NvidiaConfig
from plugwright.plugins.nvidia.driver_libraries import DriverLibraries
from plugwright.plugins.nvidia.sharing import GpuUnit

__all__ = ["FEATURES", "DriverFiles"]

logger = logging.getLogger(__name__)

_CONTROL_NODES = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset")
_REQUIRED_NODES = ("nvidiactl", "nvidia-uvm")  # no CUDA program starts without these
_HARMLESS = "/dev/null"
_SOCKETS = ("run/nvidia-persistenced/socket", "run/nvidia-fabricmanager/socket")
_MODPROBE = "usr/bin/nvidia-modprobe"
_MODPROBE_SECONDS = 20.0
_MODPROBE_AGAIN = 60.0  # seconds


class _Feature(msgspec.Struct, frozen=True):
    """A feature of NVIDIA's toolkit: its nodes, and paths of the driver's root, mounted if a node exists."""

    nodes: tuple[str, ...]
    mounts: tuple[str, ...] = ()


_FEATURES = {
    "gdrcopy": _Feature(("gdrdrv",)),
    "gds": _Feature(("nvidia-fs*",), ("/run/udev", "/etc/cufile.json")),
    "mofed": _Feature(("infiniband/uverbs*", "infiniband/rdma_cm")),  # not umad and issm, which manage the fabric
}
FEATURES = tuple(_FEATURES)


class DriverFiles:
    def __init__(
        self, config: NvidiaConfig, simulated: bool = False, proc: Path = Path("/proc"), sys: Path = Path("/sys")
    ) -> None:
        self._config, self.simulated, self._proc, self._sys = config, simulated, proc, sys
        self._root = Path(config.driver.root)
        self._dev_root = Path(config.driver.dev or "/")
        # By their paths in a container. Constant parts are made once; whether they exist is checked each time.
        self._nodes: dict[str, DeviceNode] = {}
        self._host_paths: dict[str, Path] = {}
        self._made_at: float | None = None
        self.libraries = DriverLibraries(config.driver)

    def nodes(self, units: Sequence[GpuUnit]) -> list[DeviceNode]:
        """The nodes of these devices, and those opened by every CUDA program."""
        return [*self.control_nodes(), *self.device_nodes(units)]

    def control_nodes(self) -> list[DeviceNode]:
        if self.simulated:
            return [self._node(f"/dev/{name}") for name in _CONTROL_NODES]
        missing = self._missing_control_nodes()
        if missing and self._make_control_nodes():
            missing = self._missing_control_nodes()
        if missing:
            raise PluginError(f"{missing[0]} does not exist: is the kernel module loaded (nvidia-modprobe -u -c 0)?")
        return [self._node(f"/dev/{name}") for name in _CONTROL_NODES if self._exists(f"/dev/{name}")]

    def device_nodes(self, units: Iterable[GpuUnit]) -> list[DeviceNode]:
        paths = dict.fromkeys(path for unit in units for path in self._device_paths(unit))
        missing = [path for path in paths if not self.simulated and not self._exists(path)]
        if missing:
            raise PluginError(f"{missing[0]} does not exist: nvidia-modprobe makes it, or a restart of the driver")
        drm = (f"/dev/dri/{name}" for unit in units for name in self._drm_names(unit))
        return [self._node(path) for path in (*paths, *dict.fromkeys(drm))]

    def drm_links(self, unit: GpuUnit) -> list[tuple[str, str]]:
        """The links in /dev/dri/by-path by which programs find a GPU's nodes: target and path of each."""
        kinds = {"card": "card", "renderD": "render"}
        return [
            (f"../{name}", f"/dev/dri/by-path/pci-{unit.gpu.pci}-{kinds[name.rstrip('0123456789')]}")
            for name in self._drm_names(unit)
        ]

    def configured_features(self) -> Allocation:
        """The configured and existing features among GPUDirect, GDRCopy, MOFED and IMEX."""
        parts = [self.feature(name) for name in FEATURES if getattr(self._config, name)]
        required = self._config.imex.required
        imex = [node for channel in self._config.imex_channels for node in self.imex_nodes(channel, required)]
        nodes = [node for part in parts for node in part.nodes]
        return Allocation(nodes=[*nodes, *imex], mounts=[mount for part in parts for mount in part.mounts])

    def feature(self, name: str) -> Allocation:
        wanted, dev = _FEATURES[name], self._dev_root / "dev"
        found = [path for pattern in wanted.nodes for path in sorted(dev.glob(pattern)) if not path.is_dir()]
        nodes = [self._node(f"/dev/{path.relative_to(dev)}") for path in found]
        mounts = [path for path in wanted.mounts if nodes and (self._root / path.lstrip("/")).exists()]
        return Allocation(
            nodes=nodes, mounts=[Mount(self.libraries.host_path(path), path, read_only=True) for path in mounts]
        )

    def imex_nodes(self, channel: int, required: bool = False) -> list[DeviceNode]:
        """The channel's node, or nothing if it does not exist; PluginError if it is required."""
        path = f"/dev/nvidia-caps-imex-channels/channel{channel}"
        if self.simulated or self._exists(path):
            return [self._node(path)]
        if required:
            raise PluginError(f"IMEX is required and {path} does not exist")
        return []

    def mounts(self, linked: bool = False) -> Sequence[Mount]:
        """The driver's libraries, in the search path of a container's loader, its programs and its settings."""
        return () if self.simulated else self.libraries.mounts(linked)

    def loader_env(self, linked: bool) -> dict[str, str]:
        """For programs querying the loader's cache if no hook refreshes it: Triton calls `ldconfig -p`."""
        return {} if linked or self.simulated else {"TRITON_LIBCUDA_PATH": self.libraries.directories(linked)[0]}

    def replacements(self, sources: Mapping[str, str], linked: bool = False) -> list[Mount]:
        """The host's replacements for libraries of the driver, by soname."""
        return self.libraries.replacements(sources, linked) if sources and not self.simulated else []

    def firmware(self) -> Sequence[Mount]:
        return () if self.simulated else self.libraries.tree().firmware

    def sockets(self) -> list[Mount]:
        """The sockets of the persistence daemon and the fabric manager, if they run."""
        if self.simulated:
            return []
        found = [path for path in _SOCKETS if (self._root / path).is_socket()]
        return [Mount(self.libraries.host_path(path), f"/{path}") for path in found]

    def _device_paths(self, unit: GpuUnit) -> Iterator[str]:
        if unit.gpu.minor is None:
            raise PluginError(f"{unit.gpu.uuid} has no device node: its minor number is unknown")
        yield f"/dev/nvidia{unit.gpu.minor}"
        if unit.mig is None:
            return
        instance = f"gpu{unit.gpu.minor}/gi{unit.mig.gpu_instance}"
        for capability in (f"{instance}/access", f"{instance}/ci{unit.mig.compute_instance}/access"):
            yield f"/dev/nvidia-caps/nvidia-cap{self._capability_minor(capability)}"

    def _capability_minor(self, name: str) -> int:
        """The minor number of a MIG capability, whose node a container needs to use the MIG device."""
        if self.simulated:
            return 1 + sum(map(ord, name)) % 4096
        path = self._proc / "driver/nvidia-caps/mig-minors"
        try:
            lines = path.read_text(encoding="ascii").splitlines()
        except OSError as error:
            raise PluginError(f"{path} cannot be read, and MIG devices need it: {error.strerror}") from error
        for line in lines:
            capability, _, minor = line.partition(" ")
            if capability == name:
                return int(minor)
        raise PluginError(f"{path} has no entry {name}")

    def _drm_names(self, unit: GpuUnit) -> list[str]:
        """The GPU's nodes in /dev/dri. Of MIG devices, only those with `gfx` in the profile have graphics."""
        if self.simulated or not unit.gpu.pci or (unit.mig and "gfx" not in unit.mig.profile):
            return []
        try:
            with os.scandir(self._sys / "bus/pci/devices" / unit.gpu.pci / "drm") as entries:
                found = sorted(entry.name for entry in entries)
        except OSError:
            return []
        names = [name for name in found if name.rstrip("0123456789") in ("card", "renderD")]
        return [name for name in names if self._exists(f"/dev/dri/{name}")]

    def _missing_control_nodes(self) -> list[str]:
        return [path for path in (f"/dev/{name}" for name in _REQUIRED_NODES) if not self._exists(path)]

    def _make_control_nodes(self) -> bool:
        """Makes NVIDIA's own program create them, as its toolkit does after a boot; False if that is impossible."""
        program, now = self._root / _MODPROBE, time.monotonic()
        if not program.is_file() or (self._made_at is not None and now < self._made_at + _MODPROBE_AGAIN):
            return False
        self._made_at = now
        for arguments in (["-u", "-c", "0"], ["-u", "-c", "1"]):  # nvidia-uvm and nvidia-uvm-tools
            try:
                done = subprocess.run(
                    [program, *arguments], capture_output=True, check=False, text=True, timeout=_MODPROBE_SECONDS
                )
                facts = {"program": str(program), "status": done.returncode, "error": done.stderr.strip()[:200]}
            except (OSError, subprocess.TimeoutExpired) as error:
                facts = {"program": str(program), "error": str(error)}
            logger.info("nvidia-modprobe called for missing device nodes", extra=facts)
        return True

    def _node(self, path: str) -> DeviceNode:
        if path not in self._nodes:
            self._nodes[path] = DeviceNode(_HARMLESS if self.simulated else str(self._host_path(path)), path)
        return self._nodes[path]

    def _exists(self, path: str) -> bool:
        try:
            return not stat.S_ISDIR(self._host_path(path).stat().st_mode)
        except OSError:
            return False

    def _host_path(self, path: str) -> Path:
        if path not in self._host_paths:
            self._host_paths[path] = self._dev_root / path.lstrip("/")
        return self._host_paths[path]
