"""`plugwright docs`: the pages of the documentation, installed with the package."""

import sys
from difflib import get_close_matches
from pathlib import Path

import click
from click.shell_completion import CompletionItem

from plugwright.errors import ConfigError

__all__ = ["docs"]

_PACKAGE = Path(__file__).parents[1]
_PLACES = (_PACKAGE / "pages", _PACKAGE.parents[1] / "docs")  # of a wheel, and of a checkout
_RULE = "#"


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
    """Show a page of the documentation, without a network; without a TOPIC, list the pages.

    On a terminal the page is shown in PAGER.
    """
    pages = _pages()
    if topic is None:
        width = max(map(len, pages))
        for name, page in pages.items():
            click.echo(f"{name.ljust(width)}  {_title(page)}")
        return
    name = topic.removeprefix("docs/").partition("#")[0].removesuffix(".md")
    if name not in pages:
        close = get_close_matches(name, pages, n=1, cutoff=0.4)
        hint = f"did you mean {close[0]!r}?" if close else "`plugwright docs` lists them"
        raise ConfigError(f"there is no page {topic!r}; {hint}")
    text = pages[name].read_text(encoding="utf-8")
    if sys.stdout.isatty():
        click.echo_via_pager(text)
    else:
        click.echo(text, nl=False)


def _title(page: Path) -> str:
    with page.open(encoding="utf-8") as lines:
        return next((line.lstrip(_RULE).strip() for line in lines if line.startswith(_RULE)), "")
