"""Plugins named on the command line: what is loaded is the file as it is now."""

import os
import sys
from pathlib import Path

import pytest

from plugwright.cli.plugin_target import load_plugins

TAPE = """
from plugwright import Device, Plugin
class Tape(Plugin):
    resource = "example.com/NAME"
    async def discover(self):
        yield [Device("st0")]
"""


def test_a_save_in_the_same_second_and_of_the_same_size_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setitem(sys.modules, "saved_tape", sys)
    file = tmp_path / "saved_tape.py"
    for name in ("tape", "disk"):
        file.write_text(TAPE.replace("NAME", name))
        os.utime(file, (1_700_000_000, 1_700_000_000))
        assert [plugin.resource for plugin in load_plugins(str(file))] == [f"example.com/{name}"]
    assert not (tmp_path / "__pycache__").exists()
