"""The driver's libraries and programs, as mounts for a container whose runtime brings none.

A directory of libraries has thousands of files: it is searched again only after something in it has changed.
"""

import platform
import re
from collections.abc import Sequence
from pathlib import Path

from plugwright.errors import PluginError
from plugwright.model import Mount
from plugwright.plugins.nvidia.options import Places

__all__ = ["Libraries"]

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
