"""The sections and commands that tests of ring 2 play are on their pages, so that a renamed heading shows at once."""

import re
from pathlib import Path

import pytest
from tests.kubernetes.documented import Page

DIRECTORY = Path(__file__).parent / "kubernetes"
PAGES = re.compile(r"^([A-Z_, ]+) = (Page\(.*\))$", re.MULTILINE)
NAME = re.compile(r"\"([a-z0-9-]+\.md)\"")
COMMAND = re.compile(r"\b([A-Z_]+)\.command\(\"([^\"]+)\", \"([^\"]+)\"\)")
SECTION = re.compile(r"\b([A-Z_]+)\.(?:commands|yaml)\(\"([^\"]+)\"\)")


def texts() -> dict[str, str]:
    return {path.name: path.read_text() for path in sorted(DIRECTORY.glob("*.py")) if PAGES.search(path.read_text())}


@pytest.mark.parametrize("name", texts())
def test_played_commands_are_on_their_pages(name: str) -> None:
    text = texts()[name]
    pages = {
        variable: Page(page)
        for variables, values in PAGES.findall(text)
        for variable, page in zip(variables.split(", "), NAME.findall(values), strict=True)
    }
    for variable, heading, beginning in COMMAND.findall(text):
        assert pages[variable].command(heading, beginning)
    for variable, heading in SECTION.findall(text):
        assert pages[variable].commands(heading) or pages[variable].yaml(heading)


def test_some_commands_are_played() -> None:
    assert sum(len(COMMAND.findall(text)) for text in texts().values()) > 10
