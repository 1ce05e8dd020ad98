"""The same requests for every kind: each verb, with input that is right, and with input that is not."""

from collections.abc import Iterator
from typing import Any

from tests.kubernetes.differences.playing import Json, Played

__all__ = ["KINDS", "NAMESPACE", "every_kind"]

NAMESPACE = "played"
_CORE = f"/api/v1/namespaces/{NAMESPACE}"
_DEVICES = "resource.k8s.io/v1"
_MERGE, _STRATEGIC, _JSON = (
    f"application/{kind}+json" for kind in ("merge-patch", "strategic-merge-patch", "json-patch")
)
# Per kind: its collection, its type, and what an object has besides metadata.
KINDS: dict[str, tuple[str, str, Json]] = {
    "configmaps": (_CORE, "v1 ConfigMap", {"data": {"a": "b"}}),
    "deviceclasses": (f"/apis/{_DEVICES}", f"{_DEVICES} DeviceClass", {"spec": {}}),
    "leases": (
        f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}",
        "coordination.k8s.io/v1 Lease",
        {"spec": {"holderIdentity": "me", "leaseDurationSeconds": 10}},
    ),
    "nodes": ("/api/v1", "v1 Node", {"spec": {"podCIDR": "10.0.0.0/24", "podCIDRs": ["10.0.0.0/24"]}}),
    "pods": (_CORE, "v1 Pod", {"spec": {"containers": [{"name": "main", "image": "busybox"}]}}),
    "priorityclasses": ("/apis/scheduling.k8s.io/v1", "scheduling.k8s.io/v1 PriorityClass", {"value": 7}),
    "resourceclaims": (
        f"/apis/{_DEVICES}/namespaces/{NAMESPACE}",
        f"{_DEVICES} ResourceClaim",
        {"spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu"}}]}}},
    ),
    "serviceaccounts": (_CORE, "v1 ServiceAccount", {"automountServiceAccountToken": False}),
}


def every_kind() -> Iterator[Played]:
    for plural in KINDS:
        collection = f"{KINDS[plural][0]}/{plural}"
        for name, method, path, body, *media in (*_creating(plural), *_reading(), *_updating(plural), *_deleting()):
            yield Played(f"{plural}: {name}", method, collection + path, body, *media)


def _object(plural: str, name: str = "thing", **metadata: Any) -> Json:
    _, kind, content = KINDS[plural]
    version, _, kind = kind.partition(" ")
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name, **metadata}, **content}


Row = tuple[Any, ...]


def _creating(plural: str) -> Iterator[Row]:
    def thing(name: str = "thing", **metadata: Any) -> Json:
        return _object(plural, name, **metadata)

    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "a", "uid": "b"}
    owners = [{**owner, "name": name, "controller": True} for name in ("a", "b")]
    yield "create", "POST", "", thing(labels={"a": "b"}, annotations={"c": "d"})
    yield "create again", "POST", "", thing()
    yield "create without a name", "POST", "", thing("")
    yield "create with a bad name", "POST", "", thing("A_b")
    yield "create with a name of 254 characters", "POST", "", thing("a" * 254)
    yield "create with a generated name", "POST", "", {**thing(), "metadata": {"generateName": "made-"}}
    yield "create with a bad generateName", "POST", "", {**thing(), "metadata": {"generateName": "A_"}}
    yield "create with a version", "POST", "", thing("other", resourceVersion="7")
    yield "create in another namespace", "POST", "", thing("other", namespace="elsewhere")
    yield "create of another kind", "POST", "", {**thing("other"), "kind": "Gadget"}
    yield "create of another version", "POST", "", {**thing("other"), "apiVersion": "v9"}
    yield "create without a type", "POST", "", {"metadata": {"name": "other"}}
    yield "create with a bad label", "POST", "", thing("other", labels={"a b": "c"})
    yield "create with a bad value of a label", "POST", "", thing("other", labels={"a": "c d"})
    yield "create with a bad annotation", "POST", "", thing("other", annotations={"a b": "c"})
    yield "create with large annotations", "POST", "", thing("other", annotations={"a": "b" * 300_000})
    yield "create with a bad finalizer", "POST", "", thing("other", finalizers=["nothing"])
    yield "create with a bad owner", "POST", "", thing("other", ownerReferences=[{**owner, "name": ""}])
    yield "create with two controllers", "POST", "", thing("other", ownerReferences=owners)
    yield "create with labels that are a list", "POST", "", thing("other", labels=["a"])
    yield "create from text", "POST", "", "nonsense"
    yield "create from a list", "POST", "", []
    yield "create from nothing", "POST", "", ""
    yield "create by a media type unknown", "POST", "", thing("other"), "text/plain"
    yield "create from YAML", "POST", "?dryRun=All", _yaml(thing("yaml")), "application/yaml"
    yield "create with an unknown field", "POST", "?dryRun=All", {**thing("other"), "colour": "red"}
    yield (
        "create with an unknown field, strictly",
        "POST",
        "?fieldValidation=Strict",
        {**thing("other"), "colour": "red"},
    )
    yield "create with an unknown validation", "POST", "?fieldValidation=Maybe", thing("other")
    yield "create in a dry run", "POST", "?dryRun=All", thing("other")
    yield "create in an unknown dry run", "POST", "?dryRun=Some", thing("other")
    yield "create at a name", "POST", "/other", thing("other")


def _yaml(content: Json) -> str:
    """JSON is YAML; a comment is not JSON."""
    import json

    return f"# a comment\n{json.dumps(content)}"


def _reading() -> Iterator[Row]:
    yield "get", "GET", "/thing", None
    yield "get of nothing", "GET", "/nothing", None
    yield "list by label", "GET", "?labelSelector=a%3Db", None
    yield "list by a set of labels", "GET", "?labelSelector=a+in+(b,c),!x", None
    yield "list by a bad label", "GET", "?labelSelector=a%3D%3D%3Db", None
    yield "list by an unknown operator", "GET", "?labelSelector=a+near+b", None
    yield "list by name", "GET", "?fieldSelector=metadata.name%3Dthing", None
    yield "list by an unknown field", "GET", "?fieldSelector=metadata.colour%3Dred", None
    yield "list by half a field", "GET", "?fieldSelector=metadata.name", None
    yield "list with a bad limit", "GET", "?limit=many", None
    yield "list from a bad version", "GET", "?resourceVersion=new", None
    yield "list at an unknown match", "GET", "?resourceVersion=1&resourceVersionMatch=Near", None
    yield "list with a match alone", "GET", "?resourceVersionMatch=Exact", None
    yield "list with a bad token", "GET", "?continue=abc", None
    yield "list with initial events without a watch", "GET", "?sendInitialEvents=true", None


def _updating(plural: str) -> Iterator[Row]:
    def thing(name: str = "thing", **metadata: Any) -> Json:
        return _object(plural, name, **metadata)

    yield "update", "PUT", "/thing", thing(labels={"a": "c"})
    yield "update at its version", "PUT", "/thing", thing(labels={"a": "d"}, resourceVersion="{version}")
    yield "update at an old version", "PUT", "/thing", thing(resourceVersion="1")
    yield "update at a bad version", "PUT", "/thing", thing(resourceVersion="x")
    yield "update with another uid", "PUT", "/thing", thing(uid="00000000-0000-4000-8000-000000000000")
    yield "update with another name", "PUT", "/thing", thing("other")
    yield "update without a name", "PUT", "/thing", {**thing(), "metadata": {}}
    yield "update with a bad label", "PUT", "/thing", thing(labels={"a b": "c"})
    yield "update of another kind", "PUT", "/thing", {**thing(), "kind": "Gadget"}
    yield "update of a collection", "PUT", "", thing()
    yield "update from text", "PUT", "/thing", "nonsense"
    yield "merge patch", "PATCH", "/thing", {"metadata": {"labels": {"a": None, "x": "y"}}}, _MERGE
    yield "merge patch of nothing", "PATCH", "/nothing", {"metadata": {"labels": {"x": "y"}}}, _MERGE
    yield "merge patch with a list", "PATCH", "/thing", [], _MERGE
    yield "merge patch of the name", "PATCH", "/thing", {"metadata": {"name": "other"}}, _MERGE
    yield "merge patch of the uid", "PATCH", "/thing", {"metadata": {"uid": "x"}}, _MERGE
    yield "merge patch at an old version", "PATCH", "/thing", {"metadata": {"resourceVersion": "1"}}, _MERGE
    yield "merge patch with a bad label", "PATCH", "/thing", {"metadata": {"labels": {"a b": "c"}}}, _MERGE
    yield "merge patch of labels to a text", "PATCH", "/thing", {"metadata": {"labels": "x"}}, _MERGE
    yield "merge patch from text", "PATCH", "/thing", "nonsense", _MERGE
    yield "merge patch with an unknown field, strictly", "PATCH", "/thing?fieldValidation=Strict", {"colour": 1}, _MERGE
    yield "strategic patch", "PATCH", "/thing", {"metadata": {"annotations": {"e": "f"}}}, _STRATEGIC
    yield (
        "strategic patch with a directive",
        "PATCH",
        "/thing",
        {"metadata": {"labels": {"$patch": "replace", "x": "z"}}},
        _STRATEGIC,
    )
    yield "strategic patch with an unknown directive", "PATCH", "/thing", {"metadata": {"$patch": "turn"}}, _STRATEGIC
    yield "JSON patch", "PATCH", "/thing", [{"op": "add", "path": "/metadata/labels/j", "value": "k"}], _JSON
    yield "JSON patch of a missing member", "PATCH", "/thing", [{"op": "remove", "path": "/metadata/nothing"}], _JSON
    yield "JSON patch with a failing test", "PATCH", "/thing", [{"op": "test", "path": "/kind", "value": "x"}], _JSON
    yield "JSON patch with an unknown operation", "PATCH", "/thing", [{"op": "turn", "path": "/kind"}], _JSON
    yield "JSON patch with an object", "PATCH", "/thing", {}, _JSON
    yield "patch by a media type unknown", "PATCH", "/thing", {}, "application/json"
    yield "patch of a collection", "PATCH", "", {}, _MERGE


def _deleting() -> Iterator[Row]:
    def options(**members: Any) -> Json:
        return {"kind": "DeleteOptions", "apiVersion": "v1", **members}

    yield "delete of nothing", "DELETE", "/nothing", None
    yield "delete with another uid", "DELETE", "/thing", options(preconditions={"uid": "x"})
    yield "delete at an old version", "DELETE", "/thing", options(preconditions={"resourceVersion": "1"})
    yield "delete with an unknown policy", "DELETE", "/thing", options(propagationPolicy="Sideways")
    yield "delete with two policies", "DELETE", "/thing", options(propagationPolicy="Orphan", orphanDependents=True)
    yield "delete with a bad grace period", "DELETE", "/thing", options(gracePeriodSeconds="x")
    yield "delete with options of another kind", "DELETE", "/thing", {"kind": "Gadget", "apiVersion": "v1"}
    yield "delete in a dry run", "DELETE", "/thing?dryRun=All", None
    yield "delete in an unknown dry run", "DELETE", "/thing?dryRun=Some", None
    yield (
        "delete with its uid",
        "DELETE",
        "/thing",
        options(preconditions={"uid": "{uid}", "resourceVersion": "{version}"}),
    )
    yield "delete again", "DELETE", "/thing", None
    yield "delete of a collection by label", "DELETE", "?labelSelector=no%3Done", None
    yield "delete of a collection by a bad label", "DELETE", "?labelSelector=a%3D%3D%3Db", None
