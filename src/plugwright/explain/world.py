"""The cluster as values: the facts that `why`, `fit` and `lint` know, and those that they could not see."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from msgspec import Struct

from plugwright.explain.pool_counts import PoolCount
from plugwright.grammars import CLASS_PREFIX

__all__ = [
    "FINISHED",
    "ApiObject",
    "ClaimOrigin",
    "ObjectId",
    "World",
    "allocation_of",
    "claim_entries",
    "event_time",
    "identity",
    "is_device_resource",
    "is_finished",
    "priority_of",
    "unusable_claim",
    "with_taint_rules",
]

ApiObject = Mapping[str, Any]
ObjectId = tuple[str, str]  # namespace and name

FINISHED = ("Succeeded", "Failed")
_NATIVE = ("kubernetes.io/", "requests.kubernetes.io/")


class World(Struct, frozen=True):
    """Objects of one cluster, as in the API server. `unseen` lists missing ones, with reasons."""

    nodes: tuple[ApiObject, ...] = ()
    pods: tuple[ApiObject, ...] = ()
    slices: tuple[ApiObject, ...] = ()
    classes: tuple[ApiObject, ...] = ()
    claims: tuple[ApiObject, ...] = ()
    templates: tuple[ApiObject, ...] = ()
    quotas: tuple[ApiObject, ...] = ()
    taint_rules: tuple[ApiObject, ...] = ()
    namespaces: tuple[ApiObject, ...] = ()
    events: tuple[ApiObject, ...] = ()  # of the pod in question
    reports: Mapping[str, ApiObject] = {}  # NodeReports by node
    sources: Mapping[str, str] = {}  # by node: how its NodeReport was read
    pool_counts: tuple[PoolCount, ...] | None = None  # None: not served, not readable, or not needed
    version: str = "1.37"
    unseen: tuple[str, ...] = ()
    hidden: frozenset[str] = (
        frozenset()
    )  # fields whose objects cannot all be listed; `own claims`: nor those of the namespace

    def find(self, kind: str, namespace: str, name: str) -> ApiObject | None:
        """An object of one of the fields, such as `claims`."""
        wanted = namespace, name
        return next((entry for entry in getattr(self, kind) if identity(entry) == wanted), None)


class ClaimOrigin(Struct, frozen=True):
    """A claim of a pod and the object that a user edits to change it.

    `claim` is None if neither the claim nor its template exists. `exists` is false while only the template exists.
    """

    entry: str  # name in the pod's `resourceClaims`
    kind: str  # ResourceClaim or ResourceClaimTemplate
    namespace: str
    name: str
    claim: ApiObject | None = None
    exists: bool = False

    @property
    def prefix(self) -> tuple[str, ...]:
        """The path of the claim's spec in the object."""
        return ("spec", "spec") if self.kind == "ResourceClaimTemplate" else ("spec",)


def identity(entry: ApiObject) -> ObjectId:
    metadata = entry.get("metadata") or {}
    return str(metadata.get("namespace") or ""), str(metadata.get("name") or "")


def is_finished(pod: ApiObject) -> bool:
    return (pod.get("status") or {}).get("phase") in FINISHED


def priority_of(pod: ApiObject) -> int:
    return int((pod.get("spec") or {}).get("priority") or 0)


def allocation_of(claim: ApiObject) -> ApiObject | None:
    return (claim.get("status") or {}).get("allocation") or None


def event_time(event: ApiObject) -> str:
    """When an event was last seen; all in one format, so that they compare as times."""
    series = (event.get("series") or {}).get("lastObservedTime")
    created = (event.get("metadata") or {}).get("creationTimestamp")
    return str(series or event.get("lastTimestamp") or event.get("eventTime") or created or "")[:19]


def is_device_resource(name: str) -> bool:
    """Whether a resource name is an extended resource, which device plugins and DRA drivers offer."""
    return name.startswith(CLASS_PREFIX) or ("/" in name and not any(domain in name for domain in _NATIVE))


def claim_entries(world: World, pod: ApiObject) -> Iterator[ClaimOrigin]:
    """The claims of a pod: existing ones, and those that would be generated from templates."""
    namespace = identity(pod)[0]
    statuses = (pod.get("status") or {}).get("resourceClaimStatuses") or ()
    generated = {entry["name"]: entry.get("resourceClaimName") for entry in statuses}
    for entry in (pod.get("spec") or {}).get("resourceClaims") or ():
        name = entry["name"]
        if entry.get("resourceClaimName"):
            found = world.find("claims", namespace, entry["resourceClaimName"])
            yield ClaimOrigin(
                name, "ResourceClaim", namespace, entry["resourceClaimName"], found, exists=found is not None
            )
            continue
        if name in generated and not generated[name]:
            continue  # the controller decided that no claim is needed
        template_name = str(entry.get("resourceClaimTemplateName") or "")
        found = world.find("claims", namespace, generated.get(name) or "") if generated.get(name) else None
        if found is not None:
            yield ClaimOrigin(name, "ResourceClaimTemplate", namespace, template_name, found, exists=True)
            continue
        template = world.find("templates", namespace, template_name)
        claim = None if template is None else _from_template(template, namespace, f"{identity(pod)[1]}-{name}")
        yield ClaimOrigin(name, "ResourceClaimTemplate", namespace, template_name, claim)


def unusable_claim(pod: ApiObject, source: ClaimOrigin) -> str:
    """Why the scheduler does not use a claim that exists; empty if it does."""
    if source.claim is None or not source.exists:
        return ""
    metadata, name = source.claim["metadata"], identity(source.claim)[1]
    if metadata.get("deletionTimestamp"):
        return f"ResourceClaim {name} is being deleted"
    owners = [owner.get("uid") for owner in metadata.get("ownerReferences") or ()]
    if source.kind == "ResourceClaimTemplate" and (pod.get("metadata") or {}).get("uid") not in owners:
        return f"ResourceClaim {name} of the pod's {source.entry} was not created for this pod"
    return ""


def _from_template(template: ApiObject, namespace: str, name: str) -> ApiObject:
    spec = (template.get("spec") or {}).get("spec") or {}
    return {"metadata": {"namespace": namespace, "name": name}, "spec": spec}


def with_taint_rules(slices: Iterable[ApiObject], rules: Iterable[ApiObject]) -> list[ApiObject]:
    """Slices with the taints added by DeviceTaintRules."""
    rules = tuple(rules)
    if not rules:
        return list(slices)
    # Commands that show devices load the allocator only in clusters that have such rules.
    from plugwright.allocator import with_rule_taints

    return [with_rule_taints(published, rules) for published in slices]
