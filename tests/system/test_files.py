"""Files that are whole whenever somebody looks."""

from pathlib import Path

from plugwright.system import files


def test_a_file_is_replaced_whole_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "made" / "facts.json"
    files.write_atomically(path, "old\n")
    with path.open() as reader:
        files.write_atomically(path, "new\n")
        assert reader.read() == "old\n"  # who had it open keeps what there was
    assert path.read_text() == "new\n"
    assert path.stat().st_mode & 0o777 == 0o644
    assert [file.name for file in path.parent.iterdir()] == ["facts.json"]
