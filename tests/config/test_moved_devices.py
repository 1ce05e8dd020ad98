"""A new version of the file moves devices between resources: what a pod holds is not offered a second time."""

from pathlib import Path

from tests.plugins.generic.machines import Machine

from plugwright import Settings, Timeouts
from plugwright.config import schema
from plugwright.config.schema import Config
from plugwright.testing import PluginKubelet, pod_requesting, running

WHOLE, SHARED = "nvidia.com/gpu", "nvidia.com/gpu-shared"
QUICK = Settings(timeouts=Timeouts(holders=0.01))


def read(*resources: str) -> Config:
    return schema.read("plugwright.yaml", "resources:\n" + "".join(f"  - {resource}\n" for resource in resources))


async def reload(kubelet: PluginKubelet, before: Config, after: Config) -> None:
    await kubelet.daemon.apply(after.plugins(before, kubelet.daemon.plugins))


async def test_gpus_that_a_pod_holds_whole_are_not_given_out_in_shares_beside_it(tmp_path: Path) -> None:
    before = read(f"{{name: {WHOLE}, nvidia: {{simulate: hgx-h100}}}}")
    after = read(
        f"{{name: {WHOLE}, nvidia: {{simulate: hgx-h100, exclude: {{index: [6, 7]}}}}}}",
        f"{{name: {SHARED}, nvidia: {{simulate: hgx-h100, select: {{index: [6, 7]}}, share: {{replicas: 4}}}}}}",
    )
    async with running(before.plugins(), tmp_path, served=QUICK) as kubelet:
        assert await kubelet.allocatable(WHOLE, 8) == 8
        pod = await kubelet.admit(pod_requesting({WHOLE: 8}, name="g8"))
        await reload(kubelet, before, after)
        shared = kubelet.daemon.resource(SHARED).inventory.latest
        listed = await shared.until(lambda snapshot: snapshot is not None)
        assert listed is not None
        assert {device.reason for device in listed.devices.values()} == {f"held by default/g8 ({WHOLE}) until it ends"}
        await kubelet.remove(pod)
        assert await kubelet.allocatable(SHARED, 8) == 8


async def test_a_renamed_resource_of_ordinary_devices_waits_for_the_pod_with_the_old_name(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "machine")
    for name in ("ttyUSB0", "ttyUSB1"):
        machine.node(name)
    host = f"host: {{root: {machine.host.root}}}\n"

    def serial(name: str, **options: object) -> Config:
        extra = "".join(f", {key}: {value}" for key, value in options.items())
        paths = "[{path: /dev/ttyUSB*, type: device}]"
        return schema.read("plugwright.yaml", f"{host}resources:\n  - {{name: {name}, paths: {paths}{extra}}}\n")

    before, after = serial("example.com/serial"), serial("example.com/tty", count=3)
    async with running(before.plugins(), tmp_path, served=QUICK) as kubelet:
        pod = await kubelet.admit(pod_requesting({"example.com/serial": 1}, name="reader"))
        await reload(kubelet, before, after)
        assert await kubelet.reason("example.com/tty", "ttyUSB0") == (
            "held by default/reader (example.com/serial) until it ends"
        )
        assert await kubelet.allocatable("example.com/tty", 3) == 3
        await kubelet.remove(pod)
        assert await kubelet.allocatable("example.com/tty", 6) == 6
