"""The nodes of a PCI function: those of the user-space drivers (vfio, uio), of RDMA, and of whatever drives it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from plugwright.plugins.generic import ids
from plugwright.plugins.generic.units import Member, Unit
from plugwright.sdk import sysfs
from plugwright.sdk.sysfs import Host, PciFunction

__all__ = ["Nodes", "called_for", "group_partners", "has_rdma", "mediated", "of", "rdma", "vhost"]

_CONTAINER = "/dev/vfio/vfio"
_RDMA_CM = "/dev/infiniband/rdma_cm"
_VHOST = {"net-mount": "/dev/vhost-net", "tun-mount": "/dev/net/tun"}


@dataclass(frozen=True, slots=True)
class Nodes:
    """What a container gets; `details` are told to it; `by_group`: all functions of an IOMMU group go together."""

    members: tuple[Member, ...] = ()
    details: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    fault: str = ""
    by_group: bool = False

    def joined(self, other: "Nodes") -> "Nodes":
        return Nodes(
            (*self.members, *other.members),
            {**self.details, **other.details},
            self.fault or other.fault,
            self.by_group or other.by_group,
        )


def called_for(function: PciFunction) -> Sequence[str]:
    """What the driver calls for; a network card's own nodes are for those who ask for RDMA."""
    if "vfio" in function.driver:
        return ("vfio",)
    if "uio" in function.driver:
        return ("uio",)
    return () if function.class_code.startswith("02") else ("all",)


def of(host: Host, function: PciFunction, kinds: Sequence[str]) -> Nodes:
    makers = {"vfio": _vfio, "iommufd": _iommufd, "uio": _uio, "all": _every}
    found = Nodes()
    for kind in kinds:
        found = found.joined(makers[kind](host, function))
    return found


def has_rdma(function: PciFunction) -> bool:
    return bool(sysfs.entries(function.directory / "infiniband"))


def rdma(host: Host, function: PciFunction) -> Nodes:
    paths = [node.path for node in sysfs.nodes_below(function.directory) if node.subsystem.startswith("infiniband")]
    if host.has(_RDMA_CM):
        paths.append(_RDMA_CM)
    named = {name: path for path in paths for name in ("uverbs", "umad", "issm", "rdma_cm") if f"/{name}" in path}
    adapters = [each.name for each in sysfs.entries(function.directory / "infiniband")]
    details = {"rdma": {**named, "rdma_dev": ",".join(adapters)}}
    return Nodes(tuple(map(Member, paths)), details, "" if "uverbs" in named else "no uverbs node")


def vhost() -> Nodes:
    return Nodes(tuple(map(Member, _VHOST.values())), {"vhost": _VHOST})


def group_partners(host: Host, function: PciFunction) -> list[str]:
    """All functions of the IOMMU group, ours among them: the kernel gives them to one user only."""
    group = host.sys / "kernel" / "iommu_groups" / function.iommu_group / "devices"
    partners = [each for each in sysfs.entries(group) if sysfs.link_name(each, "driver") == function.driver]
    return sorted(each.name for each in partners) or [function.address]


def mediated(host: Host, function: PciFunction) -> list[Unit]:
    """The mediated devices that the function carries, known by their UUIDs."""
    every = [sysfs.real(each) for each in sysfs.entries(host.sys / "bus" / "mdev" / "devices")]
    return [_mediated(host, function, each) for each in every if each.parent == function.directory]


def _mediated(host: Host, function: PciFunction, directory: Path) -> Unit:
    kind = directory.joinpath("mdev_type")
    model = sysfs.attribute(kind, "name") or sysfs.link_name(directory, "mdev_type")
    nodes = _group_nodes(host, sysfs.link_name(directory, "iommu_group"))
    return Unit(
        id=ids.stable(directory.name),
        members=nodes.members,
        facts={"uuid": directory.name, "model": model, "pci": function.address, "vendor": function.vendor},
        numa=sysfs.numa_nodes(directory),
        fault=nodes.fault,
        directory=directory,
        details={"generic": {"deviceID": directory.name}, **nodes.details},
    )


def _vfio(host: Host, function: PciFunction) -> Nodes:
    return _group_nodes(host, function.iommu_group)


def _group_nodes(host: Host, group: str) -> Nodes:
    if not group:
        return Nodes(fault="in no IOMMU group")
    inside = f"/dev/vfio/{group}"
    unprotected = sysfs.attribute(host.sys / "kernel" / "iommu_groups" / group, "name") == "vfio-noiommu"
    outside = f"/dev/vfio/noiommu-{group}" if unprotected else inside
    members = (Member(_CONTAINER), Member(outside, container_path=inside))
    return Nodes(members, {"vfio": {"mount": _CONTAINER, "dev-mount": inside}}, by_group=True)


def _iommufd(host: Host, function: PciFunction) -> Nodes:
    names = [each.name for each in sysfs.entries(function.directory / "vfio-dev")]
    if not names:
        return Nodes(fault="no vfio device: is vfio-pci bound, with IOMMUFD?")
    path = f"/dev/vfio/devices/{names[0]}"
    return Nodes((Member("/dev/iommu"), Member(path)), {"vfio": {"mount": "/dev/iommu", "dev-mount": path}}, "", True)


def _uio(host: Host, function: PciFunction) -> Nodes:
    paths = [f"/dev/{each.name}" for each in sysfs.entries(function.directory / "uio")]
    if not paths:
        return Nodes(fault="no uio node")
    return Nodes(tuple(map(Member, paths)), {"uio": {"mount": paths[0]}})


def _every(host: Host, function: PciFunction) -> Nodes:
    paths = [node.path for node in sysfs.nodes_below(function.directory)]
    return Nodes(tuple(map(Member, paths)), fault="" if paths else "no node in /dev")
