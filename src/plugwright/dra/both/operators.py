"""The operators' view of the split and its commands: `move`, `handover`, and the reason why a device waits."""

from collections.abc import Mapping

from plugwright.dra.both.holders import ClaimHolders, ClusterReader, HolderSources, PodHolders
from plugwright.dra.both.move_settings import MoveSettings
from plugwright.dra.both.split import DeviceSplit
from plugwright.dra.both.split_file import SplitFile
from plugwright.dra.both.states import Placement
from plugwright.dra.device_placement import DeviceState, device_status
from plugwright.dra.driver_paths import DriverPaths
from plugwright.dra.resource_claims.prepared_claims import PreparedClaims
from plugwright.errors import ConfigError
from plugwright.model import natural_order
from plugwright.sdk.resource_runtime import ResourceRuntime
from plugwright.sdk.serve_settings import ServeMode

__all__ = ["COMMANDS", "OperatedSplit", "waits_for"]

COMMANDS = ("handover", "move")
_TARGETS = {
    "handover": (ServeMode.DRA, ServeMode.DEVICE_PLUGIN, ServeMode.BOTH),
    "move": (ServeMode.DRA, ServeMode.DEVICE_PLUGIN),
}
_ARGUMENTS = {"handover": {"to"}, "move": {"device", "to"}}


class OperatedSplit(DeviceSplit):
    """Implements `device_placement.DevicePlacement`."""

    @classmethod
    def of(
        cls, runtime: ResourceRuntime, files: DriverPaths, prepared: PreparedClaims, api: ClusterReader
    ) -> "OperatedSplit":
        settings = MoveSettings.of(runtime.settings.timeouts)
        pods = PodHolders(runtime, settings.stored, settings.clock)
        claims = ClaimHolders(api, files.driver, runtime.settings.node_name)
        return cls(runtime, SplitFile(files.split), HolderSources(pods, claims, prepared), settings)

    async def command(self, name: str, arguments: Mapping[str, str]) -> str:
        """Returns when the request is on disk, with a summary of its effects."""
        if name not in COMMANDS:
            raise ConfigError(f"no command {name!r} (there are: {', '.join(COMMANDS)})")
        if set(arguments) != _ARGUMENTS[name]:
            wanted = " and ".join(sorted(_ARGUMENTS[name]))
            raise ConfigError(f"{name} needs {wanted}, got {', '.join(sorted(arguments)) or 'nothing'}")
        to = _target(name, arguments["to"])
        if name == "move":
            await self.move(arguments["device"], to)
            return _summary(self, self.unit(arguments["device"]))
        await self.hand_over(to)
        return _summary(self, tuple(self.placements.value))

    def status(self) -> dict[str, object]:
        """The status of the placement, with the devices in natural order."""
        placements, prepared = self.placements.value, self.observations.prepared
        devices = {
            key: device_status(key, placed.state, placed.target, waits_for(self, key, placed), prepared.get(key, ()))
            for key, placed in sorted(placements.items(), key=lambda item: natural_order(item[0]))
        }
        return {"handover": self.state.handover or "", "problem": self.problem.value, "devices": devices}


def waits_for(split: DeviceSplit, device_id: str, placement: Placement) -> str:
    """Why the device is not on its target side; empty if it is."""
    unit, observations, problem = split.unit(device_id), split.observations, split.problem.value
    prepared = sorted({claim for key in unit for claim in observations.prepared.get(key, ())})
    allocated = sorted({claim for key in unit for claim in observations.claims(key)})
    match placement.state:
        case DeviceState.WITHHELD:
            pod = next(filter(None, map(observations.pod, unit)), "")
            if not pod and observations.evidence(unit).counted:
                return problem or "the scheduler, which counts it until it has seen the Node with fewer devices"
            return f"held by {pod}" if pod else problem or "it is being read which pods hold it"
        case DeviceState.TAINTED if prepared or allocated:
            return f"held by the claim {', '.join(prepared or allocated)}"
        case DeviceState.TAINTED if not all(map(observations.is_taint_seen, unit)):
            return problem or "the API server has not stored the taint yet"
        case DeviceState.TAINTED:
            return problem or f"allocations that the scheduler may have begun, for {split.settings.in_flight:g} s"
        case DeviceState.WITHDRAWN:
            return problem or "the API server still has it in a slice"
        case DeviceState.DISPUTED:
            return problem or "it is not clear who holds it"
        case DeviceState.LISTED if placement.target is ServeMode.DRA and not observations.evidence(unit).pinned:
            return problem or "another free device, for a pod that the scheduler may have bound"
        case DeviceState.LISTED if placement.target is ServeMode.DRA:
            return "a pod that held it before the reboot may have to be admitted again"
    return ""


def _summary(split: DeviceSplit, devices: tuple[str, ...]) -> str:
    """One line: the number of devices on each side, and the reason of each waiting one."""
    placements = split.placements.value
    waiting = {key: text for key in devices if (text := waits_for(split, key, placements[key]))}
    offered = [placements[key].state.offered_by for key in devices]
    counts = ", ".join(f"{offered.count(api)} {api}" for api in (ServeMode.DEVICE_PLUGIN, ServeMode.DRA))
    line = f"{len(devices)} devices: {counts}, {len(waiting)} moving"
    return "; ".join([line, *(f"{key}: {waiting[key]}" for key in sorted(waiting, key=natural_order))])


def _target(name: str, text: str) -> ServeMode:
    if text not in _TARGETS[name]:
        raise ConfigError(f"{name} must be to one of {', '.join(_TARGETS[name])}, got {text!r}")
    return ServeMode(text)
