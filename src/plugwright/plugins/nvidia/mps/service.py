"""From the configuration to daemons: waits for the driver, works out what is needed, and has it looked after.

What is needed is worked out once, when the driver is there: to change a daemon is to end the programs of its tenants,
which is the operator's decision and made by a restart.
"""

import asyncio
import logging
import time
from dataclasses import dataclass, field

from plugwright.errors import PluginError
from plugwright.plugins.nvidia import listing, selection, sharing
from plugwright.plugins.nvidia.gpus import Driver, DriverGone, Gpu, Reading
from plugwright.plugins.nvidia.mps import plan, state
from plugwright.plugins.nvidia.mps.keeper import Habits
from plugwright.plugins.nvidia.mps.plan import DaemonPlan, MpsOptions, Place
from plugwright.plugins.nvidia.mps.state import ResourceState
from plugwright.plugins.nvidia.mps.supervisor import Supervisor
from plugwright.plugins.nvidia.selection import Selection
from plugwright.plugins.nvidia.sharing import Share
from plugwright.sdk import threads
from plugwright.sdk.backoff import Backoff

__all__ = ["Wanted", "look_after"]

logger = logging.getLogger(__name__)

_LONGEST_WAIT = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """One resource that is shared by MPS."""

    resource: str
    share: Share
    options: MpsOptions
    driver: Driver
    selection: Selection = field(default_factory=Selection)

    @property
    def place(self) -> Place:
        return Place(self.options.root, self.resource)

    def plans(self, gpus: tuple[Gpu, ...]) -> list[DaemonPlan]:
        whole = selection.chosen(gpus, self.selection)
        listing.check(self.resource, whole, self.share)
        return plan.daemons(self.share, self.options, sharing.shared(whole, self.share))


async def look_after(wanted: Wanted, habits: Habits) -> None:
    """Until it is cancelled; ConfigError when somebody else does this already."""
    backoff = Backoff(min(1.0, habits.interval), _LONGEST_WAIT)
    said = ""
    while True:
        try:
            await _attempt(wanted, habits)
        except (DriverGone, PluginError) as error:
            if said != (said := str(error)):
                logger.error("no MPS daemon", extra={"resource": wanted.resource, "error": said})
            pause = backoff.delay()
            _say(wanted, said, pause + habits.grace)
            await asyncio.sleep(pause)


async def _attempt(wanted: Wanted, habits: Habits) -> None:
    reading = await threads.in_thread("nvidia read", lambda: _read(wanted.driver))
    plans = wanted.plans(reading.gpus)
    if not plans:
        raise PluginError("there is no GPU here that MPS could share for this resource")
    mine = {uuid for each in plans for uuid in each.gpus}
    modes = {gpu.uuid: gpu.compute_mode for gpu in reading.gpus if gpu.uuid in mine}
    logger.info("MPS daemons wanted", extra={"resource": wanted.resource, "sizes": [each.size for each in plans]})
    await Supervisor(wanted.place, plans, habits).run(wanted.options.mode, modes)


def _read(driver: Driver) -> Reading:
    """Not held on to: nothing more is asked of it, and a driver that somebody holds cannot be replaced."""
    try:
        return driver.read()
    finally:
        driver.close()


def _say(wanted: Wanted, problem: str, lasting: float) -> None:
    """Kept are the compute modes that are still to be put back."""
    try:
        before = state.read(wanted.place.state)
        modes = before.modes if before else {}
        told = ResourceState(
            resource=wanted.resource, problem=problem, beat=time.monotonic(), lasting=lasting, modes=modes
        )
        state.write(wanted.place.state, told)
    except (OSError, PluginError) as error:
        logger.error("cannot write the state file", extra={"error": str(error)})
