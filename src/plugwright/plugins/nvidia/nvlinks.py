"""How near the GPUs of a real machine are to each other: the PCIe level of each pair, and the NVLinks between them."""

from collections import Counter
from collections.abc import Sequence
from itertools import combinations

from plugwright.plugins.nvidia.gpus import Gpu, Link, Links, PcieLevel
from plugwright.plugins.nvidia.questions import Questions

__all__ = ["read"]

_MOST_LINKS = 36
_SWITCH = 2  # the kind of device at the far end
_LEVELS = {
    0: PcieLevel.PSB,
    10: PcieLevel.PIX,
    20: PcieLevel.PXB,
    30: PcieLevel.PHB,
    40: PcieLevel.NODE,
    50: PcieLevel.SYS,
}


def read(ask: Questions, gpus: Sequence[Gpu]) -> Links:
    """A GPU that does not answer has no links; it is nobody's reason to fail."""
    handles = {gpu.uuid: ask.want("nvmlDeviceGetHandleByUUID", gpu.uuid) for gpu in gpus}
    ends = {gpu.uuid: _far_ends(ask, handles[gpu.uuid]) for gpu in gpus if handles[gpu.uuid] is not None}
    pairs = {}
    for one, other in combinations(sorted(gpus, key=lambda gpu: gpu.uuid), 2):
        if one.uuid in ends and other.uuid in ends:
            level = ask.find("nvmlDeviceGetTopologyCommonAncestor", handles[one.uuid], handles[other.uuid])
            known = _LEVELS.get(level, PcieLevel.UNKNOWN)
            pairs[one.uuid, other.uuid] = Link(known, _between(ends[one.uuid], ends[other.uuid], other.pci))
    ask.faults.clear()
    return Links(pairs)


def _between(one: Counter[str], other: Counter[str], address: str) -> int:
    """Those that end at the other GPU, and those that both have to switches."""
    return one[address] + min(one[""], other[""])


def _far_ends(ask: Questions, handle: object) -> Counter[str]:
    """How many active links lead to each PCI address; those to any switch are counted together, under no address."""
    found: Counter[str] = Counter()
    for link in range(_MOST_LINKS):
        active = ask.find("nvmlDeviceGetNvLinkState", handle, link)
        if active is None:
            break
        if not active:
            continue
        kind = ask.find("nvmlDeviceGetNvLinkRemoteDeviceType", handle, link)
        info = ask.find("nvmlDeviceGetNvLinkRemotePciInfo", handle, link)
        if kind == _SWITCH:
            found[""] += 1
        elif info is not None:
            found[f"{info.domain:04x}:{info.bus:02x}:{info.device:02x}.0"] += 1
    return found
