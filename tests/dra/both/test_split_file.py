"""The split file: its format over releases, what takes the place of a damaged one, and writes in their order."""

import asyncio
import threading
from collections.abc import Collection
from pathlib import Path

import pytest
from tests.dra.both.split_actors import TAPE, Tapes

from plugwright import Device, Settings
from plugwright.dra.both.split_file import KeptPlacements, SplitFile, SplitState
from plugwright.dra.both.states import Placement
from plugwright.dra.device_placement import DeviceState
from plugwright.dra.driver_paths import recorded_states
from plugwright.kubelet import Kubelet
from plugwright.sdk.run import serving
from plugwright.sdk.serve_settings import ServeMode, ServeSettings

LISTED = Placement(DeviceState.LISTED, ServeMode.DEVICE_PLUGIN, by_policy=True)
TAINTED = Placement(DeviceState.TAINTED, ServeMode.DEVICE_PLUGIN)
STATE = SplitState({"st0": LISTED, "st1": TAINTED}, ServeMode.DEVICE_PLUGIN, '["both",{"dra":1}]', "boot 1")
# As earlier releases wrote it, and read it after a rollback.
CONTENT = (
    '{"version":1,"boot":"boot 1","settings":"[\\"both\\",{\\"dra\\":1}]","handover":"device-plugin",'
    '"devices":{"st0":{"phase":"listed","target":"device-plugin","by_policy":true},'
    '"st1":{"phase":"tainted","target":"device-plugin","by_policy":false}}}\n'
)


@pytest.fixture
def boot_id(tmp_path: Path) -> Path:
    (tmp_path / "boot").write_text("boot 1\n")
    return tmp_path / "boot"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "split.json"


def loaded(path: Path) -> SplitState:
    file = SplitFile(path)
    try:
        return file.lock_and_load()[1]
    finally:
        file.close()


def test_the_file_is_that_of_earlier_releases(path: Path, boot_id: Path) -> None:
    SplitFile(path, boot_id).save(STATE, present=["st0", "st1"])
    assert path.read_text() == CONTENT
    assert path.stat().st_mode & 0o777 == 0o600
    assert recorded_states(path) == {"st0": "listed", "st1": "tainted"}
    path.write_text(CONTENT)
    assert loaded(path) == STATE


def test_an_empty_file_is_that_of_earlier_releases(path: Path, boot_id: Path) -> None:
    SplitFile(path, boot_id).save(SplitState(), present=[])
    assert path.read_text() == '{"version":1,"boot":"boot 1","settings":""}\n'
    assert loaded(path) == SplitState(boot="boot 1")


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", '{"version":2,"boot":"b","settings":""}', '{"boot":"b","settings":""}', "[" * 100_000],
)
def test_a_file_that_cannot_be_used_is_set_aside_and_said(
    path: Path, content: str, caplog: pytest.LogCaptureFixture
) -> None:
    path.write_text(content)
    assert loaded(path) == SplitState(lost=True)
    assert path.with_name("split.json.damaged").read_text() == content
    assert not path.exists()
    assert "it is not known which API had each device" in caplog.text


class SlowDisk(SplitFile):
    """A disk whose first write takes until `ready`."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.begun, self.ready = threading.Event(), threading.Event()

    def save(self, state: SplitState, present: Collection[str]) -> None:
        if not self.begun.is_set():
            self.begun.set()
            self.ready.wait(60)
        super().save(state, present)


async def test_an_earlier_state_never_replaces_a_later_one(root: Path, path: Path) -> None:
    async with (
        Kubelet(root / "k") as kubelet,
        serving(
            Tapes(Device("st0"), serve=ServeSettings()), settings=Settings(kubelet_dir=kubelet.paths.root)
        ) as daemon,
    ):
        disk = SlowDisk(path)
        kept = KeptPlacements(daemon.resources[TAPE], disk, lambda key: None)
        first = asyncio.create_task(kept.commit(SplitState({"st0": TAINTED})))
        await asyncio.to_thread(disk.begun.wait, 60)
        first.cancel()
        second = asyncio.create_task(kept.commit(SplitState({"st0": LISTED})))
        early, _ = await asyncio.wait({second}, timeout=0.2)
        disk.ready.set()
        await second
        await asyncio.wait({first})
        assert (early, first.cancelled()) == (set(), True)
        assert loaded(path).placements == {"st0": LISTED}
