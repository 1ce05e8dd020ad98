"""Validation of ResourceSlices: kube-apiserver's limits and texts.

A slice is rejected completely for one invalid device, so a driver has to know them before it publishes.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from plugwright.apiserver import validation
from plugwright.apiserver.store import Object
from plugwright.apiserver.validation import FieldError

__all__ = [
    "driver_errors",
    "duplicates",
    "qualified_name_errors",
    "too_many",
    "unsupported",
    "validate",
    "validate_update",
]

_DEVICES, _DEVICES_WITH_MORE, _ATTRIBUTES, _COUNTER_SETS, _TAINTS = 128, 64, 32, 8, 16
_COUNTERS, _CONSUMED_SETS, _CONDITIONS, _POLICY_VALUES = 32, 2, 4, 10
_NAME_LIMIT, _VALUE_LIMIT, _DRIVER_LIMIT, _POOL_LIMIT, _LABEL_LIMIT = 32, 64, 63, 253, 63
_VALUES = ("int", "bool", "string", "version", "ints", "bools", "strings", "versions")
_EFFECTS = ("NoExecute", "NoSchedule", "None")
_PLACES = ("nodeName", "nodeSelector", "allNodes", "perDeviceNodeSelection")
_DEVICE_PLACES = ("nodeName", "nodeSelector", "allNodes")
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
_PER_DEVICE = "`perDeviceNodeSelection` is set to true in the ResourceSlice spec"


def validate(resource_slice: Object) -> Iterator[FieldError]:
    spec = resource_slice.get("spec") or {}
    yield from driver_errors("spec.driver", str(spec.get("driver") or ""))
    yield from _pool_errors(spec.get("pool") or {})
    yield from _place_errors(spec)
    devices, counters = spec.get("devices"), spec.get("sharedCounters")
    if devices is not None and counters is not None:
        yield FieldError("spec", 'Invalid value: "": only one of `sharedCounters` or `devices` is allowed')
    yield from _counter_set_errors(counters or [])
    has_more = any(device.get("taints") or device.get("consumesCounters") for device in devices or [])
    yield from too_many("spec.devices", devices or [], _DEVICES_WITH_MORE if has_more else _DEVICES)
    yield from duplicates("spec.devices", devices or [])
    for number, device in enumerate(devices or []):
        yield from _device_errors(f"spec.devices[{number}]", device, bool(spec.get("perDeviceNodeSelection")))


def validate_update(before: Object, after: Object) -> Iterator[FieldError]:
    for path in (("pool", "name"), ("driver",), ("nodeName",)):
        old, new = (_inner(content["spec"], path) for content in (before, after))
        if old != new:
            yield FieldError(f"spec.{'.'.join(path)}", f'Invalid value: "{new}": field is immutable')


def _inner(content: Mapping[str, Any], path: tuple[str, ...]) -> Any:  # type: ignore[explicit-any,unused-ignore]
    for name in path:
        content = (content or {}).get(name)  # type: ignore[assignment]
    return content


def _pool_errors(pool: Mapping[str, object]) -> Iterator[FieldError]:
    name, path = str(pool.get("name") or ""), "spec.pool.name"
    if not name:
        yield FieldError(path, "Required value", "FieldValueRequired")
    if len(name) > _POOL_LIMIT:
        yield _too_long(path, _POOL_LIMIT)
    yield from pool_name_errors(path, name)
    if not int(str(pool.get("resourceSliceCount") or 0)) > 0:
        count = pool.get("resourceSliceCount") or 0
        yield FieldError("spec.pool.resourceSliceCount", f"Invalid value: {count}: must be greater than zero")
    if int(str(pool.get("generation") or 0)) < 0:
        text = f"Invalid value: {pool['generation']}: must be greater than or equal to zero"
        yield FieldError("spec.pool.generation", text)


def pool_name_errors(path: str, name: str) -> Iterator[FieldError]:
    for part in name.split("/") if name else ():
        yield from _name_errors(path, part, _POOL_LIMIT, validation.dns_subdomain_errors(part))


def _place_errors(spec: Object) -> Iterator[FieldError]:
    for place in ("allNodes", "perDeviceNodeSelection"):
        if spec.get(place) is False:
            yield FieldError(f"spec.{place}", "Invalid value: false: must be either unset or set to true")
    places = [place for place in _PLACES if spec.get(place)]
    if not places:
        yield FieldError("spec", f"Required value: {_PLACE_RULE}", "FieldValueRequired")
    elif len(places) > 1:
        shown = "{" + ", ".join(f"`{place}`" for place in places) + "}"
        yield FieldError("spec", f'Invalid value: "{shown}": {_PLACE_RULE}, but multiple fields are set')


def driver_errors(path: str, driver: str) -> Iterator[FieldError]:
    if not driver:
        yield FieldError(path, "Required value", "FieldValueRequired")
        return
    if len(driver) > _DRIVER_LIMIT:
        yield _too_long(path, _DRIVER_LIMIT)
    for error in validation.dns_subdomain_errors(driver.lower()):
        yield FieldError(path, f'Invalid value: "{driver}": {error}')


def _device_errors(path: str, device: Object, chooses_nodes: bool) -> Iterator[FieldError]:
    yield from device_name_errors(f"{path}.name", str(device.get("name") or ""))
    attributes, capacity = device.get("attributes") or {}, device.get("capacity") or {}
    if (total := len(attributes) + len(capacity)) > _ATTRIBUTES:
        text = f"Invalid value: {total}: the total number of attributes and capacities must not exceed {_ATTRIBUTES}"
        yield FieldError(path, text)
    for key, attribute in sorted(attributes.items()):
        yield from qualified_name_errors(f"{path}.attributes", key)
        yield from _attribute_errors(f"{path}.attributes[{key}]", attribute)
    for key, value in sorted(capacity.items()):
        yield from qualified_name_errors(f"{path}.capacity", key)
        policy = value.get("requestPolicy") if isinstance(value, dict) else None
        if policy is not None:
            shared = bool(device.get("allowMultipleAllocations"))
            yield from _policy_errors(f"{path}.capacity[{key}].requestPolicy", policy, shared)
    yield from _taint_errors(f"{path}.taints", device.get("taints") or [])
    yield from _consumption_errors(f"{path}.consumesCounters", device.get("consumesCounters") or [])
    yield from _device_place_errors(path, device, chooses_nodes)
    yield from _binding_errors(path, device)


def device_name_errors(path: str, name: str) -> Iterator[FieldError]:
    if "." in name:
        yield FieldError(path, f'Invalid value: "{name}": must not contain dots')
    else:
        yield from _name_errors(path, name, _LABEL_LIMIT, validation.dns_label_errors(name))


def _name_errors(path: str, name: str, limit: int, errors: Iterator[str]) -> Iterator[FieldError]:
    if len(name) > limit:
        yield FieldError(path, f'Invalid value: "{name}": must be no more than {limit} characters')
        return
    for error in errors:
        yield FieldError(path, f'Invalid value: "{name}": {error}')


def _device_place_errors(path: str, device: Object, chooses_nodes: bool) -> Iterator[FieldError]:
    places = [place for place in _DEVICE_PLACES if device.get(place)]
    if places and not chooses_nodes:
        text = f"Invalid value: null: `nodeName`, `nodeSelector` and `allNodes` can only be set if {_PER_DEVICE}"
        yield FieldError(path, text)
    elif chooses_nodes and len(places) != 1:
        text = f"exactly one of `nodeName`, `nodeSelector`, or `allNodes` is required when {_PER_DEVICE}"
        if places:
            yield FieldError(path, f"Invalid value: null: {text}")
        else:
            yield FieldError(path, f"Required value: {text}", "FieldValueRequired")


def _binding_errors(path: str, device: Object) -> Iterator[FieldError]:
    for name in ("bindingConditions", "bindingFailureConditions"):
        yield from too_many(f"{path}.{name}", device.get(name) or [], _CONDITIONS)
    conditions, failures = device.get("bindingConditions"), device.get("bindingFailureConditions")
    if conditions and not failures:
        text = "Invalid value: null: bindingFailureConditions are required to use bindingConditions"
        yield FieldError(f"{path}.bindingFailureConditions", text)
    if failures and not conditions:
        text = "Invalid value: null: bindingConditions are required to use bindingFailureConditions"
        yield FieldError(f"{path}.bindingConditions", text)


def _taint_errors(path: str, taints: list[Object]) -> Iterator[FieldError]:
    yield from too_many(path, taints, _TAINTS)
    for number, taint in enumerate(taints):
        yield from taint_errors(f"{path}[{number}]", taint)


def taint_errors(path: str, taint: Object) -> Iterator[FieldError]:
    key, value = str(taint.get("key") or ""), str(taint.get("value") or "")
    for error in validation.qualified_name_errors(key):
        yield FieldError(f"{path}.key", f'Invalid value: "{key}": {error}')
    for error in validation.label_value_errors(value):
        yield FieldError(f"{path}.value", f'Invalid value: "{value}": {error}')
    if not taint.get("effect"):
        yield FieldError(f"{path}.effect", "Required value", "FieldValueRequired")
    else:
        yield from unsupported(f"{path}.effect", str(taint["effect"]), _EFFECTS)


def _counter_set_errors(counter_sets: list[Object]) -> Iterator[FieldError]:
    path = "spec.sharedCounters"
    yield from too_many(path, counter_sets, _COUNTER_SETS)
    yield from duplicates(path, counter_sets)
    for number, counter_set in enumerate(counter_sets):
        yield from device_name_errors(f"{path}[{number}].name", str(counter_set.get("name") or ""))
        yield from _counter_errors(f"{path}[{number}].counters", counter_set.get("counters") or {})


def _consumption_errors(path: str, consumed: list[Object]) -> Iterator[FieldError]:
    yield from too_many(path, consumed, _CONSUMED_SETS)
    yield from duplicates(path, consumed, "counterSet")
    for number, entry in enumerate(consumed):
        if not entry.get("counterSet"):
            yield FieldError(f"{path}[{number}].counterSet", "Required value", "FieldValueRequired")
        yield from _counter_errors(f"{path}[{number}].counters", entry.get("counters") or {})


def _counter_errors(path: str, counters: Mapping[str, object]) -> Iterator[FieldError]:
    if not counters:
        yield FieldError(path, "Required value", "FieldValueRequired")
    yield from too_many(path, list(counters), _COUNTERS)
    for name in sorted(counters):
        for error in validation.dns_label_errors(name):
            yield FieldError(path, f'Invalid value: "{name}": {error}')


def _policy_errors(path: str, policy: Object, shared: bool) -> Iterator[FieldError]:
    if not shared:
        text = "Forbidden: allowMultipleAllocations must be true"
        yield FieldError(path, text, "FieldValueForbidden")
        return
    forms = [form for form in ("validRange", "validValues") if policy.get(form)]
    if forms and policy.get("default") is None:
        text = f"Required value: required when {forms[0]} is defined"
        yield FieldError(f"{path}.default", text, "FieldValueRequired")
    yield from too_many(f"{path}.validValues", policy.get("validValues") or [], _POLICY_VALUES)


def qualified_name_errors(path: str, name: str) -> Iterator[FieldError]:
    domain, has_domain, own = name.partition("/")
    if has_domain:
        yield from driver_errors(path, domain)
    identifier = own if has_domain else domain
    if len(identifier) > _NAME_LIMIT:
        yield _too_long(path, _NAME_LIMIT)
    if not _C_IDENTIFIER.fullmatch(identifier):
        yield FieldError(path, f'Invalid value: "{identifier}": {_IDENTIFIER_RULE}')


def _attribute_errors(path: str, attribute: Object) -> Iterator[FieldError]:
    given = [value for value in _VALUES if attribute.get(value) is not None]
    if len(given) != 1:
        go_names = {value: f"{value.rstrip('s').capitalize()}Value{'s' * value.endswith('s')}" for value in _VALUES}
        content = {go_names[value]: attribute.get(value) for value in _VALUES}
        shown = json.dumps(content, separators=(",", ":")) if given else '""'
        yield FieldError(path, f"Invalid value: {shown}: exactly one value must be specified")
    for value in ("string", "version"):
        if len(str(attribute.get(value) or "").encode()) > _VALUE_LIMIT:
            yield _too_long(f"{path}.{value}", _VALUE_LIMIT)
    version = attribute.get("version")
    if version is not None and not _SEMVER.fullmatch(version):
        rule = "must be a string compatible with semver.org spec 2.0.0"
        yield FieldError(f"{path}.version", f'Invalid value: "{version}": {rule}')


def too_many(path: str, items: list[Any], most: int) -> Iterator[FieldError]:  # type: ignore[explicit-any,unused-ignore]
    if len(items) > most:
        yield FieldError(path, f"Too many: {len(items)}: must have at most {most} items", "FieldValueTooMany")


def duplicates(path: str, items: list[Object], key: str = "name") -> Iterator[FieldError]:
    seen: set[str] = set()
    for number, item in enumerate(items):
        name = str(item.get(key) or "")
        if name in seen:
            yield FieldError(f"{path}[{number}]", f'Duplicate value: "{name}"', "FieldValueDuplicate")
        seen.add(name)


def unsupported(path: str, value: str, supported: tuple[str, ...]) -> Iterator[FieldError]:
    if value not in supported:
        values = ", ".join(f'"{one}"' for one in supported)
        text = f'Unsupported value: "{value}": supported values: {values}'
        yield FieldError(path, text, "FieldValueNotSupported")


def _too_long(path: str, limit: int) -> FieldError:
    return FieldError(path, f"Too long: may not be more than {limit} bytes", "FieldValueTooLong")
