"""CDI hooks that complete what is mounted into a container: links, the loader's cache, CUDA's forward compatibility.

They call a program of the host, NVIDIA's where it is installed. Its command lines are those of `nvidia-cdi-hook`, which
`nvidia-ctk hook` has as well. Without a program there are no hooks, and everything is mounted under every name.
"""

import mmap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from plugwright.plugins.nvidia.config import NvidiaConfig
from plugwright.sdk import cdi

__all__ = ["HookProgram", "find"]

_UPDATE_CACHE, _LINKS = "update-ldcache", "create-symlinks"
_COMPATIBILITY, _KEEP_NODES = "enable-cuda-compat", "disable-device-node-modification"
_NEWER = (_COMPATIBILITY, _KEEP_NODES)  # since 1.17.5 and 1.17.8 of the toolkit

_PROGRAMS = ("usr/bin/nvidia-cdi-hook", "usr/bin/nvidia-ctk", "usr/local/bin/nvidia-cdi-hook")
_OF_THE_OPERATOR = Path("/usr/local/nvidia/toolkit/nvidia-cdi-hook")  # on the host and mounted into the daemon


@dataclass(frozen=True, slots=True)
class HookProgram:
    """A program of the host, and the newer commands that it is known to have: another would fail the container."""

    path: str
    commands: frozenset[str] = frozenset()

    def common(self, directories: Sequence[str], links: Sequence[tuple[str, str]], compat: str) -> list[cdi.Hook]:
        """For every container with a GPU. `compat` is the driver's version: a newer libcuda in the image is used then.

        The order counts: the loader's cache is made of the links and of what the image brings.
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


def find(config: NvidiaConfig) -> HookProgram | None:
    """The program that `cdi.hooks` chooses, or None. One at a given path is the host's, and may not be visible here."""
    if config.cdi.hooks == "none" or config.simulate:
        return None
    if config.cdi.hooks != "auto":
        return HookProgram(config.cdi.hooks, _newer_commands(Path(config.cdi.hooks)))
    root = Path(config.driver.root)
    # A program of a driver's own root, which is not the host's, would not find its libraries on the host.
    names = _PROGRAMS if Path(config.driver.host or config.driver.root) == Path("/") else ()
    visible = {f"/{name}": root / name for name in names} | {str(_OF_THE_OPERATOR): _OF_THE_OPERATOR}
    for path, seen in visible.items():
        if seen.is_file():
            return HookProgram(path, _newer_commands(seen))
    return None


def _newer_commands(program: Path) -> frozenset[str]:
    """As far as the program can be read; NVIDIA's operator wraps its own, which then ends in `.real`."""
    found: set[str] = set()
    for path in (program, program.with_name(f"{program.name}.real")):
        try:
            with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                found |= {command for command in _NEWER if content.find(command.encode()) >= 0}
        except (OSError, ValueError):  # not there, or empty
            continue
    return frozenset(found)
