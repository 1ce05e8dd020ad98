"""Short directories: removed with their process, or by the next one where it was killed."""

import asyncio
import signal
import sys
from pathlib import Path

from plugwright.system import directories, sockets

_SCRIPT = """
import sys, time
from pathlib import Path
from plugwright.system import directories

with directories.short_directory(Path(sys.argv[1])) as directory:
    (directory / "file").touch()
    print(directory, flush=True)
    time.sleep(1000)
"""


def test_a_short_directory_is_private_and_removed_when_it_is_left(tmp_path: Path) -> None:
    with directories.short_directory(tmp_path) as directory:
        (directory / "file").touch()
        assert directory.stat().st_mode & 0o777 == 0o700
    assert list(tmp_path.iterdir()) == []


def test_two_short_directories_do_not_disturb_each_other(tmp_path: Path) -> None:
    with directories.short_directory(tmp_path) as one, directories.short_directory(tmp_path) as other:
        assert one != other
        assert one.is_dir()


async def test_the_directory_of_a_killed_process_is_removed_by_the_next(tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", _SCRIPT, str(tmp_path)), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        abandoned = Path((await process.stdout.readline()).decode().strip())
        with directories.short_directory(tmp_path):
            assert (abandoned / "file").exists()
    finally:
        process.send_signal(signal.SIGKILL)
        await process.wait()
    assert abandoned.is_dir()
    with directories.short_directory(tmp_path) as directory:
        assert list(tmp_path.iterdir()) == [directory]


def test_directories_of_others_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "pw-theirs").mkdir()
    (tmp_path / "other").mkdir()
    with directories.short_directory(tmp_path):
        pass
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other", "pw-theirs"]


def test_a_target_with_room_for_sockets_is_not_linked(tmp_path: Path) -> None:
    target = tmp_path / "target"
    with directories.linked_directory(target, 1) as directory:
        assert directory == target
        assert target.is_dir()


def test_a_deep_target_is_reached_through_a_short_link(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 100) / ("e" * 100)
    with directories.linked_directory(deep, 60) as directory:
        assert sockets.fits(directory, 60)
        (directory / "file").touch()
    assert [path.name for path in deep.iterdir()] == ["file"]
    assert not directory.exists()


def test_a_link_to_a_directory_has_the_same_path_again(tmp_path: Path) -> None:
    target = tmp_path / ("long" * 20)
    paths = []
    for _ in range(2):
        with directories.linked_directory(target, 72) as directory:
            paths.append(directory)
    assert paths[0] == paths[1] != target


def test_a_link_whose_path_is_taken_gets_another(tmp_path: Path) -> None:
    target = tmp_path / ("long" * 20)
    with directories.linked_directory(target, 72) as one, directories.linked_directory(target, 72) as other:
        assert one != other
        assert one.resolve() == other.resolve() == target
