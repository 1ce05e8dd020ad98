"""The fixtures of ordinary devices."""

from pathlib import Path

import pytest
from tests.plugins.generic.machines import Machine


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    root = tmp_path / "machine"
    root.mkdir()
    machine = Machine(root)
    machine.write("/proc/2/comm", "kthreadd")
    return machine
