"""The directory of a running cluster: gone with it, or with the next one where it was killed."""

import asyncio
import signal
import sys
from pathlib import Path

from plugwright.system import directories

_SCRIPT = """
import sys, time
from pathlib import Path
from plugwright.system import directories

with directories.directory(Path(sys.argv[1])) as made:
    (made / "file").touch()
    print(made, flush=True)
    time.sleep(1000)
"""


def test_a_temporary_directory_is_removed_when_it_is_left(tmp_path: Path) -> None:
    with directories.directory(tmp_path) as made:
        (made / "file").touch()
        assert made.stat().st_mode & 0o777 == 0o700
    assert list(tmp_path.iterdir()) == []


def test_two_do_not_disturb_each_other(tmp_path: Path) -> None:
    with directories.directory(tmp_path) as one, directories.directory(tmp_path) as other:
        assert one != other
        assert one.is_dir()


async def test_a_directory_of_a_killed_process_is_removed_by_the_next(tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", _SCRIPT, str(tmp_path)), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        left = Path((await process.stdout.readline()).decode().strip())
        with directories.directory(tmp_path):
            assert (left / "file").exists()
    finally:
        process.send_signal(signal.SIGKILL)
        await process.wait()
    assert left.is_dir()
    with directories.directory(tmp_path) as made:
        assert list(tmp_path.iterdir()) == [made]


def test_directories_of_others_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "pw-theirs").mkdir()
    (tmp_path / "other").mkdir()
    with directories.directory(tmp_path):
        pass
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other", "pw-theirs"]
