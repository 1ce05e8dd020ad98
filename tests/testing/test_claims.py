"""Claims in tests of plugins, without a cluster."""

from pathlib import Path

from plugwright import Allocation, Device, Plugin
from plugwright.testing import claim_requesting, pod_requesting, running

TAPE = "example.com/tape"


class Tape(Plugin):
    """The plugin of the README."""

    resource = TAPE

    async def discover(self):
        yield [Device("st0", numa=[0]), Device("st1", numa=[1])]

    async def allocate(self, devices):
        return Allocation(nodes=[f"/dev/{device.id}" for device in devices])


async def test_a_pod_gets_the_device_of_its_claim(tmp_path: Path) -> None:
    async with running(Tape(), tmp_path, serve="dra") as kubelet:
        pod = await kubelet.admit(pod_requesting({}, claims=[claim_requesting({TAPE: 1})]))
        assert [node.host_path for node in kubelet.container(pod).nodes] == ["/dev/st0"]
