"""Output of the commands: tables, ages, and documents.

Tables are drawn by rich, which is loaded with the first of them. A table is as wide as its content, unless
`fitting_table` makes it fit a terminal. In a pipe it is plain text without colour, unless FORCE_COLOR is set.
Characters that a terminal would obey are shown as escapes.
"""

import json
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from io import StringIO
from typing import Any, TypeAlias

import click
import msgspec
import yaml

from plugwright.cli.color import color_choice
from plugwright.text import escaped

__all__ = [
    "Cell",
    "Dumper",
    "age",
    "document_printed",
    "echo_wrapped",
    "output_option",
    "print_in_stream",
    "print_table",
    "table_lines",
    "table_width",
    "wrapped",
]

Cell: TypeAlias = str | tuple[str, str]  # a text, optionally with its colour
_UNLIMITED = 1_000_000  # columns
_GAP = 2
_WORD = re.compile(r" *[^ ]+| +$")
_DETAIL_INDENT = 4
_COMMANDS = ("kubectl ", "plugwright ")


def output_option(text: str = "", default: str | None = "text") -> Callable[[Any], Any]:
    """`--output` of every command that prints a table; `wide` equals `text` for commands without further columns."""
    choices = click.Choice(["text", "wide", "json", "yaml"])
    return click.option("-o", "--output", type=choices, default=default, show_default=bool(default), help=text)


def document_printed(value: object, output: str) -> bool:
    """Prints the value and returns true if the output is a document: one line of JSON in a pipe, more on a terminal."""
    if output not in ("json", "yaml"):
        return False
    document = msgspec.to_builtins(value)
    if output == "yaml":
        click.echo(yaml.dump(document, Dumper=Dumper, sort_keys=False).rstrip())
    else:
        click.echo(json.dumps(document, indent=2 if sys.stdout.isatty() else None))
    return True


def print_in_stream(value: object, output: str) -> None:
    """Prints one of several documents: a line of JSON, or YAML after `---`."""
    document = msgspec.to_builtins(value)
    if output == "yaml":
        click.echo(f"---\n{yaml.dump(document, Dumper=Dumper, sort_keys=False).rstrip()}")
    else:
        click.echo(json.dumps(document))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[Cell]], details: Sequence[str] = ()) -> None:
    """Prints the table; `details` are texts of the rows, each on a separate line below its row."""
    head, *lines = table_lines(columns, rows)
    indent = " " * (max(len(_text(row[0])) for row in (columns, *rows)) + _DETAIL_INDENT)
    click.echo(head)
    for number, line in enumerate(lines):
        click.echo(line)
        if details:
            click.echo(wrapped(f"{indent}{details[number]}", len(indent) + _GAP))


def table_lines(columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> list[str]:
    """The header, and a line for each row."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_edge=False, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="")
    for column in columns:
        table.add_column(column, no_wrap=True)
    for row in rows:
        table.add_row(*(Text(escaped(_text(cell)), style="" if isinstance(cell, str) else cell[1]) for cell in row))
    choice = color_choice()
    has_color = sys.stdout.isatty() if choice is None else choice
    console = Console(file=StringIO(), width=_UNLIMITED, force_terminal=has_color, no_color=not has_color)
    with console.capture() as capture:
        console.print(table)
    return [line.rstrip() for line in capture.get().splitlines()]


def table_width(columns: Sequence[str], rows: Sequence[Sequence[Cell]], last: int = _UNLIMITED) -> int:
    """In characters, as `table_lines` draws it; of the last column at most `last` count."""
    widths = [max(len(escaped(_text(cell))) for cell in column) for column in zip(columns, *rows, strict=True)]
    return sum(widths[:-1]) + min(widths[-1], last) + _GAP * (len(columns) - 1)


def wrapped(line: str, indent: int) -> str:
    """Wraps the line on a terminal, indenting all lines but the first. Elsewhere returns it unchanged."""
    if not sys.stdout.isatty():
        return line
    width, lines, length = shutil.get_terminal_size().columns, [""], 0
    for word in _WORD.findall(line):
        if length and length + len(click.unstyle(word)) > width:
            lines.append(" " * indent)
            word, length = word.lstrip(" "), indent  # noqa: PLW2901
        lines[-1] += word
        length += len(click.unstyle(word))
    return "\n".join(lines)


def echo_wrapped(lines: Iterable[str]) -> None:
    """Prints the lines, each wrapped on a terminal, except commands, which are there to be pasted."""
    for line in lines:
        text = line.lstrip(" ")
        click.echo(line if text.startswith(_COMMANDS) else wrapped(line, len(line) - len(text) + _GAP))


def age(seconds: float) -> str:
    """An age in the units of kubectl's AGE column."""
    whole = max(0, int(seconds))
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if whole >= 2 * size:
            return f"{whole // size}{unit}"
    return f"{whole}s"


def _text(cell: Cell) -> str:
    return cell if isinstance(cell, str) else cell[0]


class Dumper(yaml.SafeDumper):
    """YAML without anchors, with indented lists, and with block style for multi-line texts."""

    def ignore_aliases(self, data: object) -> bool:
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    """Quotes texts that start with a digit, because other YAML parsers read 5e71 as a number."""
    style = "|" if "\n" in text else "'" if text[:1].isdigit() else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


Dumper.add_representer(str, _represent_text)
