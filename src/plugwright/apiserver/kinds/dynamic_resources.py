"""The kinds of `resource.k8s.io`: ResourceSlices, ResourceClaims and their templates, DeviceClasses, taint rules.

`slice_validation` and `claim_validation`, which compiles CEL expressions, define their validity.
"""

from collections.abc import Iterator

from plugwright.apiserver import clock
from plugwright.apiserver.kinds import claim_validation, slice_validation
from plugwright.apiserver.kinds.kind import Kind
from plugwright.apiserver.kinds.simple import NAMESPACES
from plugwright.apiserver.kinds.slice_validation import too_many
from plugwright.apiserver.printers import AGE, NAME, Column
from plugwright.apiserver.store import Object, ObjectKey, ObjectLookup
from plugwright.apiserver.validation import FieldError

# fmt: off
__all__ = [
    "ADMIN_ACCESS_LABEL", "DEVICE_CLASSES", "DEVICE_TAINT_RULES", "DYNAMIC_RESOURCE_KINDS", "RESOURCE_CLAIMS",
    "RESOURCE_CLAIM_TEMPLATES", "RESOURCE_SLICES",
]
# fmt: on

ADMIN_ACCESS_LABEL = "resource.kubernetes.io/admin-access"

_GROUP = "resource.k8s.io"
_MOST_CONDITIONS = 8


def _with_defaults(claim: Object) -> Object:
    """The claim with kube-apiserver's defaults."""
    devices = (claim.get("spec") or {}).get("devices")
    if not devices:
        return claim
    requests = [_request_with_defaults(request) for request in devices.get("requests") or []]
    return {**claim, "spec": {**claim["spec"], "devices": {**devices, **({"requests": requests} if requests else {})}}}


def _request_with_defaults(request: Object) -> Object:
    def filled(one: Object) -> Object:
        mode = one.get("allocationMode") or "ExactCount"
        count = {"count": one.get("count") or 1} if mode == "ExactCount" else {}
        tolerations = [{"operator": "Equal", **toleration} for toleration in one.get("tolerations") or []]
        return {**one, "allocationMode": mode, **count, **({"tolerations": tolerations} if tolerations else {})}

    exact = {"exactly": filled(request["exactly"])} if request.get("exactly") else {}
    choices = (
        {"firstAvailable": [filled(one) for one in request["firstAvailable"]]} if request.get("firstAvailable") else {}
    )
    return {**request, **exact, **choices}


def _template_with_defaults(template: Object) -> Object:
    spec = template.get("spec") or {}
    return {**template, "spec": {**spec, "spec": _with_defaults({"spec": spec.get("spec") or {}})["spec"]}}


def _with_first_generation(content: Object) -> Object:
    content["metadata"]["generation"] = 1
    return content


def _with_generation(before: Object, after: Object) -> Object:
    """The generation counts the changes of the spec."""
    is_changed = (before.get("spec") or {}) != (after.get("spec") or {})
    after["metadata"]["generation"] = before["metadata"].get("generation", 1) + is_changed
    return after


def _new_rule(rule: Object) -> Object:
    rule["metadata"]["generation"] = 1
    return {**_stamped_rule(rule), "status": {}}


def _stamped_rule(rule: Object) -> Object:
    """The rule with the time at which its taint was added, unless the client gives one."""
    spec = rule.get("spec") or {}
    taint = spec.get("taint") or {}
    if taint.get("timeAdded"):
        return rule
    return {**rule, "spec": {**spec, "taint": {**taint, "timeAdded": clock.timestamp(clock.now())}}}


def _updated_rule(before: Object, after: Object) -> Object:
    """The updated rule; a changed effect counts as a new taint, so that tolerations start again."""
    old, new = ((rule.get("spec") or {}).get("taint") or {} for rule in (before, after))
    if new.get("effect") != old.get("effect") and new.get("timeAdded") == old.get("timeAdded"):
        without = {name: value for name, value in new.items() if name != "timeAdded"}
        after = {**after, "spec": {**after["spec"], "taint": without}}
    after = _stamped_rule(after)
    after["metadata"]["generation"] = before["metadata"].get("generation", 1) + (before["spec"] != after["spec"])
    return after


def _rule_errors(rule: Object) -> Iterator[FieldError]:
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


def _rule_status_errors(rule: Object) -> Iterator[FieldError]:
    conditions = (rule.get("status") or {}).get("conditions") or []
    yield from too_many("status.conditions", conditions, _MOST_CONDITIONS)


def _admin_access_errors(entry: Object, objects: ObjectLookup) -> Iterator[FieldError]:
    """Of a claim or template: only labelled namespaces may have access to the devices of others."""
    spec = entry.get("spec") or {}
    requests = ((spec.get("spec") or spec).get("devices") or {}).get("requests") or ()
    wanted = (number for number, one in enumerate(requests) if (one.get("exactly") or {}).get("adminAccess"))
    place = next(wanted, None)
    if place is None:
        return
    namespace = objects.get(ObjectKey(NAMESPACES.qualified, "", entry["metadata"]["namespace"])) or {"metadata": {}}
    if (namespace["metadata"].get("labels") or {}).get(ADMIN_ACCESS_LABEL) != "true":
        text = f"admin access to devices requires the `{ADMIN_ACCESS_LABEL}: true` label on the containing namespace"
        yield FieldError(f"spec.devices.requests[{place}].adminAccess", f"Forbidden: {text}", "FieldValueForbidden")


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
    prepare_for_create=_with_first_generation,
    prepare_for_update=_with_generation,
    returns_deleted_object=True,
    validate=slice_validation.validate,
    validate_update=slice_validation.validate_update,
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
    prepare_for_create=lambda claim: {**_with_defaults(claim), "status": {}},
    prepare_for_update=lambda _before, after: _with_defaults(after),
    returns_deleted_object=True,
    validate=claim_validation.validate,
    validate_among=_admin_access_errors,
    validate_update=claim_validation.validate_update,
    validate_status=claim_validation.validate_status,
    columns=(NAME, Column("State", _claim_state), AGE),
)

RESOURCE_CLAIM_TEMPLATES = Kind(
    plural="resourceclaimtemplates",
    name="ResourceClaimTemplate",
    group=_GROUP,
    prepare_for_create=_template_with_defaults,
    prepare_for_update=lambda _before, after: _template_with_defaults(after),
    returns_deleted_object=True,
    validate=claim_validation.validate_template,
    validate_among=_admin_access_errors,
    validate_update=claim_validation.validate_update,
)

DEVICE_CLASSES = Kind(
    plural="deviceclasses",
    name="DeviceClass",
    group=_GROUP,
    namespaced=False,
    prepare_for_create=_with_first_generation,
    prepare_for_update=_with_generation,
    returns_deleted_object=True,
    validate=claim_validation.validate_class,
)

DEVICE_TAINT_RULES = Kind(
    plural="devicetaintrules",
    name="DeviceTaintRule",
    group=_GROUP,
    namespaced=False,
    has_status=True,
    since=(1, 37),
    prepare_for_create=_new_rule,
    prepare_for_update=_updated_rule,
    allow_unconditional_update=False,
    returns_deleted_object=True,
    validate=_rule_errors,
    validate_status=_rule_status_errors,
)

DYNAMIC_RESOURCE_KINDS = (
    RESOURCE_SLICES,
    RESOURCE_CLAIMS,
    RESOURCE_CLAIM_TEMPLATES,
    DEVICE_CLASSES,
    DEVICE_TAINT_RULES,
)
