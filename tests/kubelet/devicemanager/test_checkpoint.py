"""The checkpoint on disk: whole at every instant, and never lost when it cannot be used."""

import errno
import json
import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from plugwright.kubelet.devicemanager.checkpoint import CheckpointFile, LoadedCheckpoint
from plugwright.protocol import checkpoint
from plugwright.protocol.checkpoint import Checkpoint, PodDevicesEntry
from plugwright.system.files import FileCalls

VECTORS = Path(__file__).parents[2] / "vectors"
KILLING = Path(__file__).with_name("killing.py")
KILLS = int(os.environ.get("PLUGWRIGHT_KILLS", "60"))  # `make soak` asks for thousands
EMPTY = Checkpoint(entries=None, registered={})
FULL = Checkpoint(
    entries=(PodDevicesEntry("pod", "main", "example.com/gpu", {0: ("g0",)}, b""),),
    registered={"example.com/gpu": ("g0",)},
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "device-plugins" / "kubelet_internal_checkpoint"


def checkpoint_file(path: Path, **calls: Any) -> CheckpointFile:
    return CheckpointFile(path, plain_lists=False, calls=replace(FileCalls(), **calls))


def refusing(number: int) -> Callable[..., Any]:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    return refuse


def watched(seen: list[str]) -> dict[str, Callable[..., object]]:
    """The real calls, which record their names."""

    def watching(name: str) -> Callable[..., object]:
        def call(*arguments: object) -> object:
            seen.append(name)
            return getattr(FileCalls(), name)(*arguments)

        return call

    return {name: watching(name) for name in ("open", "write", "fsync", "close", "rename", "remove")}


def names(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.parent.iterdir())


def killed(tmp_path: Path, *arguments: object) -> dict[str, Any]:
    command = [sys.executable, str(KILLING), str(tmp_path), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def test_saved_checkpoint_is_loaded(path: Path) -> None:
    checkpoint_file(path).save(FULL)
    assert checkpoint_file(path).load() == LoadedCheckpoint(FULL)


def test_one_checkpoint_file_saves_several_times(path: Path) -> None:
    kept = checkpoint_file(path)
    for state in (EMPTY, FULL, replace(FULL, registered={}), EMPTY):
        kept.save(state)
        assert path.read_bytes() == checkpoint.encode(state)
    assert names(path) == [path.name]


def test_no_file_is_no_problem(path: Path) -> None:
    assert checkpoint_file(path).load() == LoadedCheckpoint(EMPTY)
    path.parent.mkdir()
    assert checkpoint_file(path).load() == LoadedCheckpoint(EMPTY)


def test_4_30_directory_and_file_are_made_with_the_kubelets_modes(path: Path) -> None:
    before = os.umask(0)
    try:
        checkpoint_file(path).save(FULL)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o755
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_4_30_the_data_is_synced_before_the_name_moves(path: Path) -> None:
    seen: list[str] = []
    checkpoint_file(path, **watched(seen)).save(FULL)
    assert seen == ["open", "write", "fsync", "close", "rename"]


def test_4_30_the_temporary_file_is_a_dot_and_digits_beside_the_checkpoint(path: Path) -> None:
    moves: list[tuple[str, Path]] = []

    def rename(source: str, target: Path) -> None:
        moves.append((source, target))
        Path(source).rename(target)

    checkpoint_file(path, rename=rename).save(FULL)
    [(source, target)] = moves
    assert target == path
    assert re.fullmatch(r"\.[0-9]+", Path(source).name)
    assert Path(source).parent == path.parent


@pytest.mark.skipif(not shutil.which("strace"), reason="needs strace")
def test_4_30_the_kernel_sees_fsync_before_rename(path: Path, tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from plugwright.kubelet.devicemanager.checkpoint import CheckpointFile;"
        "from plugwright.protocol.checkpoint import Checkpoint;"
        "CheckpointFile(Path(sys.argv[1]), plain_lists=False).save(Checkpoint(None, {}))"
    )
    trace = tmp_path / "trace"
    command = ["strace", "-o", str(trace), "-e", "trace=fsync,rename,renameat,renameat2", sys.executable, "-c", program]
    done = subprocess.run([*command, str(path)], capture_output=True, text=True, check=False)
    if done.returncode and "ptrace" in done.stderr:
        pytest.skip("this system does not let us trace")
    calls = re.findall(r"^(\w+)\(.*= (-?\d+)", trace.read_text(), re.MULTILINE)
    assert [(name[:6], result) for name, result in calls] == [("fsync", "0"), ("rename", "0")]


def test_a_write_in_parts_is_finished(path: Path) -> None:
    def write_little(descriptor: int, data: memoryview) -> int:
        return os.write(descriptor, data[:7])

    checkpoint_file(path, write=write_little).save(FULL)
    assert checkpoint_file(path).load() == LoadedCheckpoint(FULL)


@pytest.mark.parametrize("step", ["open", "write", "fsync", "close", "rename"])
def test_4_30_when_a_save_fails_the_old_file_stays_and_nothing_else(path: Path, step: str) -> None:
    checkpoint_file(path).save(EMPTY)
    with pytest.raises(OSError, match="No space left on device"):
        checkpoint_file(path, **{step: refusing(errno.ENOSPC)}).save(FULL)
    assert names(path) == [path.name]
    assert checkpoint_file(path).load() == LoadedCheckpoint(EMPTY)


def test_checkpoint_file_whose_save_failed_saves_again(path: Path) -> None:
    full = [True]

    def fsync(descriptor: int) -> None:
        if full.pop() if full else False:
            raise OSError(errno.ENOSPC, "No space left on device")
        os.fsync(descriptor)

    kept = checkpoint_file(path, fsync=fsync)
    with pytest.raises(OSError, match="No space"):
        kept.save(FULL)
    kept.save(FULL)
    assert checkpoint_file(path).load() == LoadedCheckpoint(FULL)


def test_a_directory_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    tmp_path.joinpath("a-file").touch()
    with pytest.raises(OSError, match="a-file"):
        checkpoint_file(tmp_path / "a-file" / "kubelet_internal_checkpoint").save(FULL)


@pytest.mark.parametrize("vector", sorted(VECTORS.glob("negative-*.json")), ids=lambda vector: vector.stem)
def test_4_29_a_file_that_cannot_be_trusted_is_kept_aside(path: Path, vector: Path) -> None:
    path.parent.mkdir()
    shutil.copy(vector, path)
    loaded = checkpoint_file(path).load()
    assert loaded.checkpoint == EMPTY
    assert loaded.kept_aside == path.with_name(f"{path.name}.bad") / "1"
    assert loaded.kept_aside.read_bytes() == vector.read_bytes()
    assert loaded.problem.startswith("checkpoint ")
    assert loaded.problem.endswith(f"; kept as {loaded.kept_aside}, starting empty")
    assert not path.exists()


def test_no_file_kept_aside_is_overwritten(path: Path) -> None:
    path.parent.mkdir()
    for number in range(1, 4):
        path.write_text(f"broken {number}")
        loaded = checkpoint_file(path).load()
        assert loaded.kept_aside == path.with_name(f"{path.name}.bad") / str(number)
    assert [(path.with_name(f"{path.name}.bad") / str(number)).read_text() for number in (1, 2, 3)] == [
        "broken 1", "broken 2", "broken 3",
    ]  # fmt: skip


def test_directory_in_place_of_the_file_is_moved_aside_too(path: Path) -> None:
    path.mkdir(parents=True)
    loaded = checkpoint_file(path).load()
    assert loaded.problem.startswith("cannot be read: Is a directory; kept as ")
    assert loaded.kept_aside is not None
    assert loaded.kept_aside.is_dir()
    checkpoint_file(path).save(FULL)
    assert checkpoint_file(path).load() == LoadedCheckpoint(FULL)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read and write everything")
def test_file_that_can_be_neither_read_nor_moved_is_a_problem(path: Path) -> None:
    checkpoint_file(path).save(FULL)
    path.chmod(0)
    path.parent.chmod(0o500)
    try:
        loaded = checkpoint_file(path).load()
    finally:
        path.parent.chmod(0o755)
    assert loaded.problem == (
        "cannot be read: Permission denied; it cannot be moved aside either: Permission denied; starting empty"
    )
    assert loaded.kept_aside is None


def test_path_below_a_file_is_a_problem(tmp_path: Path) -> None:
    tmp_path.joinpath("a-file").touch()
    loaded = checkpoint_file(tmp_path / "a-file" / "kubelet_internal_checkpoint").load()
    assert loaded.checkpoint == EMPTY
    assert loaded.problem.startswith("cannot be read: Not a directory; it cannot be moved aside either: ")


def test_4_28_an_entry_whose_answer_does_not_decode_is_dropped_alone(path: Path) -> None:
    good = [
        PodDevicesEntry(name, "main", "example.com/gpu", {0: ("g",)}, answer)
        for name, answer in (("a", b""), ("c", None))
    ]
    bad = PodDevicesEntry("b", "main", "example.com/gpu", {0: ("h",)}, b"\xff")
    state = Checkpoint((good[0], bad, good[1]), {"example.com/gpu": ("g", "h")})
    checkpoint_file(path).save(state)
    loaded = checkpoint_file(path).load()
    assert loaded.checkpoint == replace(state, entries=tuple(good))
    assert loaded.problem.startswith(
        "dropped what pod b, container main holds of example.com/gpu: not a ContainerAllocateResponse"
    )
    assert loaded.kept_aside is None
    assert names(path) == [path.name]


def test_4_11_the_old_layout_is_loaded_only_where_the_profile_reads_it(path: Path) -> None:
    entry = '{"PodUID":"p","ContainerName":"c","ResourceName":"r","DeviceIDs":["x"],"AllocResp":""}'
    state = Checkpoint((PodDevicesEntry("p", "c", "r", {0: ("x",)}, b""),), {})
    checksum = checkpoint.checksum(state, plain_lists=True)
    path.parent.mkdir()
    path.write_text(f'{{"Data":{{"PodDeviceEntries":[{entry}],"RegisteredDevices":{{}}}},"Checksum":{checksum}}}')
    assert CheckpointFile(path, plain_lists=True).load() == LoadedCheckpoint(state)
    assert CheckpointFile(path, plain_lists=False).load().kept_aside is not None


def test_temporary_files_of_a_killed_kubelet_are_removed(path: Path) -> None:
    checkpoint_file(path).save(FULL)
    for name in (".1", ".123456789", ".5x", ".hidden", "1", "plugin.sock"):
        path.with_name(name).touch()
    path.with_name(".77").mkdir()
    path.with_name(".88").symlink_to(path)
    assert checkpoint_file(path).load() == LoadedCheckpoint(FULL)
    assert names(path) == [".5x", ".77", ".88", ".hidden", "1", path.name, "plugin.sock"]


def test_a_process_killed_at_any_step_leaves_the_old_file_or_the_new(tmp_path: Path) -> None:
    seen = killed(tmp_path, "steps")
    assert seen.pop("after rename") == "new"
    assert len(seen) == 9
    assert set(seen.values()) == {"old"}


def test_a_process_killed_at_any_instant_leaves_the_old_file_or_the_new(tmp_path: Path) -> None:
    seen = killed(tmp_path, "instants", KILLS)
    assert seen["kills"] == KILLS
    assert seen["interrupted"] > 0, "no kill came in the middle of a save"
