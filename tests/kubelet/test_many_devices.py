"""As many devices as fit into one list."""

from tests.kubelet.actors import TAPE, ScriptedPlugin, checkpoint_of, granted_devices, registered

from plugwright.kubelet import Kubelet
from plugwright.testing import pod_requesting

MANY = 64_000


async def test_sixty_four_thousand_devices_are_listed_recorded_and_allocated(node: Kubelet) -> None:
    async with registered(node, ScriptedPlugin(*(f"d{number}" for number in range(MANY)))):
        assert await node.allocatable(TAPE, MANY) == MANY
        assert len((checkpoint_of(node).registered or {})[TAPE] or ()) == MANY
        assert granted_devices(await node.admit(pod_requesting({TAPE: 2}))) == ["d0", "d1"]
        await node.restart()
        assert [len(entry.devices or {}) for entry in checkpoint_of(node).entries or ()] == [1]
