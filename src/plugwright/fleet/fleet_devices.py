"""The devices of a cluster with their holders: from NodeReports, and from the API server's objects for the rest.

Without a NodeReport, a device of a device plugin has an id only while a pod holds it and its status names it
(`allocatedResourcesStatus`, Kubernetes 1.36 and newer); other devices are only counted. A device without a holder is
free only if all possible holders were seen.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from msgspec.structs import replace

from plugwright.explain.pool_counts import counted_texts
from plugwright.explain.world import World, identity, is_finished, with_taint_rules
from plugwright.fleet.claim_users import ClaimUsers, FleetHolder, FleetValue, text_of
from plugwright.fleet.counts import UnnamedDevices, count_unnamed
from plugwright.model import natural_order

__all__ = ["STATE_LETTERS", "Fleet", "FleetDevice", "NodeSource", "make_fleet", "reading_text"]

STATE_LETTERS = {
    "free": ".", "held": "H", "shared": "S", "unhealthy": "U", "cordoned": "C", "tainted": "T", "unknown": "?",
}  # fmt: skip

_MODELS = ("model", "productName", "product_name")
_BLOCKING = ("NoSchedule", "NoExecute")
_NO_REPORT = "no NodeReport: ids, health and holders are those of pod statuses, which omit init and sidecar containers"


class FleetDevice(FleetValue, frozen=True, kw_only=True):
    """`state` is free, held, shared (parts are free), unhealthy, cordoned, tainted or unknown."""

    node: str
    resource: str
    id: str
    index: str = ""
    state: str
    model: str = ""
    health: str = "Unknown"
    reason: str = ""
    code: str = ""
    since: str = ""
    numa: tuple[int, ...] = ()
    api: str = ""
    share: str = ""
    cordoned_by: str = ""
    cordoned_until: str = ""
    taints: tuple[str, ...] = ()
    physical: tuple[str, ...] = ()
    holders: tuple[FleetHolder, ...] = ()
    source: str  # node-report, slice or pod-status


class NodeSource(FleetValue, frozen=True, kw_only=True):
    """The source of a node's devices: a report and how it was read, or the reason why there is none."""

    node: str
    via: str = ""
    report: Mapping[str, Any] | None = None
    problem: str = ""


class Fleet(FleetValue, frozen=True, kw_only=True):
    api_version: str = "plugwright.dev/v1alpha1"
    kind: str = "Fleet"
    devices: tuple[FleetDevice, ...] = ()
    unnamed: tuple[UnnamedDevices, ...] = ()
    sources: Mapping[str, str] = {}  # by node: how its NodeReport was read
    unseen: tuple[str, ...] = ()
    events: tuple[Mapping[str, Any], ...] = ()  # the latest ones of every NodeReport, each with its node


def make_fleet(world: World, sources: Iterable[NodeSource]) -> Fleet:
    """Every device of the cluster, and the facts that could not be seen."""
    read = list(sources)
    claims = ClaimUsers(world)
    devices: list[FleetDevice] = []
    served: set[tuple[str, str]] = set()  # node, and a resource or driver covered by a report
    unseen = [*world.unseen, *(f"counted by the API server: {text}" for text in counted_texts(world.pool_counts or ()))]
    for source in read:
        if source.report is None:
            unseen.append(f"{source.node}: its NodeReport cannot be read: {source.problem}")
            continue
        for resource in source.report.get("resources") or ():
            served |= {(source.node, str(resource.get("name")))}
            served |= {(source.node, str((resource.get("driver") or {}).get("name")))}
            devices += _reported(source.node, resource, source.report, claims)
    silent = {source.node for source in read if source.report is None}
    devices += [_unknown_if_silent(device, silent) for device in _published(world, served, claims)]
    devices += _in_pod_statuses(world, served)
    unnamed = tuple(count_unnamed(world, served))
    without = sorted({count.node for count in unnamed}, key=natural_order)
    unseen += [f"{node}: {_NO_REPORT}" for node in without]
    ordered = sorted(devices, key=_place)
    events = [{"node": source.node, **event} for source in read for event in (source.report or {}).get("history") or ()]
    events.sort(key=lambda event: str(event["time"]))
    via = {source.node: source.via for source in read if source.report is not None}
    return Fleet(devices=tuple(ordered), unnamed=unnamed, sources=via, unseen=tuple(unseen), events=tuple(events))


def reading_text(via: str) -> str:
    """How a report was read, in words."""
    return f"by exec into {via}" if via.startswith("pod ") else f"from {via}"


def _place(device: FleetDevice) -> tuple[object, ...]:
    """The sort key of a device: its index has precedence over its id."""
    return tuple(map(natural_order, (device.node, device.resource, device.index, device.id)))


def _reported(
    node: str, resource: Mapping[str, Any], report: Mapping[str, Any], claims: ClaimUsers
) -> Iterator[FleetDevice]:
    is_complete = bool((report.get("holdings") or {}).get("complete"))
    cordons = {
        (entry.get("resource"), entry.get("id")): entry
        for entry in report.get("cordons") or ()
        if not entry.get("declared")
    }
    for device in resource.get("devices") or ():
        attributes, share = device.get("attributes") or {}, device.get("share") or {}
        holders = tuple(holder for entry in device.get("holders") or () for holder in claims.completed(entry))
        cordon = cordons.get((resource.get("name"), device.get("id"))) or {}
        yield FleetDevice(
            node=node, resource=str(resource.get("name")), id=str(device.get("id")),
            index=text_of(attributes.get("index")),
            state=_reported_state(device, holders, is_complete), model=text_of(attributes.get("model")),
            health=text_of(device.get("health")), reason=text_of(device.get("reason")),
            code=text_of(device.get("code")),
            since=text_of(device.get("since")), numa=tuple(device.get("numa") or ()), api=text_of(device.get("api")),
            share=_share(share), cordoned_by=text_of(cordon.get("by")), cordoned_until=text_of(cordon.get("until")),
            taints=tuple(map(_taint, device.get("taints") or ())), physical=tuple(device.get("physical") or ()),
            holders=holders, source="node-report",
        )  # fmt: skip


def _reported_state(device: Mapping[str, Any], holders: tuple[FleetHolder, ...], is_complete: bool) -> str:
    if device.get("cordoned") or device.get("code") == "cordoned":
        return "cordoned"
    if device.get("code") == "holders-unknown":
        return "unknown"
    if device.get("closed"):
        return "held"  # under another name of its hardware
    if device.get("health") != "Healthy":
        return "unhealthy"
    if any(not holder.admin_access for holder in holders):
        shares = [entry for entry in device.get("holders") or () if not entry.get("adminAccess")]
        return "shared" if all(entry.get("shareId") for entry in shares) else "held"
    return "free" if is_complete and device.get("api") else "unknown"


def _published(world: World, served: set[tuple[str, str]], claims: ClaimUsers) -> Iterator[FleetDevice]:
    """The devices of the current slices whose driver is missing in all NodeReports."""
    latest: dict[tuple[str, str], int] = {}
    slices = with_taint_rules(world.slices, world.taint_rules)
    for entry in slices:
        pool = (entry.get("spec") or {}).get("pool") or {}
        key = text_of((entry.get("spec") or {}).get("driver")), text_of(pool.get("name"))
        latest[key] = max(latest.get(key, 0), int(pool.get("generation") or 0))
    for entry in slices:
        spec = entry.get("spec") or {}
        driver, pool, node = text_of(spec.get("driver")), spec.get("pool") or {}, text_of(spec.get("nodeName"))
        if (node, driver) in served or int(pool.get("generation") or 0) < latest[driver, text_of(pool.get("name"))]:
            continue
        for device in spec.get("devices") or ():
            yield _published_device(node, driver, text_of(pool.get("name")), device, claims)


def _unknown_if_silent(device: FleetDevice, silent: set[str]) -> FleetDevice:
    """A free device is unknown if its daemon is silent: only the daemon knows holders in the device plugin API."""
    return replace(device, state="unknown") if device.state == "free" and device.node in silent else device


def _published_device(node: str, driver: str, pool: str, device: Mapping[str, Any], claims: ClaimUsers) -> FleetDevice:
    found = list(claims.of((driver, pool, text_of(device.get("name")))))
    holding = [is_share for holder, is_share in found if not holder.admin_access]
    blocking = [taint for taint in device.get("taints") or () if taint.get("effect") in _BLOCKING]
    state = "free" if claims.is_complete else "unknown"
    if holding:
        state = "shared" if all(holding) else "held"
    elif blocking:
        state = "tainted"
    attributes = {
        name.rpartition("/")[2]: next(iter(value.values()), "")
        for name, value in (device.get("attributes") or {}).items()
        if isinstance(value, Mapping)
    }
    numa = attributes.get("numaNode")
    return FleetDevice(
        node=node or f"pool {pool}", resource=driver, id=text_of(device.get("name")), state=state,
        index=text_of(attributes.get("index")), numa=(numa,) if isinstance(numa, int) else (), api="dra",
        model=next((text_of(attributes[name]) for name in _MODELS if attributes.get(name)), ""),
        taints=tuple(map(_taint, device.get("taints") or ())), holders=tuple(holder for holder, _ in found),
        since=min((text_of(taint.get("timeAdded")) for taint in blocking), default=""), source="slice",
    )  # fmt: skip


def _in_pod_statuses(world: World, served: set[tuple[str, str]]) -> Iterator[FleetDevice]:
    """Devices of device plugins named in pod statuses; devices of claims are in slices."""
    for pod in world.pods:
        node, (namespace, name) = text_of((pod.get("spec") or {}).get("nodeName")), identity(pod)
        if not node or is_finished(pod):
            continue
        for container in (pod.get("status") or {}).get("containerStatuses") or ():
            for resource in container.get("allocatedResourcesStatus") or ():
                held = text_of(resource.get("name"))
                if held.startswith("claim:") or (node, held) in served:
                    continue
                holder = FleetHolder(
                    api="device-plugin", namespace=namespace, pod=name, container=text_of(container.get("name"))
                )
                for device in resource.get("resources") or ():
                    yield FleetDevice(
                        node=node, resource=held, id=text_of(device.get("resourceID")), state="held",
                        health=text_of(device.get("health")) or "Unknown", reason=text_of(device.get("message")),
                        api="device-plugin", holders=(holder,), source="pod-status",
                    )  # fmt: skip


def _share(share: Mapping[str, Any]) -> str:
    if not share:
        return ""
    memory, percent = share.get("memory"), share.get("percent")
    limits = [f"{memory / 2**30:.3g}Gi"] if isinstance(memory, int) else []
    limits += [f"{percent}%"] if isinstance(percent, int) else []
    return " ".join([text_of(share.get("by")), *limits])


def _taint(taint: Mapping[str, Any]) -> str:
    value = f"={taint['value']}" if taint.get("value") else ""
    return f"{text_of(taint.get('key'))}{value}:{text_of(taint.get('effect'))}"
