"""The configuration in force: a version that cannot be taken is refused as a whole, and that is shown."""

import asyncio
import hashlib
import logging
import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from tests.cli.processes import configuration

from plugwright.config import schema
from plugwright.config.reload import CurrentConfig
from plugwright.config.schema import Config
from plugwright.errors import InvalidValue

REFUSED = "new configuration rejected, the previous one stays"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "plugwright.yaml"
    path.write_text(configuration(gpu={"count": 1}))
    return path


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:12]


async def take(_: Config) -> Mapping[str, str]:
    return {}


def failing(error: Exception) -> Callable[[Config], object]:
    async def fail(_: Config) -> Mapping[str, str]:
        raise error

    return fail


async def test_a_valid_version_is_in_force_with_its_hash_and_time(path: Path) -> None:
    current = CurrentConfig(path, schema.load(path))
    before = current.state.value
    assert before.sha256 == sha256(path)
    path.write_text(configuration(gpu={"count": 2}))
    assert await current.reload(take)
    state = current.state.value
    assert state.sha256 == sha256(path) != before.sha256
    assert state.loaded >= before.loaded
    assert (state.failures, state.refused, list(state.problems())) == (0, None, [])
    assert current.value.file.resources[0].settings.count == 2


async def test_an_invalid_version_is_refused_with_its_hash_time_and_error(path: Path) -> None:
    current = CurrentConfig(path, schema.load(path))
    before, value = current.state.value, current.value
    path.write_text("resources: 7\n")
    assert not await current.reload(take)
    state = current.state.value
    assert current.value is value
    assert (state.sha256, state.loaded, state.failures) == (before.sha256, before.loaded, 1)
    assert state.refused is not None
    assert state.refused.sha256 == sha256(path)
    assert state.refused.since >= before.loaded
    assert "plugwright.yaml:1: resources: expected a list, got the integer 7" in state.refused.error
    path.write_text(configuration(gpu={"count": 1}))
    assert await current.reload(take)
    assert current.state.value.refused is None
    assert current.state.value.failures == 1


@pytest.mark.parametrize("error", [InvalidValue("two plugins serve mock/gpu"), ZeroDivisionError("by a family")])
async def test_a_version_that_cannot_be_applied_is_refused_whatever_is_raised(
    path: Path, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    current = CurrentConfig(path, schema.load(path))
    value = current.value
    path.write_text(configuration(gpu={"count": 2}))
    for failures in (1, 2):
        assert not await current.reload(failing(error))  # type: ignore[arg-type]
        assert current.state.value.failures == failures
    assert current.value is value
    assert current.state.value.refused is not None
    assert str(error) in current.state.value.refused.error
    [logged] = [record for record in caplog.records if record.message == REFUSED]
    has_traceback = logged.exc_info is not None and logged.exc_info[1] is error
    assert has_traceback == isinstance(error, ZeroDivisionError)


async def test_the_same_refusal_keeps_its_time_and_another_one_is_logged(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    current = CurrentConfig(path, schema.load(path))
    path.write_text("resources: 7\n")
    assert not await current.reload(take)
    first = current.state.value.refused
    assert not await current.reload(take)
    assert current.state.value.refused is first
    path.unlink()
    assert not await current.reload(take)
    assert current.state.value.refused is not None
    assert current.state.value.refused.sha256 == ""
    assert "cannot read" in current.state.value.refused.error
    assert caplog.messages.count(REFUSED) == 2


async def test_a_file_system_that_does_not_answer_costs_one_thread_and_is_read_when_it_does(path: Path) -> None:
    """A pipe is such a file: reading it waits until somebody writes."""
    current = CurrentConfig(path, schema.load(path), read_limit=0.05, read=Path.read_bytes)
    path.unlink()
    os.mkfifo(path)
    before = set(threading.enumerate())  # among them one of an earlier test, perhaps, that is about to end
    for failures in (1, 2, 3):
        assert not await current.reload(take)
        assert current.state.value.failures == failures
    assert current.state.value.refused is not None
    assert current.state.value.refused.error == f"cannot read {path}: no answer within 0.05 s"
    assert [thread.name for thread in {*threading.enumerate()} - before] == ["read of the configuration"]
    with path.open("w") as pipe:  # opens, for the thread has it open for reading
        path.unlink()
        pipe.write("no longer the file")
    path.write_text(configuration(gpu={"count": 2}))
    async with asyncio.timeout(60):
        await current.reads.hung.until(lambda hung: not hung)
        while not await current.reload(take):
            pass
    assert current.value.file.resources[0].settings.count == 2


async def test_the_event_loop_goes_on_while_the_file_is_read(path: Path) -> None:
    current = CurrentConfig(path, schema.load(path), read=Path.read_bytes)
    content = path.read_text()
    path.unlink()
    os.mkfifo(path)
    reading = asyncio.create_task(current.reload(take))
    writer = await asyncio.to_thread(path.open, "w")  # returns once the reader has opened it: the loop is free
    with writer:
        writer.write(content)
    assert await reading
