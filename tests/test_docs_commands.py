"""Every `plugwright` command in docs/ that is written out in full has a command, arguments and options that exist."""

import re
import shlex
from pathlib import Path

import click
import pytest

from plugwright.cli.main import cli

DOCS = Path(__file__).parent.parent / "docs"
PLACEHOLDERS = ("[", "…", " -- ")  # a synopsis, or what follows is another program's


def commands(page: Path) -> list[str]:
    text = re.sub(r"\\\n\s*", "", page.read_text())
    lines = re.findall(r"^ {4}(?:\$ )?(plugwright .*)$", text, re.MULTILINE)
    plain = [re.split(r"\s{2,}#\s|\s[>|&]", line)[0] for line in lines]
    return [line for line in plain if not any(sign in line for sign in PLACEHOLDERS)]


PAGES = {page.name: found for page in sorted(DOCS.glob("*.md")) if (found := commands(page))}


def parse(command: click.Command, name: str, words: list[str], parent: click.Context | None = None) -> None:
    """Reads the words as the program would, and runs nothing."""
    is_other = isinstance(command, click.Group) and words and not words[0].startswith("-")
    if not isinstance(command, click.Group) or not is_other:
        with command.make_context(name, words, parent=parent):
            return
    # With the group's settings: a command keeps the help option that it first made.
    context = click.Context(command, info_name=name, parent=parent, **command.context_settings)
    inner, found, rest = command.resolve_command(context, words)
    assert found is not None
    parse(found, inner or "", rest, context)


@pytest.mark.parametrize("page", PAGES)
def test_the_commands_of_a_page_can_be_given(page: str) -> None:
    for line in PAGES[page]:
        try:
            parse(cli, "plugwright", shlex.split(line)[1:])
        except click.UsageError as error:
            pytest.fail(f"docs/{page}: {line}: {error.format_message()}")
        except click.exceptions.Exit:
            continue  # its help


def test_pages_have_commands() -> None:
    assert {"install.md", "mock.md", "operations.md", "run.md"} <= PAGES.keys()
    assert sum(map(len, PAGES.values())) > 40
