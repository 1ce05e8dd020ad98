"""Tables that fit a terminal: long ids are cut to their beginnings, and columns that can be spared are left out.

In a pipe, and with `-o wide`, tables have everything.
"""

import shutil
import sys
from collections.abc import Sequence

from plugwright.cli.output import Cell, table_lines, table_width, wrapped
from plugwright.fleet.device_names import short_ids

__all__ = ["fitting_lines"]


_LAST = 20  # characters of the last column that are to fit; the rest is wrapped
_INDENT = 4


def fitting_lines(
    columns: Sequence[str], rows: Sequence[Sequence[Cell]], ids: str, spare: Sequence[str], *, is_live: bool = False
) -> list[str]:
    """The table's lines; unless the view `is_live`, long ones are wrapped, and the last one reports what is missing.

    `ids` is the column of ids; the columns of `spare` are left out in their order, as far as that is necessary.
    """
    kept, cells = list(columns), [list(row) for row in rows]
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    if width is None or table_width(kept, cells) <= width:
        return table_lines(kept, cells)
    place = kept.index(ids)
    shown = short_ids({str(row[place]) for row in cells})
    for row in cells:
        row[place] = shown[str(row[place])]
    left = []
    for column in spare:
        if column in kept and table_width(kept, cells, _LAST) > width:
            index = kept.index(column)
            left.append(kept.pop(index))
            for row in cells:
                del row[index]
    if is_live:
        return table_lines(kept, cells)
    notes = ["ids are shortened"] if any(name != short for name, short in shown.items()) else []
    notes += [f"not shown: {', '.join(left)}"] if left else []
    note = f"the terminal is narrow: {'; '.join(notes)} (-o wide has everything)"
    return [wrapped(line, _INDENT) for line in (*table_lines(kept, cells), *([note] if notes else []))]
