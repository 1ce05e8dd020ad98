"""Where a device belongs that a run finds: by what an earlier run left, by its holders, by the operator's split.

Plain functions over values; `split` keeps what they return. How a device moves from there is `moves`.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from plugwright.dra.api_split.moves import Evidence, Phase, Placement
from plugwright.dra.api_split.split_file import SplitState, settings_text
from plugwright.model import Device, natural_order
from plugwright.sdk.serve_settings import Api, ServeSettings, Split
from plugwright.text import clean

__all__ = ["Found", "adopt", "restored", "targets_by_split"]

Unit = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Found:
    """The devices that discovery lists, by unit, and what is known of each unit. `held` are those that pods hold."""

    devices: Mapping[str, Device]
    units: Mapping[str, Unit]
    evidence: Callable[[Unit], Evidence]
    held: Collection[str] = ()


def restored(placement: Placement, evidence: Evidence, *, rebooted: bool) -> Placement:
    """Where a device is after a restart: what the kubelet's checkpoint holds is the plugin's, what a claim holds DRA's.

    After a reboot the kubelet admits a pod again only if the devices that it held are Healthy.
    """
    held, phase = evidence.held_by_pod, placement.phase
    if held and evidence.prepared:
        phase = Phase.DISPUTED
    elif held and (phase is not Phase.WITHHELD or rebooted):
        phase = Phase.LISTED
    elif evidence.prepared and not phase.in_slice:
        phase = Phase.DISPUTED if held is None else Phase.PUBLISHED
    elif phase is Phase.WITHDRAWN:
        phase = Phase.TAINTED  # claims may have come while nothing ran
    return replace(placement, phase=phase)


def adopt(state: SplitState, serve: ServeSettings, found: Found) -> SplitState:
    """The state with every device that was found in it; the devices of one unit have one placement.

    Other settings than the state was made with replace what operators have asked for.
    """
    settings = settings_text(serve)
    if state.settings != settings:
        state = replace(state, settings=settings, handover=None)
        known: Mapping[str, Api] = {}
    else:
        known = {key: placement.target for key, placement in state.placements.items()}
    targets = {**_targets(state, serve, found), **known}
    placements = dict(state.placements)
    for unit in sorted(set(found.units.values())):
        placements |= dict.fromkeys(unit, _placement(unit, state, targets, serve, found))
    return replace(state, placements=placements, lost=False)


def _placement(
    unit: Unit, state: SplitState, targets: Mapping[str, Api], serve: ServeSettings, found: Found
) -> Placement:
    old = [state.placements[key] for key in unit if key in state.placements]
    decided = [key for key in unit if key in state.placements] or unit
    target = Api.DRA if all(targets[key] is Api.DRA for key in decided) else Api.DEVICE_PLUGIN
    if old:
        phases = {placement.phase for placement in old}
        by_policy = old[0].by_policy and target is old[0].target
        return Placement(phases.pop() if len(phases) == 1 else Phase.DISPUTED, target, by_policy)
    if state.lost:
        return Placement(Phase.DISPUTED, target)
    return Placement(_first_phase(found.evidence(unit), target, is_listed=serve.api is Api.BOTH), target)


def _first_phase(evidence: Evidence, target: Api, *, is_listed: bool) -> Phase:
    """`is_listed`: the kubelet has a list of the resource, so that a device must be withheld before it is published."""
    if evidence.prepared:
        return Phase.PUBLISHED if evidence.held_by_pod is False else Phase.DISPUTED
    if evidence.held_by_pod is not False or target is Api.DEVICE_PLUGIN:
        return Phase.LISTED
    return Phase.WITHHELD if is_listed else Phase.PUBLISHED


def _targets(state: SplitState, serve: ServeSettings, found: Found) -> dict[str, Api]:
    if serve.api is Api.DRA or state.handover is not None:
        return dict.fromkeys(found.devices, state.handover or Api.DRA)
    on_dra = {key for key, placement in state.placements.items() if placement.target is Api.DRA}
    on_dra |= {key for key, unit in found.units.items() if found.evidence(unit).prepared}
    return targets_by_split(found.devices.values(), serve.split, on_dra, found.held)


def targets_by_split(
    devices: Iterable[Device], split: Split, on_dra: Collection[str], held: Collection[str]
) -> dict[str, Api]:
    """Where the operator's split wants each device. `on_dra` are those already there, `held` those that pods hold."""
    devices = sorted(devices, key=lambda device: natural_order(device.id), reverse=True)
    if split.attributes:
        chosen = {device.id for device in devices if _matches(device, split.attributes)}
    elif split.dra is None:
        chosen = {device.id for device in devices if device.id not in held}
    else:
        # The kubelet is advised to take the first devices, so that the last ones are the most likely to be free.
        last_first = sorted(devices, key=lambda device: (device.id not in on_dra, device.id in held))
        chosen = {device.id for device in last_first[: split.dra]}
    return {device.id: Api.DRA if device.id in chosen else Api.DEVICE_PLUGIN for device in devices}


def _matches(device: Device, patterns: Mapping[str, Sequence[str]]) -> bool:
    return all(
        name in device.attributes
        and any(fnmatchcase(clean(device.attributes[name]).lower(), pattern.lower()) for pattern in accepted)
        for name, accepted in patterns.items()
    )
