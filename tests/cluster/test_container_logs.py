"""Logs of containers that run as processes: what is read of them, followed, and kept when they grow."""

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plugwright.apiserver import log_options
from plugwright.apiserver.log_options import LogOptions
from plugwright.apiserver.store import Object
from plugwright.cluster.container_logs import ContainerLogs, LogName, attempt_to_read
from plugwright.errors import StatusError

EPOCH = datetime(2026, 11, 15, 12, tzinfo=UTC)
NAME = LogName("u", "main", 0)


class Clock:
    """A minute passes with every look at it."""

    def __init__(self) -> None:
        self.minutes = -1

    def __call__(self) -> datetime:
        self.minutes += 1
        return EPOCH + timedelta(minutes=self.minutes)


async def text(logs: ContainerLogs, name: LogName = NAME, **options: object) -> str:
    return b"".join([part async for part in logs.read(name, LogOptions(**options))]).decode()  # type: ignore[arg-type]


async def written(root: Path, *lines: str, largest: int = 2**20) -> ContainerLogs:
    logs = ContainerLogs(root, largest, Clock())
    with logs.writing(NAME) as log:
        for line in lines:
            log.write(line)
            await asyncio.sleep(0)
    return logs


async def test_a_log_is_read_whole_or_in_part(tmp_path: Path) -> None:
    logs = await written(tmp_path, "a", "b", "", "d e")
    assert await text(logs) == "a\nb\n\nd e\n"
    assert await text(logs, tail=2) == "\nd e\n"
    assert await text(logs, tail=0) == ""
    assert await text(logs, tail=9) == "a\nb\n\nd e\n"
    assert await text(logs, limit=3) == "a\nb"
    assert await text(logs, since=EPOCH + timedelta(minutes=2)) == "\nd e\n"
    assert await text(logs, timestamps=True, tail=1) == "2026-11-15T12:03:00.000000Z d e\n"
    assert await text(logs, LogName("u", "other", 0)) == ""


async def test_a_line_without_an_end_is_shown_without_one(tmp_path: Path) -> None:
    logs = ContainerLogs(tmp_path, now=Clock())
    with logs.writing(NAME) as log:
        for part, is_partial in (("a", True), ("b", False), ("c", True)):
            log.write(part, is_partial=is_partial)
    assert await text(logs) == "ab\nc"
    assert await text(logs, timestamps=True) == "2026-11-15T12:00:00.000000Z ab\n2026-11-15T12:00:00.000000Z c"


async def test_a_followed_log_ends_with_its_container(tmp_path: Path) -> None:
    logs = ContainerLogs(tmp_path)
    with logs.writing(NAME) as log:
        log.write("before")
        await asyncio.sleep(0)
        followed = logs.read(NAME, LogOptions(follow=True, tail=0))
        reading = asyncio.create_task(collected(followed))
        await asyncio.sleep(0)
        log.write("after")
    assert await reading == "after\n"


async def collected(parts: object) -> str:
    return b"".join([part async for part in parts]).decode()  # type: ignore[attr-defined]


async def test_a_log_that_grows_keeps_its_end(tmp_path: Path) -> None:
    lines = [f"line {number}" for number in range(1000)]
    logs = await written(tmp_path, *lines, largest=4096)
    kept = (await text(logs)).splitlines()
    assert kept == lines[-len(kept) :]
    assert 50 < len(kept) < 200
    assert sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()) <= 2 * 4096


async def test_a_follower_sees_what_is_written_after_a_rotation(tmp_path: Path) -> None:
    logs = ContainerLogs(tmp_path, 200)
    with logs.writing(NAME) as log:
        followed = logs.read(NAME, LogOptions(follow=True))
        seen = []
        for number in range(20):
            log.write(f"line {number}")
            seen.append(await anext(followed))
    assert seen == [b"line %d\n" % number for number in range(20)]
    assert [part async for part in followed] == []


async def test_only_two_runs_of_a_container_are_kept(tmp_path: Path) -> None:
    logs = ContainerLogs(tmp_path)
    for attempt in range(4):
        with logs.writing(LogName("u", "main", attempt)) as log:
            log.write(str(attempt))
    assert sorted(path.name for path in tmp_path.rglob("*.log")) == ["2.log", "3.log"]
    logs.remove("u")
    assert await text(logs, LogName("u", "main", 3)) == ""


async def test_a_line_that_a_full_disk_cut_short_is_left_out(tmp_path: Path) -> None:
    logs = await written(tmp_path, "a", "b")
    path = tmp_path / "u" / "main" / "0.log"
    path.write_bytes(path.read_bytes()[:-12])
    assert await text(logs) == "a\n"


@given(
    lines=st.lists(st.text(st.characters(exclude_characters="\n\r", exclude_categories=["Cs"])), max_size=20),
    tail=st.integers(0, 25),
)
async def test_the_tail_is_the_last_lines(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], tail: int
) -> None:
    logs = await written(tmp_path_factory.mktemp("logs"), *lines, largest=300)
    whole = (await text(logs)).split("\n")[:-1]
    assert (await text(logs, tail=tail)).split("\n")[:-1] == whole[max(0, len(whole) - tail) :]


def pod(**shown: object) -> Object:
    status = {"name": "main", "restartCount": 0, "lastState": {}, **shown}
    return {"metadata": {"name": "p"}, "status": {"phase": "Running", "containerStatuses": [status]}}


ENDED = {"terminated": {"exitCode": 1}}


@pytest.mark.parametrize(
    ("shown", "newest", "previous"),
    [
        (pod(state={"running": {}}), 0, None),
        (pod(state={"running": {}}, lastState=ENDED, restartCount=3), 3, 2),
        (pod(state={"waiting": {"reason": "CrashLoopBackOff"}}, lastState=ENDED, restartCount=3), 3, 3),
        (pod(state=ENDED, lastState=ENDED, restartCount=3), 3, 2),
        (pod(state={"waiting": {"reason": "PodInitializing"}}), None, None),
    ],
)
def test_the_run_to_read_is_found_by_the_status(shown: Object, newest: int | None, previous: int | None) -> None:
    for is_previous, expected in ((False, newest), (True, previous)):
        if expected is None:
            with pytest.raises(StatusError):
                attempt_to_read(shown, "main", previous=is_previous)
        else:
            assert attempt_to_read(shown, "main", previous=is_previous) == expected


def test_a_previous_run_that_there_is_not_is_refused_in_the_kubelets_words() -> None:
    with pytest.raises(StatusError) as refused:
        attempt_to_read(pod(state={"running": {}}), "main", previous=True)
    assert refused.value.message == 'previous terminated container "main" in pod "p" not found'


def test_options_are_read_from_the_query() -> None:
    query = {"follow": "True", "sinceSeconds": "60", "tailLines": "5", "limitBytes": "9", "timestamps": "false"}
    since = EPOCH - timedelta(minutes=1)
    assert log_options.read(query, EPOCH) == LogOptions(follow=True, since=since, tail=5, limit=9)
    assert log_options.read({"sinceTime": "2026-11-15T13:00:00+01:00"}, EPOCH).since == EPOCH


@pytest.mark.parametrize(
    ("query", "code", "message"),
    [
        ({"tailLines": "-1"}, 422, "tailLines: Invalid value: -1: must be greater than or equal to 0"),
        ({"limitBytes": "0"}, 422, "limitBytes: Invalid value: 0: must be greater than 0"),
        ({"sinceSeconds": "0"}, 422, "sinceSeconds: Invalid value: 0: must be greater than 0"),
        ({"sinceSeconds": "1", "sinceTime": "2026-11-15T13:00:00Z"}, 422, "at most one of"),
        ({"sinceTime": "yesterday"}, 400, "parsing time"),
        ({"tailLines": "many"}, 400, 'parsing "many": invalid syntax'),
    ],
)
def test_wrong_options_are_refused(query: dict[str, str], code: int, message: str) -> None:
    with pytest.raises(StatusError, match=message) as refused:
        log_options.read(query, EPOCH)
    assert refused.value.code == code
