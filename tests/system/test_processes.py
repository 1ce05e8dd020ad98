"""Child processes: their output, their status, and nothing of them that stays behind."""

import asyncio
from pathlib import Path

import pytest

from plugwright.system import processes

LEAVES_A_CHILD = ["/bin/sh", "-c", "sleep 1000 & echo $!"]


def runs(pid: int) -> bool:
    """A zombie does not run: nobody in a test container may reap it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


async def until_written(path: Path) -> None:
    async with asyncio.timeout(60):
        while not path.exists() or not path.read_text().strip():
            await asyncio.sleep(0.01)


async def until_ended(pid: int) -> None:
    async with asyncio.timeout(60):
        while runs(pid):
            await asyncio.sleep(0.01)


async def test_a_child_that_a_command_leaves_is_killed() -> None:
    status, output = await processes.run(LEAVES_A_CHILD)
    assert status == 0
    await until_ended(int(output))


async def test_a_child_of_a_failed_command_is_killed() -> None:
    status, output = await processes.run(["/bin/sh", "-c", "sleep 1000 & echo $!; exit 3"])
    assert status == 3
    await until_ended(int(output))


async def test_a_cancelled_command_is_killed_with_its_children(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    running = asyncio.create_task(processes.run(["/bin/sh", "-c", f"sleep 1000 & echo $! > {pid}; wait"]))
    await until_written(pid)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await until_ended(int(pid.read_text()))


@pytest.mark.parametrize("end", ["exit 0", "exit 3"])
async def test_a_child_in_a_session_of_its_own_is_killed_with_a_command_run_alone(tmp_path: Path, end: str) -> None:
    pid = tmp_path / "pid"
    started = f"setsid sh -c 'echo $$ > {pid}; exec sleep 1000' & while [ ! -s {pid} ]; do sleep 0.01; done; {end}"
    status, _ = await processes.run_alone(["/bin/sh", "-c", started])
    assert status == int(end.removeprefix("exit "))
    await until_ended(int(pid.read_text()))


async def test_children_in_sessions_of_their_own_are_killed_with_a_cancelled_command(tmp_path: Path) -> None:
    """Also if their parent has ended, so that they are not below the command any more."""
    pid, later = tmp_path / "pid", tmp_path / "later"
    started = f"(setsid sh -c 'echo $$ > {pid}; exec sleep 1000' &) ; exec sleep 1000"
    running = asyncio.create_task(processes.run_alone(["/bin/sh", "-c", started]))
    await until_written(pid)
    other = asyncio.create_task(processes.run_alone(["/bin/sh", "-c", f"echo $$ > {later}; exec sleep 1000"]))
    await until_written(later)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await until_ended(int(pid.read_text()))
    assert runs(int(later.read_text()))  # another command is left alone
    other.cancel()
    with pytest.raises(asyncio.CancelledError):
        await other


async def test_the_end_of_a_long_output_is_kept() -> None:
    status, output = await processes.run(["/bin/sh", "-c", "seq 1 20000; exit 7"])
    assert (status, output.splitlines()[-1]) == (7, "20000")
    assert len(output) <= 4096
