"""The family loads what a resource needs: a real machine needs no simulation."""

from tests.test_lean import loaded_by

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
