"""The family loads what a resource needs: a real machine needs no simulation."""

import asyncio

import msgspec
import pytest
from msgspec.structs import replace
from tests.plugins.nvidia.harness import INTERVALS
from tests.test_lean import loaded_by

from plugwright import ConfigError
from plugwright.plugins.nvidia.config import NvidiaConfig
from plugwright.plugins.nvidia.driver import GpuSnapshot
from plugwright.plugins.nvidia.family import FAMILY, NvidiaNameTemplates
from plugwright.plugins.nvidia.monitor import GpuMonitor
from plugwright.plugins.nvidia.simulation import SimulatedDriver
from plugwright.sdk.device_family import ResourceEntry

SIMULATION = {"plugwright.plugins.nvidia.simulation", "plugwright.plugins.nvidia.simulated_machines"}
MAKE = """
from plugwright.config import schema
schema.read("plugwright.yaml", "resources: [{{name: nvidia.com/gpu, nvidia: {settings}}}]").plugins()
"""


async def test_a_real_machine_loads_no_simulation() -> None:
    modules = await loaded_by(MAKE.format(settings="{}"))
    assert "plugwright.plugins.nvidia.plugin" in modules
    assert not modules & (SIMULATION | {"pynvml", "_hashlib"})


async def test_a_simulated_machine_loads_the_simulation() -> None:
    assert await loaded_by(MAKE.format(settings="{simulate: t4}")) >= SIMULATION


class NamedDriver(SimulatedDriver):
    """Four GPUs of these models."""

    models = ("NVIDIA T4", "T4", "", "NVIDIA " + "x" * 80)

    def read(self) -> GpuSnapshot:
        snapshot = super().read()
        gpus = [replace(gpu, model=self.models[gpu.index]) for gpu in snapshot.gpus]
        return replace(snapshot, gpus=tuple(gpus))


ENTRY = ResourceEntry("nvidia.com/{model}", "nvidia", FAMILY, NvidiaConfig(simulate="t4"))


@pytest.mark.parametrize(
    ("key", "settings"),
    [
        ("driver", {"driver": {"libraries": ["/usr/local/nvidia/lib64"]}}),
        ("cdi.hooks", {"cdi": {"hooks": "none"}}),
        ("imex.channels", {"imex": {"channels": [0]}}),
    ],
)
def test_two_resources_cannot_write_one_cdi_spec_differently(key: str, settings: dict[str, object]) -> None:
    def entry(name: str, model: str, **keys: object) -> ResourceEntry[NvidiaConfig]:
        content = {"select": {"model": model}, "strategy": "cdi-cri", **keys}
        return ResourceEntry(name, "nvidia", FAMILY, msgspec.convert(content, NvidiaConfig))

    first = entry("nvidia.com/a100", "*A100*")
    FAMILY.check(entry("nvidia.com/h100", "*H100*"), [first])
    with pytest.raises(ConfigError, match=f"{key} must be as for nvidia.com/a100, or cdi.vendor another one"):
        FAMILY.check(entry("nvidia.com/h100", "*H100*", **settings), [first])
    FAMILY.check(entry("nvidia.com/h100", "*H100*", **{**settings, "cdi": {"vendor": "gpu.example.com"}}), [first])


async def test_a_gpu_whose_name_makes_no_resource_does_not_disturb_the_others() -> None:
    monitor = GpuMonitor(NamedDriver("t4"), INTERVALS)
    templates = NvidiaNameTemplates({"t4": monitor})
    async with asyncio.timeout(60), monitor.running():
        await monitor.views.until(lambda view: not view.is_pending)
        members = templates.members(ENTRY)
    assert sorted(members) == ["nvidia.com/", "nvidia.com/t4", "nvidia.com/" + "x" * 80]
    assert members["nvidia.com/t4"].select.model == ["NVIDIA T4", "T4"]


async def test_names_that_cannot_be_found_do_not_stop_the_reading_of_gpus(caplog: pytest.LogCaptureFixture) -> None:
    monitor = GpuMonitor(SimulatedDriver("t4"), INTERVALS)

    def changed() -> None:
        raise ValueError("a mistake in the reader of names")

    [watching] = NvidiaNameTemplates({"t4": monitor}).monitors().values()
    async with asyncio.timeout(60), watching(changed):
        view = await monitor.views.until(lambda view: len(view.watched) == 4)
        assert not view.problem
    assert "names of NVIDIA resources cannot be found" in [record.message for record in caplog.records]
