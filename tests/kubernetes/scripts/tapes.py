"""Tape drives that are served by claims; SIGHUP makes it read again which of them have failed.

tapes.py RESOURCE COUNT FAILED TAINTS: FAILED is a file with an id in a line, TAINTS is JSON for `TaintSettings`.
"""

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from plugwright import Allocation, Device, Plugin, run
from plugwright.sdk.serve_settings import ServeMode, ServeSettings, TaintSettings


class Tapes(Plugin):
    def __init__(self, resource: str, count: int, failed: Path) -> None:
        self.resource, self._count, self._failed = resource, count, failed

    def discover(self) -> Iterator[list[Device]]:
        failed = self._failed.read_text().split()
        tapes = [Device(f"st{number}") for number in range(self._count)]
        yield [tape.unhealthy("worn out", "worn") if tape.id in failed else tape for tape in tapes]

    def allocate(self, devices: Sequence[Device]) -> Allocation:
        return Allocation(env={"TAPES": ",".join(device.id for device in devices)})


resource, count, failed, taints = sys.argv[1:]
serve = ServeSettings(api=ServeMode.DRA, taints=TaintSettings(**json.loads(taints)))
run(Tapes(resource, int(count), Path(failed)), serve=serve)
