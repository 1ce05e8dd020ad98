"""Lays out what the image adds to its base: the environment, and bytecode that the base may lack.

Called as: /opt/plugwright/bin/python stage.py /opt/plugwright /stage

The official Python images come without bytecode of the standard library, and our root file system is read-only: every
start would compile asyncio anew. So the modules that plugwright loads are compiled here once.
"""

import importlib
import pkgutil
import py_compile
import shutil
import sys
import sysconfig
from contextlib import suppress
from pathlib import Path

import plugwright
from plugwright.errors import PlugwrightError

__all__: list[str] = []


def main() -> None:
    environment, stage = Path(sys.argv[1]), Path(sys.argv[2])
    load_everything()
    library = Path(sysconfig.get_path("stdlib"))
    for source, cached in loaded_files():
        if source.is_relative_to(library) and not cached.exists():
            # By time stamp, which Python checks: the base may one day have another standard library than the builder.
            py_compile.compile(str(source), str(below(stage, cached)), doraise=True)
    shutil.copytree(environment, below(stage, environment), symlinks=True)
    protect(below(stage, environment))


def load_everything() -> None:
    for module in pkgutil.walk_packages(plugwright.__path__, "plugwright.", onerror=lambda _: None):
        with suppress(ImportError, PlugwrightError):  # of an extra that is not in this image
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)


def loaded_files() -> list[tuple[Path, Path]]:
    specs = [getattr(module, "__spec__", None) for module in list(sys.modules.values())]
    return sorted({(Path(spec.origin), Path(spec.cached)) for spec in specs if spec and spec.origin and spec.cached})


def below(root: Path, path: Path) -> Path:
    return root / path.relative_to("/")


def protect(tree: Path) -> None:
    """Without the capability to override it, not even root can write here."""
    for path in [tree, *tree.rglob("*")]:
        if not path.is_symlink():
            path.chmod(path.stat().st_mode & ~0o222)


if __name__ == "__main__":
    main()
