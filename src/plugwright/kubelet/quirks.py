"""What a device list would do to a real kubelet that it should not.

Pure: values in, findings out.
"""

from collections.abc import Collection, Iterator, Sequence

from plugwright.kubelet.stock import Shelf
from plugwright.model import Health, natural_order, some
from plugwright.protocol.wire import Listed

__all__ = ["Quirk", "of_dropped", "of_list"]

Quirk = tuple[str, str, str]  # the fact, what happened, what a real kubelet does


def of_list(devices: Sequence[Listed]) -> Iterator[Quirk]:
    """What the list itself shows."""
    healthy = {each.id for each in devices if each.health == Health.HEALTHY}
    both = healthy & {each.id for each in devices if each.health != Health.HEALTHY}
    if both:
        yield "2.8", f"listed healthy and unhealthy at once: {_named(both)}", "counts such a device twice"
    odd = {each.health for each in devices} - set(Health)
    if odd:
        yield "2.6", f"health is {_named(odd)}", "takes everything but Healthy for unhealthy"
    hidden = {each.id for each in devices if each.nodes == ()}
    if hidden:
        yield (
            "6.11",
            f"a topology without NUMA nodes: {_named(hidden)}",
            "leaves such a device out of GetAllocatableResources",
        )


def of_dropped(
    dropped: Collection[str], before: Shelf, in_use: Collection[str], asked: Collection[str]
) -> Iterator[Quirk]:
    """What the list leaves out, on kubelets from 1.34 on."""
    mid_call = set(dropped) & set(asked)
    if mid_call:
        yield (
            "2.25",
            f"dropped from the list while Allocate is asked for it: {_named(mid_call)}",
            "crashes when the answer comes",
        )
    held = {device_id for device_id in dropped if device_id in in_use and before.nodes(device_id)} - mid_call
    if held:
        yield (
            "2.25",
            f"dropped from the list while a pod holds it: {_named(held)}",
            "crashes when that pod is admitted again with a topology policy",
        )


def _named(ids: Collection[str]) -> str:
    return some([repr(each) for each in sorted(ids, key=natural_order)])
