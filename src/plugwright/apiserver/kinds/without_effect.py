"""Kinds whose objects are stored but enforce nothing here, so that charts that contain them can be installed.

There is a single user with all rights, and no network between pods. docs/cluster-limits.md lists them.
"""

from collections.abc import Iterator

from plugwright.apiserver.kinds.kind import Kind
from plugwright.apiserver.kinds.pod_templates import selector_text
from plugwright.apiserver.printers import AGE, NAME, Column
from plugwright.apiserver.store import Object
from plugwright.apiserver.validation import FieldError, invalid, required

__all__ = ["KINDS_WITHOUT_EFFECT"]

_RBAC, _ADMISSION = "rbac.authorization.k8s.io", "admissionregistration.k8s.io"
_SUBJECT_KINDS = {"User": _RBAC, "Group": _RBAC, "ServiceAccount": ""}


def _any_name(name: str) -> Iterator[str]:
    """Errors of a role's name, which can contain a colon, as `system:node`."""
    if "/" in name or "%" in name or name in (".", ".."):
        yield f"may not be '.' or '..', nor contain '/' or '%', got {name:.80}"


def _with_groups(binding: Object) -> Object:
    """Adds the API groups to the role and the subjects."""
    subjects = [{"apiGroup": _SUBJECT_KINDS.get(one.get("kind", ""), ""), **one} for one in binding["subjects"] or []]
    named = [{name: value for name, value in one.items() if value != ""} for one in subjects]
    reference = {"apiGroup": _RBAC, **(binding.get("roleRef") or {})}
    return {**binding, "roleRef": reference, **({"subjects": named} if named else {})}


def _prepare_binding(binding: Object) -> Object:
    return _with_groups({"subjects": [], **binding})


def _validate_binding(binding: Object) -> Iterator[FieldError]:
    for name in ("kind", "name"):
        if not binding["roleRef"].get(name):
            yield required(f"roleRef.{name}")


def _validate_binding_update(before: Object, after: Object) -> Iterator[FieldError]:
    if before["roleRef"] != after["roleRef"]:
        yield invalid("roleRef", after["roleRef"], "cannot change roleRef")


_ROLE = Column("Role", lambda one, _: f"{one['roleRef'].get('kind', '')}/{one['roleRef'].get('name', '')}")
_SELECTED = Column("Pod-Selector", lambda policy, _: selector_text((policy.get("spec") or {}).get("podSelector")))
_POLICY = Column("PolicyName", lambda binding, _: (binding.get("spec") or {}).get("policyName", ""))

KINDS_WITHOUT_EFFECT = (
    *(
        Kind(plural, name, _RBAC, namespaced=namespaced, name_errors=_any_name)
        for plural, name, namespaced in (("clusterroles", "ClusterRole", False), ("roles", "Role", True))
    ),
    *(
        Kind(
            plural,
            name,
            _RBAC,
            namespaced=namespaced,
            name_errors=_any_name,
            prepare_for_create=_prepare_binding,
            prepare_for_update=lambda _before, after: _prepare_binding(after),
            validate=_validate_binding,
            validate_update=_validate_binding_update,
            columns=(NAME, _ROLE, AGE),
        )
        for plural, name, namespaced in (
            ("clusterrolebindings", "ClusterRoleBinding", False),
            ("rolebindings", "RoleBinding", True),
        )
    ),
    Kind(
        "networkpolicies", "NetworkPolicy", "networking.k8s.io", short_names=("netpol",), columns=(NAME, _SELECTED, AGE)
    ),
    Kind("validatingadmissionpolicies", "ValidatingAdmissionPolicy", _ADMISSION, namespaced=False, has_status=True),
    Kind(
        "validatingadmissionpolicybindings",
        "ValidatingAdmissionPolicyBinding",
        _ADMISSION,
        namespaced=False,
        columns=(NAME, _POLICY, AGE),
    ),
)
