"""A plugin that answers with CDI names, and with env variables that the CDI devices set too.

by_cdi_name.py RESOURCE: its devices `st0` and `st1` are called `example.com/tape=st0` and so on.
"""

import sys
from collections.abc import Iterator, Sequence

from plugwright import Allocation, Device, Plugin, run


class ByCdiName(Plugin):
    def __init__(self, resource: str) -> None:
        self.resource = resource

    def discover(self) -> Iterator[list[Device]]:
        yield [Device("st0"), Device("st1")]

    def allocate(self, devices: Sequence[Device]) -> Allocation:
        return Allocation(env={"BY_ENVS": "plugin"}, cdi=[f"example.com/tape={device.id}" for device in devices])


run(ByCdiName(sys.argv[1]))
