"""The state in which a run starts with a device: from an earlier run, from its holders, and from the operator's split.

Pure functions over values; `rounds` keeps their results. `states` decides how a device moves from there.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase

import msgspec
from msgspec.structs import replace

from plugwright.dra.both.split_file import SplitState, settings_text
from plugwright.dra.both.states import Evidence, Placement, Unit
from plugwright.dra.device_placement import DeviceState
from plugwright.model import Device, natural_order
from plugwright.sdk.serve_settings import ServeMode, ServeSettings, Split
from plugwright.text import clean

__all__ = ["Found", "placed", "restored", "targets_by_split"]


class Found(msgspec.Struct, frozen=True):
    """The devices that discovery lists, by unit, and the evidence for each unit. `held` are those that pods hold."""

    devices: Mapping[str, Device]
    units: Mapping[str, Unit]
    evidence: Callable[[Unit], Evidence]
    held: Collection[str] = ()


def restored(placement: Placement, evidence: Evidence, *, rebooted: bool) -> Placement:
    """The state of a device after a restart: the plugin keeps devices in the kubelet's checkpoint, DRA claimed ones.

    After a reboot the kubelet admits a pod again only if the devices that it held are Healthy.
    """
    held, state = evidence.held_by_pod, placement.state
    if held and evidence.prepared:
        state = DeviceState.DISPUTED
    elif held and (state is not DeviceState.WITHHELD or rebooted):
        state = DeviceState.LISTED
    elif evidence.prepared and not state.in_slice:
        state = DeviceState.DISPUTED if held is None else DeviceState.PUBLISHED
    elif state is DeviceState.WITHDRAWN:
        state = DeviceState.TAINTED  # claims can have been allocated in the meantime
    return replace(placement, state=state)


def placed(state: SplitState, serve: ServeSettings, found: Found) -> SplitState:
    """The state with every found device in it; the devices of one unit share one placement.

    If the settings differ from those with which the state was made, they replace the operators' commands.
    """
    settings = settings_text(serve)
    without_policy = settings_text(replace(serve, split=replace(serve.split, keep_free=0)))
    if state.settings == without_policy:  # a policy moves devices later, and does not revert commands
        state = replace(state, settings=settings)
    if state.settings != settings:
        chosen = {key: replace(placement, by_command=msgspec.UNSET) for key, placement in state.placements.items()}
        state = replace(state, placements=chosen, settings=settings, handover=None)
        known: Mapping[str, ServeMode] = {}
    else:
        known = {key: placement.target for key, placement in state.placements.items()}
    targets = {**_targets(state, serve, found), **known}
    placements = dict(state.placements)
    for unit in sorted(set(found.units.values())):
        placements |= dict.fromkeys(unit, _placement(unit, state, targets, found))
    return replace(state, placements=placements, lost=False, all_claims=False)


def _placement(unit: Unit, state: SplitState, targets: Mapping[str, ServeMode], found: Found) -> Placement:
    old = [state.placements[key] for key in unit if key in state.placements]
    decided = [key for key in unit if key in state.placements] or unit
    target = ServeMode.DRA if all(targets[key] is ServeMode.DRA for key in decided) else ServeMode.DEVICE_PLUGIN
    if old:
        states = {placement.state for placement in old}
        placement = old[0] if target is old[0].target else Placement(old[0].state, target)
        return replace(placement, state=states.pop() if len(states) == 1 else DeviceState.DISPUTED)
    if state.lost:
        return Placement(DeviceState.DISPUTED, target)
    return Placement(_first_state(found.evidence(unit), target, claims_had_it=state.all_claims), target)


def _first_state(evidence: Evidence, target: ServeMode, *, claims_had_it: bool) -> DeviceState:
    """`claims_had_it`: the device can still be in a slice, so the scheduler could have allocated it to a claim."""
    if evidence.prepared:
        return DeviceState.PUBLISHED if evidence.held_by_pod is False else DeviceState.DISPUTED
    if evidence.held_by_pod is not False:
        return DeviceState.LISTED
    if claims_had_it:
        return DeviceState.PUBLISHED
    return DeviceState.LISTED if target is ServeMode.DEVICE_PLUGIN else DeviceState.WITHHELD


def _targets(state: SplitState, serve: ServeSettings, found: Found) -> dict[str, ServeMode]:
    if state.handover is not None:
        return dict.fromkeys(found.devices, state.handover)
    on_dra = {key for key, placement in state.placements.items() if placement.target is ServeMode.DRA}
    on_dra |= {key for key, unit in found.units.items() if found.evidence(unit).prepared}
    targets = targets_by_split(found.devices.values(), serve.split, on_dra, found.held)
    if serve.split.dra is None and not serve.split.attributes:
        targets |= dict.fromkeys(_kept_free(serve.split.keep_free, targets, on_dra, found), ServeMode.DEVICE_PLUGIN)
    return targets


def _kept_free(count: int, targets: Mapping[str, ServeMode], on_dra: Collection[str], found: Found) -> set[str]:
    """The devices of the first free units, which the device plugin API keeps; at most half of those units."""
    units = [unit for unit in set(found.units.values()) if set(on_dra).isdisjoint(unit)]
    free = [unit for unit in units if all(targets.get(key) is ServeMode.DRA for key in unit)]
    free.sort(key=lambda unit: natural_order(unit[0]))
    return {key for unit in free[: min(count, len(free) // 2)] for key in unit}


def targets_by_split(
    devices: Iterable[Device], split: Split, on_dra: Collection[str], held: Collection[str]
) -> dict[str, ServeMode]:
    """The side of each device in the operator's split; `on_dra` are already there, and pods hold `held`."""
    devices = sorted(devices, key=lambda device: natural_order(device.id), reverse=True)
    if split.attributes:
        chosen = {device.id for device in devices if _matches(device, split.attributes)}
    elif split.dra is None:
        chosen = {device.id for device in devices if device.id not in held}
    else:
        # We prefer the first devices in preferences for the kubelet, so the last ones are the most likely to be free.
        last_first = sorted(devices, key=lambda device: (device.id not in on_dra, device.id in held))
        chosen = {device.id for device in last_first[: split.dra]}
    return {device.id: ServeMode.DRA if device.id in chosen else ServeMode.DEVICE_PLUGIN for device in devices}


def _matches(device: Device, patterns: Mapping[str, Sequence[str]]) -> bool:
    return all(
        name in device.attributes
        and any(fnmatchcase(clean(device.attributes[name]).lower(), pattern.lower()) for pattern in accepted)
        for name, accepted in patterns.items()
    )
