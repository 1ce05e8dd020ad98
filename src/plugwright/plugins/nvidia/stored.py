"""Stored answers of the kubelet: the CDI names of GPUs in them, and those now leading to another GPU.

A UUID always belongs to the same GPU. Minor numbers, as in /dev/nvidia3, and indexes are reassigned when the driver is
loaded: if a GPU does not return, or another is found first, a restarted container would get a GPU possibly belonging to
another pod.
"""

import re
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from plugwright.model import Allocation
from plugwright.plugins.nvidia.config import NvidiaConfig, NvidiaMps
from plugwright.plugins.nvidia.driver import Gpu
from plugwright.sdk.cdi import recreation
from plugwright.sdk.node_state import StoredAllocation

__all__ = ["MovedGpu", "cdi_names", "classes", "lost_mps_directories", "moved_gpus"]

_NODE = re.compile(r".*/nvidia(?P<minor>[0-9]+)")
_INDEX = re.compile(r"[0-9]+(?::[0-9]+)?")


class MovedGpu(msgspec.Struct, frozen=True):
    """A GPU given to a restarted container, although another GPU was allocated to it.

    `cdi_name` is the name in its answer leading there, which can be omitted; empty for a node or a variable.
    """

    uuid: str
    name: str
    pod_uid: str
    cdi_name: str = ""

    @property
    def reason(self) -> str:
        return f"pod {self.pod_uid} gets it as {self.name}, which was another GPU's: delete that pod"


def cdi_names(stored: StoredAllocation) -> list[str]:
    return recreation.names_in(stored.cdi, stored.annotations)


def classes(vendor: str, allocations: Iterable[StoredAllocation]) -> set[str]:
    """The classes, such as `gpu`, of this vendor's CDI names given to containers."""
    names = (name for stored in allocations for name in cdi_names(stored))
    kinds = {name.partition("=")[0] for name in names}
    return {kind.removeprefix(f"{vendor}/") for kind in kinds if kind.startswith(f"{vendor}/")}


def lost_mps_directories(config: NvidiaConfig, stored: StoredAllocation, current: Allocation) -> list[str]:
    """The pipe directories of MPS daemons in a stored answer, but not in the current answer."""
    mps = config.share.mps if config.share is not None else None
    root = f"{(mps or NvidiaMps()).root.rstrip('/')}/"
    used = {mount.host_path for mount in current.mounts}
    return [path for path in stored.mounts if path not in used and path.startswith(root)]


def moved_gpus(vendor: str, allocations: Iterable[StoredAllocation], gpus: Sequence[Gpu]) -> list[MovedGpu]:
    minors = {str(gpu.minor): gpu.uuid for gpu in gpus if gpu.minor is not None}
    indexes = {str(gpu.index): gpu.uuid for gpu in gpus}
    parents = {mig.uuid: gpu.uuid for gpu in gpus for mig in gpu.mig}
    found = []
    for stored in allocations:
        devices = {device_id.partition("::")[0] for device_id in stored.device_ids}
        own = {parents.get(device, device) for device in devices}
        for node in stored.nodes:
            match = _NODE.fullmatch(node)
            uuid = minors.get(match["minor"]) if match else None
            if uuid is not None and uuid not in own:
                found.append(MovedGpu(uuid, node, stored.pod_uid))
        for index, cdi_name in _indexes(vendor, stored):
            uuid = indexes.get(index.partition(":")[0])
            if uuid is not None and uuid not in own:
                found.append(MovedGpu(uuid, cdi_name or f"GPU {index}", stored.pod_uid, cdi_name))
    return found


def _indexes(vendor: str, stored: StoredAllocation) -> Iterator[tuple[str, str]]:
    """The indexes by which GPUs were given, with their CDI names."""
    for index in stored.env.get("NVIDIA_VISIBLE_DEVICES", "").split(","):
        if _INDEX.fullmatch(index):
            yield index, ""
    for name in cdi_names(stored):
        kind, _, device = name.partition("=")
        if kind.startswith(f"{vendor}/") and kind.endswith("gpu") and _INDEX.fullmatch(device):
            yield device, name
