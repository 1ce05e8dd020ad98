"""The split as operators see and command it: `move`, `handover`, and what is where and waits for whom."""

from collections.abc import Mapping

from plugwright.dra.api_split.moves import Phase, Placement
from plugwright.dra.api_split.split import ApiSplit
from plugwright.dra.names import device_name
from plugwright.errors import ConfigError
from plugwright.model import natural_order
from plugwright.sdk.serve_settings import Api

__all__ = ["COMMANDS", "command", "status"]

COMMANDS = ("handover", "move")
_TARGETS = {"handover": (Api.DRA, Api.DEVICE_PLUGIN, Api.BOTH), "move": (Api.DRA, Api.DEVICE_PLUGIN)}
_ARGUMENTS = {"handover": {"to"}, "move": {"device", "to"}}


async def command(split: ApiSplit, name: str, arguments: Mapping[str, str]) -> str:
    """Returns when the request is on disk, with what follows from it."""
    if name not in COMMANDS:
        raise ConfigError(f"no command {name!r} (there are: {', '.join(COMMANDS)})")
    if set(arguments) != _ARGUMENTS[name]:
        wanted = " and ".join(sorted(_ARGUMENTS[name]))
        raise ConfigError(f"{name} needs {wanted}, got {', '.join(sorted(arguments)) or 'nothing'}")
    to = _target(name, arguments["to"])
    if name == "move":
        await split.move(arguments["device"], to)
        devices = split.unit(arguments["device"])
    else:
        await split.hand_over(to)
        devices = tuple(split.placements.value)
    return _summary(split, devices)


def status(split: ApiSplit) -> dict[str, object]:
    """What JSON has; the devices in their natural order."""
    placements = split.placements.value
    return {
        "handover": split.handover or "",
        "problem": split.problem.value,
        "devices": {
            key: {
                "name": device_name(key),
                "api": placements[key].phase.offered_by or "",
                "phase": placements[key].phase.value,
                "target": placements[key].target.value,
                "waits": waits_for(split, key, placements[key]),
                "claims": sorted(split.readings.prepared.get(key, ())),
            }
            for key in sorted(placements, key=natural_order)
        },
    }


def waits_for(split: ApiSplit, device_id: str, placement: Placement) -> str:
    """Why the device is not where it is to be; empty if it is."""
    unit, readings, problem = split.unit(device_id), split.readings, split.problem.value
    prepared = sorted({claim for key in unit for claim in readings.prepared.get(key, ())})
    allocated = sorted({claim for key in unit for claim in readings.claims(key)})
    match placement.phase:
        case Phase.WITHHELD:
            pod = next(filter(None, map(readings.pod, unit)), "")
            if not pod and readings.evidence(unit).counted:
                return problem or "the scheduler, which counts it until it has seen the Node with fewer devices"
            return f"held by {pod}" if pod else problem or "it is being read which pods hold it"
        case Phase.TAINTED if prepared or allocated:
            return f"held by the claim {', '.join(prepared or allocated)}"
        case Phase.TAINTED if not all(map(readings.is_taint_seen, unit)):
            return problem or "the API server has not stored the taint yet"
        case Phase.TAINTED:
            return problem or f"allocations that the scheduler may have begun, for {split.settings.in_flight:g} s"
        case Phase.WITHDRAWN:
            return problem or "the API server still has it in a slice"
        case Phase.DISPUTED:
            return problem or "it is not clear who holds it"
        case Phase.LISTED if placement.target is Api.DRA and not readings.evidence(unit).pinned:
            return problem or "another free device, for a pod that the scheduler may have bound"
        case Phase.LISTED if placement.target is Api.DRA:
            return "a pod that held it before the reboot may have to be admitted again"
    return ""


def _summary(split: ApiSplit, devices: tuple[str, ...]) -> str:
    """One line: how many devices are there, and which wait for whom."""
    placements = split.placements.value
    waiting = {key: text for key in devices if (text := waits_for(split, key, placements[key]))}
    offered = [placements[key].phase.offered_by for key in devices]
    counts = ", ".join(f"{offered.count(api)} {api}" for api in (Api.DEVICE_PLUGIN, Api.DRA))
    line = f"{len(devices)} devices: {counts}, {len(waiting)} moving"
    return "; ".join([line, *(f"{key}: {waiting[key]}" for key in sorted(waiting, key=natural_order))])


def _target(name: str, text: str) -> Api:
    if text not in _TARGETS[name]:
        raise ConfigError(f"{name} must be to one of {', '.join(_TARGETS[name])}, got {text!r}")
    return Api(text)
