"""Files that are whole whenever somebody looks."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from plugwright.system import files
from plugwright.system.files import FileCalls

# Ends itself with SIGKILL after one of the system calls of a write.
KILLED = """
import os, signal, sys
from msgspec.structs import replace
from pathlib import Path
from plugwright.system import files

step, path = sys.argv[1], Path(sys.argv[2])
real = files.FileCalls()

def last(*arguments):
    getattr(real, step)(*arguments)
    os.kill(os.getpid(), signal.SIGKILL)

files.write_atomically(path, "never whole", calls=replace(real, **{step: last}))
"""


def kill_in_the_middle_of_a_write(path: Path, step: str) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, step, str(path)], check=False)
    assert done.returncode == -signal.SIGKILL


def names(directory: Path) -> list[str]:
    return sorted(file.name for file in directory.iterdir())


def test_a_file_is_replaced_whole_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "made" / "facts.json"
    files.write_atomically(path, "old\n")
    with path.open() as reader:
        files.write_atomically(path, "new\n")
        assert reader.read() == "old\n"  # who had it open keeps what there was
    assert path.read_text() == "new\n"
    assert path.stat().st_mode & 0o777 == 0o644
    assert names(path.parent) == ["facts.json"]


@pytest.mark.parametrize("step", ["open", "write", "fsync", "close"])
def test_what_a_killed_writer_left_is_removed_by_the_next_write(tmp_path: Path, step: str) -> None:
    path = tmp_path / "facts.json"
    files.write_atomically(path, "old\n")
    kill_in_the_middle_of_a_write(path, step)
    assert path.read_text() == "old\n"
    left, *_ = names(tmp_path)
    assert left.startswith(".plugwright-")
    files.write_atomically(tmp_path / "others.json", "new\n")
    assert names(tmp_path) == ["facts.json", "others.json"]


def test_what_a_killed_writer_left_can_be_removed_without_a_write(tmp_path: Path) -> None:
    kill_in_the_middle_of_a_write(tmp_path / "facts.json", "close")
    assert len(names(tmp_path)) == 1
    files.remove_unfinished(tmp_path)
    assert names(tmp_path) == []
    files.remove_unfinished(tmp_path / "never made")


@pytest.mark.parametrize("step", ["write", "fsync", "close", "rename"])
def test_what_a_running_writer_has_not_finished_is_left_alone(tmp_path: Path, step: str) -> None:
    real = FileCalls()

    def write_another(*arguments: Any) -> object:
        files.write_atomically(tmp_path / "others.json", "theirs\n")
        return getattr(real, step)(*arguments)

    calls: dict[str, Any] = {step: write_another}
    files.write_atomically(tmp_path / "facts.json", "ours\n", calls=replace(real, **calls))
    assert (tmp_path / "facts.json").read_text() == "ours\n"
    assert names(tmp_path) == ["facts.json", "others.json"]


def test_files_of_others_are_left_alone(tmp_path: Path) -> None:
    others = [".123", ".plugwright-", ".plugwright-12.json", "plugwright-1"]
    for name in others:
        (tmp_path / name).touch()
    (tmp_path / ".plugwright-7").symlink_to("plugwright-1")
    (tmp_path / ".plugwright-8").mkdir()
    files.write_atomically(tmp_path / "facts.json", "")
    assert names(tmp_path) == sorted([*others, ".plugwright-7", ".plugwright-8", "facts.json"])


def test_a_file_that_is_removed_before_it_is_locked_is_made_again(tmp_path: Path) -> None:
    opened = []

    def open_and_lose(path: str, flags: int, mode: int) -> int:
        descriptor = os.open(path, flags, mode)
        opened.append(path)
        if len(opened) == 1:
            files.remove_unfinished(tmp_path)
        return descriptor

    files.write_atomically(tmp_path / "facts.json", "whole", calls=replace(FileCalls(), open=open_and_lose))
    assert (tmp_path / "facts.json").read_text() == "whole"
    assert len(opened) == 2
    assert names(tmp_path) == ["facts.json"]


def test_a_file_that_another_process_has_put_in_the_way_is_not_written(tmp_path: Path) -> None:
    victim, opened = tmp_path / "victim", list[str]()
    victim.write_text("theirs")

    def open_after_another(path: str, flags: int, mode: int) -> int:
        opened.append(path)
        if len(opened) == 1:
            os.link(victim, path)
        return os.open(path, flags, mode)

    files.write_atomically(tmp_path / "facts.json", "ours", calls=replace(FileCalls(), open=open_after_another))
    assert victim.read_text() == "theirs"
    assert (tmp_path / "facts.json").read_text() == "ours"
    assert len(opened) == 2
