"""The node as those see it who look: its status in the API, the kubelet's own records, and the kubelet's log."""

import re
from datetime import datetime

from tests.kubernetes.host import Host
from tests.kubernetes.waiting import until

from plugwright.protocol import checkpoint, pod_resources
from plugwright.protocol.checkpoint import Checkpoint
from plugwright.protocol.paths import KubeletPaths
from plugwright.protocol.pod_resources import AllocatableDevice, HeldDevice

__all__ = ["Node"]

_STARTED = '"Starting device plugin registration server"'
_ASKED = '"Got registration request from device plugin with resource" resourceName="{}"'
_STAMP = re.compile(r"[IWEF](\d{4} [\d:.]{15})")


class Node:
    def __init__(self, cluster: Host) -> None:
        self._cluster = cluster
        self._lines_before = len(cluster.kubelet.lines())
        self._paths = KubeletPaths.under(cluster.kubelet_dir)

    def resource(self, name: str) -> tuple[int, int] | None:
        """Capacity and allocatable, or None if the node does not know the resource."""
        status = self._cluster.node()["status"]
        if name not in status["capacity"]:
            return None
        return int(status["capacity"][name]), int(status["allocatable"].get(name, -1))

    def resources(self) -> list[str]:
        """The names of all that the node has."""
        return list(self._cluster.node()["status"]["capacity"])

    def shows(self, name: str, capacity: int, allocatable: int) -> None:
        """Waits until the node has so many of a resource."""
        wanted = (capacity, allocatable)
        until(f"{name} is {wanted}", lambda: self.resource(name) == wanted, last=lambda: self.resource(name))

    def checkpoint(self) -> Checkpoint:
        return checkpoint.decode(self._paths.checkpoint.read_bytes())

    async def holdings(self) -> list[HeldDevice]:
        async with pod_resources.connect(self._paths.pod_resources_socket) as kubelet:
            return await kubelet.held_devices(timeout=5)

    async def allocatable(self) -> list[AllocatableDevice]:
        """What the pod-resources API has of all plugins."""
        async with pod_resources.connect(self._paths.pod_resources_socket) as kubelet:
            return await kubelet.allocatable(timeout=5)

    def panics(self) -> list[str]:
        """New lines of the kubelet's log that tell of a crash; those that name kernel flags do not."""
        words = ("panic:", "runtime error", "Observed a panic", "nil pointer dereference")
        lines = self._cluster.kubelet.lines()[self._lines_before :]
        return [line for line in lines if any(word in line for word in words)]

    def kubelet_starts(self) -> list[float]:
        """When each kubelet so far began to listen for plugins, in seconds since 1970."""
        return [_time_of(line) for line in self._cluster.kubelet.lines(_STARTED)]

    def registration_requests(self, resource: str) -> list[float]:
        """When each of them reached a kubelet."""
        return [_time_of(line) for line in self._cluster.kubelet.lines(_ASKED.format(resource))]


def _time_of(line: str) -> float:
    """klog writes local time, without the year."""
    found = _STAMP.match(line)
    assert found is not None, line
    return datetime.strptime(f"{datetime.now().year} {found[1]}", "%Y %m%d %H:%M:%S.%f").timestamp()
