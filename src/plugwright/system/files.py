"""Files that others read while we write them: a reader sees the old one or the new one, never half of it."""

import os
from pathlib import Path

__all__ = ["replace", "sync_directory"]

_MODE = 0o644  # containers and people who look are not all root


def replace(path: Path, text: str) -> None:
    """Readable by everyone; its directory is made where it is missing."""
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.new")
    new.write_text(text)
    new.chmod(_MODE)
    new.replace(path)


def sync_directory(directory: Path) -> None:
    """A rename is on disk only when the directory is."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
