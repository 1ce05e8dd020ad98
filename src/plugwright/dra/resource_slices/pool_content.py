"""The content of a node's pool: which devices its slices have, in which order and with which taints."""

from collections.abc import Collection, Mapping, Sequence

from plugwright.dra.api_split.split import MOVING
from plugwright.dra.resource_slices.slice_devices import counter_sets, slice_device
from plugwright.dra.resource_slices.slices import PoolContent
from plugwright.sdk.inventory import Snapshot

__all__ = ["pool_content", "published_devices"]


Taint = Mapping[str, str]


def pool_content(
    snapshot: Snapshot,
    offered: Collection[str],
    taints: Mapping[str, Sequence[Taint]],
    moving: Mapping[str, Taint],
) -> PoolContent:
    """The devices of `offered`, by id, in natural order: the scheduler takes the first that fits.

    `moving` have one more taint. It is added here, so that a device which is offered for one claim alone is never in
    the slices without it.
    """
    devices = [device for device_id, device in snapshot.devices.items() if device_id in offered]
    documents = (slice_device(device, _sorted(taints.get(device.id, ()), moving.get(device.id))) for device in devices)
    return PoolContent(tuple(documents), counter_sets(devices))


def _sorted(taints: Sequence[Taint], moving: Taint | None) -> list[dict[str, str]]:
    every = [*taints, *([moving] if moving is not None else [])]
    return [dict(taint) for taint in sorted(every, key=lambda taint: taint["key"])]


def published_devices(content: PoolContent, ids: Mapping[str, str]) -> dict[str, bool]:
    """The ids of devices in the slices, and whether each has the taint of a move; `ids` are by name."""
    return {
        ids[document["name"]]: any(taint.get("key") == MOVING["key"] for taint in document.get("taints") or ())
        for document in content.devices
        if document["name"] in ids
    }
