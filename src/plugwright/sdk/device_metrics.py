"""The metrics with a series per device: facts, health, holders, cordons, and errors reported by devices.

Label names are those of NVIDIA's dcgm-exporter if it has the same fact, so that both join on `UUID`, which for a MIG
device or a share is the UUID of its GPU. The number of series is limited: `MOST_DEVICES` of a daemon have their own.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

import msgspec

from plugwright.model import Device
from plugwright.sdk.exposition import MetricFamily
from plugwright.sdk.holdings.holding import Holding, Holdings
from plugwright.sdk.inventory import Snapshot
from plugwright.sdk.resource_runtime import ResourceRuntime
from plugwright.text import clean

__all__ = ["MOST_DEVICES", "device_metrics"]

MOST_DEVICES = 1024  # of all resources of a daemon together
_MOST_HOLDERS = 8  # of one device
_MOST_COUNTS = 4096  # of each counter
_LONGEST = 128  # characters of a label's value
_UUIDS = "gpu", "uuid"
_MODELS = "model", "productName"
_ADDRESSES = "pci", "resource.kubernetes.io/pciBusID", "address"

_Rows = list[tuple[list[str], float]]


class _Named(msgspec.Struct, frozen=True):
    """A device with its own series."""

    resource: str
    device: Device
    uuid: str
    api: str
    is_cordoned: bool

    @property
    def names(self) -> list[str]:
        return [self.resource, _label(self.device.id), self.uuid]


def device_metrics(runtimes: Sequence[ResourceRuntime], holdings: Holdings) -> Iterator[MetricFamily]:
    listed = [(runtime, runtime.inventory.latest.value) for runtime in runtimes]
    known = [(runtime, snapshot) for runtime, snapshot in listed if snapshot is not None]
    named = list(islice(_named(known), MOST_DEVICES))
    yield from _present(named)
    yield _holders(named, holdings)
    yield from _counted(runtimes, named)
    left_out = MetricFamily(
        "plugwright_devices_without_series", "Devices over the limit of series of their own", labels=["resource"]
    )
    counts = Counter(device.resource for device in named)
    for runtime, snapshot in known:
        left_out.add([runtime.resource], len(snapshot.devices) - counts[runtime.resource])
    yield left_out


def _named(listed: Sequence[tuple[ResourceRuntime, Snapshot]]) -> Iterator[_Named]:
    for runtime, snapshot in listed:
        api = runtime.serve.api.value
        for device in snapshot.devices.values():
            uuid = _first(device.attributes, _UUIDS)
            yield _Named(runtime.resource, device, uuid, api, device.id in snapshot.cordoned)


def _present(named: Sequence[_Named]) -> Iterator[MetricFamily]:
    info = MetricFamily(
        "plugwright_device_info",
        "Facts about a device; 1",
        labels=["resource", "device", "UUID", "model", "pci_bus_id", "numa", "serve"],
    )
    healthy = MetricFamily(
        "plugwright_device_healthy",
        "Whether the device is Healthy; the code of the reason if it is not",
        labels=["resource", "device", "UUID", "code"],
    )
    cordoned = MetricFamily(
        "plugwright_device_cordoned", "Devices with a cordon; 1", labels=["resource", "device", "UUID"]
    )
    for one in named:
        facts, device = one.device.attributes, one.device
        numa = ",".join(map(str, device.numa))
        info.add([*one.names, _first(facts, _MODELS), _first(facts, _ADDRESSES), numa, one.api], 1)
        healthy.add([*one.names, device.code], int(device.healthy))
        if one.is_cordoned:
            cordoned.add(one.names, 1)
    yield from (info, healthy, cordoned)


def _holders(named: Sequence[_Named], holdings: Holdings) -> MetricFamily:
    family = MetricFamily(
        "plugwright_device_holder",
        "Who holds a device, as of the scrape before; 1",
        labels=[
            *("resource", "device", "UUID", "api", "namespace", "pod", "container"),
            *("dra_claim_namespace", "dra_claim_name", "dra_driver_name"),
        ],
    )
    by_device: dict[tuple[str, str], dict[tuple[str, ...], None]] = {}
    for holding in holdings.holdings:
        key = holding.key.resource, holding.key.device_id
        by_device.setdefault(key, {})[_holder(holding)] = None
    for one in named:
        holders = by_device.get((one.resource, one.device.id), {})
        for holder in islice(sorted(holders), _MOST_HOLDERS):
            family.add([*one.names, *holder], 1)
    return family


def _holder(holding: Holding) -> tuple[str, ...]:
    claim_namespace = holding.namespace if holding.claim else ""
    texts = (holding.namespace, holding.pod, holding.container, claim_namespace, holding.claim, holding.driver)
    return (holding.key.api.value, *map(_label, texts))


def _counted(runtimes: Sequence[ResourceRuntime], named: Sequence[_Named]) -> Iterator[MetricFamily]:
    """Counters; those of removed devices stay, so that no count decreases."""
    failures = MetricFamily(
        "plugwright_device_failures_total",
        "How often a device became Unhealthy by itself, by the code of the reason",
        labels=["resource", "device", "UUID", "code"],
    )
    events = MetricFamily(
        "plugwright_device_events_total",
        "Errors that hardware reported, such as Xids, also those that change no health",
        labels=["resource", "UUID", "code"],
    )
    uuids = {(one.resource, one.device.id): one.uuid for one in named}
    failed: _Rows = []
    reported: _Rows = []
    for runtime in runtimes:
        name = runtime.resource
        for (device_id, code), count in sorted(dict(runtime.inventory.failures).items()):
            failed.append(([name, _label(device_id), uuids.get((name, device_id), ""), code], count))
        hardware: Mapping[tuple[str, str], int] = getattr(runtime.service.plugin, "hardware_events", {})
        for (uuid, code), count in sorted(dict(hardware).items()):
            reported.append(([name, _label(uuid), _label(code)], count))
    for family, rows in ((failures, failed), (events, reported)):
        for labels, value in rows[:_MOST_COUNTS]:
            family.add(labels, value)
        yield family


def _first(attributes: Mapping[str, object], names: Sequence[str]) -> str:
    return next((_label(attributes[name]) for name in names if attributes.get(name)), "")


def _label(value: object) -> str:
    return clean(value, _LONGEST)
