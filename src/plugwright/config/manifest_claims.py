"""The objects for resources served by claims: RBAC rules, admission policies and device classes.

They equal those of the chart, in deploy/helm/plugwright/templates/dra.yaml, which explains them.
"""

import json
from collections.abc import Sequence
from typing import Any

import msgspec

from plugwright.config.schema import ConfigFile
from plugwright.config.serve_entry import driver_of
from plugwright.model import Resource
from plugwright.sdk.driver_names import driver_domain, driver_name
from plugwright.sdk.serve_settings import ServeMode

__all__ = ["Served", "objects", "served_by_claims"]

Manifest = dict[str, Any]

_GROUP = "resource.k8s.io"
_BOUND_NODE = 'request.userInfo.extra[?"authentication.kubernetes.io/node-name"][0].orValue("")'
_TOKEN_NODE = {"name": "tokenNode", "expression": _BOUND_NODE}
_IS_BOUND = {"expression": 'variables.tokenNode != ""', "message": "the token is not bound to a pod on a node"}


class Served(msgspec.Struct, frozen=True):
    """A resource with its driver, or with the domain of its drivers if the machine decides the resource's name."""

    resource: str
    api: ServeMode
    driver: str
    domain: str

    @classmethod
    def of(cls, resource: str, api: ServeMode) -> "Served":
        return cls(Resource(resource).name, api, driver_name(resource), driver_domain(resource))


def served_by_claims(file: ConfigFile) -> list[Served]:
    """Sorted as the chart sorts them: by the driver's name, or by `*` and the domain if the name is unknown."""
    served = [
        Served(entry.name, entry.serve.api, driver_of(entry), driver_domain(entry.name))
        for entry in file.resources
        if entry.serve.api is not ServeMode.DEVICE_PLUGIN
    ]
    return sorted(served, key=lambda one: one.driver or f"*.{one.domain}")


def objects(served: Sequence[Served], namespace: str, account: str, labels: dict[str, str]) -> list[Manifest]:
    """No objects if nothing is served by claims."""
    if not served:
        return []
    name, user = f"{namespace}-{account}", f"system:serviceaccount:{namespace}:{account}"
    drivers = [one.driver for one in served if one.driver]
    role: Manifest = _object("rbac.authorization.k8s.io/v1", "ClusterRole", name, labels)
    role["rules"] = _rules(drivers, any(one.api is ServeMode.BOTH for one in served))
    binding = _object("rbac.authorization.k8s.io/v1", "ClusterRoleBinding", name, labels)
    binding["roleRef"] = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name}
    binding["subjects"] = [{"kind": "ServiceAccount", "name": account, "namespace": namespace}]
    domains = [one.domain for one in served if not one.driver]
    policies = {"slices": _slices_policy(user, drivers, domains), "claims": _claims_policy(user, drivers, domains)}
    return [
        role,
        binding,
        *(_policy_binding(f"{name}-{subject}", labels) for subject in policies),
        *(_policy(f"{name}-{subject}", labels, spec) for subject, spec in policies.items()),
        *(_device_class(one, labels) for one in served if one.driver),
    ]


def _rules(drivers: Sequence[str], has_moves: bool) -> list[Manifest]:
    claims = ["get", "list"] if has_moves else ["get"]
    rules = [
        {"apiGroups": [_GROUP], "resources": ["resourceclaims"], "verbs": claims},
        {
            "apiGroups": [_GROUP],
            "resources": ["resourceslices"],
            "verbs": ["list", "watch", "create", "update", "delete"],
        },
        {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]},
        {"apiGroups": [_GROUP], "resources": ["resourceclaims/status"], "verbs": ["patch"]},
    ]
    if drivers:
        verbs, resources = ["associated-node:patch"], ["resourceclaims/driver"]
        rules.append({"apiGroups": [_GROUP], "resources": resources, "resourceNames": [*drivers], "verbs": verbs})
    return rules


def _slices_policy(user: str, drivers: Sequence[str], domains: Sequence[str]) -> Manifest:
    denied = '"node " + variables.tokenNode + " may not change slices of '
    return {
        **_matched(user, ["CREATE", "UPDATE", "DELETE"], "resourceslices"),
        "variables": [
            _TOKEN_NODE,
            {"name": "slice", "expression": 'request.operation == "DELETE" ? oldObject.spec : object.spec'},
            {"name": "node", "expression": 'variables.slice.?nodeName.orValue("")'},
        ],
        "validations": [
            _IS_BOUND,
            {
                "expression": "variables.tokenNode == variables.node",
                "messageExpression": f'{denied}node " + variables.node',
            },
            {
                "expression": "variables.slice.pool.name == variables.tokenNode",
                "messageExpression": f'{denied}pool " + variables.slice.pool.name',
            },
            {
                "expression": _is_served("variables.slice.driver", drivers, domains),
                "messageExpression": '"this account may not change slices of driver " + variables.slice.driver',
            },
        ],
    }


def _claims_policy(user: str, drivers: Sequence[str], domains: Sequence[str]) -> Manifest:
    unchanged = (f"object.?status.?{key} == oldObject.?status.?{key}" for key in ("allocation", "reservedFor"))
    is_own = f"one.pool == variables.tokenNode && ({_is_served('one.driver', drivers, domains)})"
    kept = (
        f"variables.{entries}.all(one, {is_own} || variables.{others}.exists(other, other == one))"
        for entries, others in (("after", "before"), ("before", "after"))
    )
    return {
        **_matched(user, ["UPDATE"], "resourceclaims/status"),
        "variables": [
            _TOKEN_NODE,
            {"name": "before", "expression": "oldObject.?status.?devices.orValue([])"},
            {"name": "after", "expression": "object.?status.?devices.orValue([])"},
        ],
        "validations": [
            _IS_BOUND,
            {
                "expression": " && ".join(unchanged),
                "message": "this account may change nothing of a claim's status but its devices",
            },
            {
                "expression": " && ".join(kept),
                "message": "this account may change only its own node's and drivers' devices of a claim's status",
            },
        ],
    }


def _is_served(driver: str, drivers: Sequence[str], domains: Sequence[str]) -> str:
    """A CEL expression: whether `driver` belongs to a served resource."""
    served = [f"{driver} in {json.dumps(drivers, separators=(',', ':'))}"]
    return " || ".join([*served, *(f'{driver}.endsWith(".{domain}")' for domain in domains)])


def _matched(user: str, operations: list[str], resource: str) -> Manifest:
    rule = {"apiGroups": [_GROUP], "apiVersions": ["*"], "operations": operations, "resources": [resource]}
    condition = {"name": "account", "expression": f'request.userInfo.username == "{user}"'}
    return {
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": [rule]},
        "matchConditions": [condition],
    }


def _policy(name: str, labels: dict[str, str], spec: Manifest) -> Manifest:
    return {**_object("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicy", name, labels), "spec": spec}


def _policy_binding(name: str, labels: dict[str, str]) -> Manifest:
    spec = {"policyName": name, "validationActions": ["Deny"]}
    binding = _object("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicyBinding", name, labels)
    return {**binding, "spec": spec}


def _device_class(one: Served, labels: dict[str, str]) -> Manifest:
    selector = {"cel": {"expression": f'device.driver == "{one.driver}"'}}
    spec = {"selectors": [selector], "extendedResourceName": one.resource}
    return {**_object(f"{_GROUP}/v1", "DeviceClass", one.driver, labels), "spec": spec}


def _object(version: str, kind: str, name: str, labels: dict[str, str]) -> Manifest:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name, "labels": labels}}
