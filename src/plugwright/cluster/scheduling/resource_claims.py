"""The ResourceClaims of pods: generated from templates, waited for until allocated, reserved, and released.

This is the work of the controller manager and of the scheduler but for one thing: nothing here allocates, since that
takes the real scheduler's CEL and counters. A test, or a person with kubectl, writes the allocation instead.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from plugwright.allocator.node_selector import NodeSelectorTerm
from plugwright.apiserver.kinds import PODS, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS
from plugwright.apiserver.registry import DeleteOptions, ResourcePath
from plugwright.apiserver.store import Object, ObjectKey
from plugwright.cluster.events import ClusterClient
from plugwright.errors import NotFound

__all__ = ["ClaimController", "ClaimPlacement"]

_MANAGER = "kube-controller-manager"
_SCHEDULER = "kube-scheduler"
_POD_CLAIM = "resource.kubernetes.io/pod-claim-name"
_UNALLOCATED = (
    "cannot allocate all claims: {} is not allocated, and plugwright allocates none: write its status.allocation, or "
    "use a real cluster"
)


@dataclass(frozen=True, slots=True)
class ClaimPlacement:
    """Where a pod's claims let it run: `problem` says why nowhere yet, `terms` must each match the node."""

    problem: str = ""
    terms: tuple[tuple[NodeSelectorTerm, ...], ...] = ()

    def allows(self, name: str, labels: Mapping[str, str]) -> bool:
        return all(any(term.matches(name, labels) for term in terms) for terms in self.terms)


class ClaimController:
    """One for the cluster."""

    def __init__(self, client: ClusterClient) -> None:
        self._client = client

    def placement(self, pod: Object) -> ClaimPlacement:
        """Generates the claims that the pod still lacks, and says where it may run."""
        terms = []
        try:
            pod = self._generated(pod)
        except NotFound as error:  # its template
            return ClaimPlacement(str(error))
        for name in self._names(pod):
            claim = self._client.store.get(_key(pod["metadata"]["namespace"], name))
            if claim is None:
                return ClaimPlacement(f'resourceclaim "{name}" not found')
            allocation = (claim.get("status") or {}).get("allocation")
            if allocation is None:
                return ClaimPlacement(_UNALLOCATED.format(f"resourceclaim {name}"))
            if selector := allocation.get("nodeSelector"):
                terms.append(tuple(map(NodeSelectorTerm.of, selector.get("nodeSelectorTerms") or ())))
        return ClaimPlacement(terms=tuple(terms))

    def reserve(self, pod: Object) -> None:
        """Writes the pod into `reservedFor` of its claims, as the scheduler does before it binds."""
        metadata = pod["metadata"]
        consumer = {"resource": "pods", "name": metadata["name"], "uid": metadata["uid"]}

        def reserved(claim: Object) -> Object:
            status = claim["status"]
            others = [other for other in status.get("reservedFor") or [] if other["uid"] != consumer["uid"]]
            return {**claim, "status": {**status, "reservedFor": [*others, consumer]}}

        stored = self._client.store.require(ObjectKey(PODS.qualified, metadata["namespace"], metadata["name"]))
        for name in self._names(stored):
            self._change(metadata["namespace"], name, reserved)

    def release(self, pod: Object) -> None:
        """After the pod: its reservations go, the claims generated for it too, and unused ones are deallocated."""
        uid, namespace = pod["metadata"]["uid"], pod["metadata"]["namespace"]

        def released(claim: Object) -> Object:
            status = dict(claim.get("status") or {})
            left = [other for other in status.pop("reservedFor", None) or [] if other["uid"] != uid]
            if not left:
                status.pop("allocation", None)
            return {**claim, "status": status | ({"reservedFor": left} if left else {})}

        for name in self._names(pod):
            claim = self._client.store.get(_key(namespace, name))
            if claim is None:
                continue
            if any(owner["uid"] == uid for owner in claim["metadata"].get("ownerReferences") or ()):
                self._client.writer.delete(ResourcePath(RESOURCE_CLAIMS, namespace, name), DeleteOptions())
            elif any(other["uid"] == uid for other in (claim.get("status") or {}).get("reservedFor") or ()):
                self._change(namespace, name, released)

    def _generated(self, pod: Object) -> Object:
        """The pod with the names of its generated claims in its status."""
        known = {entry["name"]: entry for entry in (pod.get("status") or {}).get("resourceClaimStatuses") or ()}
        missing = [
            entry
            for entry in pod["spec"].get("resourceClaims") or ()
            if entry.get("resourceClaimTemplateName") and entry["name"] not in known
        ]
        if not missing:
            return pod
        for entry in missing:
            known[entry["name"]] = {"name": entry["name"], "resourceClaimName": self._generate(pod, entry)}
        statuses = [known[name] for name in sorted(known)]
        metadata = pod["metadata"]

        def with_statuses(stored: Object) -> Object:
            return {**stored, "status": {**(stored.get("status") or {}), "resourceClaimStatuses": statuses}}

        path = ResourcePath(PODS, metadata["namespace"], metadata["name"], "status")
        return self._client.writer.change(path, with_statuses, _MANAGER)

    def _generate(self, pod: Object, entry: Object) -> str:
        metadata = pod["metadata"]
        template = self._client.store.require(
            ObjectKey(RESOURCE_CLAIM_TEMPLATES.qualified, metadata["namespace"], entry["resourceClaimTemplateName"])
        )
        owner = {"apiVersion": "v1", "kind": "Pod", "name": metadata["name"], "uid": metadata["uid"]}
        claim = {
            "metadata": {
                **(template["spec"].get("metadata") or {}),
                "generateName": f"{metadata['name']}-{entry['name']}-",
                "annotations": {_POD_CLAIM: entry["name"]},
                "ownerReferences": [{**owner, "controller": True, "blockOwnerDeletion": True}],
            },
            "spec": template["spec"]["spec"],
        }
        created = self._client.writer.create(ResourcePath(RESOURCE_CLAIMS, metadata["namespace"]), claim, _MANAGER)
        return str(created["metadata"]["name"])

    @staticmethod
    def _names(pod: Object) -> Iterator[str]:
        """Of the pod's claims; a claim that a template does not lead to has none yet."""
        generated = {
            entry["name"]: entry.get("resourceClaimName", "")
            for entry in (pod.get("status") or {}).get("resourceClaimStatuses") or ()
        }
        for entry in pod["spec"].get("resourceClaims") or ():
            name = entry.get("resourceClaimName") or generated.get(entry["name"])
            if name:
                yield name

    def _change(self, namespace: str, name: str, change: Callable[[Object], Object]) -> None:
        self._client.writer.change(ResourcePath(RESOURCE_CLAIMS, namespace, name, "status"), change, _SCHEDULER)


def _key(namespace: str, name: str) -> ObjectKey:
    return ObjectKey(RESOURCE_CLAIMS.qualified, namespace, name)
