"""What docs/authors.md shows works as it is written there, and its commands and flags exist."""

import re
import subprocess
from pathlib import Path

import click
import pytest
from tests.testing.projects import PYTEST

from plugwright.cli.main import cli

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "authors.md").read_text()
CARD, TEST = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
COMMANDS = sorted(set(re.findall(r"plugwright ((?:new|dev|run|manifest|up|kubelet|status|cordon)\b[^`|#\n]*)", PAGE)))


def test_the_plugin_of_the_page_passes_the_test_of_the_page(tmp_path: Path) -> None:
    (tmp_path / "card.py").write_text(CARD)
    (tmp_path / "test_card.py").write_text(TEST)
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\nasyncio_mode = auto\nasyncio_default_fixture_loop_scope = function\n"
    )
    done = subprocess.run(PYTEST, cwd=tmp_path, capture_output=True, text=True, timeout=110, check=False)
    assert "1 passed" in done.stdout, done.stdout


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_of_the_page_has_the_flags_that_it_names(line: str) -> None:
    name, *words = line.split()
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    known = {flag for option in command.params for flag in option.opts}
    assert {word for word in words if word.startswith("--")} <= known


def test_links_within_the_page_lead_somewhere() -> None:
    headings = re.findall(r"^## (.+)$", PAGE, re.MULTILINE)
    anchors = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
    assert set(re.findall(r"\]\(#([^)]+)\)", PAGE)) <= anchors
