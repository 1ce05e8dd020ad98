"""Discovery: the documents that tell clients which kinds are served, and the reviews of their rights.

There is a single user, the holder of the token, with all rights.
"""

from starlette.requests import Request
from starlette.responses import Response

from plugwright.apiserver import requests, responses
from plugwright.apiserver.errors import bad_request, method_not_allowed
from plugwright.apiserver.kinds import KINDS, Kind
from plugwright.apiserver.kinds.not_served import KINDS_NOT_SERVED, KindNotServed
from plugwright.apiserver.store import Object

__all__ = ["REVIEWS", "documents", "review"]

_USER = {"username": "plugwright", "groups": ["system:masters", "system:authenticated"]}
_ALL_RULES = {
    "resourceRules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}],
    "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}],
    "incomplete": False,
}
_REVIEW_STATUS: dict[str, Object] = {
    "SelfSubjectReview": {"userInfo": _USER},
    "SelfSubjectAccessReview": {"allowed": True},
    "SelfSubjectRulesReview": _ALL_RULES,
}
_REVIEW_GROUPS = {
    "authentication.k8s.io": ("SelfSubjectReview",),
    "authorization.k8s.io": ("SelfSubjectAccessReview", "SelfSubjectRulesReview"),
}
REVIEWS = {f"/apis/{group}/v1/{kind.lower()}s": kind for group, kinds in _REVIEW_GROUPS.items() for kind in kinds}
_VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")
_NOT_SERVED_VERBS = ("create", "get")  # not list, so that tools that read all kinds omit these
_CHANGED, _CONNECTED = ("get", "patch", "update"), ("create", "get")
_SUBRESOURCE_VERBS = {
    "attach": _CONNECTED, "exec": _CONNECTED, "log": ("get",), "portforward": _CONNECTED, "scale": _CHANGED,
    "status": _CHANGED,
}  # fmt: skip
_SUBRESOURCE_KINDS = {
    "attach": "PodAttachOptions",
    "binding": "Binding",
    "eviction": "Eviction",
    "exec": "PodExecOptions",
    "portforward": "PodPortForwardOptions",
    "scale": "Scale",
}
# kubectl drain evicts only if the eviction's own group is named, otherwise it deletes.
_SUBRESOURCE_GROUPS = {"eviction": "policy", "scale": "autoscaling"}


async def review(request: Request, path: str) -> Response:
    """The response to a review created at one of the paths of `REVIEWS`."""
    if request.method != "POST":
        raise method_not_allowed()
    content, kind = await requests.read_body(request), REVIEWS[path]
    if not isinstance(content, dict) or content.get("kind", kind) != kind:
        raise bad_request(f"the body must be an object of kind {kind}")
    spec = content.get("spec", {})
    if not isinstance(spec, dict):
        raise bad_request(f"the spec of a {kind} must be an object")
    api_version = path.removeprefix("/apis/").rpartition("/")[0]
    answer = {"kind": kind, "apiVersion": api_version, "metadata": {}, "status": _REVIEW_STATUS[kind]}
    if kind != "SelfSubjectReview":  # which has none
        answer["spec"] = spec
    return responses.encoded(request, answer, 201)


def documents(release: str) -> dict[str, Object]:
    """All documents of discovery, by path."""
    others = {kind.group for kind in KINDS_NOT_SERVED} | _REVIEW_GROUPS.keys()
    groups = sorted(({kind.group for kind in KINDS} | others) - {""})
    by_path: dict[str, Object] = {
        "/api": {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []},
        "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": [_api_group(group) for group in groups]},
        "/api/v1": _api_resource_list("v1", _resources("", release)),
        "/version": _version(release),
    }
    for group in groups:
        by_path[f"/apis/{group}"] = {"kind": "APIGroup", "apiVersion": "v1", **_api_group(group)}
        resources = [*_resources(group, release), *map(_review_resource, _REVIEW_GROUPS.get(group, ()))]
        by_path[f"/apis/{group}/v1"] = _api_resource_list(f"{group}/v1", resources)
    return by_path


def _version(release: str) -> Object:
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


def _api_group(group: str) -> Object:
    version = {"groupVersion": f"{group}/v1", "version": "v1"}
    return {"name": group, "versions": [version], "preferredVersion": version}


def _api_resource_list(group_version: str, resources: list[Object]) -> Object:
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": resources}


def _resources(group: str, release: str) -> list[Object]:
    kinds = (kind for kind in KINDS if kind.group == group and kind.is_served_by(release))
    served = [resource for kind in kinds for resource in (_resource(kind), *_subresources(kind))]
    return [*served, *(_not_served(kind) for kind in KINDS_NOT_SERVED if kind.group == group)]


def _not_served(kind: KindNotServed) -> Object:
    names: Object = {"name": kind.plural, "singularName": kind.name.lower(), "namespaced": kind.namespaced}
    short = {"shortNames": list(kind.short_names)} if kind.short_names else {}
    return {**names, "kind": kind.name, "verbs": list(_NOT_SERVED_VERBS), **short}


def _review_resource(kind: str) -> Object:
    singular = kind.lower()
    return {"name": f"{singular}s", "singularName": singular, "namespaced": False, "kind": kind, "verbs": ["create"]}


def _resource(kind: Kind) -> Object:
    return {
        "name": kind.plural,
        "singularName": kind.name.lower(),
        "namespaced": kind.namespaced,
        "kind": kind.name,
        "verbs": list(_VERBS),
        **({"shortNames": list(kind.short_names)} if kind.short_names else {}),
        **({"categories": list(kind.categories)} if kind.categories else {}),
    }


def _subresources(kind: Kind) -> list[Object]:
    names = [*(["status"] if kind.has_status else []), *kind.subresources]
    return [
        {
            "name": f"{kind.plural}/{name}",
            "singularName": "",
            "namespaced": kind.namespaced,
            "kind": _SUBRESOURCE_KINDS.get(name, kind.name),
            "verbs": list(_SUBRESOURCE_VERBS.get(name, ("create",))),
            **({"group": _SUBRESOURCE_GROUPS[name], "version": "v1"} if name in _SUBRESOURCE_GROUPS else {}),
        }
        for name in sorted(names)
    ]
