"""The kinds with few special rules: events, leases, namespaces and service accounts."""

from collections.abc import Iterator
from datetime import datetime

from plugwright.apiserver import validation
from plugwright.apiserver.kinds import event_validation
from plugwright.apiserver.kinds.kind import Kind
from plugwright.apiserver.printers import AGE, NAME, Column, age
from plugwright.apiserver.store import Object
from plugwright.apiserver.validation import FieldError

__all__ = ["EVENTS", "LEASES", "NAMESPACES", "SERVICE_ACCOUNTS", "SIMPLE_KINDS"]

_COORDINATED = ("preferredHolder", "strategy")


def _prepare_lease(lease: Object) -> Object:
    """Drops the fields of coordinated leader election, as does the API server while its feature gate is disabled."""
    spec = {name: value for name, value in (lease.get("spec") or {}).items() if name not in _COORDINATED}
    return {**lease, "spec": spec}


def _validate_lease(lease: Object) -> Iterator[FieldError]:
    spec = lease.get("spec") or {}
    if (duration := spec.get("leaseDurationSeconds")) is not None and duration <= 0:
        yield FieldError("spec.leaseDurationSeconds", f"Invalid value: {duration}: must be greater than 0")
    if (transitions := spec.get("leaseTransitions")) is not None and transitions < 0:
        text = f"Invalid value: {transitions}: must be greater than or equal to 0"
        yield FieldError("spec.leaseTransitions", text)


LEASES = Kind(
    plural="leases",
    name="Lease",
    group="coordination.k8s.io",
    prepare_for_create=_prepare_lease,
    prepare_for_update=lambda _before, after: _prepare_lease(after),
    allow_create_on_update=True,
    allow_unconditional_update=False,
    validate=_validate_lease,
    columns=(NAME, Column("Holder", lambda lease, _: lease.get("spec", {}).get("holderIdentity", "")), AGE),
)

SERVICE_ACCOUNTS = Kind(
    plural="serviceaccounts",
    name="ServiceAccount",
    short_names=("sa",),
    returns_deleted_object=True,
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


def _source_component(event: Object) -> object:
    return event.get("source", {}).get("component") or event.get("reportingComponent")


EVENTS = Kind(
    plural="events",
    name="Event",
    short_names=("ev",),
    allow_create_on_update=True,
    prepare_for_create=event_validation.prepare_event,
    validate=event_validation.validate,
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
            "reportingComponent", "type",
        }
    ),
    computed_fields={"source": _source_component},
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
    protection="this namespace may not be deleted",
    deletes_contents=True,
    columns=(NAME, Column("Status", lambda namespace, _: namespace.get("status", {}).get("phase", "")), AGE),
    selectable_fields=frozenset({"status.phase"}),
)

SIMPLE_KINDS = (EVENTS, LEASES, NAMESPACES, SERVICE_ACCOUNTS)
