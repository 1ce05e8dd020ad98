"""`plugwright docs`: the pages of the documentation, installed with the package."""

import re
import shutil
import sys
from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path
from textwrap import fill

import click
from click.shell_completion import CompletionItem

from plugwright.cli.output import wrapped
from plugwright.errors import ConfigError

__all__ = ["docs", "filled"]

_PACKAGE = Path(__file__).parents[1]
_PLACES = (_PACKAGE / "pages", _PACKAGE.parents[1] / "docs")  # of a wheel, and of a checkout
_RULE = "#"
_KEPT = ("|", "#", "    ", "```", "!")  # lines that are no prose: tables, headings, code, pictures
_ITEM = re.compile(r" *(?:-|\d+\.) ")


def _pages() -> dict[str, Path]:
    """The pages by name, from the first place that has any."""
    for place in _PLACES:
        if found := {page.stem: page for page in sorted(place.glob("*.md"))}:
            return found
    raise ConfigError("this installation has no pages: they are in the directory docs of the source")


def _complete(_context: click.Context, _parameter: click.Parameter, begin: str) -> list[CompletionItem]:
    return [CompletionItem(name, help=_title(page)) for name, page in _pages().items() if name.startswith(begin)]


@click.command(epilog="Example:  plugwright docs cluster | grep -i helm")
@click.argument("topic", required=False, shell_complete=_complete)
def docs(topic: str | None) -> None:
    """Show a page of the documentation, offline; without TOPIC, list the pages.

    On a terminal, PAGER shows the page, with its paragraphs as wide as the terminal.
    """
    pages = _pages()
    if topic is None:
        width = max(map(len, pages))
        for name, page in pages.items():
            click.echo(wrapped(f"{name.ljust(width)}  {_title(page)}", width + 2))
        return
    name = topic.removeprefix("docs/").partition("#")[0].removesuffix(".md")
    if name not in pages:
        close = get_close_matches(name, pages, n=1, cutoff=0.5)
        hint = f"did you mean {close[0]!r}?" if close else "`plugwright docs` lists them"
        raise ConfigError(f"there is no page {topic!r}; {hint}")
    text = pages[name].read_text(encoding="utf-8")
    if sys.stdout.isatty():
        click.echo_via_pager("\n".join(filled(text, shutil.get_terminal_size().columns)))
    else:
        click.echo(text, nl=False)


def filled(text: str, width: int) -> Iterator[str]:
    """The lines of a page, with its paragraphs and list items filled to the width; code and tables stay as they are."""
    paragraph: list[str] = []
    is_code = False
    for line in [*text.splitlines(), ""]:
        is_kept = is_code or not line or line.startswith(_KEPT)
        if paragraph and (is_kept or _ITEM.match(line)):
            yield _paragraph(" ".join(paragraph), width)
            paragraph = []
        if is_kept:
            yield line
        else:
            paragraph.append(line.strip() if paragraph else line.rstrip())
        is_code ^= line.startswith("```")


def _paragraph(text: str, width: int) -> str:
    mark = _ITEM.match(text)
    indent = " " * len(mark[0]) if mark else ""
    return fill(text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def _title(page: Path) -> str:
    with page.open(encoding="utf-8") as lines:
        return next((line.lstrip(_RULE).strip() for line in lines if line.startswith(_RULE)), "")
