"""A plugin whose devices stand in a file, one id in a line; SIGHUP makes it look again.

from_file.py RESOURCE FILE SECONDS: a device that is gone from the file is listed for at least so many seconds.
"""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from plugwright import Allocation, Device, Plugin, Settings, Timeouts, run


class FromFile(Plugin):
    def __init__(self, resource: str, path: Path) -> None:
        self.resource, self.path = resource, path

    def discover(self) -> Iterator[list[Device]]:
        yield [Device(line, numa=[0]) for line in self.path.read_text().split()]

    def allocate(self, devices: Sequence[Device]) -> Allocation:
        return Allocation(env={"UNITS": ",".join(device.id for device in devices)})


resource, path, seconds = sys.argv[1:]
run(FromFile(resource, Path(path)), settings=Settings(timeouts=Timeouts(departed=float(seconds))))
