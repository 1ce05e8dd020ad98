"""The kubelet's checkpoint is read once for all resources, and again only when it is another file."""

import asyncio
import os
import threading
from collections.abc import Iterable
from pathlib import Path

import pytest
from tests.system.frozen_file import frozen

from plugwright.errors import CheckpointCorrupt
from plugwright.protocol import checkpoint
from plugwright.protocol.checkpoint import Checkpoint, PodDevicesEntry
from plugwright.sdk.holdings.kubelet_checkpoint import Held, KubeletCheckpoint


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "kubelet_internal_checkpoint"


def write(path: Path, held: Iterable[tuple[str, str]]) -> bytes:
    """As the kubelet does: another file takes its place."""
    entries = [
        PodDevicesEntry("uid", f"c{number}", resource, {0: (device_id,)}, b"answer")
        for number, (resource, device_id) in enumerate(held)
    ]
    data = checkpoint.encode(Checkpoint(tuple(entries), {}))
    path.with_suffix(".new").write_bytes(data)
    path.with_suffix(".new").rename(path)
    return data


async def held(kubelet: KubeletCheckpoint, resource: str) -> Held:
    return (await kubelet.read()).held.get(resource, {})


async def test_every_resource_has_its_devices(path: Path) -> None:
    write(path, [("a.com/tape", "st0"), ("a.com/disk", "sda"), ("a.com/tape", "st1")])
    kubelet = KubeletCheckpoint(path, 60)
    found = await asyncio.gather(*(held(kubelet, f"a.com/{name}") for name in ("tape", "disk", "other")))
    assert found == [{"st0": (0,), "st1": (0,)}, {"sda": (0,)}, {}]


async def test_resources_that_ask_together_share_one_reading(path: Path) -> None:
    write(path, [("a.com/tape", "st0")])
    kubelet = KubeletCheckpoint(path, 60)
    with frozen(path):
        asking = [asyncio.create_task(held(kubelet, "a.com/tape")) for _ in range(20)]
        while not (found := [thread for thread in threading.enumerate() if thread.name == f"read of {path}"]):
            await asyncio.sleep(0.001)
        assert len(found) == 1
    assert await asyncio.gather(*asking) == [{"st0": (0,)}] * 20


async def test_a_file_over_the_limit_is_refused_with_its_size_until_another_is_written(path: Path) -> None:
    path.touch()
    os.truncate(path, 20_000_000)
    kubelet = KubeletCheckpoint(path, 60)
    with pytest.raises(CheckpointCorrupt, match="at most 8388608 bytes, got 20000000"):
        await held(kubelet, "a.com/tape")
    write(path, [("a.com/tape", "st0")])
    assert await held(kubelet, "a.com/tape") == {"st0": (0,)}


async def test_a_file_that_is_the_same_is_not_parsed_again(path: Path) -> None:
    write(path, [("a.com/tape", "st0")])
    kubelet = KubeletCheckpoint(path, 60)
    first = await held(kubelet, "a.com/tape")
    assert await held(kubelet, "a.com/tape") is first
    write(path, [("a.com/tape", "st1")])
    assert await held(kubelet, "a.com/tape") == {"st1": (0,)}
    path.unlink()
    assert await held(kubelet, "a.com/tape") == {}


async def test_a_damaged_file_is_an_error_until_another_is_written(path: Path) -> None:
    data = write(path, [("a.com/tape", "st0")])
    path.write_bytes(data.replace(b"st0", b"st1"))
    kubelet = KubeletCheckpoint(path, 60)
    with pytest.raises(CheckpointCorrupt):
        await held(kubelet, "a.com/tape")
    write(path, [("a.com/tape", "st2")])
    assert await held(kubelet, "a.com/tape") == {"st2": (0,)}


async def test_no_directory_is_no_kubelet(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        await KubeletCheckpoint(tmp_path / "none" / "checkpoint", 60).read()
