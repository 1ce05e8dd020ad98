"""The table of faults and what was seen, and its place in a page.

Pure: rows in, text out. A row that was not tried this time keeps what the page had for it.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from chaos.experiment import Cell, Row

__all__ = ["BEGIN", "END", "render", "replace_between_markers", "rows_of", "write"]

BEGIN, END = "<!-- make chaos: begin -->", "<!-- make chaos: end -->"
_HEADINGS = ("fault", "other resources served", "health truthful within", "recovered within", "lost or leaked")
_LONGEST = 160


def render(rows: Sequence[Row]) -> str:
    lines = [_line(_HEADINGS), _line(["---"] * len(_HEADINGS)), *(_line(_texts(row)) for row in rows)]
    return "\n".join(lines)


def rows_of(page: str) -> dict[str, str]:
    """The lines of the table in a page, by the title of the fault."""
    _, _, inside = page.partition(BEGIN)
    lines = [line for line in inside.partition(END)[0].splitlines() if line.startswith("| ")]
    return {line.split(" | ")[0].removeprefix("| "): line for line in lines[2:]}


def replace_between_markers(page: str, rows: Sequence[Row], order: Sequence[str], heading: str) -> str:
    """The page with these rows; those of faults that were not tried stay, in the order of all faults."""
    lines: Mapping[str, str] = {**rows_of(page), **{row.title: _line(_texts(row)) for row in rows}}
    kept = [lines[title] for title in order if title in lines]
    table = "\n".join([_line(_HEADINGS), _line(["---"] * len(_HEADINGS)), *kept])
    pattern = re.compile(f"{re.escape(BEGIN)}.*{re.escape(END)}", re.DOTALL)
    if not pattern.search(page):
        raise ValueError(f"a page must have {BEGIN} and {END}")
    return pattern.sub(lambda _: f"{BEGIN}\n{heading}\n\n{table}\n{END}", page)


def write(page: Path, rows: Sequence[Row], order: Sequence[str], heading: str) -> None:
    page.write_text(replace_between_markers(page.read_text(), rows, order, heading))


def _texts(row: Row) -> list[str]:
    if row.skipped:
        return [row.title, f"not tried: {row.skipped}", "", "", ""]
    return [row.title, *map(_text, row.cells)]


def _text(cell: Cell) -> str:
    text = " ".join(cell.text.split())
    shortened = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
    return shortened if cell.holds else f"**{shortened}**"


def _line(texts: Sequence[str]) -> str:
    return f"| {' | '.join(text.replace('|', '¦') for text in texts)} |"
