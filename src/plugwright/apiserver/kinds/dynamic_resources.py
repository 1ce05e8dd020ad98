"""The kinds of `resource.k8s.io`: ResourceSlices, ResourceClaims and their templates, DeviceClasses, taint rules.

What makes them valid is in `slice_validation` and `claim_validation`, which compiles the expressions in CEL.
"""

from plugwright.apiserver.kinds import claim_validation, slice_validation
from plugwright.apiserver.kinds.device_taint_rules import DEVICE_TAINT_RULES
from plugwright.apiserver.kinds.kind import Kind
from plugwright.apiserver.printers import AGE, NAME, Column
from plugwright.apiserver.store import Object

# fmt: off
__all__ = [
    "DEVICE_CLASSES", "DEVICE_TAINT_RULES", "DYNAMIC_RESOURCE_KINDS", "RESOURCE_CLAIMS", "RESOURCE_CLAIM_TEMPLATES",
    "RESOURCE_SLICES",
]
# fmt: on

_GROUP = "resource.k8s.io"


def _with_defaults(claim: Object) -> Object:
    """As kube-apiserver fills them in."""
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

DYNAMIC_RESOURCE_KINDS = (
    RESOURCE_SLICES,
    RESOURCE_CLAIMS,
    RESOURCE_CLAIM_TEMPLATES,
    DEVICE_CLASSES,
    DEVICE_TAINT_RULES,
)
