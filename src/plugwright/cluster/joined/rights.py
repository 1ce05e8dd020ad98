"""The rights of joined nodes on another API server: printed as rules, and checked before any write."""

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from plugwright.apiserver.store import Object
from plugwright.errors import ClusterError, PeerRefused
from plugwright.kube.api_client import ApiClient

__all__ = ["CLIENT_AUTHORITY", "Right", "check", "manifests", "needed"]

_ROLE = "plugwright-join"
_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
_LEASES_NAMESPACE = "kube-node-lease"
CLIENT_AUTHORITY = ("kube-system", "extension-apiserver-authentication")  # the ConfigMap with the authority of clients


@dataclass(frozen=True, slots=True)
class Right:
    """Verbs on a resource: by default in every namespace and for every object."""

    verbs: tuple[str, ...]
    resource: str  # including its subresource: nodes/status
    group: str = ""
    namespace: str = ""
    names: tuple[str, ...] = ()

    @property
    def rule(self) -> Object:
        rule: Object = {"apiGroups": [self.group], "resources": [self.resource], "verbs": list(self.verbs)}
        return rule | ({"resourceNames": list(self.names)} if self.names else {})

    def reviews(self) -> Iterator[Object]:
        """The reviews to request: one verb each, for the first of the named objects."""
        resource, _, subresource = self.resource.partition("/")
        for verb in self.verbs:
            attributes = {
                "verb": verb,
                "group": self.group,
                "resource": resource,
                "subresource": subresource,
                "namespace": self.namespace,
                "name": self.names[0] if self.names else "",
            }
            yield {name: value for name, value in attributes.items() if value}

    def described(self, verb: str) -> str:
        qualified = f"{self.resource}.{self.group}" if self.group else self.resource
        return f"{verb} {qualified}{' in ' + self.namespace if self.namespace else ''}"


def needed(nodes: Sequence[str], *, drivers: bool = False, processes: bool = False) -> tuple[Right, ...]:
    """The rights for nodes with these names.

    With `drivers` also to publish the ResourceSlices of resources served by claims, with `processes` to read the
    objects to which the environment and volumes of pods refer.
    """
    names, dra = tuple(nodes), "resource.k8s.io"
    slices = ("create", "delete", "list", "update", "watch") if drivers else ("delete", "list")
    of_drivers = (
        Right(("list",), "resourceclaims", dra),
        Right(("patch",), "resourceclaims/status", dra),
        Right(("arbitrary-node:patch",), "resourceclaims/driver", dra),  # status.devices of claims, from 1.36 on
    )
    return (
        Right(("create", "list", "watch"), "nodes"),
        Right(("delete", "get"), "nodes", names=names),
        Right(("patch",), "nodes/status", names=names),
        Right(("delete", "list", "watch"), "pods"),
        Right(("patch",), "pods/status"),
        Right(("create", "patch"), "events"),
        Right(("get",), "resourceclaims", dra),
        Right(slices, "resourceslices", dra),
        *(of_drivers if drivers else ()),
        *((Right(("get",), "configmaps"), Right(("get",), "secrets")) if processes else ()),
        Right(("create",), "tokenreviews", "authentication.k8s.io"),
        Right(("create",), "subjectaccessreviews", "authorization.k8s.io"),
        Right(("create",), "leases", "coordination.k8s.io", _LEASES_NAMESPACE),
        Right(("delete", "get", "patch"), "leases", "coordination.k8s.io", _LEASES_NAMESPACE, names),
        Right(("get",), "configmaps", "", CLIENT_AUTHORITY[0], (CLIENT_AUTHORITY[1],)),
    )


async def check(api: ApiClient, rights: Iterable[Right]) -> None:
    """Raises an error about the first missing right, in the words of an administrator."""
    wanted = [(right, attributes) for right in rights for attributes in right.reviews()]
    allowed = await asyncio.gather(*(_is_allowed(api, attributes) for _, attributes in wanted))
    missing = [
        right.described(attributes["verb"]) for (right, attributes), ok in zip(wanted, allowed, strict=True) if not ok
    ]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise ClusterError(
            f"not allowed to {missing[0]}{more}: `plugwright join --print-rbac` prints the rights that are needed"
        )


async def _is_allowed(api: ApiClient, attributes: Object) -> bool:
    body = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes},
    }
    try:
        answer = await api.create(_REVIEWS, body)
    except PeerRefused as error:
        raise ClusterError(f"cannot ask for our own rights: {error}") from error
    return bool((answer.get("status") or {}).get("allowed"))


def manifests(rights: Sequence[Right], subject: Object) -> list[Object]:
    """A ClusterRole, a Role for each namespace, and their bindings to the subject."""
    documents = [_role(rights, ""), _binding(subject, "")]
    for namespace in sorted({right.namespace for right in rights if right.namespace}):
        documents += [_role(rights, namespace), _binding(subject, namespace)]
    return documents


def _role(rights: Sequence[Right], namespace: str) -> Object:
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role" if namespace else "ClusterRole",
        "metadata": {"name": _ROLE} | ({"namespace": namespace} if namespace else {}),
        "rules": [right.rule for right in rights if right.namespace == namespace],
    }


def _binding(subject: Object, namespace: str) -> Object:
    kind = "Role" if namespace else "ClusterRole"
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": f"{kind}Binding",
        "metadata": {"name": _ROLE} | ({"namespace": namespace} if namespace else {}),
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": _ROLE},
        "subjects": [subject],
    }
