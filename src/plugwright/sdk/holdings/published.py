"""The book as the value that the ledger publishes: one holding per container or claim and device."""

from collections.abc import Iterator, Mapping

from msgspec.structs import replace

from plugwright.model import some
from plugwright.sdk.holdings.book import Book
from plugwright.sdk.holdings.holding import DeviceKey, Holding, Holdings, HoldingSource
from plugwright.sdk.holdings.overlaps import Name
from plugwright.sdk.holdings.records import Closed
from plugwright.sdk.serve_settings import ServeMode

__all__ = ["claims_by_device", "published", "waiting_by_resource"]


def published(book: Book, closed: Mapping[str, Mapping[str, Closed]], before: Holdings, now: float) -> Holdings:
    """The value to publish. A holding in `before`, the previous value, keeps the time at which it became known."""
    since = {_identity(holding): holding.since for holding in before.holdings}
    dated = tuple(
        replace(holding, since=since.get(_identity(holding), holding.since or now)) for holding in _holdings(book)
    )
    kept_back = {
        DeviceKey(ServeMode.DEVICE_PLUGIN, resource, device_id): reason
        for resource, devices in closed.items()
        for device_id, reason in devices.items()
    }
    return Holdings(
        dated,
        dict(book.unknown),
        {key: reason.reason for key, reason in kept_back.items()},
        {key: reason.reason for key, reason in kept_back.items() if reason.waits},
    )


def waiting_by_resource(closed: Mapping[str, Mapping[str, Closed]]) -> dict[str, str]:
    """By resource, why devices wait for a source, and for which one."""
    found: dict[str, str] = {}
    for resource, devices in closed.items():
        waiting = [device_id for device_id, reason in devices.items() if reason.waits]
        if waiting:
            found[resource] = f"{some(waiting)}: {devices[waiting[0]].reason}"
    return found


def claims_by_device(book: Book, resource: str) -> dict[str, tuple[str, ...]]:
    """By device id, the claims that hold devices of a resource."""
    found: dict[str, tuple[str, ...]] = {}
    for claim in book.claims:
        name = book.name_of(claim)
        if name[0] == resource and not claim.admin_access:
            text = f"{claim.namespace}/{claim.claim}" if claim.claim else f"with uid {claim.uid}"
            found[name[1]] = (*found.get(name[1], ()), text)
    return found


def _holdings(book: Book) -> Iterator[Holding]:
    for name, records in book.stored.items():
        holding = _by_plugin(book, name)
        for record in records:  # thousands, if the kubelet has not removed those of ended pods
            yield replace(holding, pod_uid=record.pod_uid, container=record.container)
    for name in book.pods.keys() - book.stored.keys():
        yield replace(_by_plugin(book, name), source=HoldingSource.POD_RESOURCES)
    for name in book.allocated.keys() - book.stored.keys() - book.pods.keys():
        yield replace(_by_plugin(book, name), source=HoldingSource.ALLOCATE, since=book.allocated[name])
    for claim in book.claims:
        name = book.name_of(claim)
        offer = book.offer_of(name)
        yield Holding(
            key=DeviceKey(ServeMode.DRA, *name),
            physical=offer.physical,
            sharing=offer.sharing,
            namespace=claim.namespace,
            pod=claim.pod,
            claim=claim.claim,
            claim_uid=claim.uid,
            driver=claim.driver,
            share_id=claim.share_id,
            admin_access=claim.admin_access,
            source=claim.source,
        )


def _by_plugin(book: Book, name: Name) -> Holding:
    offer, (namespace, pod) = book.offer_of(name), book.pods.get(name, ("", ""))
    key = DeviceKey(ServeMode.DEVICE_PLUGIN, *name)
    return Holding(key=key, physical=offer.physical, sharing=offer.sharing, namespace=namespace, pod=pod)


def _identity(holding: Holding) -> tuple[object, ...]:
    return holding.key, holding.pod_uid, holding.container, holding.claim_uid or holding.claim
