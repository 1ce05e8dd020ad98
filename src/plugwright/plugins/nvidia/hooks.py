"""CDI hooks to complete the mounts of a container: links, the loader's cache, CUDA's forward compatibility.

They call a program of the host: NVIDIA's if it is installed, otherwise that of native/cdi-hook, which implements two of
its commands and which the daemon copies to the host. The command lines are those of `nvidia-cdi-hook`; `nvidia-ctk
hook` supports them as well. Without a program there are no hooks, and every file is mounted under all its names.
"""

import mmap
import os
import struct
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from plugwright.plugins.nvidia.config import NvidiaConfig
from plugwright.sdk import cdi
from plugwright.system import files

__all__ = ["OWN_PROGRAM", "HookProgram", "find"]

OWN_PROGRAM = "plugwright-cdi-hook"
_IN_THE_IMAGE = "/usr/lib/plugwright/cdi-hook"

_UPDATE_CACHE, _LINKS = "update-ldcache", "create-symlinks"
_COMPATIBILITY, _KEEP_NODES = "enable-cuda-compat", "disable-device-node-modification"
_NEWER = (_COMPATIBILITY, _KEEP_NODES)  # since 1.17.5 and 1.17.8 of the toolkit

_PROGRAMS = ("usr/bin/nvidia-cdi-hook", "usr/bin/nvidia-ctk", "usr/local/bin/nvidia-cdi-hook")
_OF_THE_OPERATOR = Path("/usr/local/nvidia/toolkit/nvidia-cdi-hook")  # on the host and mounted into the daemon
_LDCONFIGS = ("sbin/ldconfig.real", "sbin/ldconfig", "usr/sbin/ldconfig.real", "usr/sbin/ldconfig")
_INTERPRETER = struct.pack("<I", 3)  # PT_INTERP


class HookProgram(msgspec.Struct, frozen=True):
    """A program of the host, and the newer commands it certainly supports: others would fail the container."""

    path: str
    commands: frozenset[str] = frozenset()

    def common(self, directories: Sequence[str], links: Sequence[tuple[str, str]], compat: str) -> list[cdi.Hook]:
        """The hooks of every container with a GPU. `compat` is the driver's version, to use an image's newer libcuda.

        The order matters: the loader's cache contains the links and the image's libraries.
        """
        folders = [word for directory in directories for word in ("--folder", directory)]
        hooks = [*self.links(links)]
        if compat and _COMPATIBILITY in self.commands:
            hooks.append(self._hook(_COMPATIBILITY, f"--host-driver-version={compat}"))
        hooks.append(self._hook(_UPDATE_CACHE, *folders))
        if _KEEP_NODES in self.commands:
            hooks.append(self._hook(_KEEP_NODES))
        return hooks

    def links(self, links: Iterable[tuple[str, str]]) -> list[cdi.Hook]:
        words = [word for target, path in links for word in ("--link", f"{target}::{path}")]
        return [self._hook(_LINKS, *words)] if words else []

    def _hook(self, command: str, *arguments: str) -> cdi.Hook:
        name = Path(self.path).name
        words = [name, "hook"] if name == "nvidia-ctk" else [name]
        return cdi.Hook("createContainer", self.path, [*words, command, *arguments])


def find(config: NvidiaConfig, mounts: Path = Path("/proc/self/mountinfo")) -> HookProgram | None:
    """The program chosen by `cdi.hooks`, or None. A configured path is on the host, and can be invisible here."""
    if config.cdi.hooks == "none" or config.simulate:
        return None
    if config.cdi.hooks != "auto":
        return HookProgram(config.cdi.hooks, _newer_commands(Path(config.cdi.hooks)))
    root = Path(config.driver.root)
    # A program of a driver's own root, other than the host's, would not find its libraries on the host.
    of_the_host = Path(config.driver.host or config.driver.root) == Path("/")
    visible = {f"/{name}": root / name for name in (_PROGRAMS if of_the_host else ())}
    for path, seen in {**visible, str(_OF_THE_OPERATOR): _OF_THE_OPERATOR}.items():
        if seen.is_file():
            return HookProgram(path, _newer_commands(seen))
    has_ldconfig = of_the_host and any(_is_static(root / name) for name in _LDCONFIGS)
    return _own_program(Path(config.cdi.programs), mounts) if has_ldconfig else None


def _own_program(directory: Path, mounts: Path) -> HookProgram | None:
    """Our program, copied to the host; None if its directory is not the host's, because no runtime could call it."""
    from shutil import which  # with its compression libraries, which other strategies save

    source = which(OWN_PROGRAM, path=f"{os.environ.get('PATH', '')}:{_IN_THE_IMAGE}")
    if source is None or not _is_of_the_host(directory, mounts.read_text(encoding="utf-8")):
        return None
    target, content = directory / OWN_PROGRAM, Path(source).read_bytes()
    if not target.is_file() or target.read_bytes() != content:
        files.write_atomically(target, content, mode=0o755)
    return HookProgram(str(target))


def _is_of_the_host(directory: Path, mountinfo: str) -> bool:
    """Whether the directory is mounted from the same path of the host, and not a volume or a part of the image."""
    found = ("/", "", "")  # the innermost mount: its mount point, source and file system type
    for line in mountinfo.splitlines():
        words = line.split(" ")
        if directory.is_relative_to(words[4]) and len(words[4]) >= len(found[0]):
            found = (words[4], words[3], words[words.index("-") + 1])
    place, of, kind = found
    path = Path(of) / directory.relative_to(place)
    if place == "/" and of == "/" and kind not in ("overlay", "tmpfs"):
        return True  # the daemon runs on the host itself
    return place != "/" and kind not in ("overlay", "tmpfs") and str(directory).endswith(str(path))


def _is_static(program: Path) -> bool:
    """Whether the program needs no loader: another would run with the libraries of the container's image."""
    try:
        with program.open("rb") as file:
            header = file.read(64)
            if header[:5] != b"\x7fELF\x02":  # of 64 bits
                return False
            (offset,), (size, count) = struct.unpack_from("<Q", header, 32), struct.unpack_from("<HH", header, 54)
            file.seek(offset)
            parts = [file.read(size) for _ in range(count)]
    except OSError:
        return False
    return all(part[:4] != _INTERPRETER for part in parts)


def _newer_commands(program: Path) -> frozenset[str]:
    """The newer commands, if the program can be read; NVIDIA's operator wraps its own, which then ends in `.real`."""
    found: set[str] = set()
    for path in (program, program.with_name(f"{program.name}.real")):
        try:
            with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                found |= {command for command in _NEWER if content.find(command.encode()) >= 0}
        except (OSError, ValueError):  # missing or empty
            continue
    return frozenset(found)
