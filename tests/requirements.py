"""Programs and machines that some tests need: without them a test is skipped, or fails if they are required.

PLUGWRIGHT_REQUIRE lists what is required, separated by spaces: `go`, `helm`, `kubernetes`, `prometheus`, `helm4`,
`gpu`, `chromium`, `images`, `pythons`. CI requires all but the last five, so none of them is missing there unnoticed.
Ring 2 builds helm 4, and a release requires the last two.
"""

import os
import shutil
import subprocess
from pathlib import Path
from typing import NoReturn

import pytest

__all__ = ["go_program", "unavailable"]

_OFFLINE = {"CGO_ENABLED": "0", "GOPROXY": "off", "GOTOOLCHAIN": "local"}


def unavailable(requirement: str, reason: str) -> NoReturn:
    """Skip the running test because `requirement` is missing, or fail it if PLUGWRIGHT_REQUIRE lists it."""
    if requirement in os.environ.get("PLUGWRIGHT_REQUIRE", "").split():
        pytest.fail(f"{requirement} is required (PLUGWRIGHT_REQUIRE): {reason}", pytrace=False)
    pytest.skip(reason)


def go_program(source: Path, directory: Path) -> Path:
    """Build the Go program in `source` without a network; `make go-programs` downloads its modules."""
    if shutil.which("go") is None:
        unavailable("go", "needs Go")
    environment = {**os.environ, **_OFFLINE}
    listed = subprocess.run(
        ["go", "list", "-deps", "."], cwd=source, env=environment, capture_output=True, text=True, check=False
    )
    if listed.returncode:
        unavailable("go", f"needs its Go modules, `make go-programs` downloads them: {listed.stderr.strip()[:200]}")
    program = directory / source.name
    subprocess.run(["go", "build", "-trimpath", "-o", program, "."], cwd=source, env=environment, check=True)
    return program
