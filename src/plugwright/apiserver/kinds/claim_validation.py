"""Validation of ResourceClaims, their templates and DeviceClasses: kube-apiserver's limits and texts."""

import json
from collections.abc import Iterator

from plugwright.allocator.cel import LENGTH_LIMIT, SelectorError, SelectorTooCostly, compile_selector
from plugwright.apiserver import validation
from plugwright.apiserver.kinds import slice_validation
from plugwright.apiserver.kinds.slice_validation import duplicates, too_many, unsupported
from plugwright.apiserver.store import Object
from plugwright.apiserver.validation import FieldError

__all__ = ["validate", "validate_class", "validate_status", "validate_template", "validate_update"]

_MOST, _SUBREQUESTS, _CONSUMERS, _CONDITIONS = 32, 8, 256, 8
_PARAMETERS_LIMIT = 10 * 1024
_MODES, _OPERATORS = ("All", "ExactCount"), ("Equal", "Exists")
_EFFECTS = ("NoExecute", "NoSchedule", "None")


def validate(claim: Object) -> Iterator[FieldError]:
    yield from _spec_errors("spec", claim.get("spec") or {})


def validate_template(template: Object) -> Iterator[FieldError]:
    yield from _spec_errors("spec.spec", (template.get("spec") or {}).get("spec") or {})


def validate_update(before: Object, after: Object) -> Iterator[FieldError]:
    if before.get("spec") != after.get("spec"):
        yield FieldError("spec", "Invalid value: field is immutable")


def validate_class(device_class: Object) -> Iterator[FieldError]:
    spec = device_class.get("spec") or {}
    yield from _selector_errors("spec.selectors", spec.get("selectors") or [])
    yield from _config_errors("spec.config", spec.get("config") or [], None)
    resource = spec.get("extendedResourceName")
    if resource is not None and not validation.is_extended_resource(str(resource)):
        yield validation.invalid("spec.extendedResourceName", resource, "must be a valid extended resource name")


def validate_status(claim: Object) -> Iterator[FieldError]:
    status = claim.get("status") or {}
    results = ((status.get("allocation") or {}).get("devices") or {}).get("results") or []
    consumers = status.get("reservedFor") or []
    yield from too_many("status.allocation.devices.results", results, _MOST)
    yield from too_many("status.reservedFor", consumers, _CONSUMERS)
    if consumers and not status.get("allocation"):
        text = "Forbidden: may not be specified when `allocated` is not set"
        yield FieldError("status.reservedFor", text, "FieldValueForbidden")
    yield from _device_status_errors(results, status.get("devices") or [])


def _device_status_errors(results: list[Object], devices: list[Object]) -> Iterator[FieldError]:
    def identity(entry: Object) -> tuple[str, ...]:
        return tuple(str(entry.get(key) or "") for key in ("driver", "pool", "device", "shareID"))

    allocated, seen = {identity(result) for result in results}, set[tuple[str, ...]]()
    for number, device in enumerate(devices):
        path, found = f"status.devices[{number}]", identity(device)
        if found in seen:
            yield FieldError(path, f'Duplicate value: "{"/".join(filter(None, found))}"', "FieldValueDuplicate")
        if found not in allocated:
            yield FieldError(path, "Invalid value: must be an allocated device in the claim")
        seen.add(found)
        yield from too_many(f"{path}.conditions", device.get("conditions") or [], _CONDITIONS)
        yield from _document_errors(f"{path}.data", device.get("data"))


def _spec_errors(path: str, spec: Object) -> Iterator[FieldError]:
    devices, path = spec.get("devices") or {}, f"{path}.devices"
    requests = devices.get("requests") or []
    names = set(_request_names(requests))
    yield from too_many(f"{path}.requests", requests, _MOST)
    yield from duplicates(f"{path}.requests", requests)
    for number, request in enumerate(requests):
        yield from _request_errors(f"{path}.requests[{number}]", request)
    constraints = devices.get("constraints") or []
    yield from too_many(f"{path}.constraints", constraints, _MOST)
    for number, constraint in enumerate(constraints):
        yield from _constraint_errors(f"{path}.constraints[{number}]", constraint, names)
    yield from _config_errors(f"{path}.config", devices.get("config") or [], names)


def _request_names(requests: list[Object]) -> Iterator[str]:
    for request in requests:
        yield str(request.get("name") or "")
        for choice in request.get("firstAvailable") or ():
            yield f"{request.get('name') or ''}/{choice.get('name') or ''}"


def _request_errors(path: str, request: Object) -> Iterator[FieldError]:
    yield from _label_errors(f"{path}.name", str(request.get("name") or ""))
    exact, choices = request.get("exactly"), request.get("firstAvailable")
    rule = "exactly one of `exactly` or `firstAvailable` is required"
    if exact and choices:
        yield FieldError(path, f"Invalid value: null: {rule}, but multiple fields are set")
    elif not exact and not choices:
        yield FieldError(path, f"Required value: {rule}", "FieldValueRequired")
    if exact:
        yield from _exact_errors(f"{path}.exactly", exact)
    yield from too_many(f"{path}.firstAvailable", choices or [], _SUBREQUESTS)
    yield from duplicates(f"{path}.firstAvailable", choices or [])
    for number, choice in enumerate(choices or []):
        yield from _label_errors(f"{path}.firstAvailable[{number}].name", str(choice.get("name") or ""))
        yield from _exact_errors(f"{path}.firstAvailable[{number}]", choice)


def _label_errors(path: str, name: str) -> Iterator[FieldError]:
    for error in validation.dns_label_errors(name):
        yield FieldError(path, f'Invalid value: "{name}": {error}')


def _exact_errors(path: str, request: Object) -> Iterator[FieldError]:
    if not request.get("deviceClassName"):
        yield FieldError(f"{path}.deviceClassName", "Required value", "FieldValueRequired")
    yield from _selector_errors(f"{path}.selectors", request.get("selectors") or [])
    mode, count = str(request.get("allocationMode") or "ExactCount"), request.get("count")
    yield from unsupported(f"{path}.allocationMode", mode, _MODES)
    if mode == "All" and count:
        text = f"Invalid value: {count}: must not be specified when allocationMode is 'All'"
        yield FieldError(f"{path}.count", text)
    elif mode == "ExactCount" and count is not None and count <= 0:
        yield FieldError(f"{path}.count", f"Invalid value: {count}: must be greater than zero")
    for number, toleration in enumerate(request.get("tolerations") or []):
        place = f"{path}.tolerations[{number}]"
        yield from unsupported(f"{place}.operator", str(toleration.get("operator") or "Equal"), _OPERATORS)
        if toleration.get("effect"):
            yield from unsupported(f"{place}.effect", str(toleration["effect"]), _EFFECTS)


def _selector_errors(path: str, selectors: list[Object]) -> Iterator[FieldError]:
    yield from too_many(path, selectors, _MOST)
    for number, selector in enumerate(selectors[:_MOST]):
        cel = selector.get("cel")
        if not cel:
            yield FieldError(f"{path}[{number}].cel", "Required value", "FieldValueRequired")
        else:
            yield from _expression_errors(f"{path}[{number}].cel.expression", str(cel.get("expression") or ""))


def _expression_errors(path: str, expression: str) -> Iterator[FieldError]:
    """An expression must compile, be boolean, and stay within the cost limit on every possible device."""
    if len(expression.encode()) > LENGTH_LIMIT:
        yield FieldError(path, f"Too long: may not be more than {LENGTH_LIMIT} bytes", "FieldValueTooLong")
        return
    try:
        compile_selector(expression)
    except SelectorTooCostly as error:
        yield validation.forbidden(path, str(error))
    except SelectorError as error:
        if str(error).startswith("program instantiation failed"):
            yield FieldError(path, f"Internal error: {error}", "InternalError")
        else:
            yield validation.invalid(path, expression, str(error))


def _constraint_errors(path: str, constraint: Object, names: set[str]) -> Iterator[FieldError]:
    yield from _reference_errors(f"{path}.requests", constraint.get("requests") or [], names)
    given = [name for name in ("matchAttribute", "distinctAttribute") if constraint.get(name)]
    if len(given) != 1:
        text = 'exactly one of "matchAttribute" or "distinctAttribute" is required, but multiple fields are set'
        yield FieldError(path, f"Required value: {text}", "FieldValueRequired")
    for name in given:
        attribute = str(constraint[name])
        if "/" not in attribute:
            text = "a fully qualified name must be a domain and a name separated by a slash"
            yield FieldError(f"{path}.{name}", f'Invalid value: "{attribute}": {text}')
        else:
            yield from slice_validation.qualified_name_errors(f"{path}.{name}", attribute)


def _reference_errors(path: str, references: list[str], names: set[str]) -> Iterator[FieldError]:
    rule = "must be the name of a request in the claim or the name of a request and a subrequest separated by '/'"
    for number, reference in enumerate(references):
        if reference not in names:
            yield FieldError(f"{path}[{number}]", f'Invalid value: "{reference}": {rule}')


def _config_errors(path: str, configs: list[Object], names: set[str] | None) -> Iterator[FieldError]:
    """`names` are those by which requests can be referred to; a class has none."""
    yield from too_many(path, configs, _MOST)
    for number, config in enumerate(configs):
        place = f"{path}[{number}]"
        if names is not None:
            yield from _reference_errors(f"{place}.requests", config.get("requests") or [], names)
        opaque = config.get("opaque")
        if not opaque:
            yield FieldError(f"{place}.opaque", "Required value", "FieldValueRequired")
            continue
        yield from slice_validation.driver_errors(f"{place}.opaque.driver", str(opaque.get("driver") or ""))
        if opaque.get("parameters") is None:
            yield FieldError(f"{place}.opaque.parameters", "Required value", "FieldValueRequired")
        yield from _document_errors(f"{place}.opaque.parameters", opaque.get("parameters"))


def _document_errors(path: str, document: object) -> Iterator[FieldError]:
    if document is not None and len(json.dumps(document, separators=(",", ":")).encode()) > _PARAMETERS_LIMIT:
        text = f"Too long: may not be more than {_PARAMETERS_LIMIT} bytes"
        yield FieldError(path, text, "FieldValueTooLong")
