"""What lies on a machine for a GPU: its device nodes, those that go with it, and by `libraries` the driver's files.

A simulated machine has none of it; its containers get a harmless node in each one's place.

The driver's libraries and programs, as mounts for a container whose runtime brings none.

A directory of libraries has thousands of files: it is searched again only after something in it has changed.
"""

import platform
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from plugwright.errors import PluginError
from plugwright.model import DeviceNode, Mount
from plugwright.plugins.nvidia.config import Features, Places
from plugwright.plugins.nvidia.sharing import Unit

__all__ = ["Files", "Libraries"]

_LIBRARIES = re.compile(
    r"lib(?:cuda|cudadebugger|nvcuvid|nvidia-(?:allocator|api|cfg|encode|fbc|gpucomp|ml|ngx|nscq|nvvm(?:70)?|opencl|opticalflow"
    r"|pkcs11(?:-openssl3)?|ptxjitcompiler|sandboxutils|tileiras))\.so\.[0-9.]+"
)
_PROGRAMS = ("nvidia-smi", "nvidia-debugdump", "nvidia-cuda-mps-control", "nvidia-cuda-mps-server")
_MULTIARCH = f"{platform.machine()}-linux-gnu"
_PLACES = (f"usr/lib/{_MULTIARCH}", "usr/lib64", f"lib/{_MULTIARCH}", "lib64", "usr/lib")
# Where loaders look without being told: Debian's and Red Hat's. An image has at most one of them in use.
_WHERE_LOADERS_LOOK = (f"/usr/lib/{_MULTIARCH}", "/usr/lib64")


class Libraries:
    def __init__(self, places: Places) -> None:
        self._places = places
        self._known: tuple[object, Sequence[Mount]] = (None, ())

    def mounts(self) -> Sequence[Mount]:
        libraries, programs = self._directory(), self._places.root / "usr/bin"
        state = (libraries, libraries.stat().st_mtime_ns, programs.is_dir() and programs.stat().st_mtime_ns)
        if self._known[0] != state:
            self._known = (state, (*self._libraries(libraries), *self._programs(programs)))
        return self._known[1]

    def _directory(self) -> Path:
        """The first directory that has the driver's main library."""
        for place in _PLACES:
            directory = self._places.root / place
            if (directory / "libcuda.so.1").exists():
                return directory
        raise PluginError(f"no libcuda.so.1 under {self._places.root}: where is the driver's root?")

    def _libraries(self, directory: Path) -> list[Mount]:
        names = sorted(each.name for each in directory.iterdir() if _LIBRARIES.fullmatch(each.name))
        return [
            Mount(str(self._on_host(directory / name)), f"{place}/{name}", read_only=True)
            for name in names
            for place in self._places.libraries or _WHERE_LOADERS_LOOK
        ]

    def _programs(self, directory: Path) -> list[Mount]:
        found = [directory / name for name in _PROGRAMS if (directory / name).exists()]
        return [Mount(str(self._on_host(path)), f"/usr/bin/{path.name}", read_only=True) for path in found]

    def _on_host(self, path: Path) -> Path:
        """The host's own name for it, with links followed as far as they stay in the driver's root."""
        root, resolved = self._places.root.resolve(), path.resolve()
        inside = resolved.relative_to(root) if resolved.is_relative_to(root) else path.relative_to(self._places.root)
        return self._places.host_root / inside


_CONTROL = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset")
_NEEDED = ("nvidiactl", "nvidia-uvm")  # without these no CUDA program starts
_HARMLESS = "/dev/null"
_NODES_FOR = {"mofed": "/dev/infiniband", "gds": "/dev/nvidia-fs", "gdrcopy": "/dev/gdrdrv"}


class Files:
    def __init__(self, places: Places, simulated: bool = False) -> None:
        self.places, self.simulated = places, simulated
        self._libraries = Libraries(places)

    def nodes(self, units: Sequence[Unit]) -> list[DeviceNode]:
        """The nodes of these devices, and those that every CUDA program opens."""
        return [*self.control_nodes(), *self.device_nodes(units)]

    def control_nodes(self) -> list[DeviceNode]:
        if self.simulated:
            return [self._node(f"/dev/{name}") for name in _CONTROL]
        missing = [f"/dev/{name}" for name in _NEEDED if not self._seen(f"/dev/{name}").exists()]
        if missing:
            raise PluginError(f"{missing[0]} does not exist: is the kernel module loaded (nvidia-modprobe -u -c 0)?")
        return [self._node(f"/dev/{name}") for name in _CONTROL if self._seen(f"/dev/{name}").exists()]

    def device_nodes(self, units: Iterable[Unit]) -> list[DeviceNode]:
        paths = dict.fromkeys(path for unit in units for path in self._paths(unit))
        return [self._node(path) for path in paths]

    def feature_nodes(self, features: Features) -> list[DeviceNode]:
        """Nodes of what else is switched on, as far as they are there."""
        wanted = [name for name in _NODES_FOR if getattr(features, name)]
        return [node for name in wanted for node in self.nodes_for(name)] + self.imex_nodes(features)

    def nodes_for(self, feature: str) -> list[DeviceNode]:
        return [self._node(path) for path in self._existing(_NODES_FOR[feature])]

    def imex_nodes(self, features: Features) -> list[DeviceNode]:
        paths = [f"/dev/nvidia-caps-imex-channels/channel{channel}" for channel in features.imex]
        missing = [path for path in paths if not self.simulated and not self._seen(path).exists()]
        if missing and features.imex_required:
            raise PluginError(f"IMEX is required and {missing[0]} does not exist")
        return [self._node(path) for path in paths if path not in missing]

    def mounts(self) -> Sequence[Mount]:
        """The driver's libraries, where a container's loader finds them, and its programs."""
        return () if self.simulated else self._libraries.mounts()

    def _paths(self, unit: Unit) -> Iterator[str]:
        if unit.gpu.minor is None:
            raise PluginError(f"{unit.gpu.uuid} has no device node: its minor number is unknown")
        yield f"/dev/nvidia{unit.gpu.minor}"
        if unit.mig is None:
            return
        instance = f"gpu{unit.gpu.minor}/gi{unit.mig.gpu_instance}"
        for capability in (f"{instance}/access", f"{instance}/ci{unit.mig.compute_instance}/access"):
            yield f"/dev/nvidia-caps/nvidia-cap{self._capability(capability)}"

    def _capability(self, name: str) -> int:
        """The kernel's number for a part of a GPU, as a container must have it to use that part."""
        if self.simulated:
            return 1 + sum(map(ord, name)) % 4096
        path = self.places.proc / "driver/nvidia-caps/mig-minors"
        try:
            lines = path.read_text(encoding="ascii").splitlines()
        except OSError as error:
            raise PluginError(f"{path} cannot be read, and MIG devices need it: {error.strerror}") from error
        for line in lines:
            known, _, minor = line.partition(" ")
            if known == name:
                return int(minor)
        raise PluginError(f"{path} does not know {name}")

    def _existing(self, path: str) -> list[str]:
        """The path itself, the nodes in it if it is a directory, or those that begin like it."""
        seen = self._seen(path)
        if seen.is_dir():
            return [f"{path}/{each.name}" for each in sorted(seen.iterdir())]
        if not seen.parent.is_dir():
            return []
        return [f"/dev/{each.name}" for each in sorted(seen.parent.iterdir()) if each.name.startswith(seen.name)]

    def _node(self, path: str) -> DeviceNode:
        return DeviceNode(_HARMLESS if self.simulated else str(self._seen(path)), path)

    def _seen(self, path: str) -> Path:
        return self.places.dev_root / path.lstrip("/")
