"""The kubelet's checkpoint is read once for all resources, and again only when it is another file."""

import asyncio
import errno
import os
from collections.abc import Iterable
from pathlib import Path

import pytest

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


async def reading(fifo: Path) -> int:
    """A descriptor to write by, as soon as somebody reads."""
    while True:
        try:
            descriptor = os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            await asyncio.sleep(0.001)
        else:
            os.set_blocking(descriptor, True)
            return descriptor


async def held(kubelet: KubeletCheckpoint, resource: str) -> Held:
    return (await kubelet.read()).held.get(resource, {})


async def test_every_resource_has_its_devices(path: Path) -> None:
    write(path, [("a.com/tape", "st0"), ("a.com/disk", "sda"), ("a.com/tape", "st1")])
    kubelet = KubeletCheckpoint(path, 60)
    found = await asyncio.gather(*(held(kubelet, f"a.com/{name}") for name in ("tape", "disk", "other")))
    assert found == [{"st0": (0,), "st1": (0,)}, {"sda": (0,)}, {}]


async def test_resources_that_ask_together_share_one_reading(path: Path) -> None:
    os.mkfifo(path)
    kubelet = KubeletCheckpoint(path, 60)
    asking = [asyncio.create_task(held(kubelet, "a.com/tape")) for _ in range(20)]
    data = write(path.with_name("other"), [("a.com/tape", "st0")])
    async with asyncio.timeout(60):
        with os.fdopen(await reading(path), "wb") as fifo:  # a second reader would wait for ever
            fifo.write(data)
        assert await asyncio.gather(*asking) == [{"st0": (0,)}] * 20


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
