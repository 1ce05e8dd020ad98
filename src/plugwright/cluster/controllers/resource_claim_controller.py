"""The resource claim controller: generates claims from templates, and cleans up after ended pods.

As in kube-controller-manager: a pod loses its reservations when it has ended, or is deleted before it was scheduled; a
claim without reservations is deallocated, and deleted if it was generated for the pod. A pod bound without the
scheduler gets its reservations here.
"""

from collections.abc import Callable
from datetime import datetime

from plugwright.apiserver.kinds import PODS, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS
from plugwright.apiserver.registry import DeleteOptions, ResourcePath
from plugwright.apiserver.store import Change, Object, ObjectKey
from plugwright.cluster.events import ClusterClient, EventRecord, EventRecorder, EventSource
from plugwright.cluster.scheduling.allocated_devices import claim_names, is_reserved_for
from plugwright.cluster.scheduling.claim_filter import FINALIZER
from plugwright.errors import NotFound, StatusError

__all__ = ["ResourceClaimController"]

_MANAGER = "kube-controller-manager"
_POD_CLAIM = "resource.kubernetes.io/pod-claim-name"
_FINISHED = ("Succeeded", "Failed")
_MOST_CONSUMERS = 256
_LONGEST_BASE = 57  # leaves room for a hyphen and five random characters in 63


class ResourceClaimController:
    def __init__(self, client: ClusterClient) -> None:
        self._client = client
        self._recorder = EventRecorder(client, EventSource("resource_claim", manager=_MANAGER))
        # Pods by their claims, and by the templates for which they wait.
        self._users: dict[ObjectKey, set[ObjectKey]] = {}

    def resync(self) -> None:
        self._users.clear()
        for pod in self._client.store.objects(PODS.qualified):
            self._pod_changed(_key(PODS.qualified, pod), pod)
        for claim in self._client.store.objects(RESOURCE_CLAIMS.qualified):
            self._sync_claim(_key(RESOURCE_CLAIMS.qualified, claim))

    def handle(self, change: Change) -> None:
        if change.key.kind == PODS.qualified:
            pod = change.object
            if change.type == "DELETED":
                self._pod_ended(change.key, pod)
            elif pod["spec"].get("resourceClaims") or _extended_claim(pod):
                self._pod_changed(change.key, pod)
        elif change.key.kind == RESOURCE_CLAIMS.qualified and change.type != "DELETED":
            self._sync_claim(change.key)
            self._sync_users(change.key)
        elif change.key.kind == RESOURCE_CLAIM_TEMPLATES.qualified and change.type != "DELETED":
            self._sync_users(change.key)

    def next_due(self) -> datetime | None:
        return None

    def run_due(self) -> None:
        """Does nothing: nothing here waits for a time."""

    def _sync_users(self, key: ObjectKey) -> None:
        for user in sorted(self._users.get(key, ())):
            if (pod := self._client.store.get(user)) is not None:
                self._pod_changed(user, pod)

    def _pod_changed(self, key: ObjectKey, pod: Object) -> None:
        if _is_done(pod):
            self._pod_ended(key, pod)
        elif not pod["metadata"].get("deletionTimestamp"):
            self._generate_claims(key, pod)
        if pod["spec"].get("nodeName") and not _is_done(pod):
            self._reserve_claims(key, pod)

    def _pod_ended(self, key: ObjectKey, pod: Object) -> None:
        for used in self._claims_of(key, pod):
            if key in (users := self._users.get(used, set())):
                users.remove(key)
            self._sync_claim(used)

    def _claims_of(self, key: ObjectKey, pod: Object) -> list[ObjectKey]:
        names = [name for _, name in claim_names(pod) if name]
        return [ObjectKey(RESOURCE_CLAIMS.qualified, key.namespace, name) for name in [*names, *_extended_claim(pod)]]

    def _generate_claims(self, key: ObjectKey, pod: Object) -> None:
        """Creates the pod's missing claims, and writes their names into its status."""
        statuses = {entry["name"]: entry for entry in (pod.get("status") or {}).get("resourceClaimStatuses") or ()}
        generated: dict[str, str] = {}
        for entry, name in claim_names(pod):
            template = entry.get("resourceClaimTemplateName")
            kind = RESOURCE_CLAIM_TEMPLATES if template and not name else RESOURCE_CLAIMS
            self._users.setdefault(ObjectKey(kind.qualified, key.namespace, name or template or ""), set()).add(key)
            if template and (not name or not self._exists(key.namespace, name)):
                try:
                    generated[entry["name"]] = self._generate(pod, entry)
                except (NotFound, StatusError) as error:
                    text = f"PodResourceClaim {entry['name']}: {error}"
                    self._recorder.record(pod, EventRecord("FailedResourceClaimCreation", text, "Warning"))
        if not generated:
            return
        statuses |= {name: {"name": name, "resourceClaimName": claim} for name, claim in generated.items()}
        for claim in generated.values():
            self._users.setdefault(ObjectKey(RESOURCE_CLAIMS.qualified, key.namespace, claim), set()).add(key)

        def with_statuses(stored: Object) -> Object:
            listed = [statuses[name] for name in sorted(statuses)]
            return {**stored, "status": {**(stored.get("status") or {}), "resourceClaimStatuses": listed}}

        self._client.writer.change(ResourcePath(PODS, key.namespace, key.name, "status"), with_statuses, _MANAGER)

    def _generate(self, pod: Object, entry: Object) -> str:
        """The name of the new claim, or of one created before the pod's status could be written."""
        metadata = pod["metadata"]
        for user in self._client.store.objects(RESOURCE_CLAIMS.qualified) if self._may_exist(pod) else ():
            known = user["metadata"]
            if _is_owned(user, metadata["uid"]) and (known.get("annotations") or {}).get(_POD_CLAIM) == entry["name"]:
                return str(known["name"])
        name = entry["resourceClaimTemplateName"]
        template = self._client.store.get(ObjectKey(RESOURCE_CLAIM_TEMPLATES.qualified, metadata["namespace"], name))
        if template is None:
            missing = f'resourceclaimtemplate.resource.k8s.io "{name}" not found'
            raise StatusError(404, "NotFound", f'resource claim template "{name}": {missing}')
        template_metadata = template["spec"].get("metadata") or {}
        owner = {"apiVersion": "v1", "kind": "Pod", "name": metadata["name"], "uid": metadata["uid"]}
        claim = {
            "metadata": {
                "labels": template_metadata.get("labels") or {},
                "generateName": _base_name(metadata["name"], entry["name"]),
                "annotations": {**(template_metadata.get("annotations") or {}), _POD_CLAIM: entry["name"]},
                "ownerReferences": [{**owner, "controller": True}],
            },
            "spec": template["spec"]["spec"],
        }
        created = self._client.writer.create(ResourcePath(RESOURCE_CLAIMS, metadata["namespace"]), claim, _MANAGER)
        return str(created["metadata"]["name"])

    def _may_exist(self, pod: Object) -> bool:
        """Whether the pod is older than this process: its claim can exist without its name in the status."""
        return bool((pod.get("status") or {}).get("conditions"))

    def _exists(self, namespace: str, name: str) -> bool:
        return ObjectKey(RESOURCE_CLAIMS.qualified, namespace, name) in self._client.store

    def _reserve_claims(self, key: ObjectKey, pod: Object) -> None:
        """Reserves claims for a pod bound without the scheduler, which reserves the claims of all others."""
        consumer = {"resource": "pods", "name": key.name, "uid": pod["metadata"]["uid"]}
        for used in self._claims_of(key, pod):
            claim = self._client.store.get(used)
            status = (claim or {}).get("status") or {}
            if claim is None or not status.get("allocation") or is_reserved_for(claim, pod):
                continue
            if len(status.get("reservedFor") or ()) < _MOST_CONSUMERS:
                self._change_status(
                    used, lambda old: {**old, "reservedFor": [*(old.get("reservedFor") or ()), consumer]}
                )

    def _sync_claim(self, key: ObjectKey) -> None:
        """Removes the reservations of ended pods; without any, deallocates the claim and deletes a generated claim."""
        claim = self._client.store.get(key)
        if claim is None:
            return
        status, metadata = claim.get("status") or {}, claim["metadata"]
        consumers = status.get("reservedFor") or []
        valid = [consumer for consumer in consumers if self._is_used_by(key.namespace, consumer)]
        is_protected = FINALIZER in (metadata.get("finalizers") or ())
        if len(valid) < len(consumers) or (not valid and metadata.get("deletionTimestamp") and is_protected):
            self._release(key, valid, is_protected)
        if not valid and not metadata.get("deletionTimestamp") and self._owner_is_done(key, claim):
            self._client.writer.delete(ResourcePath(RESOURCE_CLAIMS, key.namespace, key.name), DeleteOptions())

    def _release(self, key: ObjectKey, valid: list[Object], is_protected: bool) -> None:
        def released(status: Object) -> Object:
            kept = {name: value for name, value in status.items() if name != "reservedFor"}
            if not valid and is_protected:
                return {name: value for name, value in kept.items() if name not in ("allocation", "devices")}
            return {**kept, **({"reservedFor": valid} if valid else {})}

        def unprotected(claim: Object) -> Object:
            left = [name for name in claim["metadata"].get("finalizers") or () if name != FINALIZER]
            return {**claim, "metadata": {**claim["metadata"], "finalizers": left}}

        self._change_status(key, released)
        if not valid and is_protected:
            self._client.writer.change(ResourcePath(RESOURCE_CLAIMS, key.namespace, key.name), unprotected, _MANAGER)

    def _is_used_by(self, namespace: str, consumer: Object) -> bool:
        if consumer.get("resource") != "pods" or consumer.get("apiGroup"):
            return True  # only its own controller knows
        pod = self._client.store.get(ObjectKey(PODS.qualified, namespace, consumer["name"]))
        return pod is not None and pod["metadata"]["uid"] == consumer["uid"] and not _is_done(pod)

    def _owner_is_done(self, key: ObjectKey, claim: Object) -> bool:
        """Whether the claim was generated for an ended pod."""
        owners = [owner for owner in claim["metadata"].get("ownerReferences") or () if owner.get("controller")]
        owner = next((owner for owner in owners if (owner["apiVersion"], owner["kind"]) == ("v1", "Pod")), None)
        if owner is None:
            return False
        pod = self._client.store.get(ObjectKey(PODS.qualified, key.namespace, owner["name"]))
        return pod is None or pod["metadata"]["uid"] != owner["uid"] or _is_done(pod)

    def _change_status(self, key: ObjectKey, change: Callable[[Object], Object]) -> None:
        path = ResourcePath(RESOURCE_CLAIMS, key.namespace, key.name, "status")

        def changed(claim: Object) -> Object:
            return {**claim, "status": change(claim.get("status") or {})}

        self._client.writer.change(path, changed, _MANAGER)


def _key(kind: str, content: Object) -> ObjectKey:
    return ObjectKey(kind, content["metadata"]["namespace"], content["metadata"]["name"])


def _base_name(pod: str, claim: str) -> str:
    """The prefix of a generated name. Parts of a long name are shortened in proportion, as by Kubernetes."""
    name = f"{pod}-{claim}-"
    if len(name) <= _LONGEST_BASE:
        return name
    return f"{pod[: len(pod) * _LONGEST_BASE // len(name)]}-{claim[: len(claim) * _LONGEST_BASE // len(name)]}"


def _extended_claim(pod: Object) -> list[str]:
    """The claim of a pod's extended resources, created by the scheduler."""
    status = (pod.get("status") or {}).get("extendedResourceClaimStatus") or {}
    return [status["resourceClaimName"]] if status.get("resourceClaimName") else []


def _is_done(pod: Object) -> bool:
    is_unscheduled = bool(pod["metadata"].get("deletionTimestamp")) and not pod["spec"].get("nodeName")
    return is_unscheduled or (pod.get("status") or {}).get("phase") in _FINISHED


def _is_owned(claim: Object, uid: str) -> bool:
    return any(owner["uid"] == uid for owner in claim["metadata"].get("ownerReferences") or ())
