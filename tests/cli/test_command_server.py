"""A command in a fork of a process that has loaded its code behaves as in a process that Python starts."""

from pathlib import Path

import pytest
from tests.cli.processes import Ended, ended, python

OWN_PROCESS = {"PYTHONHASHSEED": "0"}


async def both(*arguments: object, environment: dict[str, str] | None = None) -> tuple[Ended, Ended]:
    command = python("-m", "plugwright", *arguments)
    return await ended(command, environment), await ended(command, {**(environment or {}), **OWN_PROCESS})


@pytest.mark.parametrize(
    "arguments",
    [("--version",), ("no-such-command",), ("status", "--control-socket", "/no/such/socket"), ("docs", "run")],
    ids=lambda arguments: arguments[0],
)
async def test_code_output_and_errors_are_those_of_a_process(arguments: tuple[str, ...]) -> None:
    forked, started = await both(*arguments)
    assert forked == started


async def test_the_environment_and_the_directory_are_those_of_the_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await ended(python("-m", "plugwright", "--version"))
    (tmp_path / "plugwright.yaml").write_text("resources: [{name: mock/gpu, mock: {count: one}}]")
    monkeypatch.chdir(tmp_path)
    forked, started = await both("check", "plugwright.yaml", environment={"FORCE_COLOR": "1"})
    assert forked == started
    assert forked.err.startswith("plugwright: plugwright.yaml")


async def test_a_command_that_fails_does_not_end_the_others() -> None:
    for _ in range(2):
        assert (await ended(python("-m", "plugwright", "no-such-command"))).code == 2
    assert (await ended(python("-m", "plugwright", "--version"))).code == 0


async def test_bytes_that_are_no_text_reach_the_command() -> None:
    forked, started = await both("status", "--control-socket", "/no/such/\udcff")
    assert forked == started
    assert forked.code == 1
