"""As many devices as fit into one list."""

from tests.kubelet.actors import TAPE, Scripted, given, plugged, written

from plugwright.kubelet import Kubelet
from plugwright.testing import pod_requesting

MANY = 64_000


async def test_sixty_four_thousand_devices_are_listed_recorded_and_given_out(node: Kubelet) -> None:
    async with plugged(node, Scripted(*(f"d{number}" for number in range(MANY)))):
        assert await node.allocatable(TAPE, MANY) == MANY
        assert len((written(node).registered or {})[TAPE] or ()) == MANY
        assert given(await node.admit(pod_requesting({TAPE: 2}))) == ["d0", "d1"]
        await node.restart()
        assert [len(entry.devices or {}) for entry in written(node).entries or ()] == [1]
