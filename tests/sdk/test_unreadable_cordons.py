"""Cordons that cannot be read keep devices out of service and the daemon unready, so that a rollout stops."""

from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.observed_kubelet import ObservedKubelet
from tests.system.frozen_file import frozen

from plugwright import Limits, Settings, serving
from plugwright.errors import PeerRefused
from plugwright.plugins.mock import Mock, MockOptions
from plugwright.sdk.cordons import CORDONS_FILE
from plugwright.sdk.daemon_status import report, unready
from plugwright.system import json_lines
from plugwright.system.concurrency import in_thread

UNREADABLE: dict[str, tuple[Callable[[Path], object], str]] = {
    "newer": (lambda path: path.write_text('{"format": {"version": 99}}'), "a newer plugwright has written it"),
    "damaged": (lambda path: path.write_text("{"), "cannot read the cordons"),
    "directory": (lambda path: path.mkdir(), "Is a directory"),
    "large": (lambda path: path.write_bytes(b" " * (2**20 + 1)), "it must have at most 1048576 bytes, got 1048577"),
    "endless": (lambda path: path.symlink_to("/dev/zero"), "it must be a regular file"),
}


@pytest.fixture
def kept(settings: Settings, root: Path) -> Settings:
    state = root / "state"
    state.mkdir()
    return replace(settings, state_dir=state, control_socket=root / "run" / "control.sock")


@pytest.mark.parametrize(("make", "reason"), UNREADABLE.values(), ids=UNREADABLE)
async def test_a_daemon_is_not_ready_until_its_cordons_are_readable(
    kubelet: ObservedKubelet, kept: Settings, make: Callable[[Path], object], reason: str
) -> None:
    assert kept.state_dir is not None
    assert kept.control_socket is not None
    cordons, ask = kept.state_dir / CORDONS_FILE, kept.control_socket
    make(cordons)
    async with serving(Mock("mock/gpu", MockOptions(count=2)), settings=kept) as daemon:
        gpu = await kubelet.endpoint("mock/gpu", 2)
        assert {device.health for device in gpu.devices.values()} == {"Unhealthy"}
        assert reason in unready(daemon)[0]
        assert not report(daemon)["ready"]
        with pytest.raises(PeerRefused, match="cordons"):
            await in_thread("ask", lambda: json_lines.ask(ask, {"do": "ready", "wait": 0}))
        cordons.rmdir() if cordons.is_dir() else cordons.unlink()
        for device_id in gpu.devices:
            await kubelet.health("mock/gpu", device_id, "Healthy")
        assert await in_thread("ask", lambda: json_lines.ask(ask, {"do": "ready", "wait": 60})) == "ready"


async def test_a_disk_that_hangs_is_named_in_status_and_readiness(kubelet: ObservedKubelet, kept: Settings) -> None:
    assert kept.state_dir is not None
    cordons = kept.state_dir / CORDONS_FILE
    cordons.write_text("{}")
    limited = replace(kept, limits=Limits(command=0.2))
    with frozen(cordons):
        async with serving(Mock("mock/gpu", MockOptions(count=1)), settings=limited) as daemon:
            await kubelet.endpoint("mock/gpu", 1)
            assert unready(daemon)[0] == f"cannot read the cordons in {cordons}: no answer within 0.2 s"
            [hung] = [call for call in report(daemon)["hung"] if call["name"] == "access to the cordons"]
            assert "files.py:" in hung["line"]
