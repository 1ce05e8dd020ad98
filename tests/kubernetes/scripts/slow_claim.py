"""A DRA driver that takes its time for a claim.

slow_claim.py RESOURCE SECONDS: it writes a line when allocate() begins, which takes so many seconds.
"""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Sequence

from plugwright import Allocation, Device, Plugin, ServeMode, ServeSettings, run


class SlowClaim(Plugin):
    def __init__(self, resource: str, seconds: float) -> None:
        self.resource, self.seconds = resource, seconds

    async def discover(self) -> AsyncIterator[list[Device]]:
        yield [Device("unit-0")]

    async def allocate(self, devices: Sequence[Device]) -> Allocation:
        print("allocating", flush=True)
        await asyncio.sleep(self.seconds)
        return Allocation(env={"UNITS": ",".join(device.id for device in devices)})


run(SlowClaim(sys.argv[1], float(sys.argv[2])), serve=ServeSettings(api=ServeMode.DRA, cdi=os.environ["CDI_ROOT"]))
