"""Directories are followed whether they exist, come later, go or are replaced, all through one inotify instance."""

import asyncio
import os
import shutil
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, closing
from pathlib import Path

import pytest
from tests.system.scarcity import inotify_instances, no_more_file_descriptors

from plugwright.system import sockets
from plugwright.system.inotify import Directory, WatchedDirectories

LIMIT = 60  # seconds that any of these facts may take on a slow machine
POLL = 0.01  # seconds between two looks where there is no inotify


async def first_look(directory: Directory) -> None:
    async with asyncio.timeout(LIMIT):
        await directory.changed.wait(0)


@asynccontextmanager
async def noticed(directory: Directory, fact: Callable[[], bool]) -> AsyncIterator[None]:
    """What is done inside must cause a tick after which `fact` is true."""
    seen = directory.changed.count
    yield
    async with asyncio.timeout(LIMIT):
        await directory.changed.until(lambda: directory.changed.count > seen and fact())


def there(directory: Directory, name: str = "kubelet.sock") -> Callable[[], bool]:
    return lambda: directory.identity(name) is not None


def gone(directory: Directory, name: str = "kubelet.sock") -> Callable[[], bool]:
    return lambda: directory.identity(name) is None


def make_again_with_the_same_inode(path: Path) -> None:
    kept = path.with_name("kept")
    os.link(path, kept)
    path.unlink()
    kept.rename(path)


async def test_an_existing_file_appears_at_once(root: Path) -> None:
    (root / "kubelet.sock").touch()
    directory = Directory(root)
    assert await directory.appears("kubelet.sock") == directory.identity("kubelet.sock")


async def test_a_file_that_comes_later_appears(root: Path) -> None:
    directory = Directory(root)
    async with directory.watching():
        await first_look(directory)
        async with noticed(directory, there(directory)):
            (root / "kubelet.sock").touch()


async def test_a_file_moved_into_place_appears(root: Path) -> None:
    (root / "elsewhere").mkdir()
    (root / "elsewhere" / "kubelet.sock").touch()
    directory = Directory(root)
    async with directory.watching():
        await first_look(directory)
        async with noticed(directory, there(directory)):
            (root / "elsewhere" / "kubelet.sock").rename(root / "kubelet.sock")


async def test_a_removed_or_renamed_file_is_gone(root: Path) -> None:
    (root / "ours.sock").touch()
    (root / "theirs.sock").touch()
    directory = Directory(root)
    async with directory.watching():
        await first_look(directory)
        async with noticed(directory, gone(directory, "ours.sock")):
            (root / "ours.sock").unlink()
        async with noticed(directory, gone(directory, "theirs.sock")):
            (root / "theirs.sock").rename(root / "mine.sock")


async def test_a_file_created_again_has_another_identity(root: Path) -> None:
    path = root / "kubelet.sock"
    path.touch()
    directory = Directory(root)
    async with directory.watching():
        await first_look(directory)
        before = directory.identity(path.name)
        path.unlink()
        path.touch()
        async with asyncio.timeout(LIMIT):
            await directory.changes_from(path.name, before)


async def test_a_file_created_again_has_another_identity_even_with_the_same_inode(root: Path) -> None:
    path = root / "kubelet.sock"
    path.touch()
    directory = Directory(root)
    async with directory.watching():
        await first_look(directory)
        for _ in range(5):
            before, inode = directory.identity(path.name), path.stat().st_ino
            make_again_with_the_same_inode(path)
            assert path.stat().st_ino == inode
            async with asyncio.timeout(LIMIT):
                await directory.changes_from(path.name, before)


@pytest.mark.usefixtures("inotify")
async def test_a_socket_that_is_only_used_keeps_its_identity(root: Path) -> None:
    path = root / "kubelet.sock"
    directory = Directory(root)
    async with directory.watching():
        await first_look(directory)
        with closing(sockets.listen(path)), socket.socket(socket.AF_UNIX) as client:
            async with noticed(directory, there(directory, "first")):
                (root / "first").touch()
            before = directory.identity(path.name)
            client.connect(str(path))
            path.chmod(0o660)
        async with noticed(directory, there(directory, "other")):
            (root / "other").touch()
        assert directory.identity(path.name) == before


@pytest.mark.usefixtures("inotify")
async def test_written_content_ticks_only_with_writes(root: Path) -> None:
    path = root / "config.yaml"
    path.touch()
    files, content = Directory(root), Directory(root, writes=True)
    async with files.watching(), content.watching():
        await first_look(files)
        await first_look(content)
        before = files.changed.count
        async with noticed(content, lambda: True):
            path.write_text("changed")
        async with noticed(files, lambda: True):
            (root / "next").touch()
        assert files.changed.count == before + 1


async def test_a_directory_that_comes_level_by_level_is_followed(root: Path) -> None:
    directory = Directory(root / "var" / "lib" / "kubelet")
    async with directory.watching():
        await first_look(directory)
        for path in (root / "var", root / "var" / "lib", directory.path):
            async with noticed(directory, path.is_dir):
                path.mkdir()
        async with noticed(directory, there(directory)):
            (directory.path / "kubelet.sock").touch()


async def test_a_directory_that_comes_all_at_once_is_followed(root: Path) -> None:
    directory = Directory(root / "var" / "lib" / "kubelet")
    async with directory.watching():
        await first_look(directory)
        async with noticed(directory, directory.path.is_dir):
            directory.path.mkdir(parents=True)
        async with noticed(directory, there(directory)):
            (directory.path / "kubelet.sock").touch()


async def test_a_directory_removed_and_made_again_is_followed_each_time(root: Path) -> None:
    directory = Directory(root / "device-plugins", poll=POLL)
    async with directory.watching():
        await first_look(directory)
        for _ in range(50):
            async with noticed(directory, directory.path.is_dir):
                directory.path.mkdir()
            async with noticed(directory, there(directory)):
                (directory.path / "kubelet.sock").touch()
            async with noticed(directory, gone(directory)):
                shutil.rmtree(directory.path)


async def test_a_directory_removed_and_made_again_unseen_is_followed(root: Path) -> None:
    directory = Directory(root / "device-plugins", poll=POLL)
    directory.path.mkdir()
    async with directory.watching():
        await first_look(directory)
        for _ in range(50):
            async with noticed(directory, gone(directory)):
                shutil.rmtree(directory.path)
                directory.path.mkdir()
            async with noticed(directory, there(directory)):
                (directory.path / "kubelet.sock").touch()


async def test_a_directory_removed_with_its_parents_is_followed_again(root: Path) -> None:
    directory = Directory(root / "var" / "lib" / "kubelet", poll=POLL)
    directory.path.mkdir(parents=True)
    async with directory.watching():
        await first_look(directory)
        for _ in range(20):
            async with noticed(directory, directory.path.is_dir):
                shutil.rmtree(root / "var")
                directory.path.mkdir(parents=True)
            async with noticed(directory, there(directory)):
                (directory.path / "kubelet.sock").touch()


async def test_a_file_at_the_directorys_path_is_waited_out(root: Path) -> None:
    directory = Directory(root / "device-plugins")
    directory.path.touch()
    async with directory.watching():
        await first_look(directory)
        async with noticed(directory, directory.path.is_dir):
            directory.path.unlink()
            directory.path.mkdir()
        async with noticed(directory, there(directory)):
            (directory.path / "kubelet.sock").touch()


async def test_a_directory_replaced_by_another_is_followed(root: Path) -> None:
    directory = Directory(root / "device-plugins")
    directory.path.mkdir()
    async with directory.watching():
        await first_look(directory)
        async with noticed(directory, lambda: True):
            directory.path.rename(root / "before")
            directory.path.mkdir()
        async with noticed(directory, there(directory)):
            (directory.path / "kubelet.sock").touch()


@pytest.mark.usefixtures("inotify")
async def test_a_crowded_directory_removed_at_once_is_still_watched(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = Directory(root / "device-plugins")
    directory.path.mkdir()
    for n in range(200):  # more than one read of events brings
        (directory.path / f"plugwright-example_com_tape-{n}.sock").touch()
    async with directory.watching():
        await first_look(directory)
        async with noticed(directory, lambda: True):
            shutil.rmtree(directory.path)
        async with noticed(directory, there(directory)):
            directory.path.mkdir()
            (directory.path / "kubelet.sock").touch()
    assert "inotify unavailable, polling every second" not in caplog.messages


async def test_a_directory_without_inotify_is_polled_and_that_is_logged_once(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = Directory(root / "device-plugins", poll=POLL)
    with no_more_file_descriptors():
        async with directory.watching():
            async with noticed(directory, there(directory)):
                directory.path.mkdir()
                os.mknod(directory.path / "kubelet.sock")
            async with noticed(directory, gone(directory)):
                (directory.path / "kubelet.sock").unlink()
    assert caplog.messages.count("inotify unavailable, polling every second") == 1


@pytest.mark.usefixtures("inotify")
async def test_a_polled_directory_is_watched_as_soon_as_there_is_an_instance(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    path = root / "kubelet.sock"
    path.touch()
    directory = Directory(root, poll=POLL)
    async with AsyncExitStack() as stack:
        with no_more_file_descriptors():
            await stack.enter_async_context(directory.watching())
            before = directory.identity(path.name)
        async with asyncio.timeout(LIMIT):
            await directory.changed.until(lambda: inotify_instances() == 1)
        assert caplog.messages[-1] == "inotify is available again"
        assert directory.identity(path.name) == before
        make_again_with_the_same_inode(path)
        async with asyncio.timeout(LIMIT):
            await directory.changes_from(path.name, before)


@pytest.mark.usefixtures("inotify")
async def test_a_file_created_again_before_the_directory_is_watched_has_another_identity(root: Path) -> None:
    path = root / "kubelet.sock"
    path.touch()
    directory = Directory(root, poll=POLL)
    async with AsyncExitStack() as stack:
        with no_more_file_descriptors():
            await stack.enter_async_context(directory.watching())
            before, made = directory.identity(path.name), path.stat()
            while path.stat().st_ctime_ns == made.st_ctime_ns:
                make_again_with_the_same_inode(path)
        async with asyncio.timeout(LIMIT):
            await directory.changed.until(lambda: inotify_instances() == 1)
        assert directory.identity(path.name) != before


async def test_a_file_created_again_without_inotify_has_another_identity_even_with_the_same_inode(root: Path) -> None:
    path = root / "kubelet.sock"
    path.touch()
    directory = Directory(root, poll=POLL)
    with no_more_file_descriptors():
        async with directory.watching():
            before, made = directory.identity(path.name), path.stat()
            while path.stat().st_ctime_ns == made.st_ctime_ns:  # no kubelet restarts within one tick of the clock
                make_again_with_the_same_inode(path)
            assert path.stat().st_ino == made.st_ino
            async with asyncio.timeout(LIMIT):
                await directory.changes_from(path.name, before)


async def test_leaving_ends_the_watch(root: Path) -> None:
    left, other = Directory(root), Directory(root)
    async with left.watching():
        await first_look(left)
    seen = left.changed.count
    async with other.watching():
        await first_look(other)
        async with noticed(other, there(other, "late")):
            (root / "late").touch()
    assert left.changed.count == seen


@pytest.mark.usefixtures("inotify")
async def test_fifty_directories_share_one_inotify_instance(root: Path) -> None:
    before = inotify_instances()
    directories = [Directory(root / str(number)) for number in range(50)]
    async with AsyncExitStack() as stack:
        for directory in directories:
            directory.path.mkdir()
            await stack.enter_async_context(directory.watching())
        assert inotify_instances() == before + 1
        for directory in directories:
            async with noticed(directory, there(directory)):
                (directory.path / "kubelet.sock").touch()


@pytest.mark.usefixtures("inotify")
async def test_the_inotify_instance_is_closed_when_the_last_directory_is_left(root: Path) -> None:
    before = inotify_instances()
    async with Directory(root).watching():
        async with Directory(root / "later").watching():
            assert inotify_instances() == before + 1
        assert inotify_instances() == before + 1
    assert inotify_instances() == before


async def test_two_readers_of_one_directory_both_notice_and_one_outlives_the_other(root: Path) -> None:
    first, second = Directory(root), Directory(root)
    async with second.watching():
        async with first.watching(), noticed(first, there(first)), noticed(second, there(second)):
            (root / "kubelet.sock").touch()
        async with noticed(second, gone(second)):
            (root / "kubelet.sock").unlink()


@pytest.mark.usefixtures("inotify")
async def test_a_set_of_directories_gets_events_of_its_own_alone(root: Path) -> None:
    mine, yours = root / "mine", root / "yours"
    mine.mkdir()
    yours.mkdir()
    changed, other = asyncio.Event(), asyncio.Event()
    first, second = WatchedDirectories(changed.set), WatchedDirectories(other.set)
    async with asyncio.timeout(LIMIT):
        with first.watching(), second.watching():
            assert first.replace({mine})
            assert second.replace({yours})
            (yours / "node").touch()
            await other.wait()
            assert not changed.is_set()


@pytest.mark.usefixtures("inotify")
async def test_a_directory_made_again_is_new_to_every_set(root: Path) -> None:
    path = root / "dri"
    path.mkdir()
    changed = asyncio.Event()
    first, second = WatchedDirectories(changed.set), WatchedDirectories(lambda: None)
    async with asyncio.timeout(LIMIT):
        with first.watching(), second.watching():
            assert first.replace({path})
            assert second.replace({path})
            assert not first.replace({path})
            path.rmdir()
            await changed.wait()
            path.mkdir()
            while not first.replace({path}):  # until the kernel has reported that its watch is gone
                await asyncio.sleep(0)
            assert second.replace({path})
            assert not second.replace({path})


@pytest.mark.usefixtures("inotify")
async def test_a_directory_that_cannot_be_watched_is_not_new(root: Path) -> None:
    path, directories = root / "later", WatchedDirectories(lambda: None)
    with directories.watching():
        assert [directories.replace({path}) for _ in range(2)] == [False, False]
        path.mkdir()
        assert [directories.replace({path}) for _ in range(2)] == [True, False]


async def test_a_creation_before_the_question_does_not_change_the_identity_later(tmp_path: Path) -> None:
    directory = Directory(tmp_path, poll=POLL)
    async with directory.watching():
        directory.identity("kubelet.sock")
        (tmp_path / "kubelet.sock").touch()
        identity = directory.identity("kubelet.sock")
        seen = directory.changed.count
        (tmp_path / "other").touch()
        await directory.changed.wait(seen)  # all earlier events are read by now
        assert directory.identity("kubelet.sock") == identity
