"""Our sockets have names of their own, are ours alone, and a killed run's are cleared away without touching others'."""

import asyncio
import os
import socket
import stat
import string
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from tests.observed_kubelet import ObservedKubelet

from plugwright import Device, Plugin, Settings, serving
from plugwright.errors import PathTooLong
from plugwright.protocol.paths import KubeletPaths
from plugwright.sdk import registration
from plugwright.system import sockets

RESOURCES = st.from_regex(
    r"[a-z0-9]([-a-z0-9.]{0,240}[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", fullmatch=True
)


class Shelf(Plugin):
    def __init__(self, resource: str) -> None:
        self.resource = resource

    async def discover(self) -> AsyncIterator[list[Device]]:
        yield [Device("one")]


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def leave_dead(path: Path) -> Path:
    """What a killed process leaves behind."""
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
    return path


def in_a_minute() -> float:
    """The time when no file of a test is new any more."""
    return time.time() + 60


@examples(deadline=None, max_examples=40)
@given(RESOURCES)
def test_a_name_is_plain_and_fits_below_the_kubelets_directories(resource: str) -> None:
    paths = KubeletPaths.from_environment({})
    plain = set(string.ascii_lowercase + string.digits + "-_.")
    for place, name in (
        (paths.device_plugins, registration.unique_socket_name(resource)),
        (paths.plugins_registry, registration.fixed_socket_name(resource)),
    ):
        assert name.startswith("plugwright-")
        assert name.endswith(".sock")
        assert set(name) <= plain
        assert len(name) <= registration.LONGEST_SOCKET_NAME
        assert len(os.fsencode(place / name)) <= sockets.PATH_LIMIT


@examples(deadline=None)
@given(RESOURCES, RESOURCES)
def test_two_resources_never_share_a_name(one: str, other: str) -> None:
    assert (registration.fixed_socket_name(one) == registration.fixed_socket_name(other)) == (one == other)


def test_names_differ_where_only_their_beginnings_or_signs_do() -> None:
    alike = [
        "a.example.com/tape",
        "a-example.com/tape",
        "a.example.com/Tape",
        f"{'x' * 200}.com/tape",
        f"{'y' * 200}.com/tape",
    ]
    assert len({registration.fixed_socket_name(resource) for resource in alike}) == len(alike)


def test_unique_socket_names_differ_and_fixed_ones_do_not() -> None:
    assert len({registration.unique_socket_name("example.com/tape") for _ in range(100)}) == 100
    assert len({registration.fixed_socket_name("example.com/tape") for _ in range(100)}) == 1


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077])
def test_a_socket_is_for_its_owner_alone_whatever_the_umask(root: Path, mask: int) -> None:
    with umask(mask), closing(sockets.listen(root / "a.sock")):
        assert stat.S_IMODE((root / "a.sock").lstat().st_mode) == 0o600


def test_a_socket_can_be_connected_to_as_soon_as_it_is_there(root: Path) -> None:
    with closing(sockets.listen(root / "a.sock")), socket.socket(socket.AF_UNIX) as client:
        client.connect(str(root / "a.sock"))


def test_a_path_too_long_is_refused_with_the_path_and_the_limit(root: Path) -> None:
    path = root / ("x" * 100) / "a.sock"
    with pytest.raises(PathTooLong, match="the kernel allows 107") as refused:
        sockets.listen(path)
    assert str(path.parent) in str(refused.value)


def test_the_longest_path_is_served_and_one_byte_more_is_not(root: Path) -> None:
    longest = root / ("x" * (sockets.PATH_LIMIT - len(os.fsencode(root)) - 1))
    sockets.listen(longest).close()
    assert longest.is_socket()
    with pytest.raises(PathTooLong):
        sockets.listen(longest.with_name(longest.name + "x"))


def test_stale_sockets_of_ours_are_removed_and_everything_else_stays(root: Path) -> None:
    dead = [leave_dead(root / f"plugwright-dead-{n}.sock") for n in range(3)]
    leave_dead(root / "nvidia-gpu.sock")
    leave_dead(root / "plugwright-dead.socket")
    plain = root / "plugwright-notes.sock"
    plain.write_text("not a socket")
    (root / "plugwright-folder.sock").mkdir()
    (root / "plugwright-dangling.sock").symlink_to(root / "nowhere")
    with closing(sockets.listen(root / "plugwright-live.sock")):
        before = set(root.iterdir())
        assert registration.remove_stale_sockets(root, in_a_minute) == [path.name for path in dead]
        assert set(root.iterdir()) == before - set(dead)


def test_a_live_socket_too_busy_to_answer_stays(root: Path) -> None:
    path = root / "plugwright-busy.sock"
    with socket.socket(socket.AF_UNIX) as listening, socket.socket(socket.AF_UNIX) as waiting:
        listening.bind(str(path))
        listening.listen(0)
        waiting.connect(str(path))
        assert registration.remove_stale_sockets(root, in_a_minute) == []
        assert path.is_socket()


def test_a_new_socket_stays_because_its_owner_may_be_about_to_listen(root: Path) -> None:
    newborn = leave_dead(root / "plugwright-newborn.sock")
    assert registration.remove_stale_sockets(root) == []
    assert newborn.is_socket()


def test_a_dead_socket_does_not_become_new_by_a_clock_set_back(root: Path) -> None:
    dead = leave_dead(root / "plugwright-dead.sock")
    assert registration.remove_stale_sockets(root, lambda: dead.lstat().st_ctime - 3600) == [dead.name]


def test_a_directory_that_is_not_there_holds_nothing_stale(root: Path) -> None:
    assert registration.remove_stale_sockets(root / "missing") == []


def test_a_stale_socket_beyond_the_path_limit_is_skipped(root: Path) -> None:
    deep = root / ("d" * 100)
    deep.mkdir()
    (root / "short").symlink_to(deep)  # another run had the directory under a shorter name: a mount, for one
    leave_dead(root / "short" / "plugwright-dead.sock")
    registration.remove_stale_sockets(deep, in_a_minute)


async def test_the_socket_of_a_run_killed_just_before_this_one_is_removed(
    kubelet: ObservedKubelet, settings: Settings
) -> None:
    leave_dead(kubelet.paths.device_plugins / "plugwright-killed.sock")
    async with serving(Shelf("example.com/tape"), settings=settings):
        assert (kubelet.paths.device_plugins / "plugwright-killed.sock").exists()  # its owner may be about to listen
        while (kubelet.paths.device_plugins / "plugwright-killed.sock").exists():
            await asyncio.sleep(0.05)


async def test_two_daemons_leave_each_others_sockets_alone(kubelet: ObservedKubelet, settings: Settings) -> None:
    tape, disk = Shelf("example.com/tape"), Shelf("example.com/disk")
    async with serving(tape, settings=settings):
        first = await kubelet.endpoint(tape.resource)
        os.utime(kubelet.paths.device_plugins / first.request.endpoint, (0, 0))  # not of someone just starting
        async with serving(disk, settings=settings):
            second = await kubelet.endpoint(disk.resource)
            assert {path.name for path in kubelet.paths.device_plugins.iterdir()} == {
                "kubelet.sock",
                "kubelet_internal_checkpoint",
                first.request.endpoint,
                second.request.endpoint,
            }
        await kubelet.until(lambda _: second.ended)
        assert not first.ended
    assert [request.resource for request in kubelet.registered] == [tape.resource, disk.resource]
