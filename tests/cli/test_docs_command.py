"""`plugwright docs` shows the pages of this version without a network."""

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from plugwright.cli.docs import filled
from plugwright.cli.main import cli

PAGES = Path(__file__).parents[2] / "docs"


def test_every_page_is_listed_with_its_title() -> None:
    lines = CliRunner().invoke(cli, ["docs"]).output.splitlines()
    assert {line.split()[0] for line in lines} == {page.stem for page in PAGES.glob("*.md")}
    assert all(len(line.split()) > 1 for line in lines)


@pytest.mark.parametrize("topic", ["cluster-limits", "cluster-limits.md", "docs/cluster-limits.md#workloads"])
def test_a_page_is_shown_as_it_is(topic: str) -> None:
    assert CliRunner().invoke(cli, ["docs", topic]).output == (PAGES / "cluster-limits.md").read_text()


@pytest.mark.parametrize(
    ("topic", "text"), [("clustr", "did you mean 'cluster'?"), ("../../etc/passwd", "`plugwright docs` lists them")]
)
def test_an_unknown_page_is_refused(topic: str, text: str) -> None:
    words = [sys.executable, "-m", "plugwright", "docs", topic]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    assert text in done.stderr


def test_a_terminal_gets_paragraphs_of_its_width_and_every_word() -> None:
    for page in PAGES.glob("*.md"):
        text = page.read_text()
        assert "\n".join(filled(text, 60)).split() == text.split(), page


def test_code_and_tables_stay_as_they_are() -> None:
    text = "# T\n\none two\nthree\n- four five\n  six seven\n\n| a | b c d e f |\n\n```sh\necho one two\necho\n```\n"
    assert list(filled(text, 12)) == [
        "# T", "", "one two\nthree", "- four five\n  six seven", "", "| a | b c d e f |", "", "```sh", "echo one two",
        "echo", "```", "",
    ]  # fmt: skip
