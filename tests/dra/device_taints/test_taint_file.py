"""What a node remembers of its taints, after a restart, a reboot, a set clock and a damaged file."""

from functools import partial
from pathlib import Path

import pytest

from plugwright.dra.device_taints.taint_budget import (
    HOUR,
    NO_EXECUTE,
    NO_SCHEDULE,
    Moment,
    Observed,
    TaintDecision,
    TaintState,
    decide,
)
from plugwright.dra.device_taints.taint_file import TaintFile, moment
from plugwright.errors import StateFileLocked
from plugwright.sdk.serve_settings import TaintSettings
from plugwright.system import files

TAPE = "example.com/tape"
DISK = "example.com/disk"
EVICTING = TaintSettings(effect=NO_EXECUTE, grace=0, budget=1)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "taints.json"


@pytest.fixture
def boot_id(tmp_path: Path) -> Path:
    (tmp_path / "boot_id").write_text("first\n")
    return tmp_path / "boot_id"


def update(
    file: TaintFile, now: Moment, *failed: str, resource: str = TAPE, mine: TaintState | None = None
) -> TaintDecision:
    seen = Observed(resource, dict.fromkeys(failed, True))
    return file.update(resource, mine or TaintState(), partial(decide, observed=seen, settings=EVICTING, now=now), now)


def effect(decision: TaintDecision, device_id: str, resource: str = TAPE) -> str:
    return decision.state.of(resource)[device_id].effect


def test_the_next_process_knows_what_the_last_one_did(path: Path, boot_id: Path) -> None:
    first = update(TaintFile(path, boot_id), Moment(100, 5000), "st0")
    assert effect(first, "st0") == NO_EXECUTE
    assert TaintFile(path, boot_id).load(Moment(101, 5001)) == first.state
    assert path.stat().st_mode & 0o777 == 0o600


def test_the_file_is_that_of_earlier_releases(path: Path, boot_id: Path) -> None:
    decision = update(TaintFile(path, boot_id), Moment(100.5, 5000.0), "st0", "st1")
    first = '"since":100.5,"effect":"NoExecute","added":5000,"executed":100.5,"cleared":null,"cordoned":0'
    second = '"since":100.5,"effect":"NoSchedule","added":5000,"executed":null,"cleared":null,"cordoned":0'
    times = '"wall":5000.0,"elapsed":100.5,"unknown_until":0.0'
    records = f'{{"example.com/tape":{{"st0":{{{first}}},"st1":{{{second}}}}}}}'
    content = f'{{"version":1,"boot":"first",{times},"resources":{records}}}\n'
    assert path.read_text() == content
    path.write_text(content)
    assert TaintFile(path, boot_id).load(Moment(101, 5001)) == decision.state


def test_resources_and_processes_share_one_budget(path: Path, boot_id: Path) -> None:
    tapes, disks = TaintFile(path, boot_id), TaintFile(path, boot_id)
    disks.load(Moment(99, 4999))
    assert effect(update(tapes, Moment(100, 5000), "st0"), "st0") == NO_EXECUTE
    later = update(disks, Moment(101, 5001), "sda", resource=DISK)
    assert effect(later, "sda", DISK) == NO_SCHEDULE
    assert later.held_back == {"sda": "the budget of 1 devices an hour is spent"}


def test_two_daemons_of_one_resource_agree_on_its_taints(path: Path, boot_id: Path) -> None:
    old, new = TaintFile(path, boot_id), TaintFile(path, boot_id)
    new.load(Moment(99, 4999))
    first = update(old, Moment(100, 5000), "st0")
    mine = decide(TaintState(), Observed(TAPE, {"st0": True}), TaintSettings(), Moment(101, 5001)).state
    assert update(new, Moment(101, 5001), "st0", mine=mine).state == first.state


def test_nothing_is_known_before_the_first_file(path: Path) -> None:
    assert TaintFile(path).load(moment()) == TaintState()
    assert not path.exists()


@pytest.mark.parametrize("wall", [0.0, 5000.0, 9e9])
def test_a_clock_that_was_set_changes_nothing_within_a_boot(path: Path, boot_id: Path, wall: float) -> None:
    update(TaintFile(path, boot_id), Moment(100, 5000), "st0")
    file = TaintFile(path, boot_id)
    mine = file.load(Moment(200, wall))
    assert effect(update(file, Moment(200, wall), "st0", "st1", mine=mine), "st1") == NO_SCHEDULE
    assert effect(update(file, Moment(100 + HOUR, wall), "st0", "st1", mine=mine), "st1") == NO_EXECUTE


@pytest.mark.parametrize(
    ("wall", "free_after"),
    [(5000 + 600, HOUR - 600), (5000 + HOUR, 0), (10, HOUR)],  # the last: its clock was set back by the reboot
)
def test_after_a_reboot_the_calendar_decides_and_a_doubt_is_no_grant(
    path: Path, boot_id: Path, wall: float, free_after: float
) -> None:
    update(TaintFile(path, boot_id), Moment(100_000, 5000), "st0")
    boot_id.write_text("second\n")
    file = TaintFile(path, boot_id)
    mine = file.load(Moment(7, wall))
    if free_after:
        at = Moment(7 + free_after - 1, wall + free_after - 1)
        assert effect(update(file, at, "st0", "st1", mine=mine), "st1") == NO_SCHEDULE
    at = Moment(7 + free_after + 1, wall + free_after + 1)
    assert effect(update(file, at, "st0", "st1", mine=file.load(at)), "st1") == NO_EXECUTE


DAMAGED = [
    b"",
    b"{",
    b'{"version": 2, "boot": "first", "wall": 1, "elapsed": 1}',
    b'{"version": 1, "boot": "first", "wall": 1, "elapsed": 1, "resources": {"a/b": {"c": {"effect": "NoLunch"}}}}',
    b'{"version": 1, "boot": "first", "wall": 1, "elapsed": 1, "resources": {"a/b": {"c": {"added": -1}}}}',
    b'{"version": 1, "boot": "first", "wall": 1, "elapsed": 1, "resources": []}',
]


@pytest.mark.parametrize("content", DAMAGED)
def test_a_damaged_file_is_kept_aside_and_the_budget_counts_as_spent_for_an_hour(
    path: Path, boot_id: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    path.parent.mkdir()
    path.write_bytes(content)
    file = TaintFile(path, boot_id)
    mine = file.load(Moment(100, 5000))
    assert file.unreadable.startswith(f"cannot read {path}: ")
    assert path.with_name("taints.json.damaged").read_bytes() == content
    assert "earlier evictions are not known, the budget counts as spent for an hour" in caplog.text
    assert effect(update(file, Moment(101, 5001), "st0", mine=mine), "st0") == NO_SCHEDULE
    again = TaintFile(path, boot_id)  # a restart does not give the budget back
    mine = again.load(Moment(200, 5100))
    assert effect(update(again, Moment(200, 5100), "st0", mine=mine), "st0") == NO_SCHEDULE
    assert effect(update(again, Moment(100 + HOUR, 5001), "st0", mine=mine), "st0") == NO_EXECUTE


def test_a_restart_at_once_does_not_give_the_budget_back_either(path: Path, boot_id: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"{")
    TaintFile(path, boot_id).load(Moment(100, 5000))
    assert TaintFile(path, boot_id).load(Moment(101, 5001)) == TaintState(unknown_until=100 + HOUR)


def test_a_file_that_cannot_be_read_means_the_same(tmp_path: Path, boot_id: Path) -> None:
    path = tmp_path / "taints.json"
    path.mkdir()
    file = TaintFile(path, boot_id)
    assert file.load(Moment(100, 5000)).unknown_until == 100 + HOUR
    assert file.unreadable == f"cannot read {path}: Is a directory; no device gets NoExecute for an hour"


def test_a_file_that_cannot_be_read_is_neither_replaced_nor_a_reason_to_grant(tmp_path: Path, boot_id: Path) -> None:
    path = tmp_path / "taints.json"
    path.mkdir()
    with pytest.raises(IsADirectoryError):
        update(TaintFile(path, boot_id), Moment(100, 5000), "st0")


def test_another_process_that_keeps_the_lock_ends_the_wait(path: Path, boot_id: Path) -> None:
    update(TaintFile(path, boot_id), Moment(100, 5000), "st0")
    file = TaintFile(path, boot_id)
    with files.locked(path.parent):
        with pytest.raises(StateFileLocked):
            file.load(Moment(101, 5001))
        with pytest.raises(StateFileLocked):
            update(file, Moment(101, 5001), "st1")
    assert effect(update(file, Moment(101, 5001), "st0", "st1"), "st1") == NO_SCHEDULE  # it is read before a grant


def test_a_grant_that_cannot_be_written_is_none(tmp_path: Path, boot_id: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match=r"Not a directory|File exists"):
        update(TaintFile(tmp_path / "file" / "taints.json", boot_id), Moment(100, 5000), "st0")


def test_without_a_path_everything_is_in_memory() -> None:
    file = TaintFile(None)
    first = update(file, Moment(100, 5000), "st0")
    assert effect(update(file, Moment(101, 5001), "st0", "st1", mine=first.state), "st1") == NO_SCHEDULE
