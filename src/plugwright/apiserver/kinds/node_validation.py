"""Validation of Nodes: taints, addresses of pods, capacity, and immutable fields."""

import ipaddress
from collections.abc import Iterator

from plugwright.apiserver.kinds.pod_validation.placement import TAINT_EFFECTS
from plugwright.apiserver.store import Object
from plugwright.apiserver.validation import (
    FieldError,
    forbidden,
    invalid,
    invalid_for,
    label_value_errors,
    qualified_name_errors,
    quantity_errors,
    required,
    unsupported,
)

__all__ = ["validate", "validate_update"]

_MOST_RANGES = 2
_RANGE_RULE = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)"


def validate(node: Object) -> Iterator[FieldError]:
    spec, status = node.get("spec") or {}, node.get("status") or {}
    yield from _taint_errors(spec.get("taints") or [])
    yield from _range_errors(spec.get("podCIDRs") or [])
    # The API server rejects an extended resource whose quantity is not a whole number (10.6).
    for part in ("capacity", "allocatable"):
        for resource, amount in sorted((status.get(part) or {}).items()):
            errors = quantity_errors(resource, str(amount))
            yield from invalid_for(f"status.{part}.{resource}", str(amount), errors)
    yield from _address_errors(status.get("addresses") or [])


def validate_update(before: Object, after: Object) -> Iterator[FieldError]:
    old, new = before.get("spec") or {}, after.get("spec") or {}
    if old.get("podCIDRs") and old["podCIDRs"] != new.get("podCIDRs"):
        text = 'node updates may not change podCIDR except from "" to valid'
        yield forbidden("spec.podCIDRs", text)
    if old.get("providerID") and old["providerID"] != new.get("providerID"):
        text = 'node updates may not change providerID except from "" to valid'
        yield forbidden("spec.providerID", text)


def _taint_errors(taints: list[Object]) -> Iterator[FieldError]:
    """The errors of taints, which the API server places in the metadata."""
    seen: set[tuple[str, str]] = set()
    for number, taint in enumerate(taints):
        field = f"metadata.taints[{number}]"
        key, value, effect = (str(taint.get(name) or "") for name in ("key", "value", "effect"))
        yield from invalid_for(f"{field}.key", key, qualified_name_errors(key))
        if errors := list(label_value_errors(value)):
            yield invalid(f"{field}.value", value, ";".join(errors))
        if not effect:
            yield required(f"{field}.effect")
        else:
            yield from unsupported(f"{field}.effect", effect, TAINT_EFFECTS)
        if (key, effect) in seen:
            yield _duplicate_taint(field, taint)
        seen.add((key, effect))


def _duplicate_taint(field: str, taint: Object) -> FieldError:
    time_added = f'"{taint["timeAdded"]}"' if taint.get("timeAdded") else "null"
    shown = ",".join(f'"{name.title()}":"{taint.get(name) or ""}"' for name in ("key", "value", "effect"))
    text = f'Duplicate value: {{{shown},"TimeAdded":{time_added}}}: taints must be unique by key and effect pair'
    return FieldError(field, text, "FieldValueDuplicate")


def _range_errors(ranges: list[str]) -> Iterator[FieldError]:
    families: list[int] = []
    for number, text in enumerate(ranges):
        try:
            families.append(ipaddress.ip_network(text, strict=False).version)
        except ValueError:
            yield invalid(f"spec.podCIDRs[{number}]", text, _RANGE_RULE)
    if len(families) > _MOST_RANGES or len({*families}) < len(families):
        yield invalid("spec.podCIDRs", ranges, "may specify no more than one CIDR for each IP family")


def _address_errors(addresses: list[Object]) -> Iterator[FieldError]:
    for number, address in enumerate(addresses):
        if address in addresses[:number]:
            shown = f'{{"Type":"{address.get("type", "")}","Address":"{address.get("address", "")}"}}'
            text = f"Duplicate value: {shown}"
            yield FieldError(f"status.addresses[{number}]", text, "FieldValueDuplicate")
