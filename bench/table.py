"""The measurements as a table: medians, spreads, bars and verdicts.

Pure: numbers in, text out. The bars are the project's own and stand only here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

__all__ = ["Bar", "Row", "Samples", "records", "render", "rows_for"]

Samples = Mapping[str, Sequence[float]]
_SMALL = 0.1  # a ratio with one figure that counts, rather than 0.00


@dataclass(frozen=True, slots=True)
class Bar:
    """What the median must not exceed: a number, or `ratio` times the peer's."""

    limit: float
    ratio: bool = False
    moonshot: float | None = None

    def text(self, unit: str) -> str:
        if not self.ratio:
            return f"≤ {self.limit:g} {unit}".rstrip() if self.limit else "0"
        words = f"≤ {self.limit:g} x peer"
        return words if self.moonshot is None else f"{words}, moonshot ≤ {self.moonshot:g} x"

    def verdict(self, ours: float, peer: float | None) -> str:
        if self.ratio and not peer:
            return "needs PEER"
        value = ours / peer if self.ratio and peer else ours
        if value > self.limit:
            return "missed"
        return "moonshot" if self.moonshot is not None and value <= self.moonshot else "reached"


@dataclass(frozen=True, slots=True)
class Row:
    what: str
    key: str
    unit: str
    bar: Bar | None = None
    digits: int = 1


def rows_for(restarts: int, idle_seconds: float, lists: Sequence[int], resources: int) -> list[Row]:
    rows = [
        Row("Allocate p50", "allocate_p50_us", "µs", Bar(1.5, ratio=True, moonshot=1.1), 0),
        Row("Allocate p99", "allocate_p99_us", "µs", Bar(1.5, ratio=True, moonshot=1), 0),
        Row("RSS while serving", "serving_rss_mib", "MiB", Bar(22.4)),
        Row("PSS while serving", "serving_pss_mib", "MiB"),
        Row("USS while serving", "serving_uss_mib", "MiB"),
        Row("threads", "threads", "", digits=0),
        Row(f"context switches, {idle_seconds:g} s idle", "idle_switches", "", Bar(0), 0),
        Row("process start → registered", "start_ms", "ms", Bar(125)),
        Row("kubelet socket → registered again, p50", "restart_p50_ms", "ms", Bar(2)),
        Row("kubelet socket → registered again, p99", "restart_p99_ms", "ms", Bar(5)),
        Row(f"restarts timed (of {restarts})", "restart_count", "", digits=0),
        Row("RSS after these restarts", "restarted_rss_mib", "MiB"),
    ]
    for count in lists:
        rows += [
            Row(f"{count:,} devices: whole list", f"list_{count}_ms", "ms", digits=2),
            Row(f"{count:,} devices: RSS", f"list_{count}_rss_mib", "MiB"),
            Row(f"{count:,} devices: start → registered", f"list_{count}_start_ms", "ms"),
        ]
    many = f"{resources} resources, checkpoint of 0.9 MB: start → registered"
    return [*rows, Row(many, "many_resources_start_ms", "ms", Bar(400))]


def render(rows: Sequence[Row], ours: Samples, peer: Samples | None) -> str:
    """Aligned text that is a Markdown table too."""
    heads = ["what", "ours", "bar", "verdict"]
    if peer is not None:
        heads[2:2] = ["peer", "ratio"]
    lines = [heads, *(_cells(row, ours, peer) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(heads))]
    lines.insert(1, ["-" * width for width in widths])
    return "\n".join(_line(line, widths) for line in lines)


def records(rows: Sequence[Row], ours: Samples, peer: Samples | None) -> list[dict[str, object]]:
    """The same rows for a program to read."""
    return [
        {
            "what": row.what,
            "key": row.key,
            "unit": row.unit,
            "ours": _median(row, ours),
            "peer": _median(row, peer),
            "bar": row.bar.text(row.unit) if row.bar else None,
            "verdict": _verdict(row, ours, peer) or None,
        }
        for row in rows
    ]


def _cells(row: Row, ours: Samples, peer: Samples | None) -> list[str]:
    cells = [row.what, _spread(row, ours), row.bar.text(row.unit) if row.bar else "", _verdict(row, ours, peer)]
    if peer is not None:
        cells[2:2] = [_spread(row, peer), _ratio(row, ours, peer)]
    return cells


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "| " + " | ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)) + " |"


def _median(row: Row, samples: Samples | None) -> float | None:
    values = samples.get(row.key) if samples is not None else None
    return median(values) if values else None


def _spread(row: Row, samples: Samples) -> str:
    values = samples.get(row.key)
    if not values:
        return "-"
    middle, low, high = (f"{value:,.{row.digits}f}" for value in (median(values), min(values), max(values)))
    text = f"{middle} {row.unit}".rstrip()
    return text if low == high else f"{text} ({low}-{high})"


def _ratio(row: Row, ours: Samples, peer: Samples) -> str:
    mine, theirs = _median(row, ours), _median(row, peer)
    if mine is None or not theirs:
        return "-"
    ratio = mine / theirs
    return f"{ratio:.2f}" if ratio >= _SMALL else f"{ratio:.1g}"


def _verdict(row: Row, ours: Samples, peer: Samples | None) -> str:
    mine = _median(row, ours)
    return row.bar.verdict(mine, _median(row, peer)) if row.bar and mine is not None else ""
