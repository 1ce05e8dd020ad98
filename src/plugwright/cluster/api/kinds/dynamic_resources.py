"""The kinds of `resource.k8s.io`: ResourceSlices, ResourceClaims and their templates, DeviceClasses.

Limits and texts are kube-apiserver's; expressions in CEL are kept and not read, since nothing here allocates by them.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from plugwright.cluster.api import validation
from plugwright.cluster.api.kinds.kind import Kind
from plugwright.cluster.api.printers import AGE, NAME, Column
from plugwright.cluster.api.validation import FieldError
from plugwright.cluster.store import Object

__all__ = ["DYNAMIC_RESOURCE_KINDS", "RESOURCE_CLAIMS", "RESOURCE_CLAIM_TEMPLATES", "RESOURCE_SLICES"]

_GROUP = "resource.k8s.io"
_DEVICES, _DEVICES_WITH_MORE, _ATTRIBUTES, _COUNTER_SETS, _TAINTS = 128, 64, 32, 8, 16
_REQUESTS, _RESULTS, _CONSUMERS = 32, 32, 256
_NAME_LIMIT, _VALUE_LIMIT, _DRIVER_LIMIT = 32, 64, 63
_VALUES = ("bool", "bools", "int", "ints", "string", "strings", "version", "versions")
_EFFECTS = ("None", "NoExecute", "NoSchedule")
_PLACES = ("nodeName", "nodeSelector", "allNodes", "perDeviceNodeSelection")
_C_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NUMBER = r"(?:0|[1-9]\d*)"
_SEMVER = re.compile(
    rf"{_NUMBER}\.{_NUMBER}\.{_NUMBER}(?:-(?:{_NUMBER}|\d*[A-Za-z-][0-9A-Za-z-]*)"
    rf"(?:\.(?:{_NUMBER}|\d*[A-Za-z-][0-9A-Za-z-]*))*)?(?:\+[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*)?"
)
_IDENTIFIER_RULE = (
    "a valid C identifier must start with alphabetic character or '_', followed by a string of alphanumeric characters "
    "or '_' (e.g. 'my_name',  or 'MY_NAME',  or 'MyName', regex used for validation is '[A-Za-z_][A-Za-z0-9_]*')"
)
_PLACE_RULE = f"exactly one of {', '.join(f'`{place}`' for place in _PLACES)} is required"


def _validate_slice(resource_slice: Object) -> Iterator[FieldError]:
    spec = resource_slice.get("spec") or {}
    yield from _driver_errors("spec.driver", str(spec.get("driver") or ""))
    yield from _pool_errors(spec.get("pool") or {})
    places = [place for place in _PLACES if spec.get(place)]
    if not places:
        yield FieldError("spec", f"Required value: {_PLACE_RULE}", "FieldValueRequired")
    elif len(places) > 1:
        shown = "{" + ", ".join(f"`{place}`" for place in places) + "}"
        yield FieldError("spec", f'Invalid value: "{shown}": {_PLACE_RULE}, but multiple fields are set')
    devices, counters = spec.get("devices"), spec.get("sharedCounters")
    if devices is not None and counters is not None:
        yield FieldError("spec", 'Invalid value: "": only one of `sharedCounters` or `devices` is allowed')
    yield from _too_many("spec.sharedCounters", counters or [], _COUNTER_SETS)
    yield from _twice("spec.sharedCounters", counters or [])
    has_more = any(device.get("taints") or device.get("consumesCounters") for device in devices or [])
    yield from _too_many("spec.devices", devices or [], _DEVICES_WITH_MORE if has_more else _DEVICES)
    yield from _twice("spec.devices", devices or [])
    for number, device in enumerate(devices or []):
        yield from _device_errors(f"spec.devices[{number}]", device)


def _validate_slice_update(before: Object, after: Object) -> Iterator[FieldError]:
    for path in (("pool", "name"), ("driver",), ("nodeName",)):
        old, new = (_inner(content["spec"], path) for content in (before, after))
        if old != new:
            yield FieldError(f"spec.{'.'.join(path)}", f'Invalid value: "{new}": field is immutable')


def _inner(content: Mapping[str, Any], path: tuple[str, ...]) -> Any:  # type: ignore[explicit-any,unused-ignore]
    for name in path:
        content = (content or {}).get(name)  # type: ignore[assignment]
    return content


def _pool_errors(pool: Mapping[str, object]) -> Iterator[FieldError]:
    name = str(pool.get("name") or "")
    if not name:
        yield FieldError("spec.pool.name", "Required value", "FieldValueRequired")
    for part in name.split("/") if name else ():
        for error in validation.dns_subdomain_errors(part):
            yield FieldError("spec.pool.name", f'Invalid value: "{part}": {error}')
    if not int(str(pool.get("resourceSliceCount") or 0)) > 0:
        yield FieldError(
            "spec.pool.resourceSliceCount",
            f"Invalid value: {pool.get('resourceSliceCount') or 0}: must be greater than zero",
        )
    if int(str(pool.get("generation") or 0)) < 0:
        text = f"Invalid value: {pool['generation']}: must be greater than or equal to zero"
        yield FieldError("spec.pool.generation", text)


def _driver_errors(path: str, driver: str) -> Iterator[FieldError]:
    if not driver:
        yield FieldError(path, "Required value", "FieldValueRequired")
        return
    if len(driver) > _DRIVER_LIMIT:
        yield FieldError(path, f"Too long: may not be more than {_DRIVER_LIMIT} bytes", "FieldValueTooLong")
    for error in validation.dns_subdomain_errors(driver.lower()):
        yield FieldError(path, f'Invalid value: "{driver}": {error}')


def _device_errors(path: str, device: Object) -> Iterator[FieldError]:
    name = str(device.get("name") or "")
    for error in validation.dns_label_errors(name):
        yield FieldError(f"{path}.name", f'Invalid value: "{name}": {error}')
    attributes, capacity = device.get("attributes") or {}, device.get("capacity") or {}
    if (total := len(attributes) + len(capacity)) > _ATTRIBUTES:
        text = f"Invalid value: {total}: the total number of attributes and capacities must not exceed {_ATTRIBUTES}"
        yield FieldError(path, text)
    for key, attribute in sorted(attributes.items()):
        yield from _qualified_name_errors(f"{path}.attributes", key)
        yield from _attribute_errors(f"{path}.attributes[{key}]", attribute)
    for key in sorted(capacity):
        yield from _qualified_name_errors(f"{path}.capacity", key)
    taints = device.get("taints") or []
    yield from _too_many(f"{path}.taints", taints, _TAINTS)
    for number, taint in enumerate(taints):
        if taint.get("effect") not in _EFFECTS:
            supported = ", ".join(f'"{effect}"' for effect in _EFFECTS)
            text = f'Unsupported value: "{taint.get("effect", "")}": supported values: {supported}'
            yield FieldError(f"{path}.taints[{number}].effect", text, "FieldValueNotSupported")


def _qualified_name_errors(path: str, name: str) -> Iterator[FieldError]:
    domain, has_domain, own = name.partition("/")
    if has_domain:
        yield from _driver_errors(path, domain)
    identifier = own if has_domain else domain
    if len(identifier) > _NAME_LIMIT:
        yield FieldError(path, f"Too long: may not be more than {_NAME_LIMIT} bytes", "FieldValueTooLong")
    if not _C_IDENTIFIER.fullmatch(identifier):
        yield FieldError(path, f'Invalid value: "{identifier}": {_IDENTIFIER_RULE}')


def _attribute_errors(path: str, attribute: Object) -> Iterator[FieldError]:
    if sum(attribute.get(value) is not None for value in _VALUES) != 1:
        yield FieldError(path, 'Invalid value: "": exactly one value must be specified')
    for value in ("string", "version"):
        text = str(attribute.get(value) or "")
        if len(text.encode()) > _VALUE_LIMIT:
            yield FieldError(
                f"{path}.{value}", f"Too long: may not be more than {_VALUE_LIMIT} bytes", "FieldValueTooLong"
            )
    version = attribute.get("version")
    if version is not None and not _SEMVER.fullmatch(version):
        rule = "must be a string compatible with semver.org spec 2.0.0"
        yield FieldError(f"{path}.version", f'Invalid value: "{version}": {rule}')


def _too_many(path: str, items: list[object], most: int) -> Iterator[FieldError]:
    if len(items) > most:
        yield FieldError(path, f"Too many: {len(items)}: must have at most {most} items", "FieldValueTooMany")


def _twice(path: str, items: list[Object]) -> Iterator[FieldError]:
    seen: set[str] = set()
    for number, item in enumerate(items):
        name = str(item.get("name") or "")
        if name in seen:
            yield FieldError(f"{path}[{number}]", f'Duplicate value: "{name}"', "FieldValueDuplicate")
        seen.add(name)


def _validate_claim(claim: Object) -> Iterator[FieldError]:
    requests = ((claim.get("spec") or {}).get("devices") or {}).get("requests") or []
    path = "spec.devices.requests"
    yield from _too_many(path, requests, _REQUESTS)
    yield from _twice(path, requests)
    for number, request in enumerate(requests):
        for error in validation.dns_label_errors(str(request.get("name") or "")):
            yield FieldError(f"{path}[{number}].name", f'Invalid value: "{request.get("name", "")}": {error}')
        if bool(request.get("exactly")) == bool(request.get("firstAvailable")):
            text = "exactly one of `exactly` or `firstAvailable` is required"
            both = ", but multiple fields are set" if request.get("exactly") else ""
            yield FieldError(f"{path}[{number}]", f"Required value: {text}{both}", "FieldValueRequired")


def _validate_claim_update(before: Object, after: Object) -> Iterator[FieldError]:
    if before.get("spec") != after.get("spec"):
        yield FieldError("spec", "Invalid value: field is immutable")


def _validate_claim_status(claim: Object) -> Iterator[FieldError]:
    status = claim.get("status") or {}
    results = ((status.get("allocation") or {}).get("devices") or {}).get("results") or []
    consumers = status.get("reservedFor") or []
    yield from _too_many("status.allocation.devices.results", results, _RESULTS)
    yield from _too_many("status.reservedFor", consumers, _CONSUMERS)
    if consumers and not status.get("allocation"):
        text = "Forbidden: may not be specified when `allocated` is not set"
        yield FieldError("status.reservedFor", text, "FieldValueForbidden")


def _claim_state(claim: Object, _now: object) -> str:
    status = claim.get("status") or {}
    words = [
        "allocated" if status.get("allocation") else "pending",
        *(["reserved"] if status.get("reservedFor") else []),
    ]
    return ",".join([*(["deleted"] if claim["metadata"].get("deletionTimestamp") else []), *words])


RESOURCE_SLICES = Kind(
    plural="resourceslices",
    name="ResourceSlice",
    group=_GROUP,
    namespaced=False,
    protobuf=True,
    validate=_validate_slice,
    validate_update=_validate_slice_update,
    columns=(
        NAME,
        Column("Node", lambda one, _: one.get("spec", {}).get("nodeName", "")),
        Column("Driver", lambda one, _: one.get("spec", {}).get("driver", "")),
        Column("Pool", lambda one, _: one.get("spec", {}).get("pool", {}).get("name", "")),
        AGE,
    ),
    selectable_fields=frozenset({"spec.driver", "spec.nodeName"}),
)

RESOURCE_CLAIMS = Kind(
    plural="resourceclaims",
    name="ResourceClaim",
    group=_GROUP,
    has_status=True,
    protobuf=True,
    validate=_validate_claim,
    validate_update=_validate_claim_update,
    validate_status=_validate_claim_status,
    columns=(NAME, Column("State", _claim_state), AGE),
    merge_keys={"reservedFor": "uid"},
)

RESOURCE_CLAIM_TEMPLATES = Kind(
    plural="resourceclaimtemplates",
    name="ResourceClaimTemplate",
    group=_GROUP,
    protobuf=True,
    validate=lambda template: _validate_claim({"spec": (template.get("spec") or {}).get("spec") or {}}),
    validate_update=_validate_claim_update,
)

DYNAMIC_RESOURCE_KINDS = (
    RESOURCE_SLICES,
    RESOURCE_CLAIMS,
    RESOURCE_CLAIM_TEMPLATES,
    Kind(plural="deviceclasses", name="DeviceClass", group=_GROUP, namespaced=False, protobuf=True),
)
