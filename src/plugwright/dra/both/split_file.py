"""The placements of a resource's devices: first stored on disk, over restarts and reboots, and then in effect.

A crash could forget a state that is in effect before it is on disk, and then both APIs would offer the device. A file
that is damaged or of a later version is set aside, and every device then counts as disputed until its holders are
known: the API that had it is never guessed.

An old and a new daemon can run side by side during an upgrade. The daemon with the lock decides; the other follows the
file. If there is a lock but no file, `serve: dra` was in force last, and all devices belonged to claims.
"""

import logging
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path

import msgspec

from plugwright.dra.both.states import Placement
from plugwright.dra.device_placement import DeviceState
from plugwright.dra.driver_paths import PlacementLock
from plugwright.errors import ConfigError, PluginError, StateFileDamaged
from plugwright.sdk.resource_runtime import ResourceRuntime
from plugwright.sdk.serve_settings import ServeMode, ServeSettings
from plugwright.system.blocking import BlockingCalls
from plugwright.system.boot import BOOT_ID, boot_id
from plugwright.system.latest import Latest
from plugwright.system.state_file import JsonFormat, StateFile
from plugwright.text import clean

__all__ = ["KeptPlacements", "SplitFile", "SplitState", "settings_text"]

logger = logging.getLogger(__name__)

_VERSION = 1
_DISK_LIMIT = 5.0  # seconds
_MOST_ABSENT = 1000  # devices remembered although discovery no longer lists them
_REASONS = {
    DeviceState.WITHHELD: "moves to DRA, when the pod that holds it ends",
    DeviceState.PUBLISHED: "served by DRA",
    DeviceState.TAINTED: "served by DRA until no claim has it",
    DeviceState.WITHDRAWN: "moves from DRA",
    DeviceState.DISPUTED: "it is not clear who holds it",
}


class SplitState(msgspec.Struct, frozen=True):
    """`handover` is the side on which an operator wants all devices, None if the split decides.

    `settings` are those by which the targets were chosen, as text. `lost`: there was a state, but it is not known.
    `all_claims`: there was no state, because claims had all devices.
    """

    placements: Mapping[str, Placement] = {}
    handover: ServeMode | None = None
    settings: str = ""
    boot: str = ""
    lost: bool = False
    all_claims: bool = False


class _SplitContent(msgspec.Struct, kw_only=True, omit_defaults=True):
    boot: str
    settings: str
    handover: ServeMode | None = None
    devices: dict[str, Placement] = {}


class SplitFile:
    """The methods block: call them in a thread, one at a time."""

    def __init__(self, path: Path, boot_id: Path = BOOT_ID) -> None:
        self.path = path
        self._boot_id = boot_id
        self._file = StateFile(path, JsonFormat(_SplitContent, _VERSION, indent=None))
        self._lock = PlacementLock(path.with_suffix(".lock"))

    def lock_and_load(self) -> tuple[bool, SplitState]:
        """Whether this process decides from now on until `close`, and the recorded state. OSError if unreadable."""
        had_driver = self._lock.exists()
        decides = self._lock.take()
        return decides, self._load(had_driver)

    def close(self) -> None:
        self._lock.close()

    def _load(self, had_driver: bool) -> SplitState:
        try:
            content = self._file.read()
        except StateFileDamaged as error:
            facts = {"path": str(self.path), "kept": str(error.kept), "error": error.problem}
            text = "it is not known which API had each device: offered by neither until that is clear"
            logger.error(text, extra=facts)
            return SplitState(lost=True)
        if content is None:
            return SplitState(all_claims=had_driver)
        return SplitState(content.devices, content.handover, content.settings, content.boot)

    def save(self, state: SplitState, present: Collection[str]) -> None:
        """Writes the state. `present` are the devices that discovery lists; only a limited number of others is kept."""
        absent = sorted(state.placements.keys() - set(present))[:_MOST_ABSENT]
        kept = {key: state.placements[key] for key in sorted({*absent, *(state.placements.keys() & set(present))})}
        boot = self.boot_id()
        self._file.write(_SplitContent(boot=boot, settings=state.settings, handover=state.handover, devices=kept))

    def boot_id(self) -> str:
        return boot_id(self._boot_id)


class KeptPlacements:
    """`latest` are the placements in effect; until there are any, no device is offered to the kubelet.

    `on_enter` is called for each device that enters another state.
    """

    def __init__(self, runtime: ResourceRuntime, file: SplitFile, on_enter: Callable[[str], None]) -> None:
        self.latest: Latest[Mapping[str, Placement]] = Latest({})
        self.state = SplitState()
        self.rebooted = False  # since the loaded state was written
        self._resource, self._inventory = runtime.resource, runtime.inventory
        self._file, self._on_enter = file, on_enter
        # One at a time: on a disk that hung, an earlier state must not replace a later one.
        self._disk = BlockingCalls(f"split of {runtime.resource}", _DISK_LIMIT, at_once=1)
        self._inventory.withhold({}, offered=())

    async def load(self) -> SplitState | None:
        """The last state; None, with that state in effect, while another process decides. OSError, PluginError."""
        decides, state = await self._disk.run(self._file.lock_and_load)
        if not decides:
            if state.all_claims:
                all_claims = dict.fromkeys(self._present(), Placement(DeviceState.PUBLISHED, ServeMode.DRA))
                state = msgspec.structs.replace(state, placements=all_claims)
            self._take_effect(state)
            return None
        self.rebooted = state.boot not in ("", await self._disk.run(self._file.boot_id))
        return state

    async def commit(self, state: SplitState) -> None:
        try:
            await self._disk.run(partial(self._file.save, state, self._present()), to_end=True)
        except (OSError, PluginError) as error:
            text = f"devices stay where they are: {self._file.path} cannot be written: {clean(error)}"
            raise ConfigError(text) from error
        self._take_effect(state)

    def close(self) -> None:
        """Lets another process decide."""
        self._file.close()

    def _present(self) -> tuple[str, ...]:
        snapshot = self._inventory.latest.value
        return tuple(snapshot.devices) if snapshot is not None else ()

    def _take_effect(self, state: SplitState) -> None:
        before, self.state = self.latest.value, state
        for key, placement in state.placements.items():
            old = before.get(key)
            if old is None or old.state is not placement.state:
                self._on_enter(key)
                self._log(key, placement, old)
        listed = {key for key, placement in state.placements.items() if placement.state is DeviceState.LISTED}
        reasons = {key: _REASONS[placement.state] for key, placement in state.placements.items() if key not in listed}
        self._inventory.withhold(reasons, offered=listed)
        self.latest.publish_if_changed(state.placements)

    def _log(self, device_id: str, placement: Placement, old: Placement | None) -> None:
        facts = {"resource": self._resource, "device": device_id, "phase": placement.state.value}
        facts["was"] = old.state.value if old is not None else ""
        if placement.state is DeviceState.DISPUTED:
            logger.error("device is offered by neither API: it is not clear who holds it", extra=facts)
        elif old is not None:
            logger.info("device moves between the APIs", extra=facts)


def settings_text(serve: ServeSettings) -> str:
    """The settings from which the targets follow: other settings mean other targets."""
    return msgspec.json.encode((serve.api, serve.split)).decode()
