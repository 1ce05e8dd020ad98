"""`settled_changes`: wakes its reader a moment after something in a directory has changed."""

import asyncio
import time
from contextlib import aclosing
from pathlib import Path

import pytest

from plugwright.system.inotify import settled_changes


@pytest.mark.parametrize("directory", ["one", "other"])
async def test_a_change_in_any_of_the_directories_is_reported(tmp_path: Path, directory: str) -> None:
    directories = [tmp_path / "one", tmp_path / "other"]
    for path in directories:
        path.mkdir()
    file = tmp_path / directory / "file"
    async with asyncio.timeout(60), aclosing(settled_changes(*directories, settle=0)) as changes:
        await anext(changes)
        file.touch()
        async for _ in changes:
            if file.exists():
                return


async def test_the_same_directory_may_be_named_twice(tmp_path: Path) -> None:
    async with asyncio.timeout(60), aclosing(settled_changes(tmp_path, tmp_path, settle=0)) as changes:
        await anext(changes)


@pytest.mark.usefixtures("inotify")
async def test_a_change_is_reported_a_tenth_of_a_second_later(tmp_path: Path) -> None:
    """Editors write in many steps, of which none but the last is to be read."""
    async with asyncio.timeout(60), aclosing(settled_changes(tmp_path)) as changes:
        await anext(changes)
        written = time.monotonic()
        tmp_path.joinpath("file").touch()
        await anext(changes)
        assert time.monotonic() - written >= 0.1
