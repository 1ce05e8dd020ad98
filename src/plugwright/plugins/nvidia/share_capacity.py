"""How much of a shared device one claim can request: the request policies of its capacities.

The scheduler rounds requests to them and adds up the allocations. A capacity without a policy would go completely to
the first claim, so a shared device has no such capacity. A claim without an amount gets the configured size of one
share.
"""

from collections.abc import Mapping

from plugwright.attributes import Capacity
from plugwright.plugins.nvidia.sharing import GpuUnit

__all__ = ["any_memory", "any_percent", "known", "multiples", "slots", "unlimited_memory"]

_MIB = 2**20


def known(**capacity: Capacity | None) -> Mapping[str, Capacity]:
    """Without unknown capacities: a device without reported memory is Unhealthy."""
    return {name: amount for name, amount in capacity.items() if amount is not None}


def multiples(unit: GpuUnit, share: GpuUnit, most: int) -> Mapping[str, Capacity]:
    """Memory and processors in whole shares, up to `most` for one claim, because only these sizes have limits."""
    memory = _mebibytes(unit.memory)
    return known(
        memory=_in_steps(memory, min(memory, _mebibytes(share.memory)), most),
        percent=_in_steps(100, share.percent, most),
    )


def any_memory(unit: GpuUnit, share: GpuUnit, most: int) -> Capacity | None:
    """Memory in MiB; up to `most` shares, if not 0."""
    memory = _mebibytes(unit.memory)
    default = min(memory, max(_MIB, _mebibytes(share.memory)))
    return _range(memory, default, _MIB, min(memory, default * most) if most else memory)


def any_percent(share: GpuUnit, most: int) -> Capacity | None:
    default = max(1, share.percent)
    return _range(100, default, 1, min(100, default * most) if most else 100)


def slots(count: int, most: int = 0) -> Capacity | None:
    """Slots for `count` claims taking turns."""
    return _range(count, 1, 1, min(count, most) if most else count)


def unlimited_memory(unit: GpuUnit) -> Capacity | None:
    """Memory requests are added up, but not limited: no claim is restricted to its amount."""
    memory = _mebibytes(unit.memory)
    return Capacity(memory, default=0, minimum=0, maximum=memory, step=_MIB) if memory else None


def _in_steps(total: int, size: int, most: int) -> Capacity | None:
    size = max(1, size)
    return _range(total, size, size, min(total // size, most) * size)


def _range(total: int, default: int, step: int, maximum: int) -> Capacity | None:
    """A capacity with a minimum of one step. The API server rejects a step beyond the total."""
    if not total:
        return None
    fits = 2 * step <= total
    return Capacity(total, default=default, minimum=step, maximum=maximum, step=step if fits else None)


def _mebibytes(size: int) -> int:
    return size // _MIB * _MIB
