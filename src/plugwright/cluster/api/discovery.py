"""What is served, as clients find it out. Pure."""

from plugwright.cluster.api import reviews
from plugwright.cluster.api.kinds import KINDS, Kind
from plugwright.cluster.store import Object

__all__ = ["documents", "version"]

_VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")
_SUBRESOURCE_VERBS = {"status": ("get", "patch", "update"), "log": ("get",)}
_SUBRESOURCE_KINDS = {"binding": "Binding", "eviction": "Eviction"}


def documents(release: str) -> dict[str, Object]:
    """By path: every document of discovery."""
    groups = sorted({*(kind.group for kind in KINDS), *reviews.GROUPS} - {""})
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
        for plural, kind in reviews.GROUPS[group]
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
