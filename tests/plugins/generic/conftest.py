"""What the tests of ordinary devices share."""

from pathlib import Path

import pytest
from tests.plugins.generic.machines import Machine


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    root = tmp_path / "machine"
    root.mkdir()
    return Machine(root)
