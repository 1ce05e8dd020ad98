"""What every test may ask for. Nothing may be left behind: tasks, sockets, file descriptors."""

import asyncio
import ctypes
import gc
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import hypothesis
import pytest
from hypothesis.internal.conjecture import providers
from tests import removal, session_records
from tests.observed_kubelet import ObservedKubelet, observed_kubelet

from plugwright.sdk.settings import Settings, Timeouts
from tiny_kubelet import TinyKubelet
from tiny_kubelet import tiny_kubelet as running_tiny_kubelet


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--full", action="store_true", help="also run the tests marked `full`, and some in full size")


def pytest_configure(config: pytest.Config) -> None:
    """nohup, a shell's `&` and some CI runners start us with these ignored, and so every process of a test."""
    config.addinivalue_line("markers", "full(why): takes long for this reason, and runs with --full only")
    session_records.register(config)
    for number, default in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, default)
    gc.disable()  # while tests are collected, which makes no garbage


def pytest_collection_finish() -> None:
    """The tests themselves, a million objects, stay: no garbage collection looks at them again."""
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--full"):
        return
    for item in items:
        if marker := item.get_closest_marker("full"):
            [why] = marker.args
            item.add_marker(pytest.mark.skip(reason=f"--full: {why}"))


# A busy machine is no defect, and two runs try the same: `--hypothesis-profile random` looks for what nobody has tried.
hypothesis.settings.register_profile("random", deadline=None)
hypothesis.settings.register_profile("plugwright", deadline=None, derandomize=True)
hypothesis.settings.load_profile("plugwright")


def pytest_sessionstart() -> None:
    """Without the constants of the modules loaded so far, examples do not depend on the tests before.

    Each process would spend 3 s on reading them in a new clone. The profile `random` uses them.
    """
    if hypothesis.settings().derandomize:
        providers._get_local_constants = lambda: providers._local_constants


QUICK = Timeouts(discovery=0.3, departed=0.2, lost_stream=0.02, first_stream=2.0, burst=0.005)
_CLOSING = 20.0  # seconds; only a test that leaves a descriptor open waits for so long


@pytest.fixture
def full(request: pytest.FixtureRequest) -> bool:
    """Whether a test of several sizes runs in full size."""
    full = bool(request.config.getoption("--full"))
    if not full:
        request.node.user_properties.append(session_records.REDUCED)
    return full


@pytest.fixture
def root() -> Iterator[Path]:
    """A kubelet's directory with a short path, whatever pytest's own is: a socket's path has at most 107 bytes."""
    made = TemporaryDirectory(prefix="k-", dir="/tmp")
    yield Path(made.name)
    removal.remove(made)


@pytest.fixture
def settings(root: Path) -> Settings:
    return Settings(kubelet_dir=root, timeouts=QUICK)


@pytest.fixture
async def kubelet(root: Path) -> AsyncIterator[ObservedKubelet]:
    async with observed_kubelet(root) as running:
        yield running


@pytest.fixture
async def tiny_kubelet(root: Path) -> AsyncIterator[TinyKubelet]:
    async with running_tiny_kubelet(root) as kubelet:
        yield kubelet


@pytest.fixture
def inotify() -> None:
    """Skips where the user's inotify instances are used up: directories are looked at every second then."""
    library = ctypes.CDLL(None, use_errno=True)
    instance = library.inotify_init1(os.O_CLOEXEC)
    if instance < 0:
        pytest.skip(f"no inotify instance left: {os.strerror(ctypes.get_errno())}")
    os.close(instance)


@pytest.fixture(autouse=True)
def no_file_descriptor_is_left_open() -> Iterator[None]:
    before = _descriptors()
    yield
    if left := _newer_than(before):
        gc.collect()  # slow, and only needed for what is held by a cycle
        end = time.monotonic() + _CLOSING
        while (left := _newer_than(before)) and time.monotonic() < end:
            time.sleep(0.01)  # a thread that was abandoned closes what it has, and may not have had its turn
    assert not left, "left open"


def _newer_than(before: dict[str, str]) -> dict[str, str]:
    return {number: target for number, target in _descriptors().items() if before.get(number) != target}


def _descriptors() -> dict[str, str]:
    found = {}
    for number in os.listdir("/proc/self/fd"):  # noqa: PTH208  twice in every test: a Path costs more than the call
        try:
            target = os.readlink(f"/proc/self/fd/{number}")  # noqa: PTH115
        except OSError:
            continue
        if target.startswith(("socket:", "anon_inode:inotify")):
            found[number] = target
    return found


@pytest.fixture(autouse=True)
def no_task_is_left_running(request: pytest.FixtureRequest) -> None:
    """A test without an event loop gets none for this."""
    if request.node.get_closest_marker("asyncio"):
        request.getfixturevalue("_tasks_are_ended")


@pytest.fixture
async def _tasks_are_ended() -> AsyncIterator[None]:
    before = asyncio.all_tasks()
    yield
    await asyncio.sleep(0)
    left = asyncio.all_tasks() - before - {asyncio.current_task()}
    assert not left, f"left running: {left}"
