"""The kinds with few rules of their own: config maps, events, leases, namespaces and service accounts."""

from datetime import datetime

from plugwright.cluster.api import validation
from plugwright.cluster.api.kinds.kind import Kind
from plugwright.cluster.api.printers import AGE, NAME, Column, age
from plugwright.cluster.store import Object

__all__ = ["CONFIG_MAPS", "EVENTS", "LEASES", "NAMESPACES", "SERVICE_ACCOUNTS", "SIMPLE_KINDS"]


def _data_count(config_map: Object, _now: datetime) -> int:
    return len(config_map.get("data") or {}) + len(config_map.get("binaryData") or {})


CONFIG_MAPS = Kind(
    plural="configmaps",
    name="ConfigMap",
    short_names=("cm",),
    columns=(NAME, Column("Data", _data_count, type="integer"), AGE),
)

LEASES = Kind(
    plural="leases",
    name="Lease",
    group="coordination.k8s.io",
    columns=(NAME, Column("Holder", lambda lease, _: lease.get("spec", {}).get("holderIdentity", "")), AGE),
)

SERVICE_ACCOUNTS = Kind(
    plural="serviceaccounts",
    name="ServiceAccount",
    short_names=("sa",),
)


def _last_seen(event: Object, now: datetime) -> str:
    return age(_last_time(event), now)


def _first_seen(event: Object, now: datetime) -> str:
    return age(event.get("firstTimestamp") or event.get("eventTime") or _last_time(event), now)


def _last_time(event: Object) -> object:
    return event.get("lastTimestamp") or event.get("eventTime") or event["metadata"].get("creationTimestamp")


def _involved_object(event: Object, _now: datetime) -> str:
    involved = event.get("involvedObject", {})
    return f"{involved.get('kind', '').lower()}/{involved.get('name', '')}"


def _source(event: Object, _now: datetime) -> str:
    source = event.get("source", {})
    return ", ".join(part for part in (source.get("component"), source.get("host")) if part)


EVENTS = Kind(
    plural="events",
    name="Event",
    short_names=("ev",),
    columns=(
        Column("Last Seen", _last_seen),
        Column("Type", lambda event, _: event.get("type", "")),
        Column("Reason", lambda event, _: event.get("reason", "")),
        Column("Object", _involved_object),
        Column("Subobject", lambda event, _: event.get("involvedObject", {}).get("fieldPath", ""), wide=True),
        Column("Source", _source, wide=True),
        Column("Message", lambda event, _: str(event.get("message", "")).strip()),
        Column("First Seen", _first_seen, wide=True),
        Column("Count", lambda event, _: event.get("count", 1), wide=True),
        Column("Name", NAME.cell, wide=True),
    ),
    selectable_fields=frozenset(
        {
            "involvedObject.kind", "involvedObject.namespace", "involvedObject.name", "involvedObject.uid",
            "involvedObject.apiVersion", "involvedObject.resourceVersion", "involvedObject.fieldPath", "reason",
            "reportingComponent", "source", "type",
        }
    ),
)  # fmt: skip


def _prepare_namespace(namespace: Object) -> Object:
    metadata = namespace["metadata"]
    labels = {**(metadata.get("labels") or {}), "kubernetes.io/metadata.name": metadata.get("name", "")}
    metadata["labels"] = dict(sorted(labels.items()))
    return {**namespace, "spec": {"finalizers": ["kubernetes"]}, "status": {"phase": "Active"}}


NAMESPACES = Kind(
    plural="namespaces",
    name="Namespace",
    short_names=("ns",),
    namespaced=False,
    has_status=True,
    prepare_for_create=_prepare_namespace,
    prepare_for_update=lambda before, after: {**after, "spec": after.get("spec") or before.get("spec") or {}},
    name_errors=validation.dns_label_errors,
    default_objects=((SERVICE_ACCOUNTS, "default"),),
    protected_names=frozenset({"default", "kube-system", "kube-public"}),
    deletes_contents=True,
    columns=(NAME, Column("Status", lambda namespace, _: namespace.get("status", {}).get("phase", "")), AGE),
    selectable_fields=frozenset({"status.phase"}),
)

SIMPLE_KINDS = (CONFIG_MAPS, EVENTS, LEASES, NAMESPACES, SERVICE_ACCOUNTS)
