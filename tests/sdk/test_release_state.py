"""State per release: two releases on a node share no file, and the files of earlier versions are brought along once."""

import fcntl
from pathlib import Path

from msgspec.structs import replace

from plugwright.sdk.cordons import Cordon, Cordons
from plugwright.sdk.release_state import with_own_state
from plugwright.sdk.settings import Settings


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_nothing_is_kept_without_a_state_directory() -> None:
    assert with_own_state(Settings()) == Settings()


def test_each_release_has_a_directory_of_its_own(tmp_path: Path) -> None:
    first = with_own_state(Settings(state_dir=tmp_path, release="fleet/gpus"))
    second = with_own_state(Settings(state_dir=tmp_path, release="fleet/gpus/canary"))
    assert first.state_dir == tmp_path / "releases" / "fleet_gpus"
    assert second.state_dir == tmp_path / "releases" / "fleet_gpus_canary"
    assert first.node_directory == second.node_directory == tmp_path


def test_files_of_an_earlier_version_are_brought_along_once(tmp_path: Path) -> None:
    earlier = ("last-good-config.json", "nvidia-incidents-1.json", "split-a.json", "split-a.lock", "taints.json")
    for name in (*earlier, "cordons.json"):
        (tmp_path / name).write_text("{}")
    first = with_own_state(Settings(state_dir=tmp_path, release="a")).state_dir
    assert first is not None
    assert names(first) == list(earlier)
    (first / "nvidia-incidents-1.json").unlink()  # the GPU was reset
    with_own_state(Settings(state_dir=tmp_path, release="a"))
    assert names(first) == [name for name in earlier if not name.startswith("nvidia")]
    second = with_own_state(Settings(state_dir=tmp_path, release="b")).state_dir
    assert second is not None
    assert names(second) == [name for name in earlier if not name.startswith("last-good")]
    assert (tmp_path / "cordons.json").read_text() == "{}"


def test_a_daemon_of_an_earlier_version_keeps_its_files_while_it_runs(tmp_path: Path) -> None:
    with (tmp_path / "split-a.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        assert with_own_state(Settings(state_dir=tmp_path)).state_dir == tmp_path
    assert with_own_state(Settings(state_dir=tmp_path)).state_dir == tmp_path / "releases" / "plugwright"


def test_cordons_of_other_directories_are_merged_into_those_of_the_node_once(tmp_path: Path) -> None:
    node, own = tmp_path / "node", tmp_path / "own"
    for directory, device, reason in ((node, "st0", "fan"), (own, "st0", "other"), (own, "st1", "noise")):
        cordons = Cordons(directory / "cordons.json")
        cordons.add("example.com/tape", device, Cordon(reason))
    settings = Settings(state_dir=own, node_dir=node)
    with_own_state(settings)
    merged = Cordons(node / "cordons.json")
    merged.load()
    assert {key: cordon.reason for key, cordon in merged.of("example.com/tape").items()} == {
        "st0": "fan",
        "st1": "noise",
    }
    merged.remove("example.com/tape", "st1")
    with_own_state(replace(settings, release="other"))
    merged = Cordons(node / "cordons.json")
    merged.load()
    assert list(merged.of("example.com/tape")) == ["st0"]


def test_a_directory_that_cannot_be_made_keeps_no_daemon_from_serving(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert with_own_state(Settings(state_dir=tmp_path / "file")).state_dir == tmp_path / "file/releases/plugwright"
