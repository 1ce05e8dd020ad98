"""The answer about one claim: its devices, or why the pod that uses it waits."""

from msgspec.structs import replace

from plugwright.explain.counterfactual import Situation
from plugwright.explain.explanation import Explanation, explain_pod, explain_situation
from plugwright.explain.oracle import Oracle
from plugwright.explain.world import ApiObject, ClaimOrigin, ObjectId, World, allocation_of, identity, is_finished

__all__ = ["explain_claim"]

_MOST_NAMED = 8


def explain_claim(world: World, claim: ApiObject) -> Explanation:
    """Explains a claim; for an unallocated one, the first waiting pod that uses it."""
    namespace, name = identity(claim)
    if allocation_of(claim):
        return _allocated(world, claim)
    waiting = [pod for pod in world.pods if identity(claim) in _claims_of(pod) and not is_finished(pod)]
    if waiting:
        return replace(explain_pod(world, waiting[0]), claim=name)
    metadata = {"namespace": namespace, "name": f"user-of-{name}"[:63]}
    spec = {"containers": [{"name": "main"}], "resourceClaims": [{"name": "claim", "resourceClaimName": name}]}
    origin = ClaimOrigin("claim", "ResourceClaim", namespace, name, claim, exists=True)
    found = explain_situation(Oracle(world), Situation({"metadata": metadata, "spec": spec, "status": {}}, (origin,)))
    answer = found.answer.removeprefix("waits: ").replace("can take it", "has its devices")
    checks = (f"kubectl -n {namespace} get resourceclaim {name} -o yaml",)
    answer = f"waits: no pod uses it; if one did: {answer}"
    return replace(found, state="waits", claim=name, pod="", answer=answer, checks=checks, reason="Unused")


def _allocated(world: World, claim: ApiObject) -> Explanation:
    namespace, name = identity(claim)
    results = ((allocation_of(claim) or {}).get("devices") or {}).get("results") or ()
    devices = [f"{entry['driver']}/{entry['pool']}/{entry['device']}" for entry in results]
    more = f" and {len(devices) - _MOST_NAMED} more" if len(devices) > _MOST_NAMED else ""
    has = f"has {', '.join(devices[:_MOST_NAMED])}{more}"
    users = [str(user.get("name")) for user in (claim.get("status") or {}).get("reservedFor") or ()]
    known = {identity(pod): pod for pod in world.pods}
    left = [user for user in users if (namespace, user) not in known or is_finished(known[namespace, user])]
    if users:
        text = f"{has}, reserved for {', '.join(users[:_MOST_NAMED])}"
        text += f"; {', '.join(left[:_MOST_NAMED])} has ended and still reserves it" if left else ""
    else:
        text = f"{has}, and no pod uses it: the devices are free when the claim is deleted"
    check = f"kubectl -n {namespace} get resourceclaim {name} -o yaml"
    return Explanation(
        namespace=namespace, pod="", claim=name, state="runs", reason="Allocated", answer=text, checks=(check,),
        unseen=world.unseen,
    )  # fmt: skip


def _claims_of(pod: ApiObject) -> set[ObjectId]:
    namespace = identity(pod)[0]
    entries = (pod.get("spec") or {}).get("resourceClaims") or ()
    statuses = (pod.get("status") or {}).get("resourceClaimStatuses") or ()
    named = (str(entry.get("resourceClaimName") or "") for entry in (*entries, *statuses))
    return {(namespace, name) for name in named if name}
