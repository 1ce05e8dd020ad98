"""The CDI spec of a resource: each unit's nodes, mounts and interfaces under a name that a runtime resolves."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from plugwright.errors import InvalidValue
from plugwright.model import Allocation, DeviceNode, Mount
from plugwright.plugins.generic.allocation import Handing, members_of
from plugwright.plugins.generic.hardware import Unit
from plugwright.sdk import cdi
from plugwright.sdk.sysfs import Host

__all__ = ["CdiCatalog"]


@dataclass(frozen=True, slots=True)
class CdiCatalog:
    """The names of a resource's units, in a directory that runtimes read."""

    directory: cdi.SpecDirectory
    resource: str

    def __post_init__(self) -> None:
        cdi.qualified_name(self.resource, "x")  # refuses a resource that CDI has no kind for

    def write(self, host: Host, handing: Handing, units: Sequence[Unit]) -> dict[str, str]:
        """Writes what can be named, and returns the names by ids; what has been named stays.

        The kubelet uses stored answers again when a container restarts: a name that is gone would make that fail.
        """
        made = {unit.id: edits for unit in units if (edits := _edits(handing, unit, host))}
        devices = {name: cdi.Device(name, edits) for name, edits in made.items()}
        if devices:
            every = {**_before(self.directory, self.resource), **devices}
            self.directory.write(cdi.Spec(self.resource, list(every.values())))
        return {name: cdi.qualified_name(self.resource, name) for name in devices}


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
