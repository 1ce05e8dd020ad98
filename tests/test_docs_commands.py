"""Every command that the README and the pages write out works from a clone or from the files of a release.

`plugwright` commands have arguments and options that exist, `make` targets and the files of the tree are there, and
nothing is installed from a place where it has not been published. Sessions are played: tests/test_tutorials.py,
tests/kubernetes/test_transcript.py.
"""

import re
import shlex
from pathlib import Path

import click
import pytest

from plugwright.cli.main import cli

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
WRITTEN = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.glob("*.md"))]
TARGETS = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
PLACEHOLDERS = ("[", "…", " -- ")  # a synopsis, or what follows is another program's


def commands(page: Path) -> list[str]:
    text = re.sub(r"\\\n\s*", "", page.read_text())
    lines = re.findall(r"^(?: {4}(?:\$ )?|\$ )(?:kubectl )?(plugwright .*)$", text, re.MULTILINE)
    plain = [re.split(r"\s{2,}#\s|\s[>|&]", line)[0] for line in lines]
    return [line for line in plain if not any(sign in line for sign in PLACEHOLDERS)]


def quoted(page: Path) -> list[str]:
    """Commands in the middle of a sentence or in a table."""
    lines = re.findall(r"`(?:kubectl )?(plugwright (?!does )[a-z-]+(?: [^`]*)?)`", page.read_text())
    return [line for line in lines if not any(sign in line for sign in PLACEHOLDERS)]


PAGES = {page.name: found for page in WRITTEN if (found := commands(page))}
QUOTED = {page.name: found for page in WRITTEN if (found := quoted(page))}


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
            pytest.fail(f"{page}: {line}: {error.format_message()}")
        except click.exceptions.Exit:
            continue  # its help


@pytest.mark.parametrize("page", QUOTED)
def test_the_commands_that_a_page_mentions_exist(page: str) -> None:
    for line in QUOTED[page]:
        command: click.Command | None = cli
        for word in line.split()[1:]:
            if not isinstance(command, click.Group) or word.startswith("-"):
                break
            command = command.get_command(click.Context(command), word)
            assert command is not None, f"{page}: {line}"


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: page.name)
def test_make_targets_that_a_page_names_exist(page: Path) -> None:
    named = set(re.findall(r"(?:`|^ {4}|\n\$ )make ([a-z][a-z0-9-]*)(?![/\w])", page.read_text(), re.MULTILINE))
    assert named <= TARGETS


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: page.name)
def test_plugwright_is_installed_from_a_clone_or_a_file(page: Path) -> None:
    """Until it is published: an index has no such package, a registry no such image or chart."""
    commands = re.findall(r"pip install ([^`\n]*)", page.read_text())
    words = [word for command in commands for word in shlex.split(command, comments=True)]
    assert not [word for word in words if re.fullmatch(r"plugwright([\[=].*)?", word)], page.name
    assert "oci://" not in page.read_text()


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: page.name)
def test_files_of_the_tree_that_a_command_takes_exist(page: Path) -> None:
    lines = "\n".join(re.findall(r"^ {4}.*$", page.read_text(), re.MULTILINE))
    for path in re.findall(r"(?<=\s)((?:deploy|examples|native|tests|bench)/[\w./-]+)", lines):
        assert (ROOT / path).exists(), f"{page.name}: {path}"


def test_pages_have_commands() -> None:
    assert {"install.md", "mock.md", "operations.md", "run.md"} <= PAGES.keys()
    assert sum(map(len, PAGES.values())) > 40
