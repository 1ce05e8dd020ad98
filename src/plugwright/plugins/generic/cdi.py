"""The CDI spec of a resource: each unit's nodes, mounts and interfaces under a resolvable name.

Loaded only for resources with `cdi: true`.
"""

from collections.abc import Mapping, Sequence

import msgspec
from msgspec.structs import replace

from plugwright.errors import InvalidValue
from plugwright.model import Allocation, DeviceNode, Mount
from plugwright.plugins.generic.allocation import HandoutOptions, WrittenUnits, container_paths
from plugwright.plugins.generic.hardware import Unit
from plugwright.sdk import cdi
from plugwright.sdk.sysfs import Host

__all__ = ["GenericSpec"]


class GenericSpec(msgspec.Struct, frozen=True):
    """The spec file of one resource, in a directory of the container runtimes."""

    directory: cdi.SpecDirectory
    resource: str

    def __post_init__(self) -> None:
        cdi.qualified_name(self.resource, "x")  # rejects a resource whose name cannot be a CDI kind

    def write(self, host: Host, options: HandoutOptions, units: Sequence[Unit]) -> WrittenUnits:
        """Writes the units. Names of other units stay, unless a unit has their node or interface now.

        The kubelet reuses stored answers when a container restarts: a missing name would make the restart fail, and a
        name of another device, such as the next /dev/ttyUSB0, would be worse. That device can belong to another
        resource, so names are removed from the files of other resources too.
        """
        devices, faults = dict[str, cdi.Device](), dict[str, str]()
        for unit in units:
            try:
                edits = _edits(host, options, unit)
                if edits:
                    devices[unit.id] = cdi.Device(unit.id, edits)
            except InvalidValue as error:
                faults[unit.id] = f"has no CDI device: {error}"
        if devices:
            with self.directory.locked():
                self._write(devices)
        return WrittenUnits({unit_id: cdi.qualified_name(self.resource, unit_id) for unit_id in devices}, faults)

    def _write(self, devices: Mapping[str, cdi.Device]) -> None:
        used = {target for device in devices.values() for target in _targets(device)}
        own: dict[str, cdi.Device] = {}
        for path in self.directory.files():
            spec = cdi.read(path)
            kept = [device for device in spec.devices if device.name in devices or not used & _targets(device)]
            if path == self.directory.file(self.resource):
                own = {device.name: device for device in kept}
            elif path == self.directory.file(spec.kind) and len(kept) < len(spec.devices):  # not the file of a claim
                self.directory.write(replace(spec, devices=kept))
        self.directory.write(cdi.Spec(self.resource, list({**own, **devices}.values())))


def _targets(device: cdi.Device) -> set[str]:
    """The host's nodes and interfaces in a container with this device."""
    nodes = {node.host_path or node.path for node in device.edits.device_nodes}
    return nodes | {interface.host_interface_name for interface in device.edits.net_devices}


def _edits(host: Host, options: HandoutOptions, unit: Unit) -> cdi.ContainerEdits:
    paths = container_paths(options, unit, 0)
    # Runtimes do not follow links here, so the spec names the targets.
    nodes = [
        DeviceNode(host.resolve(path.host_path), path.container_path, path.permissions)
        for path in paths
        if not path.mount
    ]
    mounts = [Mount(path.host_path, path.container_path, path.read_only) for path in paths if path.mount]
    interface = "" if paths else unit.facts.get("interface", "")
    edits = cdi.edits_of(Allocation(nodes=nodes, mounts=mounts))
    return replace(edits, net_devices=[cdi.NetDevice(interface, interface)] if interface else [])
