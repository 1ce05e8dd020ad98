"""The bounded file of records: what is appended is read back, whatever was torn or full."""

from pathlib import Path

import msgspec
import pytest

from plugwright.system.journal import Journal


class Note(msgspec.Struct, frozen=True):
    text: str


def journal(path: Path, limit: int = 10_000) -> Journal[Note]:
    return Journal(path / "notes" / "notes.jsonl", Note, limit)


def texts(found: Journal[Note]) -> list[str]:
    return [note.text for note in found.records()]


def test_records_are_read_in_their_order_by_the_next_process(tmp_path: Path) -> None:
    assert texts(journal(tmp_path)) == []
    journal(tmp_path).append([Note("a"), Note("b")])
    journal(tmp_path).append([Note("c\n\x1b")])
    assert texts(journal(tmp_path)) == ["a", "b", "c\n\x1b"]


def test_a_torn_line_and_foreign_ones_are_left_out_and_cost_no_other(tmp_path: Path) -> None:
    journal(tmp_path).append([Note("a")])
    with journal(tmp_path).path.open("ab") as file:
        file.write(b'{"text": 5}\n\xff\xfe\n' + b"[" * 100_000 + b'\n{"text": "to')
    journal(tmp_path).append([Note("b")])
    assert texts(journal(tmp_path)) == ["a", "b"]


def test_the_limit_holds_and_the_newest_half_stays(tmp_path: Path) -> None:
    found = journal(tmp_path, limit=4000)
    for number in range(1000):
        found.append([Note(f"record {number}")])
        size = sum(path.stat().st_size for path in found.path.parent.iterdir())
        assert size <= 4100
    assert texts(found)[-1] == "record 999"
    assert len(texts(found)) >= 60
    assert texts(found) == [f"record {number}" for number in range(1000 - len(texts(found)), 1000)]


def test_a_link_in_place_of_the_file_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "target").write_text("")
    journal(tmp_path).path.symlink_to(tmp_path / "target")
    with pytest.raises(OSError, match="symbolic"):
        journal(tmp_path).append([Note("a")])
    assert (tmp_path / "target").read_text() == ""
