"""The files of a GPU's driver on the host: device nodes, and the libraries and programs a container needs.

A simulated machine has none of them; its containers get /dev/null in place of every node.
"""

import platform
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from plugwright.errors import PluginError
from plugwright.model import DeviceNode, Mount
from plugwright.plugins.nvidia.config import NvidiaConfig, NvidiaDriver
from plugwright.plugins.nvidia.sharing import GpuUnit

__all__ = ["DriverFiles", "DriverLibraries"]

_CONTROL_NODES = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset")
_REQUIRED_NODES = ("nvidiactl", "nvidia-uvm")  # without these no CUDA program starts
_FEATURE_NODES = {"mofed": "/dev/infiniband", "gds": "/dev/nvidia-fs", "gdrcopy": "/dev/gdrdrv"}
_HARMLESS = "/dev/null"

_LIBRARIES = re.compile(
    r"lib(?:cuda|cudadebugger|nvcuvid|nvidia-(?:allocator|api|cfg|encode|fbc|gpucomp|ml|ngx|nscq|nvvm(?:70)?|opencl|opticalflow"
    r"|pkcs11(?:-openssl3)?|ptxjitcompiler|sandboxutils|tileiras))\.so\.[0-9.]+"
)
_PROGRAMS = ("nvidia-smi", "nvidia-debugdump", "nvidia-cuda-mps-control", "nvidia-cuda-mps-server")
_MULTIARCH = f"{platform.machine()}-linux-gnu"
_LIBRARY_DIRECTORIES = (f"usr/lib/{_MULTIARCH}", "usr/lib64", f"lib/{_MULTIARCH}", "lib64", "usr/lib")
# The default paths of the loader, Debian's and Red Hat's. An image uses at most one of them.
_LOADER_PATHS = (f"/usr/lib/{_MULTIARCH}", "/usr/lib64")


class DriverFiles:
    def __init__(self, config: NvidiaConfig, simulated: bool = False, proc: Path = Path("/proc")) -> None:
        self._config, self._simulated, self._proc = config, simulated, proc
        self._dev_root = Path(config.driver.dev or "/")
        self._libraries = DriverLibraries(config.driver)

    def nodes(self, units: Sequence[GpuUnit]) -> list[DeviceNode]:
        """The nodes of these devices, and those that every CUDA program opens."""
        return [*self.control_nodes(), *self.device_nodes(units)]

    def control_nodes(self) -> list[DeviceNode]:
        if self._simulated:
            return [self._node(f"/dev/{name}") for name in _CONTROL_NODES]
        missing = [f"/dev/{name}" for name in _REQUIRED_NODES if not self._host_path(f"/dev/{name}").exists()]
        if missing:
            raise PluginError(f"{missing[0]} does not exist: is the kernel module loaded (nvidia-modprobe -u -c 0)?")
        return [self._node(f"/dev/{name}") for name in _CONTROL_NODES if self._host_path(f"/dev/{name}").exists()]

    def device_nodes(self, units: Iterable[GpuUnit]) -> list[DeviceNode]:
        paths = dict.fromkeys(path for unit in units for path in self._device_paths(unit))
        return [self._node(path) for path in paths]

    def configured_feature_nodes(self) -> list[DeviceNode]:
        """The existing nodes of GPUDirect, GDRCopy, MOFED and IMEX, as far as they are configured."""
        enabled = [name for name in _FEATURE_NODES if getattr(self._config, name)]
        required = self._config.imex.required
        imex = [node for channel in self._config.imex_channels for node in self.imex_nodes(channel, required)]
        return [node for name in enabled for node in self.feature_nodes(name)] + imex

    def feature_nodes(self, feature: str) -> list[DeviceNode]:
        return [self._node(path) for path in self._existing_paths(_FEATURE_NODES[feature])]

    def imex_nodes(self, channel: int, required: bool = False) -> list[DeviceNode]:
        """The channel's node, or nothing where it does not exist; PluginError if it is required."""
        path = f"/dev/nvidia-caps-imex-channels/channel{channel}"
        if self._simulated or self._host_path(path).exists():
            return [self._node(path)]
        if required:
            raise PluginError(f"IMEX is required and {path} does not exist")
        return []

    def mounts(self) -> Sequence[Mount]:
        """The driver's libraries, where a container's loader finds them, and its programs."""
        return () if self._simulated else self._libraries.mounts()

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
        """The minor number of a MIG capability: a container needs its node to use the MIG device."""
        if self._simulated:
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

    def _existing_paths(self, path: str) -> list[str]:
        """The nodes in the path if it is a directory, else those whose names begin with it."""
        host_path = self._host_path(path)
        if host_path.is_dir():
            return [f"{path}/{node.name}" for node in sorted(host_path.iterdir())]
        if not host_path.parent.is_dir():
            return []
        nodes = sorted(host_path.parent.iterdir())
        return [f"/dev/{node.name}" for node in nodes if node.name.startswith(host_path.name)]

    def _node(self, path: str) -> DeviceNode:
        return DeviceNode(_HARMLESS if self._simulated else str(self._host_path(path)), path)

    def _host_path(self, path: str) -> Path:
        return self._dev_root / path.lstrip("/")


class DriverLibraries:
    """The driver's libraries and programs as mounts, for a container whose runtime does not bring them.

    The directory of the libraries has thousands of files: it is read again only when it has changed.
    """

    def __init__(self, config: NvidiaDriver) -> None:
        self._root = Path(config.root)
        self._host_root = Path(config.host or config.root)
        self._container_directories = config.libraries or _LOADER_PATHS
        self._cached: tuple[object, Sequence[Mount]] = (None, ())

    def mounts(self) -> Sequence[Mount]:
        libraries, programs = self._directory(), self._root / "usr/bin"
        version = (libraries, libraries.stat().st_mtime_ns, programs.is_dir() and programs.stat().st_mtime_ns)
        if self._cached[0] != version:
            self._cached = (version, (*self._library_mounts(libraries), *self._program_mounts(programs)))
        return self._cached[1]

    def _directory(self) -> Path:
        """The first directory that has the driver's main library."""
        for name in _LIBRARY_DIRECTORIES:
            directory = self._root / name
            if (directory / "libcuda.so.1").exists():
                return directory
        raise PluginError(f"no libcuda.so.1 under {self._root}: set driver.root to where the driver is installed")

    def _library_mounts(self, directory: Path) -> list[Mount]:
        names = sorted(path.name for path in directory.iterdir() if _LIBRARIES.fullmatch(path.name))
        return [
            Mount(str(self._on_host(directory / name)), f"{container_directory}/{name}", read_only=True)
            for name in names
            for container_directory in self._container_directories
        ]

    def _program_mounts(self, directory: Path) -> list[Mount]:
        paths = [directory / name for name in _PROGRAMS if (directory / name).exists()]
        return [Mount(str(self._on_host(path)), f"/usr/bin/{path.name}", read_only=True) for path in paths]

    def _on_host(self, path: Path) -> Path:
        """The path on the host, with links followed as far as they stay in the driver's root."""
        root, resolved = self._root.resolve(), path.resolve()
        inside = resolved.relative_to(root) if resolved.is_relative_to(root) else path.relative_to(self._root)
        return self._host_root / inside
