"""The answer about one pod: the first line, the evidence, at most three cures, and what could not be seen.

`Explanation` is also the document of `-o json` (docs/explanation.schema.json).
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import Struct

from plugwright.explain import numa
from plugwright.explain.counterfactual import REMOVED, Relaxation, Situation
from plugwright.explain.oracle import DeviceFailure, NodeVerdict, Oracle
from plugwright.explain.search import Cure, Search
from plugwright.explain.world import ApiObject, World, claim_entries, identity, is_finished

__all__ = ["CureReport", "CureStep", "Explanation", "NodeEvidence", "explain_pod"]

API_VERSION = "plugwright.dev/v1alpha1"
_MOST_CURES = 3
_REFUSALS = ("UnexpectedAdmissionError", "TopologyAffinityError")
_EXCLUDED = {
    "SelectorFalse": "excluded by a selector",
    "SelectorError": "on which a selector fails",
    "Tainted": "tainted",
    "AlreadyAllocated": "allocated to other claims",
    "UsedByOtherRequest": "used by another request of the pod",
    "CounterExhausted": "without free shared counters",
    "InsufficientCapacity": "without enough free capacity",
    "ConstraintViolated": "excluded by a constraint",
    "FeatureDisabled": "that need a disabled feature",
    "NodeMismatch": "on other nodes",
}


class CureStep(Struct, frozen=True, rename="camel", omit_defaults=True):
    """One step of a cure. `edit` sets `path` of the object to `value`, or removes it without a value."""

    verb: str  # edit, delete, recover
    kind: str = ""
    namespace: str = ""
    name: str = ""
    path: tuple[str | int, ...] = ()
    value: Any = None
    removes: bool = False


class CureReport(Struct, frozen=True, rename="camel"):
    """`kinds` name the relaxations; `nodes` are those on which the engine confirmed the cure."""

    text: str
    kinds: tuple[str, ...]
    nodes: tuple[str, ...]
    matching_nodes: int
    changes: tuple[CureStep, ...]
    commands: tuple[str, ...]


class NodeEvidence(Struct, frozen=True, rename="camel"):
    """Nodes with the same reason. `reason` is its machine-readable name."""

    reason: str
    text: str
    count: int
    nodes: tuple[str, ...]  # the first of them


class Explanation(Struct, frozen=True, rename="camel", kw_only=True):
    """`state` is `runs`, `fits`, `waits`, `refused` or `ended`."""

    api_version: str = API_VERSION
    kind: str = "Explanation"
    namespace: str
    pod: str
    state: str
    answer: str
    reason: str = ""
    evidence: tuple[NodeEvidence, ...] = ()
    cures: tuple[CureReport, ...] = ()
    checks: tuple[str, ...] = ()  # kubectl lines
    unseen: tuple[str, ...] = ()
    # The cheapest changes that do not suffice.
    rejected: tuple[CureReport, ...] = ()


def explain_pod(world: World, pod: ApiObject) -> Explanation:
    """Why the pod waits or was refused, and what would let it run."""
    namespace, name = identity(pod)
    settled = _settled(pod)
    if settled is not None:
        return Explanation(namespace=namespace, pod=name, state=settled[0], answer=settled[1])
    oracle = Oracle(world)
    situation = Situation(pod, tuple(claim_entries(world, pod)))
    search = Search(oracle, situation)
    status = pod.get("status") or {}
    refused = str(status.get("reason") or "") if is_finished(pod) else ""
    evidence = tuple(_evidence(search))
    unseen = (*world.unseen, *_unjudged(pod, world))
    fitting = search.fitting
    if fitting:
        state, answer, cures = _fits(world, pod, fitting, refused)
        return Explanation(
            namespace=namespace, pod=name, state=state, answer=answer, reason=refused or "fits", evidence=evidence,
            cures=cures, unseen=unseen, checks=(f"kubectl -n {namespace} describe pod {name}",),
        )  # fmt: skip
    found = search.singles() or search.several_endings() or search.pairs()
    dominant = _dominant(search, found)
    verb = "refused" if refused else "waits"
    return Explanation(
        namespace=namespace, pod=name, state=verb, answer=f"{verb}: {_sentence(search, dominant)}",
        reason=_reason(dominant), evidence=evidence, unseen=unseen, checks=_checks(pod, dominant),
        cures=tuple(_report(situation, cure.relaxations, cure) for cure in _chosen(found)),
        rejected=tuple(_report(situation, (entry,), None) for entry in search.rejected[:5]),
    )  # fmt: skip


def _settled(pod: ApiObject) -> tuple[str, str] | None:
    spec, status = pod.get("spec") or {}, pod.get("status") or {}
    phase = status.get("phase")
    if is_finished(pod):
        if status.get("reason") in _REFUSALS:
            return None
        words = status.get("reason") or status.get("message") or phase
        return "ended", f"has ended: {words}"
    if spec.get("nodeName"):
        return "runs", f"is on node {spec['nodeName']} ({phase or 'Pending'})"
    if gates := spec.get("schedulingGates"):
        names = ", ".join(str(gate.get("name")) for gate in gates)
        return "waits", f"waits: its scheduling gates are not removed: {names}"
    return None


def _fits(world: World, pod: ApiObject, nodes: Sequence[str], refused: str) -> tuple[str, str, tuple[CureReport, ...]]:
    shown = nodes[0] if len(nodes) == 1 else f"{nodes[0]} and {len(nodes) - 1} more nodes"
    if not refused:
        message = _last_message(world, pod)
        said = f"; the scheduler last reported: {message}" if message else ""
        return "fits", f"fits now: {shown} can take it{said}", ()
    namespace, name = identity(pod)
    message = str((pod.get("status") or {}).get("message") or "")
    change = CureStep("delete", "Pod", namespace, name)
    command = f"kubectl -n {namespace} delete pod {name}"
    text = f"runs on {shown} if it is deleted and created again: a refused pod is never retried"
    cure = CureReport(text, ("recreate",), (nodes[0],), len(nodes), (change,), (command,))
    return "refused", f"refused: {refused} on {(pod.get('spec') or {}).get('nodeName', '')}: {message}", (cure,)


def _last_message(world: World, pod: ApiObject) -> str:
    for condition in (pod.get("status") or {}).get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return str(condition.get("message") or "")
    return next((str(event.get("message") or "") for event in reversed(world.events)), "")


def _unjudged(pod: ApiObject, world: World) -> list[str]:
    spec = pod.get("spec") or {}
    unjudged: list[str] = []
    if any(volume.get("persistentVolumeClaim") for volume in spec.get("volumes") or ()):
        unjudged.append("volumes are not checked")
    if not any(map(numa.report_policy, world.reports.values())):
        unjudged.append("no NodeReport with a Topology Manager policy: NUMA nodes are not checked")
    if spec.get("schedulerName") not in (None, "", "default-scheduler"):
        unjudged.append(f"the rules of the scheduler {spec['schedulerName']} are unknown")
    return unjudged


def _evidence(search: Search) -> Iterable[NodeEvidence]:
    groups: dict[str, tuple[str, list[str]]] = {}
    for verdict, names in search.verdicts():
        if not verdict.fits:
            groups.setdefault(_group_text(verdict), (_reason(verdict), []))[1].extend(names)
    for text, (reason, members) in sorted(groups.items(), key=lambda item: -len(item[1][1])):
        yield NodeEvidence(reason, text, len(members), tuple(members[:3]))


def _reason(verdict: NodeVerdict) -> str:
    failure = verdict.failure
    if failure is None or (verdict.filter and not failure.has_devices and failure.kind != "error"):
        return verdict.filter or (failure.kind if failure else "")
    if failure.kind == "claims" and failure.reasons:
        return _main_kind(failure)
    return failure.kind


def _main_kind(failure: DeviceFailure) -> str:
    """The kind of reason that excludes most devices, without those that no request of the pod is about."""
    kinds = Counter(reason.kind for reason in failure.reasons if reason.device)
    pools = [reason.kind for reason in failure.reasons if reason.kind in ("PoolIncomplete", "PoolInvalid")]
    if not kinds:
        return pools[0] if pools else "NoDevices"
    other = Counter({kind: count for kind, count in kinds.items() if kind not in ("SelectorFalse", "NodeMismatch")})
    return (other or kinds).most_common(1)[0][0]


def _group_text(verdict: NodeVerdict) -> str:
    failure = verdict.failure
    if failure is None:
        return verdict.filter_text
    text = _device_text(failure)
    return f"{verdict.filter_text}, {text}" if verdict.filter and failure.has_devices else text


def _device_text(failure: DeviceFailure) -> str:
    if failure.kind == "count":
        if not failure.capacity:
            return f"offers no {failure.resource}"
        used = failure.allocatable - failure.free
        parts = [f"{used} in use"] if used else []
        unhealthy = failure.capacity - failure.allocatable
        parts += [f"{unhealthy} unhealthy or cordoned"] if unhealthy > 0 else []
        detail = f": {', '.join(parts)}" if parts else ""
        return f"{failure.free} of {failure.capacity} {failure.resource} free{detail}"
    if failure.kind == "numa":
        return f"{failure.resource}: {failure.message}"
    if failure.message and failure.kind in ("error", "elsewhere"):
        return failure.message
    pools = [f"pool {r.pool} is incomplete" for r in failure.reasons if r.kind == "PoolIncomplete"]
    pools += [f"pool {r.pool} is invalid: {r.message}" for r in failure.reasons if r.kind == "PoolInvalid"]
    devices = {(r.driver, r.pool, r.device): r for r in reversed(failure.reasons) if r.device}
    counts = Counter(reason.kind for reason in devices.values())
    words = [f"{count} {_EXCLUDED.get(kind, kind)}" for kind, count in counts.most_common()]
    text = f"{len(devices)} {'device' if len(devices) == 1 else 'devices'}: {', '.join(words)}" if devices else ""
    return ", ".join([*dict.fromkeys(pools), *([text] if text else [])]) or "publishes no devices for the claims"


def _dominant(search: Search, cures: Sequence[Cure]) -> NodeVerdict:
    """The class of nodes that the first cure concerns, otherwise the nearest to running the pod."""
    if not search.base:
        return NodeVerdict("", failure=DeviceFailure("error", message="the cluster has no nodes"))
    if cures:
        return search.base[cures[0].nodes[0]]
    return search.base[min(search.base, key=search.nearness)]


def _sentence(search: Search, verdict: NodeVerdict) -> str:
    failure, node = verdict.failure, verdict.node
    if failure is None:
        return f"{node} has the devices, but {verdict.filter_text}"
    detail = _device_text(failure)
    if failure.kind == "error":
        return detail
    if failure.kind == "count":
        if not failure.capacity:
            return f"no node offers {failure.resource}"
        return f"no node has {failure.wanted} free {failure.resource} ({node} has {detail})"
    if failure.kind == "numa":
        where = f"{failure.wanted} free {failure.resource} on one NUMA node"
        return f"no node has {where} ({node} has {failure.message})"
    if failure.kind == "elsewhere":
        return f"{detail}, and {node} cannot use its devices"
    short = next((r for r in failure.reasons if r.kind == "TooFewDevices"), None)
    if short is None:
        return f"no node has the devices of its claims ({node}: {detail})"
    constraint = next((r.message for r in failure.reasons if r.kind == "ConstraintViolated"), "")
    claim = short.claim.rpartition("/")[2]
    why = f"; constraint {constraint}" if constraint and _main_kind(failure) == "ConstraintViolated" else ""
    return f"no node has the devices for request {short.request} of claim {claim} ({node}: {detail}{why})"


def _checks(pod: ApiObject, verdict: NodeVerdict) -> tuple[str, ...]:
    namespace, name = identity(pod)
    lines = [f"kubectl -n {namespace} describe pod {name}"]
    failure = verdict.failure
    if failure is not None and failure.kind in ("count", "numa"):
        lines.append(f"kubectl describe node {verdict.node}")
    elif failure is not None and verdict.node:
        lines.append(f"kubectl get resourceslices --field-selector spec.nodeName={verdict.node} -o yaml")
        lines.append("kubectl get resourceclaims -A")
    elif verdict.node:
        lines.append(f"kubectl describe node {verdict.node}")
    return tuple(lines)


def _chosen(cures: Sequence[Cure]) -> list[Cure]:
    """The cheapest of each kind, at most three."""
    chosen: dict[object, Cure] = {}
    for cure in cures:
        chosen.setdefault(tuple(entry.kind for entry in cure.relaxations), cure)
    return list(chosen.values())[:_MOST_CURES]


def _report(situation: Situation, relaxations: Sequence[Relaxation], cure: Cure | None) -> CureReport:
    text = "runs " + " and ".join(entry.text for entry in relaxations)
    if cure is not None and not any(entry.nodes for entry in relaxations):
        first = cure.nodes[0] if cure.like == 1 else f"{cure.nodes[0]} and {cure.like - 1} more"
        text += f" (on {first})"
    changes = tuple(change for entry in relaxations for change in _changes(situation, entry))
    commands = tuple(command for entry in relaxations for command in entry.commands)
    nodes: tuple[str, ...] = cure.nodes[:3] if cure else ()
    like = cure.like if cure else 0
    return CureReport(text, tuple(entry.kind for entry in relaxations), nodes, like, changes, commands)


def _changes(situation: Situation, relaxation: Relaxation) -> Iterable[CureStep]:
    for edit in relaxation.edits:
        removes = isinstance(edit.value, str) and edit.value == REMOVED
        value = None if removes else edit.value
        if edit.claim is None:
            namespace, name = identity(situation.pod)
            yield CureStep("edit", "Pod", namespace, name, edit.path, value, removes)
        elif relaxation.kind != "reference":
            source = situation.sources[edit.claim]
            path = (*source.prefix, *edit.path[1:])
            yield CureStep("edit", source.kind, source.namespace, source.name, path, value, removes)
    for namespace, name in sorted(relaxation.ended):
        yield CureStep("delete", "Pod", namespace, name)
    if relaxation.kind == "unused-claim":
        for namespace, name in sorted(relaxation.freed):
            yield CureStep("delete", "ResourceClaim", namespace, name)
    for published in relaxation.slices:
        yield CureStep("recover", "ResourceSlice", "", identity(published)[1], ("spec",), published["spec"])
    for node in relaxation.changed_nodes:
        value = {"spec": node.get("spec") or {}, "status": node.get("status") or {}}
        yield CureStep("recover", "Node", "", identity(node)[1], (), value)
    for name, policy in relaxation.policies:
        yield CureStep("recover", "Node", "", name, ("kubelet", "topologyManagerPolicy"), policy)
