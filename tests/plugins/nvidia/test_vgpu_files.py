"""Files of vGPU shares: written ahead in one thread while containers are given theirs in another."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from plugwright.plugins.nvidia.vgpu_files import TenantFiles


def test_files_may_be_written_ahead_while_they_are_given_out(tmp_path: Path) -> None:
    files = TenantFiles(tmp_path / "vgpu")
    with ThreadPoolExecutor(4) as threads:
        made = [threads.submit(files.writable_file, "usage", "one", fresh=bool(turn % 2)) for turn in range(400)]
        made += [threads.submit(files.writable_directory, "containers", "one", fresh=bool(n % 2)) for n in range(100)]
    assert {task.result().name for task in made} == {"one"}


def test_a_fresh_file_is_empty_and_another_is_left_alone(tmp_path: Path) -> None:
    files = TenantFiles(tmp_path / "vgpu")
    usage = files.writable_file("usage", "one", fresh=True)
    usage.write_bytes(b"used")
    assert files.writable_file("usage", "one", fresh=False).read_bytes() == b"used"
    assert files.writable_file("usage", "one", fresh=True).read_bytes() == b""
    assert files.has("usage", "one")
    usage.unlink()
    usage.symlink_to("/etc/passwd")
    assert not files.has("usage", "one"), "a link is no file"
