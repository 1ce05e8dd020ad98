"""A new version of the file that fails while it is applied leaves what was served before."""

from collections.abc import AsyncIterator

import pytest
from tests.observed_kubelet import ObservedKubelet
from tests.sdk.actors import ListingPlugin

from plugwright import Device, Plugin, Settings, serving
from plugwright.config.reload import replace_plugins
from plugwright.sdk.daemon import Daemon

TAPE, DISK, NEW = "example.com/tape", "example.com/disk", "example.com/new"


class Fickle(Plugin):
    """Its name is good while the list of plugins is checked, and fails when the disks have been stopped."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon

    @property
    def resource(self) -> str:  # type: ignore[override]
        if DISK not in self._daemon.resources:
            raise LookupError("no name any more")
        return NEW

    async def discover(self) -> AsyncIterator[list[Device]]:
        yield [Device("one")]


async def test_a_failure_half_way_is_taken_back(kubelet: ObservedKubelet, settings: Settings) -> None:
    tape, disk = ListingPlugin(TAPE), ListingPlugin(DISK)
    async with serving(tape, disk, settings=settings) as daemon:
        untouched = await kubelet.endpoint(TAPE, 2)
        stopped = await kubelet.endpoint(DISK, 2)
        changed = ListingPlugin(TAPE, "st7")
        with pytest.raises(LookupError, match="no name any more"):
            await replace_plugins(daemon, [changed, Fickle(daemon)])  # the disks have ended by the time it fails
        assert daemon.plugins == {TAPE: tape, DISK: disk}
        await kubelet.until(lambda _: kubelet.endpoints[DISK] is not stopped and kubelet.endpoints[DISK].devices)
        await kubelet.health(TAPE, "st0", "Healthy")
        assert not untouched.ended
        assert NEW not in kubelet.endpoints
