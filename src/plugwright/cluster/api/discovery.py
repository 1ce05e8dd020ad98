"""What is served, as clients find it out. Pure.

Who am I, and what may I do: questions that are asked by creating an object, and answered in it.

There is one user, whoever holds the token, and it may do everything.
"""

from starlette.requests import Request
from starlette.responses import Response

from plugwright.cluster.api import requests, responses
from plugwright.cluster.api.errors import bad_request
from plugwright.cluster.api.kinds import KINDS, Kind
from plugwright.cluster.store import Object

__all__ = ["GROUPS", "PATHS", "documents", "review", "version"]

_USER = {"username": "plugwright", "groups": ["system:masters", "system:authenticated"]}
_ACCESS = ("authorization.k8s.io", "selfsubjectaccessreviews", "SelfSubjectAccessReview")
_SELF = ("authentication.k8s.io", "selfsubjectreviews", "SelfSubjectReview")
_RULES = ("authorization.k8s.io", "selfsubjectrulesreviews", "SelfSubjectRulesReview")
_ALL = (_SELF, _ACCESS, _RULES)
GROUPS = {group: [(plural, kind) for of, plural, kind in _ALL if of == group] for group, _, _ in _ALL}
PATHS = {f"/apis/{group}/v1/{plural}": kind for group, plural, kind in _ALL}
_EVERYTHING = {
    "resourceRules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}],
    "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}],
    "incomplete": False,
}
_ANSWERS: dict[str, Object] = {_SELF[2]: {"userInfo": _USER}, _ACCESS[2]: {"allowed": True}, _RULES[2]: _EVERYTHING}


async def review(request: Request, path: str) -> Response:
    if request.method != "POST":
        raise requests.not_allowed()
    asked, kind = await requests.received(request), PATHS[path]
    if not isinstance(asked, dict) or asked.get("kind", kind) != kind:
        raise bad_request(f"the body is no {kind}")
    group = path.split("/")[2]
    spec = asked.get("spec", {})
    if not isinstance(spec, dict):
        raise bad_request(f"{kind} has a spec")
    return responses.json(
        {"kind": kind, "apiVersion": f"{group}/v1", "metadata": {}, "spec": spec, "status": _ANSWERS[kind]}, 201
    )


_VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")
_SUBRESOURCE_VERBS = {"status": ("get", "patch", "update"), "log": ("get",)}
_SUBRESOURCE_KINDS = {"binding": "Binding", "eviction": "Eviction"}


def documents(release: str) -> dict[str, Object]:
    """By path: every document of discovery."""
    groups = sorted({*(kind.group for kind in KINDS), *GROUPS} - {""})
    found: dict[str, Object] = {
        "/api": {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []},
        "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": [_group(group) for group in groups]},
        "/api/v1": _resources("v1", [kind for kind in KINDS if not kind.group]),
        "/version": version(release),
    }
    for group in groups:
        found[f"/apis/{group}"] = {"kind": "APIGroup", "apiVersion": "v1", **_group(group)}
        kinds = [kind for kind in KINDS if kind.group == group]
        found[f"/apis/{group}/v1"] = _resources(f"{group}/v1", kinds) if kinds else _review(group)
    return found


def version(release: str) -> Object:
    major, minor = release.split(".")[:2]
    return {
        "major": major,
        "minor": minor,
        "gitVersion": f"v{release}+plugwright",
        "gitCommit": "",
        "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "",
        "compiler": "",
        "platform": "linux/amd64",
    }


def _group(group: str) -> Object:
    named = {"groupVersion": f"{group}/v1", "version": "v1"}
    return {"name": group, "versions": [named], "preferredVersion": named}


def _review(group: str) -> Object:
    found = [
        {"name": plural, "singularName": kind.lower(), "namespaced": False, "kind": kind, "verbs": ["create"]}
        for plural, kind in GROUPS[group]
    ]
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": f"{group}/v1", "resources": found}


def _resources(group_version: str, kinds: list[Kind]) -> Object:
    found = [each for kind in kinds for each in (_resource(kind), *_subresources(kind))]
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": found}


def _resource(kind: Kind) -> Object:
    return {
        "name": kind.plural,
        "singularName": kind.name.lower(),
        "namespaced": kind.namespaced,
        "kind": kind.name,
        "verbs": list(_VERBS),
        **({"shortNames": list(kind.short)} if kind.short else {}),
        **({"categories": list(kind.categories)} if kind.categories else {}),
    }


def _subresources(kind: Kind) -> list[Object]:
    names = [*(["status"] if kind.status else []), *kind.subresources]
    return [
        {
            "name": f"{kind.plural}/{name}",
            "singularName": "",
            "namespaced": kind.namespaced,
            "kind": _SUBRESOURCE_KINDS.get(name, kind.name),
            "verbs": list(_SUBRESOURCE_VERBS.get(name, ("create",))),
            **({"group": "policy", "version": "v1"} if name == "eviction" else {}),  # or kubectl drain deletes
        }
        for name in sorted(names)
    ]
