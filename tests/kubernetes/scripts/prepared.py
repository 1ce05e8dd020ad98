"""A plugin that prepares its devices before each start of a container, and likes the last ones best.

prepared.py RESOURCE DIRECTORY: it writes a line for each start into DIRECTORY/ID, and refuses to prepare anything while
there is a file DIRECTORY/refuse.
"""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from plugwright import Allocation, Device, DeviceNode, Mount, Plugin, run


class Prepared(Plugin):
    def __init__(self, resource: str, directory: Path) -> None:
        self.resource, self.directory = resource, directory

    def discover(self) -> Iterator[list[Device]]:
        yield [Device(f"unit-{number}", numa=[0]) for number in range(6)]

    def allocate(self, devices: Sequence[Device]) -> Allocation:
        return Allocation(
            env={"UNITS": ",".join(device.id for device in devices)},
            mounts=[Mount(str(self.directory), "/prepared", read_only=True)],
            nodes=[DeviceNode("/dev/zero", f"/dev/{device.id}", "r") for device in devices],
            annotations={"example.com/units": str(len(devices))},
        )

    def prefer(self, available: Sequence[Device], required: Sequence[Device], size: int) -> Sequence[Device]:
        return sorted(available, key=lambda device: device.id)[-size:]

    def pre_start(self, devices: Sequence[Device]) -> None:
        if (self.directory / "refuse").exists():
            raise RuntimeError("the units are not ready")
        for device in devices:
            with (self.directory / device.id).open("a") as prepared:
                prepared.write("prepared\n")


run(Prepared(sys.argv[1], Path(sys.argv[2])))
