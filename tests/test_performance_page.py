"""The pictures of docs/performance.md show the numbers of its tables."""

import pytest
from bench.plots import PAGE, PICTURES, picture, tables


@pytest.mark.parametrize("number", range(len(PICTURES)))
def test_a_picture_has_the_numbers_of_its_table(number: int) -> None:
    rows = tables(PAGE.read_text(encoding="utf-8"))
    assert len(rows) == len(PICTURES)
    assert [row.devices for row in rows[number]][:2] == ["paths", "mock"]
    drawn = (PAGE.parent / PICTURES[number]).read_text(encoding="utf-8")
    assert drawn == picture(rows[number]), "draw it again: python -m bench.plots"
    assert PICTURES[number] in PAGE.read_text(encoding="utf-8")
