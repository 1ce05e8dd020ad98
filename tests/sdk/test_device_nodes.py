"""Device nodes compared on the event loop: changes are seen, and nothing on the way can hang."""

import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from plugwright.model import Allocation
from plugwright.sdk.device_nodes import KeptAllocations, memory_file_systems, take_stamps
from plugwright.sdk.sysfs import Host

SHM = Path("/dev/shm")


@pytest.fixture
def dev() -> Iterator[Path]:
    """A directory in memory; a character device with the numbers 0 and 0 is nobody's, and needs no root."""
    if not SHM.is_dir() or SHM.stat().st_dev not in memory_file_systems():
        pytest.skip("needs a tmpfs at /dev/shm")
    with tempfile.TemporaryDirectory(dir=SHM) as name:
        yield Path(name)


def node(path: Path) -> Path:
    os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(0, 0))
    return path


def test_a_node_that_is_removed_or_made_again_has_changed(dev: Path) -> None:
    path = node(dev / "thing")
    stamps = take_stamps(Host(), [str(path)], memory_file_systems())
    assert stamps is not None
    assert stamps.are_unchanged()
    path.chmod(0o666)
    assert not stamps.are_unchanged()
    path.chmod(0o600)
    assert stamps.are_unchanged()
    path.unlink()
    assert not stamps.are_unchanged()
    (dev / "other").symlink_to(dev / "thing")
    node(path)
    assert not stamps.are_unchanged(), "another inode"


def test_a_link_in_place_of_a_node_is_not_followed(dev: Path) -> None:
    path = node(dev / "thing")
    stamps = take_stamps(Host(), [str(path)], memory_file_systems())
    assert stamps is not None
    path.rename(dev / "moved")
    path.symlink_to(dev / "moved")  # the same inode behind it
    assert not stamps.are_unchanged()


def test_a_directory_that_is_replaced_is_not_looked_into(dev: Path) -> None:
    (dev / "dri").mkdir()
    path = node(dev / "dri" / "card0")
    stamps = take_stamps(Host(), [str(path)], memory_file_systems())
    assert stamps is not None
    path.unlink()
    (dev / "dri").rmdir()
    (dev / "dri").symlink_to("/proc")
    assert not stamps.are_unchanged()


def test_what_may_hang_or_is_no_node_has_no_stamps(dev: Path, tmp_path: Path) -> None:
    in_memory = memory_file_systems()
    path = node(dev / "thing")
    (dev / "link").symlink_to(path)
    (dev / "file").touch()
    for other in (dev / "link", dev / "file", dev, dev / "missing", Path("/proc/self/status")):
        assert take_stamps(Host(), [str(path), str(other)], in_memory) is None, other
    assert take_stamps(Host(), [str(path)], frozenset()) is None, "a file system that is not in memory"


def test_mounts_in_memory_are_found_by_their_numbers(tmp_path: Path) -> None:
    info = tmp_path / "mountinfo"
    info.write_text(
        "24 27 0:6 / /dev rw,relatime shared:2 - devtmpfs udev rw\n"
        "25 24 0:23 / /dev/shm rw - tmpfs tmpfs rw\n"
        "27 1 254:0 / / rw - ext4 /dev/vda rw\n"
        "28 1 0:99 / /net rw - nfs4 server:/x rw\n"
    )
    assert memory_file_systems(info) == {os.makedev(0, 6), os.makedev(0, 23)}
    assert memory_file_systems(tmp_path / "missing") == frozenset()


def test_a_kept_allocation_is_given_while_its_nodes_are_as_they_were(dev: Path) -> None:
    path, kept, allocation = node(dev / "thing"), KeptAllocations(), Allocation(env={"A": "1"})
    kept.keep(["thing"], allocation, take_stamps(Host(), [str(path)], memory_file_systems()))
    assert kept.get(["thing"]) is allocation
    assert kept.get(["other"]) is None
    path.unlink()
    assert kept.get(["thing"]) is None
