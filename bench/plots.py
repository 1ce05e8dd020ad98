"""`python -m bench.plots`: draws the tables of Allocate in docs/performance.md as pictures.

The page has the numbers, so that a picture cannot contradict it: `tests/test_performance_page.py` draws them again.
"""

import argparse
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

__all__ = ["PAGE", "PICTURES", "Measured", "main", "picture", "tables"]

PAGE = Path(__file__).parents[1] / "docs/performance.md"
PICTURES = ("pictures/allocate.svg", "pictures/allocate-h200.svg")  # of the tables, in their order
_HEADER = "| devices | p50 | p99 | ratio p50 | ratio p99 | bar |"
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_WIDTH, _LEFT, _TOP, _ROW, _BAR = 760, 150, 56, 44, 16
_COLOURS = ("#3b6ea5", "#a9c5e3")
_MARK = "#b3261e"
_FONT = 'font-family="sans-serif" font-size="13"'


@dataclass(frozen=True, slots=True)
class Measured:
    """Ratios of p50 and p99 to the peer's, with the highest accepted ones; None if p99 has no bar."""

    devices: str
    ratios: tuple[float, float]
    bars: tuple[float, float | None]


def tables(page: str) -> list[list[Measured]]:
    return [list(_rows(part.splitlines()[2:])) for part in page.split(_HEADER)[1:]]


def _rows(lines: Sequence[str]) -> Iterator[Measured]:
    for line in lines:
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) < 6:
            return
        if cells[5]:
            median, slowest = (float(cell.split()[0]) for cell in cells[3:5])
            bars = [float(number) for number in _NUMBER.findall(cells[5])]
            yield Measured(cells[0], (median, slowest), (bars[0], bars[1] if len(bars) > 1 else None))


def picture(rows: Sequence[Measured]) -> str:
    """An SVG with two bars for each kind of device, and a mark at the highest accepted ratio."""
    widest = max(value for row in rows for value in (*row.ratios, *row.bars) if value is not None)
    scale, height = (_WIDTH - _LEFT - 70) / widest, _TOP + _ROW * len(rows) + 12
    peer = _LEFT + scale
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" {_FONT}>',
        f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>',
        '<text x="12" y="20" font-weight="bold">Time of an Allocate call, as a multiple of the peer\'s</text>',
        f'<rect x="12" y="30" width="12" height="12" fill="{_COLOURS[0]}"/><text x="30" y="41">p50</text>',
        f'<rect x="70" y="30" width="12" height="12" fill="{_COLOURS[1]}"/><text x="88" y="41">p99</text>',
        f'<rect x="131" y="29" width="3" height="14" fill="{_MARK}"/><text x="142" y="41">bar</text>',
        f'<path d="M{peer:.1f} {_TOP - 6}V{height - 8}" stroke="#777777" stroke-dasharray="3 3"/>',
    ]
    for number, row in enumerate(rows):
        top = _TOP + number * _ROW
        parts.append(f'<text x="{_LEFT - 10}" y="{top + _BAR + 5}" text-anchor="end">{escape(row.devices)}</text>')
        for place, (ratio, bar) in enumerate(zip(row.ratios, row.bars, strict=True)):
            parts += _bar(top + place * _BAR, ratio, bar, scale, _COLOURS[place])
    return "\n".join([*parts, "</svg>", ""])


def _bar(top: int, ratio: float, bar: float | None, scale: float, colour: str) -> Iterator[str]:
    yield f'<rect x="{_LEFT}" y="{top}" width="{ratio * scale:.1f}" height="{_BAR - 2}" fill="{colour}"/>'
    if bar is not None:
        yield f'<rect x="{_LEFT + bar * scale - 1.5:.1f}" y="{top - 1}" width="3" height="{_BAR}" fill="{_MARK}"/>'
    end = _LEFT + max(ratio, bar or 0) * scale + 8
    yield f'<text x="{end:.1f}" y="{top + _BAR - 5}" font-size="11">{ratio:.2f}</text>'


def main(arguments: Sequence[str] | None = None) -> int:
    argparse.ArgumentParser(prog="python -m bench.plots", description="Draw the tables of Allocate.").parse_args(
        arguments
    )
    for name, rows in zip(PICTURES, tables(PAGE.read_text(encoding="utf-8")), strict=True):
        (PAGE.parent / name).write_text(picture(rows), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
