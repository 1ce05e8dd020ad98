"""A state file holds the old content or the new, loses no change, and is never overwritten if it cannot be read."""

import fcntl
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.system.number_file import FORM, Numbers, add

from plugwright.errors import StateFileDamaged, StateFileLocked, StateFileNewer, StateFileTooLarge
from plugwright.system.boot import boot_id
from plugwright.system.files import FileCalls
from plugwright.system.state_file import JsonFormat, StateFile, StateFileOptions

LEFT_IN_PLACE = StateFileOptions(set_aside=False)

# Adds numbers, one change each, and prints each number that is on disk.
ADD = """
import sys
from pathlib import Path
from tests.system.number_file import add

for number in map(int, sys.argv[2:]):
    add(Path(sys.argv[1]), number)
    print(number, flush=True)
"""

# The same, but ends itself with SIGKILL before the given system call.
KILLED = """
import itertools, os, signal, sys
from pathlib import Path
from plugwright.system.files import FileCalls
from tests.system.number_file import add

left = itertools.count(int(sys.argv[2]), -1)
real = FileCalls()

def counted(name):
    def call(*arguments):
        if next(left) == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return getattr(real, name)(*arguments)
    return call

calls = FileCalls(**{name: counted(name) for name in ("open", "write", "fsync", "close", "rename", "remove")})
for number in range(3):
    add(Path(sys.argv[1]), number, calls)
    print(number, flush=True)
"""


def program(script: str, *arguments: object) -> "subprocess.Popen[str]":
    root = str(Path(__file__).parents[2])
    command = [sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root)


def names(directory: Path) -> list[str]:
    return sorted(file.name for file in directory.iterdir())


def test_a_file_is_read_as_it_was_written_for_its_owner_alone(tmp_path: Path) -> None:
    file = StateFile(tmp_path / "made" / "state.json", FORM)
    assert file.read() is None
    file.write(Numbers(numbers=(1, 2)))
    assert file.read() == Numbers(numbers=(1, 2))
    assert file.path.stat().st_mode & 0o777 == 0o600
    assert file.path.read_text() == '{\n  "version": 2,\n  "numbers": [\n    1,\n    2\n  ]\n}\n'
    file.write(None)
    assert names(file.path.parent) == []


def test_a_file_may_be_one_line(tmp_path: Path) -> None:
    file = StateFile(tmp_path / "state.json", JsonFormat(Numbers, 2, indent=None))
    file.write(Numbers(numbers=(1, 2)))
    assert file.path.read_text() == '{"version":2,"numbers":[1,2]}\n'


def test_a_change_that_raises_or_changes_nothing_writes_nothing(tmp_path: Path) -> None:
    file = StateFile(tmp_path / "state.json", FORM)
    file.write(Numbers(numbers=(1,)))
    before = file.path.stat().st_ino
    with pytest.raises(ZeroDivisionError):
        file.change(lambda _: Numbers(numbers=(1 // 0,)))
    assert file.change(lambda found: found) == Numbers(numbers=(1,))
    assert file.path.stat().st_ino == before
    assert file.change(lambda _: None) is None
    assert file.read() is None


def test_a_file_of_an_older_version_with_unknown_fields_is_read(tmp_path: Path) -> None:
    file = StateFile(tmp_path / "state.json", FORM)
    file.path.write_text('{"version": 1, "numbers": [4], "colour": "red"}')
    assert file.read() == Numbers(numbers=(4,))


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "truncated"),
        (b"{", "truncated"),
        (b"[]", "Expected `object`"),
        (b'{"version": 2, "numbers": "many"}', "Expected `array`"),
        (b'{"version": 2, "numbers": [1.5]}', "Expected `int`"),
        (b'{"numbers": []}', "version must be 2, got None"),
        (b'{"version": 0}', "version must be 2, got 0"),
        (b'{"version": "2"}', "Expected `int`"),
        (b"\xff\xfe", "malformed"),
        (b'{"version": 2, "numbers": ' + b"[" * 100_000, "nested too deeply"),
    ],
)
def test_a_damaged_file_is_set_aside_and_reported(tmp_path: Path, content: bytes, problem: str) -> None:
    file = StateFile(tmp_path / "state.json", FORM)
    file.path.write_bytes(content)
    with pytest.raises(StateFileDamaged, match=problem) as raised:
        file.read()
    assert "it is kept as state.json.damaged" in str(raised.value)
    assert raised.value.kept is not None
    assert raised.value.kept.read_bytes() == content
    assert file.read() is None


def test_a_damaged_file_is_not_overwritten_by_a_change(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    path.write_bytes(b"damaged")
    with pytest.raises(StateFileDamaged, match="kept as"):
        add(path, 1)
    assert (tmp_path / "state.json.damaged").read_bytes() == b"damaged"
    add(path, 1)
    assert StateFile(path, FORM).read() == Numbers(numbers=(1,))
    assert names(tmp_path) == ["state.json", "state.json.damaged"]


def test_what_takes_the_place_of_a_damaged_file_is_decided_under_its_lock(tmp_path: Path) -> None:
    file = StateFile(tmp_path / "state.json", FORM, StateFileOptions(lock=tmp_path / "state.lock"))
    other = StateFile(file.path, FORM, StateFileOptions(lock=tmp_path / "state.lock", lock_limit=0.01))

    def recover(error: StateFileDamaged) -> Numbers:
        assert error.kept == tmp_path / "state.json.damaged"
        with pytest.raises(StateFileLocked):
            other.change(lambda _: Numbers())
        return Numbers(numbers=(7,))

    file.path.write_bytes(b"damaged")
    with file.locked(recover) as found:
        assert found == Numbers(numbers=(7,))
    assert file.read() is None
    with file.locked(recover) as found:
        assert found is None


@pytest.mark.parametrize("content", [b"damaged", b'{"version": 3}'])
def test_a_file_that_must_stay_is_left_in_place_and_nothing_replaces_it(tmp_path: Path, content: bytes) -> None:
    file = StateFile(tmp_path / "state.json", FORM, LEFT_IN_PLACE)
    file.path.write_bytes(content)
    for _ in range(2):
        with pytest.raises(StateFileDamaged):
            file.read()
        with pytest.raises(StateFileDamaged) as raised:
            file.change(lambda _: Numbers())
        assert raised.value.kept is None
        with pytest.raises(StateFileDamaged), file.locked(lambda _: Numbers()):
            pass
    assert file.path.read_bytes() == content
    assert names(tmp_path) == ["state.json"]


def test_a_file_of_a_later_version_is_told_from_a_damaged_one(tmp_path: Path) -> None:
    file = StateFile(tmp_path / "state.json", FORM)
    file.path.write_text('{"version": 3, "numbers": {"of": "another shape"}}')
    with pytest.raises(
        StateFileNewer, match=r"later version of plugwright: version must be at most 2, got 3; it is kept as"
    ):
        file.read()


def test_a_file_over_the_limit_is_refused_with_its_size(tmp_path: Path) -> None:
    file = StateFile(tmp_path / "state.json", FORM, StateFileOptions(limit=100))
    file.path.write_bytes(b" " * 90 + b'{"version": 2}')
    with pytest.raises(StateFileDamaged, match="it must have at most 100 bytes, got 104"):
        file.read()


def test_content_may_have_as_many_bytes_as_the_limit(tmp_path: Path) -> None:
    content = Numbers(numbers=(1, 2, 3))
    file = StateFile(tmp_path / "state.json", FORM, StateFileOptions(limit=len(FORM.encode(content))))
    file.write(content)
    assert file.read() == content


def test_content_over_the_limit_is_not_written(tmp_path: Path) -> None:
    file = StateFile(tmp_path / "state.json", FORM, StateFileOptions(limit=100))
    file.write(Numbers(numbers=(1,)))
    with pytest.raises(StateFileTooLarge, match=r"must have at most 100 bytes, got \d+; nothing was written"):
        file.change(lambda _: Numbers(numbers=tuple(range(50))))
    assert file.read() == Numbers(numbers=(1,))


def test_a_file_without_end_is_read_up_to_the_limit() -> None:
    file = StateFile(Path("/proc/self/maps"), FORM, StateFileOptions(limit=100, set_aside=False))
    with pytest.raises(StateFileDamaged, match="it must have at most 100 bytes, got more"):
        file.read()


def test_a_pipe_in_place_of_the_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "state.json")
    with pytest.raises(StateFileDamaged, match="it must be a regular file"):
        StateFile(tmp_path / "state.json", FORM, LEFT_IN_PLACE).read()


@pytest.mark.parametrize("make", [Path.mkdir, lambda path: path.symlink_to(path)])
def test_an_error_of_the_disk_is_no_damage(tmp_path: Path, make: Callable[[Path], None]) -> None:
    path = tmp_path / "state.json"
    make(path)
    with pytest.raises(OSError, match=r"Is a directory|symbolic links"):
        StateFile(path, FORM).read()
    assert names(tmp_path) == ["state.json"]


def test_content_is_on_disk_before_its_name_leads_to_it(tmp_path: Path) -> None:
    real, made = FileCalls(), list[str]()

    def recorded(name: str) -> Any:
        def call(*arguments: Any) -> Any:
            made.append(name)
            return getattr(real, name)(*arguments)

        return call

    calls = replace(real, fsync=recorded("fsync"), rename=recorded("rename"))
    add(tmp_path / "state.json", 1, calls)
    assert made == ["fsync", "rename"]


def test_a_lock_that_is_not_given_up_ends_the_wait(tmp_path: Path) -> None:
    lock = tmp_path / "state.lock"
    file = StateFile(tmp_path / "state.json", FORM, StateFileOptions(lock=lock, lock_limit=0.01))
    with lock.open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(StateFileLocked, match=r"another process has had .+/state.lock locked for 0.01 s"):
            file.change(lambda _: Numbers())
        assert file.read() is None  # reading needs no lock
    assert file.change(lambda _: Numbers()) == Numbers()


def test_a_file_that_is_replaced_while_it_is_set_aside_is_kept(tmp_path: Path) -> None:
    """Another process has the lock, and writes a valid file, when this one has read a damaged one."""
    file = StateFile(tmp_path / "state.json", FORM, StateFileOptions(lock=tmp_path / "state.lock"))
    file.path.write_bytes(b"damaged")
    has_lock, found = threading.Event(), list[Numbers | None]()

    class Slow(JsonFormat[Numbers]):
        def decode(self, content: bytes) -> Numbers:
            if content == b"damaged":
                has_lock.wait()  # the first read is over only when the other has the lock
            return super().decode(content)

    reading = StateFile(file.path, Slow(Numbers, 2), StateFileOptions(lock=tmp_path / "state.lock", lock_limit=60))
    thread = threading.Thread(target=lambda: found.append(reading.read()))
    with (tmp_path / "state.lock").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        thread.start()
        has_lock.set()
        file.write(Numbers(numbers=(1,)))
    thread.join()
    assert found == [Numbers(numbers=(1,))]
    assert "state.json.damaged" not in names(tmp_path)


def test_processes_that_change_a_file_at_once_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    running = [program(ADD, path, *range(start, start + 40)) for start in (0, 100, 200)]
    for process in running:
        process.communicate(timeout=100)
        assert process.returncode == 0
    stored = StateFile(path, FORM).read()
    assert stored is not None
    assert sorted(stored.numbers) == [*range(40), *range(100, 140), *range(200, 240)]


def test_threads_that_change_a_file_at_once_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "state.json"

    def add_all() -> None:
        for number in range(30):
            add(path, number)

    threads = [threading.Thread(target=add_all) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stored = StateFile(path, FORM).read()
    assert stored is not None
    assert len(stored.numbers) == 90


@settings(max_examples=16, deadline=None)  # one for each system call of three changes
@given(st.integers(0, 15))
def test_a_kill_at_any_point_leaves_the_old_or_the_new_content(
    tmp_path_factory: pytest.TempPathFactory, at: int
) -> None:
    directory = tmp_path_factory.mktemp("killed")
    process = program(KILLED, directory / "state.json", at)
    printed, _ = process.communicate(timeout=100)
    answered = tuple(map(int, printed.split()))
    assert process.returncode in (-signal.SIGKILL, 0)
    stored = StateFile(directory / "state.json", FORM).read()
    found = stored.numbers if stored is not None else ()
    assert found in (answered, (*answered, len(answered)))
    add(directory / "state.json", 9)  # removes what was not finished
    assert names(directory) == ["state.json"]


def test_the_boot_id_is_that_of_the_machine_and_empty_if_unreadable(tmp_path: Path) -> None:
    (tmp_path / "boot_id").write_text("0b8f\n")
    assert boot_id(tmp_path / "boot_id") == "0b8f"
    assert boot_id(tmp_path / "none") == ""
    assert boot_id() == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
