"""The CDI spec of a resource: each unit's nodes, mounts and interfaces under a name that a runtime resolves."""

from collections.abc import Sequence
from dataclasses import replace

from plugwright.errors import InvalidValue
from plugwright.model import Allocation, DeviceNode, Mount
from plugwright.plugins.generic.answers import Handing, members_of
from plugwright.plugins.generic.units import Unit
from plugwright.sdk import cdi
from plugwright.sdk.sysfs import Host

__all__ = ["write"]


def write(directory: cdi.SpecDirectory, resource: str, handing: Handing, units: Sequence[Unit], host: Host) -> set[str]:
    """Writes what can be named, and returns the ids of those; what has been named stays.

    The kubelet uses stored answers again when a container restarts: a name that is gone would make that fail.
    """
    made = {unit.id: edits for unit in units if (edits := _edits(handing, unit, host))}
    devices = {name: cdi.Device(name, edits) for name, edits in made.items()}
    if devices:
        directory.write(cdi.Spec(resource, list({**_before(directory, resource), **devices}.values())))
    return set(devices)


def _edits(handing: Handing, unit: Unit, host: Host) -> cdi.ContainerEdits:
    members = members_of(handing, unit, 0)
    # Runtimes take no links here: what they lead to is named.
    nodes = [
        DeviceNode(host.resolve(each.host_path), each.container_path, each.permissions)
        for each in members
        if not each.mount
    ]
    mounts = [Mount(each.host_path, each.container_path, each.read_only) for each in members if each.mount]
    moved = [] if members or not unit.facts.get("interface") else [_interface(unit.facts["interface"])]
    return replace(cdi.edits_of(Allocation(nodes=nodes, mounts=mounts)), net_devices=moved)


def _interface(name: str) -> cdi.NetDevice:
    return cdi.NetDevice(name, name)


def _before(directory: cdi.SpecDirectory, resource: str) -> dict[str, cdi.Device]:
    try:
        return {device.name: device for device in cdi.read(directory.file(resource)).devices}
    except (OSError, InvalidValue):
        return {}
