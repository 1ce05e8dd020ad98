"""What a plugin gets for free, and what the kubelet is told of what it has."""

import subprocess
import sys

import pytest

from plugwright import Allocation, Device, Plugin, PluginError
from plugwright.model import Options
from plugwright.sdk.plugin import supported_options


class Bare(Plugin):
    resource = "example.com/tape"


class Rewinding(Bare):
    def pre_start(self, devices: object) -> None:
        pass


class RewindingSlowly(Bare):
    async def pre_start(self, devices: object) -> None:
        pass


class Inheriting(Rewinding):
    pass


class Picky(Bare):
    def prefer(self, available: object, required: object, size: int) -> list[Device]:
        return []


@pytest.mark.parametrize("kind", [Rewinding, RewindingSlowly, Inheriting])
def test_a_pre_start_call_is_announced_if_there_is_one(kind: type[Plugin]) -> None:
    assert supported_options(kind()) == Options(pre_start=True, preference=True)


@pytest.mark.parametrize("kind", [Bare, Picky])
def test_no_pre_start_call_is_announced_if_there_is_none(kind: type[Plugin]) -> None:
    assert supported_options(kind()) == Options(pre_start=False, preference=True)


def test_the_default_allocation_is_empty() -> None:
    assert Bare().allocate([Device("st0")]) == Allocation()


def test_the_default_preference_is_one_numa_node() -> None:
    devices = [Device("st0", numa=[0]), Device("st1", numa=[1]), Device("st2", numa=[1])]
    assert Bare().prefer(devices, [], 2) == devices[1:]


def test_a_plugin_without_discover_says_so() -> None:
    with pytest.raises(NotImplementedError, match=r"Bare has no discover\(\)"):
        Bare().discover()


def test_a_plugin_without_commands_says_so() -> None:
    with pytest.raises(PluginError, match=r"example\.com/tape takes no command 'eject'"):
        Bare().command("eject", {})


def test_a_program_that_makes_values_loads_no_server() -> None:
    told = "import sys; from plugwright import Device, Allocation; Device('st0'); Allocation(nodes=['/dev/st0'])\n"
    told += "print(sorted({'asyncio', 'grpclib', 'google', 'click', 'yaml', 'ssl'} & set(sys.modules)))"
    ran = subprocess.run([sys.executable, "-c", told], capture_output=True, check=True, text=True)
    assert ran.stdout.strip() == "[]"
