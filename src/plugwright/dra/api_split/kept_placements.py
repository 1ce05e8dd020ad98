"""The placements of a resource's devices: on disk, and then in effect.

A phase that is in effect before it is on disk could be forgotten by a crash, and the device offered by both APIs.
"""

import logging
from collections.abc import Mapping
from functools import partial

from plugwright.dra.api_split.moves import Phase, Placement
from plugwright.dra.api_split.readings import Readings
from plugwright.dra.api_split.split_file import SplitFile, SplitState
from plugwright.errors import ConfigError, PluginError
from plugwright.sdk.daemon import ResourceRuntime
from plugwright.system.blocking import BlockingCalls
from plugwright.system.latest import Latest
from plugwright.text import clean

__all__ = ["KeptPlacements"]

logger = logging.getLogger(__name__)

_DISK_LIMIT = 5.0  # seconds
_NOTHING: Mapping[str, Placement] = {}
_REASONS = {
    Phase.WITHHELD: "moves to DRA, when the pod that holds it ends",
    Phase.PUBLISHED: "served by DRA",
    Phase.TAINTED: "served by DRA until no claim has it",
    Phase.WITHDRAWN: "moves from DRA",
    Phase.DISPUTED: "it is not clear who holds it",
}


class KeptPlacements:
    """`latest` are those in effect; until there are any, no device is offered to the kubelet."""

    def __init__(self, runtime: ResourceRuntime, file: SplitFile, readings: Readings) -> None:
        self.latest: Latest[Mapping[str, Placement]] = Latest(_NOTHING)
        self.state = SplitState()
        self.rebooted = False  # since the state was written that was loaded
        self._resource, self._inventory = runtime.resource, runtime.inventory
        self._file, self._readings = file, readings
        self._disk = BlockingCalls(f"split of {runtime.resource}", _DISK_LIMIT)
        self._inventory.withhold({}, offered=())

    async def load(self) -> SplitState | None:
        """What an earlier run left; None, with that in effect, while another process decides. OSError, PluginError."""
        decides = await self._disk.run(self._file.lock)
        state = await self._disk.run(self._file.load)
        if not decides:
            self._take_effect(state)
            return None
        self.rebooted = state.boot not in ("", await self._disk.run(self._file.boot_id))
        return state

    async def commit(self, state: SplitState) -> None:
        snapshot = self._inventory.latest.value
        present = tuple(snapshot.devices) if snapshot is not None else ()
        try:
            await self._disk.run(partial(self._file.save, self._file.number(), state, present))
        except (OSError, PluginError) as error:
            text = f"devices stay where they are: {self._file.path} cannot be written: {clean(error)}"
            raise ConfigError(text) from error
        self._take_effect(state)

    def close(self) -> None:
        """Lets another process decide."""
        self._file.close()

    def _take_effect(self, state: SplitState) -> None:
        before, self.state = self.latest.value, state
        for key, placement in state.placements.items():
            old = before.get(key)
            if old is None or old.phase is not placement.phase:
                self._readings.enter(key)
                self._log(key, placement, old)
        self._readings.note_tainted(state.placements)
        listed = {key for key, placement in state.placements.items() if placement.phase is Phase.LISTED}
        reasons = {key: _REASONS[placement.phase] for key, placement in state.placements.items() if key not in listed}
        self._inventory.withhold(reasons, offered=listed)
        self.latest.publish_if_changed(state.placements)

    def _log(self, device_id: str, placement: Placement, old: Placement | None) -> None:
        facts = {"resource": self._resource, "device": device_id, "phase": placement.phase.value}
        facts["was"] = old.phase.value if old is not None else ""
        if placement.phase is Phase.DISPUTED:
            logger.error("device is offered by neither API: it is not clear who holds it", extra=facts)
        elif old is not None:
            logger.info("device moves between the APIs", extra=facts)
