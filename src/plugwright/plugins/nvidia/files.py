"""What lies on a machine for a GPU: device nodes, the driver's libraries and programs. Found anew whenever it is asked.

A simulated machine has none of it; its containers get a harmless node in each one's place.
"""

import platform
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from plugwright.errors import PluginError
from plugwright.model import DeviceNode, Mount
from plugwright.plugins.nvidia.options import Features, Places
from plugwright.plugins.nvidia.sharing import Unit

__all__ = ["Files"]

_CONTROL = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset")
_NEEDED = ("nvidiactl", "nvidia-uvm")  # without these no CUDA program starts
_HARMLESS = "/dev/null"
_LIBRARIES = re.compile(
    r"lib(?:cuda|cudadebugger|nvcuvid|nvidia-(?:allocator|api|cfg|encode|fbc|gpucomp|ml|ngx|nscq|nvvm|opencl|opticalflow"
    r"|pkcs11(?:-openssl3)?|ptxjitcompiler|sandboxutils|tileiras))\.so\.[0-9.]+"
)
_PROGRAMS = ("nvidia-smi", "nvidia-debugdump", "nvidia-cuda-mps-control", "nvidia-cuda-mps-server")
_MULTIARCH = f"{platform.machine()}-linux-gnu"
_LIBRARY_PLACES = (f"usr/lib/{_MULTIARCH}", "usr/lib64", f"lib/{_MULTIARCH}", "lib64", "usr/lib")
# Where loaders look without being told: Debian's and Red Hat's. An image has at most one of them in use.
_WHERE_LOADERS_LOOK = (f"/usr/lib/{_MULTIARCH}", "/usr/lib64")
_NODES_FOR = {"mofed": "/dev/infiniband", "gds": "/dev/nvidia-fs", "gdrcopy": "/dev/gdrdrv"}


@dataclass(frozen=True, slots=True)
class Files:
    places: Places
    simulated: bool = False

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

    def mounts(self) -> list[Mount]:
        """The driver's libraries, where a container's loader finds them, and its programs."""
        if self.simulated:
            return []
        found = [
            Mount(str(self._on_host(library)), f"{directory}/{library.name}", read_only=True)
            for library in self._libraries()
            for directory in self.places.libraries or _WHERE_LOADERS_LOOK
        ]
        programs = [self.places.root / "usr/bin" / name for name in _PROGRAMS]
        return found + [
            Mount(str(self._on_host(path)), f"/usr/bin/{path.name}", read_only=True)
            for path in programs
            if path.exists()
        ]

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

    def _libraries(self) -> list[Path]:
        """Those of the first directory that has the driver's main library."""
        for place in _LIBRARY_PLACES:
            directory = self.places.root / place
            if (directory / "libcuda.so.1").exists():
                names = sorted(each.name for each in directory.iterdir() if _LIBRARIES.fullmatch(each.name))
                return [directory / name for name in names]
        raise PluginError(f"no libcuda.so.1 under {self.places.root}: where is the driver's root?")

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

    def _on_host(self, path: Path) -> Path:
        """The host's own name for it, with links followed as far as they stay in the driver's root."""
        resolved = path.resolve()
        inside = resolved if resolved.is_relative_to(self.places.root.resolve()) else path
        return self.places.host_root / inside.relative_to(
            self.places.root.resolve() if inside is resolved else self.places.root
        )
