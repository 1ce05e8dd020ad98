"""The DeviceTaintRule: a taint that an administrator puts on devices. Served from Kubernetes 1.37 on."""

from collections.abc import Iterator

from plugwright.apiserver import clock
from plugwright.apiserver.kinds import slice_validation
from plugwright.apiserver.kinds.kind import Kind
from plugwright.apiserver.kinds.slice_validation import too_many
from plugwright.apiserver.store import Object
from plugwright.apiserver.validation import FieldError

__all__ = ["DEVICE_TAINT_RULES"]

_MOST_CONDITIONS = 8


def _new(rule: Object) -> Object:
    rule["metadata"]["generation"] = 1
    return {**_stamped(rule), "status": {}}


def _stamped(rule: Object) -> Object:
    """A taint has the time at which it was added, unless the client gives one."""
    spec = rule.get("spec") or {}
    taint = spec.get("taint") or {}
    if taint.get("timeAdded"):
        return rule
    return {**rule, "spec": {**spec, "taint": {**taint, "timeAdded": clock.timestamp(clock.now())}}}


def _updated(before: Object, after: Object) -> Object:
    """A changed effect counts as a new taint, so that tolerations start again."""
    old, new = ((rule.get("spec") or {}).get("taint") or {} for rule in (before, after))
    if new.get("effect") != old.get("effect") and new.get("timeAdded") == old.get("timeAdded"):
        without = {name: value for name, value in new.items() if name != "timeAdded"}
        after = {**after, "spec": {**after["spec"], "taint": without}}
    after = _stamped(after)
    after["metadata"]["generation"] = before["metadata"].get("generation", 1) + (before["spec"] != after["spec"])
    return after


def _errors(rule: Object) -> Iterator[FieldError]:
    spec = rule.get("spec") or {}
    selector = spec.get("deviceSelector") or {}
    rules = (
        ("driver", slice_validation.driver_errors),
        ("pool", slice_validation.pool_name_errors),
        ("device", slice_validation.device_name_errors),
    )
    for name, errors in rules:
        if selector.get(name) is not None:
            yield from errors(f"spec.deviceSelector.{name}", str(selector[name]))
    yield from slice_validation.taint_errors("spec.taint", spec.get("taint") or {})


def _status_errors(rule: Object) -> Iterator[FieldError]:
    conditions = (rule.get("status") or {}).get("conditions") or []
    yield from too_many("status.conditions", conditions, _MOST_CONDITIONS)


DEVICE_TAINT_RULES = Kind(
    plural="devicetaintrules",
    name="DeviceTaintRule",
    group="resource.k8s.io",
    namespaced=False,
    has_status=True,
    since=(1, 37),
    prepare_for_create=_new,
    prepare_for_update=_updated,
    allow_unconditional_update=False,
    returns_deleted_object=True,
    validate=_errors,
    validate_status=_status_errors,
)
