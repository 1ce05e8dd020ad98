"""A plugin that marks its devices while somebody has them, and says so if it would mark one twice.

released.py RESOURCE DIRECTORY SECONDS: the file DIRECTORY/ID is there from allocate() to release(). Which devices pods
hold is read so many seconds apart. release() fails while there is a file DIRECTORY/refuse.
"""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from plugwright import Allocation, Device, Plugin, Settings, Timeouts, run


class Released(Plugin):
    def __init__(self, resource: str, directory: Path) -> None:
        self.resource, self.directory = resource, directory

    def discover(self) -> Iterator[list[Device]]:
        yield [Device(f"unit-{number}") for number in range(3)]

    def allocate(self, devices: Sequence[Device]) -> Allocation:
        for device in devices:
            (self.directory / device.id).touch(exist_ok=False)
        return Allocation(env={"UNITS": ",".join(device.id for device in devices)})

    def release(self, devices: Sequence[Device]) -> None:
        if (self.directory / "refuse").exists():
            raise RuntimeError("the units are stuck")
        for device in devices:
            (self.directory / device.id).unlink(missing_ok=True)


resource, directory, seconds = sys.argv[1:]
run(Released(resource, Path(directory)), settings=Settings(timeouts=Timeouts(holders=float(seconds))))
