"""How many units fit into what the kubelet takes: worked out before they are made, and refused with what would fit.

Units of a MiB each are tempting, and every one of them is a line in one message of at most 4 MiB.
"""

from collections.abc import Sequence

from plugwright.errors import PluginError
from plugwright.plugins.nvidia import sharing
from plugwright.plugins.nvidia.sharing import Share, Unit

__all__ = ["check"]

_LIMIT = 4 * 2**20  # bytes of one gRPC message, as the kubelet has it
_EACH = 13  # bytes around an id: its lengths and tags, and the word Healthy
_UNHEALTHY = 2  # bytes more, when all are Unhealthy
_NUMA = 6
_MIB = 2**20


def check(resource: str, whole: Sequence[Unit], share: Share | None, suffix: int = 0) -> None:
    """PluginError when the units would not fit; `suffix`: how much longer their ids are than the numbers in them."""
    if share is None:
        return
    counts = [sharing.replicas_of(unit, share) for unit in whole]
    size = sum(count * _bytes(unit, count, suffix) for unit, count in zip(whole, counts, strict=True))
    if size > _LIMIT:
        count = sum(counts)
        fitting = _LIMIT * count // size
        raise PluginError(
            f"{resource}: {count:,} units are {size:,} bytes, and the kubelet takes {_LIMIT:,}, about {fitting:,} "
            f"units: {_proposal(share, -(-count // max(1, fitting)), max(counts))}"
        )


def _bytes(unit: Unit, count: int, suffix: int) -> int:
    numa = _NUMA if unit.gpu.numa is not None else 0
    return len(unit.id) + len("::") + len(str(count)) + suffix + _EACH + _UNHEALTHY + numa


def _proposal(share: Share, factor: int, most: int) -> str:
    """What to write instead, so that there are `factor` times fewer."""
    if share.memory and not share.replicas:
        return f"try memory: {-(-share.memory * factor // _MIB)}Mi"
    return f"try replicas: {max(1, most // factor)}"
