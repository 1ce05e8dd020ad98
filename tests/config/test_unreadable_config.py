"""A configuration file, or its last good copy, that cannot be read is refused in time, and followed afterwards."""

import asyncio
import os
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path

import pytest
from tests.cli.processes import Node, configuration, ended, python
from tests.observed_kubelet import ObservedKubelet
from tests.system.frozen_file import frozen

from plugwright.config import schema
from plugwright.config.last_good import LastGoodFile
from plugwright.config.reload import CurrentConfig, DaemonConfig
from plugwright.errors import ConfigError

LIMIT = 0.2  # seconds


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "plugwright.yaml"
    path.write_text(configuration(gpu={"count": 1}))
    return path


@pytest.fixture
def state(tmp_path: Path, path: Path) -> Path:
    LastGoodFile(tmp_path / "state", path).save(schema.load(path), loaded=7.0)
    return tmp_path / "state"


def make_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def make_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def make_endless(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def make_large(path: Path) -> None:
    path.write_bytes(b"#" * (2**20 + 1))


UNREADABLE: dict[str, tuple[Callable[[Path], None], str]] = {
    "pipe": (make_pipe, "it must be a regular file"),
    "directory": (make_directory, "Is a directory"),
    "endless": (make_endless, "it must be a regular file"),
    "large": (make_large, "it must have at most 1048576 bytes, got 1048577"),
}


@pytest.mark.parametrize(("make", "reason"), UNREADABLE.values(), ids=UNREADABLE)
async def test_a_daemon_follows_a_file_that_could_not_be_read(
    kubelet: ObservedKubelet, make: Callable[[Path], None], reason: str
) -> None:
    node = Node(kubelet.paths.root)
    node.configure(gpu={"count": 2})
    async with node.daemon() as daemon:
        await kubelet.endpoint("mock/gpu", 2)
        make(node.config)
        refused = await daemon.err.until("new configuration rejected")
        assert f"cannot read {node.config}: {reason}" in refused
        assert reason in (await node.ask("status")).out
        if node.config.is_dir():
            node.config.rmdir()
        node.configure(gpu={"count": 3})
        await kubelet.endpoint("mock/gpu", 3)


@pytest.mark.parametrize(("make", "reason"), UNREADABLE.values(), ids=UNREADABLE)
def test_a_start_with_an_unreadable_file_uses_its_last_good_version(
    path: Path, state: Path, make: Callable[[Path], None], reason: str
) -> None:
    make(path)
    config = DaemonConfig(path, state)
    assert config.state.restored
    assert config.state.refused is not None
    assert config.state.refused.error == f"cannot read {path}: {reason}"


def test_a_start_waits_for_a_dead_file_system_as_long_as_its_limit(path: Path, state: Path) -> None:
    with frozen(path):
        config = DaemonConfig(path, state, LIMIT)
    assert config.state.restored
    assert config.state.refused is not None
    assert config.state.refused.error == f"cannot read {path}: no answer within {LIMIT} s"


def test_a_start_names_a_last_good_version_that_hangs(path: Path, state: Path) -> None:
    path.write_text("broken")
    with frozen(state / "last-good-config.json"):
        reason = f"its last good version cannot be used: read of the last good version did not end within {LIMIT} s"
        with pytest.raises(ConfigError, match=reason):
            DaemonConfig(path, state, LIMIT)


async def test_a_changed_file_that_hangs_is_reported_and_read_when_it_answers(path: Path) -> None:
    current = CurrentConfig(path, schema.load(path), LIMIT)
    async with aclosing(current.changes()) as changes, asyncio.timeout(60):
        with frozen(path):
            await anext(changes)
            assert not await current.reload(_take)
        assert current.state.value.refused is not None
        assert current.state.value.refused.error == f"cannot read {path}: no answer within {LIMIT} s"
        await current.reads.hung.until(lambda hung: not hung)
        assert await current.reload(_take)


async def test_a_check_reads_a_pipe_to_its_end(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    checking = asyncio.create_task(ended(python("-m", "plugwright", "run", "--check", "-c", pipe)))
    writer = await asyncio.to_thread(pipe.open, "w")
    with writer:
        writer.write(configuration(gpu={"count": 1}))
    done = await checking
    assert (done.code, done.out) == (0, f"{pipe}: 1 resource, valid\n")


async def _take(_: object) -> dict[str, str]:
    return {}
