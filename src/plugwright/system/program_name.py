"""This program's name in a command to paste."""

import shlex
import shutil
import sys
from pathlib import Path

__all__ = ["program_name"]


def program_name() -> str:
    """`plugwright` if the shell finds this program by this name, otherwise its path."""
    called = Path(sys.argv[0])
    if called.name == "__main__.py":
        return f"{shlex.quote(sys.executable)} -m plugwright"
    found = shutil.which("plugwright")
    if found is not None and Path(found).resolve() == called.resolve():
        return "plugwright"
    path = called.absolute()
    return shlex.quote(str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path))
