"""Programs in Go for the tests of conformance, built without a network."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

__all__ = ["built"]

_OFFLINE = {"CGO_ENABLED": "0", "GOPROXY": "off", "GOTOOLCHAIN": "local"}


def built(source: Path, directory: Path) -> Path:
    """The program; the test is skipped where Go or the modules are missing."""
    if shutil.which("go") is None:
        pytest.skip("needs Go, to build a program that is not in Python")
    go = {**os.environ, **_OFFLINE}
    listed = subprocess.run(
        ["go", "list", "-deps", "."], cwd=source, env=go, capture_output=True, text=True, check=False
    )
    if listed.returncode:
        pytest.skip(f"needs its modules of k8s.io, downloaded before: {listed.stderr.strip()[:200]}")
    subprocess.run(["go", "build", "-trimpath", "-o", directory / "plugin", "."], cwd=source, env=go, check=True)
    return directory / "plugin"
