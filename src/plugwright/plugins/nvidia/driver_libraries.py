"""The driver's libraries, programs and other files on the host, and their paths in a container.

A library's source is its soname, such as `libcuda.so.1`, never the file behind the link: the kubelet reuses a stored
answer when a container restarts, and by then an update can have replaced `libcuda.so.580.1`. A runtime creates a
directory for a missing source, so only regular files count as the driver's.
"""

import itertools
import os
import platform
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath

import msgspec

from plugwright.errors import PluginError
from plugwright.model import Mount
from plugwright.plugins.nvidia.config import NvidiaDriver

__all__ = ["ORIGINALS", "DriverLibraries", "DriverLibrary", "DriverTree"]

ORIGINALS = "/usr/local/plugwright/vgpu/driver"  # in a container: the driver's libraries that are replaced

_MULTIARCH = f"{platform.machine()}-linux-gnu"
_LIBRARY_DIRECTORIES = (
    f"usr/lib/{_MULTIARCH}",
    "usr/lib64",
    f"usr/lib/{_MULTIARCH}/nvidia/current",
    f"lib/{_MULTIARCH}",
    "lib64",
    "usr/lib",
    "usr/local/nvidia/lib64",
)
# The default paths of the loader on Debian and Red Hat. An image uses at most one of them.
_LOADER_PATHS = (f"/usr/lib/{_MULTIARCH}", "/usr/lib64")
_MAIN_LIBRARY = "libcuda.so.1"

_NAME = re.compile(r"(?P<stem>.+)\.so(?:\.(?P<number>[0-9][0-9.]*))?")
_DRIVER_NUMBER = re.compile(r"[0-9]{3,}(?:\.[0-9]+)+")
# Not the libraries of NVIDIA's container toolkit. Names with the driver's version need no pattern.
_DRIVER_STEM = re.compile(r"libcuda|libcudadebugger|libnvcuvid|libnvidia-(?!container).+")
# Names that programs use and a host can lack: dlopen of libcuda.so is common, GLVND needs the second one.
_MORE_NAMES = {
    "libcuda.so.1": ("libcuda.so",),
    "libGLX_nvidia.so.0": ("libGLX_indirect.so.0",),
    "libnvidia-opticalflow.so.1": ("libnvidia-opticalflow.so",),
}
_PROGRAMS = (
    "nvidia-cuda-mps-control",
    "nvidia-cuda-mps-server",
    "nvidia-debugdump",
    "nvidia-imex",
    "nvidia-imex-ctl",
    "nvidia-persistenced",
    "nvidia-smi",
    "nvidia-xconfig",
)
_SETTINGS = (  # in a container; on the host below /usr/share, /usr/local/share or /etc
    "/etc/OpenCL/vendors/nvidia.icd",
    "/etc/vulkan/icd.d/nvidia_icd.json",
    f"/etc/vulkan/icd.d/nvidia_icd.{platform.machine()}.json",
    "/etc/vulkan/icd.d/nvidia_layers.json",
    "/etc/vulkan/implicit_layer.d/nvidia_layers.json",
    "/usr/share/X11/xorg.conf.d/10-nvidia.conf",
    "/usr/share/X11/xorg.conf.d/nvidia-drm-outputclass.conf",
    "/usr/share/egl/egl_external_platform.d/09_nvidia_wayland2.json",
    "/usr/share/egl/egl_external_platform.d/10_nvidia_wayland.json",
    "/usr/share/egl/egl_external_platform.d/15_nvidia_gbm.json",
    "/usr/share/egl/egl_external_platform.d/20_nvidia_xcb.json",
    "/usr/share/egl/egl_external_platform.d/20_nvidia_xlib.json",
    "/usr/share/glvnd/egl_vendor.d/10_nvidia.json",
    "/usr/share/nvidia/nvoptix.bin",
)
_SETTINGS_DIRECTORIES = ("etc", "usr/local/share", "usr/share")
_MOST_LINKS = 16


class DriverLibrary(msgspec.Struct, frozen=True):
    """A library by its soname, its other names on the host, and its path there."""

    source: str
    soname: str
    aliases: tuple[str, ...] = ()


class DriverTree(msgspec.Struct, frozen=True):
    """The files of an installed driver. `version` is empty if no file name contains it."""

    version: str
    libraries: tuple[DriverLibrary, ...]
    files: tuple[Mount, ...]  # programs and settings
    firmware: tuple[Mount, ...]


class DriverLibraries:
    """Finds the driver's files. A directory of libraries contains thousands, so it is read only after changes."""

    def __init__(self, config: NvidiaDriver) -> None:
        self._root = Path(config.root)
        self._host_root = Path(config.host or config.root)
        self._container_directories = tuple(config.libraries) or _LOADER_PATHS
        self._programs = self._root / "usr/bin"
        self._cached: tuple[Path, object, DriverTree] | None = None
        self._mounts: dict[bool, tuple[DriverTree, tuple[Mount, ...]]] = {}  # by whether other names are links

    def tree(self) -> DriverTree:
        """The files of the driver; PluginError if no driver is installed."""
        cached = self._cached
        if cached is None or cached[1] != self._changed_at(cached[0]):
            directory = self._directory()
            cached = self._cached = (directory, self._changed_at(directory), self._read(directory))
        return cached[2]

    def read_directories(self) -> list[Path]:
        """The directories whose changes make another tree; empty before the first read."""
        return [self._cached[0], self._programs] if self._cached is not None else []

    def directories(self, linked: bool) -> Sequence[str]:
        """The libraries' directories in a container. A single name suffices if a hook adds it to the loader's cache."""
        return self._container_directories[:1] if linked else self._container_directories

    def mounts(self, linked: bool = False) -> tuple[Mount, ...]:
        """Libraries, programs and settings, and their other names unless a hook makes these as links."""
        tree = self.tree()
        if linked not in self._mounts or self._mounts[linked][0] is not tree:
            libraries = [mount for library in tree.libraries for mount in self._mounts_of(library, linked)]
            self._mounts[linked] = (tree, (*libraries, *tree.files))
        return self._mounts[linked][1]

    def links(self) -> list[tuple[str, str]]:
        """The other names of the libraries in a container: target and path of each."""
        return [
            (PurePosixPath(library.soname).name, f"{directory}/{alias}")
            for directory in self.directories(linked=True)
            for library in self.tree().libraries
            for alias in library.aliases
        ]

    def replacements(self, sources: Mapping[str, str], linked: bool = False) -> list[Mount]:
        """Mounts these host files, by soname, in place of the driver's, which are then in ORIGINALS."""
        libraries = {library.soname: library for library in self.tree().libraries}
        mounts: list[Mount] = []
        for soname, source in sorted(sources.items()):
            if soname not in libraries:
                raise PluginError(f"the driver under {self._root} has no {soname} that another could stand in for")
            original, aliases = libraries[soname], libraries[soname].aliases
            mounts += self._mounts_of(DriverLibrary(source, soname, aliases), linked)
            mounts.append(Mount(original.source, f"{ORIGINALS}/{soname}", read_only=True))
        return mounts

    def host_path(self, path: str) -> str:
        """The host path of a path below the driver's root."""
        return str(self._host_root / path.lstrip("/"))

    def _mounts_of(self, library: DriverLibrary, linked: bool) -> Iterator[Mount]:
        for directory in self.directories(linked):
            for name in (library.soname, *(() if linked else library.aliases)):
                yield Mount(library.source, f"{directory}/{name}", read_only=True)

    def _directory(self) -> Path:
        """The directory of the main library's file; Debian's packages link to it from the loader's directory."""
        for name in _LIBRARY_DIRECTORIES:
            directory = self._root / name
            library = self._followed(directory / _MAIN_LIBRARY)
            if library.is_file():
                return library.parent if (library.parent / _MAIN_LIBRARY).exists() else directory
        raise PluginError(f"no {_MAIN_LIBRARY} under {self._root}: set driver.root to where the driver is installed")

    def _changed_at(self, directory: Path) -> list[int]:
        return [path.stat().st_mtime_ns if path.is_dir() else 0 for path in (directory, self._programs)]

    def _read(self, directory: Path) -> DriverTree:
        version = _version(self._followed(directory / _MAIN_LIBRARY).name)
        libraries = [*self._libraries(directory, version), *self._libraries(directory / "vdpau", version, "vdpau/")]
        gbm = directory / "gbm/nvidia-drm_gbm.so"
        if self._is_file(gbm):
            libraries.append(DriverLibrary(self._on_host(gbm), "gbm/nvidia-drm_gbm.so"))
        found = (self._mount(self._programs / name, f"/usr/bin/{name}") for name in _PROGRAMS)
        files = (*(mount for mount in found if mount), *self._settings())
        return DriverTree(version, tuple(libraries), files, tuple(self._firmware(version)))

    def _libraries(self, directory: Path, version: str, prefix: str = "") -> list[DriverLibrary]:
        """Every library of this driver, with its names."""
        entries = {name: match for name in _names_in(directory) if (match := _NAME.fullmatch(name))}
        stems = {
            match["stem"]
            for match in entries.values()
            if (version and match["number"] == version) or _DRIVER_STEM.fullmatch(match["stem"])
        }
        names: dict[Path, list[str]] = {}
        for name, match in entries.items():
            path = self._followed(directory / name)
            if match["stem"] in stems and path.is_file() and not _is_of_another(path.name, version):
                names.setdefault(path, []).append(name)
        return [self._library(directory, found, version, prefix) for _, found in sorted(names.items())]

    def _library(self, directory: Path, names: Iterable[str], version: str, prefix: str) -> DriverLibrary:
        """The soname is the name with a number; for a few libraries the number is the driver's version.

        Their source is the name without a number, if the host has it, because it survives an update.
        """

        def has_version(name: str) -> bool:
            return bool(version) and _number(name) == version

        stable, *others = sorted(names, key=lambda name: (has_version(name), not _number(name), len(name), name))
        soname = next(filter(has_version, others), stable) if not _number(stable) else stable
        more = {stable, *(name for name in others if not has_version(name)), *_MORE_NAMES.get(soname, ())}
        aliases = tuple(prefix + name for name in sorted(more - {soname}))
        return DriverLibrary(self._on_host(directory / stable), prefix + soname, aliases)

    def _settings(self) -> Iterator[Mount]:
        for target in _SETTINGS:
            name = target.removeprefix("/etc/").removeprefix("/usr/share/")
            found = (self._mount(self._root / place / name, target) for place in _SETTINGS_DIRECTORIES)
            yield from itertools.islice((mount for mount in found if mount), 1)

    def _firmware(self, version: str) -> Iterator[Mount]:
        release = platform.release()
        for place in (f"updates/{release}", "updates", release, ""):
            directory = Path("lib/firmware", place, "nvidia", version)
            if version and (self._root / directory).is_dir():
                for path in sorted((self._root / directory).glob("gsp*.bin")):
                    if mount := self._mount(path, f"/{directory}/{path.name}"):
                        yield mount

    def _mount(self, path: Path, target: str) -> Mount | None:
        return Mount(self._on_host(path), target, read_only=True) if self._is_file(path) else None

    def _is_file(self, path: Path) -> bool:
        return self._followed(path).is_file()

    def _followed(self, path: Path) -> Path:
        """The file behind a link; an absolute target is relative to the driver's root."""
        for _ in range(_MOST_LINKS):
            if not path.is_symlink():
                break
            path = self._target(path)
        return path

    def _on_host(self, path: Path) -> str:
        """The path on the host, as a link if the host can follow it, unlike an absolute link of another root."""
        hop = path
        while self._host_root != Path("/") and hop.is_symlink():
            if hop.readlink().is_absolute():
                return self._on_host(self._target(hop))
            hop = self._target(hop)
        return str(self._host_root / path.relative_to(self._root))

    def _target(self, link: Path) -> Path:
        target = link.readlink()
        path = self._root / target.relative_to("/") if target.is_absolute() else link.parent / target
        return Path(os.path.normpath(path))


def _names_in(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir()) if directory.is_dir() else []


def _number(name: str) -> str:
    match = _NAME.fullmatch(name)
    return (match["number"] or "") if match else ""


def _version(name: str) -> str:
    return number if _DRIVER_NUMBER.fullmatch(number := _number(name)) else ""


def _is_of_another(name: str, version: str) -> bool:
    """Whether the file belongs to another version of the driver."""
    return bool(version) and _version(name) not in ("", version)
