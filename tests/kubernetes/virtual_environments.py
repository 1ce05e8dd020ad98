"""Python environments with one package each, from PyPI, kept in the cache."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.kubernetes import building

__all__ = ["InstallFailed", "python_with"]


class InstallFailed(Exception):
    """A package could not be installed; the text has the last words of `uv`."""


def python_with(package: str, version: str) -> Path:
    """The interpreter of an environment that has the package and what it requires."""
    place = building.cache() / f"python-{package}-{version}"
    if not place.is_dir():
        made = place.with_name(f"{place.name}.{os.getpid()}")
        shutil.rmtree(made, ignore_errors=True)
        _uv("venv", "--quiet", "--relocatable", "--python", sys.executable, str(made))
        _uv("pip", "install", "--quiet", "--python", str(made / "bin" / "python"), f"{package}=={version}")
        made.rename(place)  # all or nothing: what was interrupted is never taken for done
    return place / "bin" / "python"


def _uv(*arguments: str) -> None:
    program = Path(sys.executable).with_name("uv")
    environment = {**os.environ, "UV_PYTHON_DOWNLOADS": "never"}
    done = subprocess.run([program, *arguments], env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise InstallFailed(done.stderr.strip()[-500:])
