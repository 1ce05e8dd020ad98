"""The answer about one pod: the first line, the evidence, at most three cures, and the facts that could not be seen.

`Explanation` is also the document of `-o json` (docs/explanation.schema.json).
"""

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from plugwright.cluster.scheduling.pod_request import PodRequest
from plugwright.explain import numa
from plugwright.explain.counterfactual import Edit, Relaxation, Situation
from plugwright.explain.cure_report import CureReport, CureStep, cure_report
from plugwright.explain.oracle import DeviceFailure, NodeVerdict, Oracle
from plugwright.explain.pool_counts import count_command, counted_texts, uncounted_drivers
from plugwright.explain.reading import UNREADABLE
from plugwright.explain.refusals import REFUSALS, refused_text
from plugwright.explain.search import Cure, Search
from plugwright.explain.wording import group_text, reason_name, sentence
from plugwright.explain.world import (
    ApiObject,
    World,
    claim_entries,
    event_time,
    identity,
    is_device_resource,
    is_finished,
    priority_of,
)
from plugwright.model import some

# fmt: off
__all__ = [
    "API_VERSION", "Explanation", "NodeEvidence", "brief", "counted_nodes", "explain_pod", "explain_situation",
    "first_line", "needs_claims", "with_counted",
]
# fmt: on

API_VERSION = "plugwright.dev/v1alpha1"
_MOST_CURES = 3
_WITHOUT_RULES = tuple(
    f"v1.{minor}." for minor in range(34, 37)
)  # releases that do not serve DeviceTaintRules by default
_NAMES = {  # as in messages
    "resourceclaimtemplates": "ResourceClaimTemplate ", "resourceclaims": "ResourceClaim ",
    "deviceclasses": "class ", "resourcequotas": "ResourceQuota ",
}  # fmt: skip


class NodeEvidence(Struct, frozen=True, rename="camel"):
    """Nodes with the same reason. `reason` is its machine-readable name."""

    reason: str
    text: str
    count: int
    nodes: tuple[str, ...]  # the first few


class Explanation(Struct, frozen=True, rename="camel", kw_only=True):
    """`state` is `runs`, `fits`, `waits`, `refused` or `ended`."""

    api_version: str = API_VERSION
    kind: str = "Explanation"
    namespace: str
    pod: str
    claim: str = ""  # if the question was about a claim
    state: str
    answer: str
    reason: str = ""
    evidence: tuple[NodeEvidence, ...] = ()
    cures: tuple[CureReport, ...] = ()
    checks: tuple[str, ...] = ()  # kubectl lines
    sources: Mapping[str, str] = {}  # by node: how its NodeReport was read
    counted: tuple[str, ...] = ()  # pools whose devices ResourcePoolStatusRequests count
    unseen: tuple[str, ...] = ()
    # The cheapest insufficient changes.
    rejected: tuple[CureReport, ...] = ()


def explain_pod(world: World, pod: ApiObject) -> Explanation:
    """Why the pod waits or was refused, and what would let it run."""
    namespace, name = identity(pod)
    settled = _settled(pod, world)
    if settled is not None:
        return Explanation(namespace=namespace, pod=name, state=settled[0], answer=settled[1])
    return explain_situation(Oracle(world), Situation(pod, tuple(claim_entries(world, pod))))


def explain_situation(oracle: Oracle, situation: Situation) -> Explanation:
    """Explains a pod that need not exist."""
    found = _searched(oracle, situation)
    if not needs_claims(oracle, situation):
        return found
    counted = counted_texts(oracle.counted, is_free_first=found.state == "fits")
    return replace(found, counted=counted, unseen=with_counted(oracle, found.unseen))


def needs_claims(oracle: Oracle, situation: Situation) -> bool:
    """Whether the pod gets devices by claims."""
    requests = PodRequest.of(dict(situation.pod)).requests
    return bool(situation.sources) or any(name in oracle.backed for name in requests)


def with_counted(oracle: Oracle, unseen: Sequence[str]) -> tuple[str, ...]:
    """The `not seen:` lines if the API server counts devices, with the command for drivers it has not counted."""
    if oracle.world.pool_counts is None:
        return tuple(unseen)
    left = list(uncounted_drivers(oracle.counted, oracle.world.slices))
    hidden = UNREADABLE["claims"]
    if not left:
        counted = f"{hidden.partition(':')[0]}: which devices they hold is assumed from the numbers of pools"
        return tuple(counted if entry == hidden else entry for entry in unseen)
    command = f"the API server counts the devices of {left[0]} if you may: {count_command(left[0])}"
    return tuple(part for entry in unseen for part in ((entry, command) if entry == hidden else (entry,)))


def _searched(oracle: Oracle, situation: Situation) -> Explanation:
    world, pod = oracle.world, situation.pod
    namespace, name = identity(pod)
    search = Search(oracle, situation)
    refused = str((pod.get("status") or {}).get("reason") or "") if is_finished(pod) else ""
    evidence = tuple(_evidence(search))
    unseen = (*world.unseen, *_unjudged(pod, world))
    gates = _gates(pod)
    if search.fitting:
        state, answer, cures = _fits(world, pod, search.fitting, refused)
        if gates:
            opened = search.confirm((gates,), list(search.base))
            assert opened is not None  # the search knows no gates
            cures = (cure_report(situation, (gates,), opened),)
        return Explanation(
            namespace=namespace, pod=name, state=state, answer=answer, reason=_reason(pod, state, refused),
            evidence=evidence, cures=cures, unseen=unseen, sources=world.sources,
            checks=(f"kubectl -n {namespace} describe pod {name}",),
        )  # fmt: skip
    found = search.cures()
    dominant = _dominant(search, found)
    verb = "refused" if refused else "waits"
    was = f"{refused_text(pod)}; now " if refused else _waiting_for(oracle, pod)
    needed = (gates,) if gates else ()
    return Explanation(
        namespace=namespace, pod=name, state=verb, answer=f"{verb}: {was}{sentence(dominant)}",
        reason=refused or _reason_to_wait(pod, dominant), evidence=evidence,
        checks=_checks(oracle, pod, dominant), sources=world.sources,
        unseen=unseen if search.is_complete else (*unseen, "not every pair of changes was tried"),
        cures=tuple(cure_report(situation, (*needed, *cure.relaxations), cure) for cure in _chosen(found)),
        rejected=tuple(cure_report(situation, (entry,), None) for entry in search.rejected[:5]),
    )  # fmt: skip


def first_line(world: World, pod: ApiObject) -> str:
    """Only the answer, without a search for cures: for callers with little time."""
    return brief(Oracle(world), pod)[1]


def brief(oracle: Oracle, pod: ApiObject) -> tuple[str, str, str]:
    """The state, the first line and the reason, without a search for cures."""
    settled = _settled(pod, oracle.world)
    if settled is not None:
        return *settled, ""
    search = Search(oracle, Situation(pod, tuple(claim_entries(oracle.world, pod))))
    refused = str((pod.get("status") or {}).get("reason") or "") if is_finished(pod) else ""
    if search.fitting:
        state, answer, _ = _fits(oracle.world, pod, search.fitting, refused)
        return state, answer, _reason(pod, state, refused)
    dominant = _dominant(search, ())
    if refused:
        return "refused", f"refused: {refused_text(pod)}; now {sentence(dominant)}", refused
    return "waits", f"waits: {_waiting_for(oracle, pod)}{sentence(dominant)}", _reason_to_wait(pod, dominant)


def _reason_to_wait(pod: ApiObject, dominant: NodeVerdict) -> str:
    """The machine-readable reason of a pod that no node would take."""
    is_nominated = bool((pod.get("status") or {}).get("nominatedNodeName"))
    return "scheduling-gates" if _gates(pod) else "preemption" if is_nominated else reason_name(dominant)


def _waiting_for(oracle: Oracle, pod: ApiObject) -> str:
    """Other obstacles than devices: the pod's gates, or preempted pods that have not ended."""
    node = (pod.get("status") or {}).get("nominatedNodeName")
    if _gates(pod):
        return f"{_gates_text(pod)}; without them "
    if not node:
        return ""
    pods, priority = oracle.holders.pods, priority_of(pod)
    ending = [
        f"{key[1]} ({key[0]})"
        for key in oracle.holders.on_node.get(node, ())
        if oracle.holders.is_terminating(key) and priority_of(pods[key]) < priority
    ]
    if ending:
        return f"{some(ending, 3)} {'end' if len(ending) > 1 else 'ends'} on {node} to make room; until then "
    return f"the scheduler keeps {node} for it; until it is free, "


def _reason(pod: ApiObject, state: str, refused: str) -> str:
    """The machine-readable reason of a pod that a node would take."""
    return refused or ("fits" if state == "fits" else "scheduling-gates" if _gates(pod) else "volumes")


def _settled(pod: ApiObject, world: World) -> tuple[str, str] | None:
    spec, status = pod.get("spec") or {}, pod.get("status") or {}
    phase = status.get("phase")
    if is_finished(pod):
        if status.get("reason") in REFUSALS:
            return None
        words = status.get("reason") or status.get("message") or phase
        return "ended", f"has ended: {words}"
    if spec.get("nodeName"):
        return "runs", f"is on node {spec['nodeName']} ({_on_node(pod, world)}){_without(pod, world)}"
    return None


def _gates(pod: ApiObject) -> Relaxation | None:
    """The scheduling gates of a pod, which the program that has set them removes."""
    if not (pod.get("spec") or {}).get("schedulingGates"):
        return None
    edits = (Edit(("spec", "schedulingGates")),)
    return Relaxation(kind="scheduling-gates", cost=2, text="if its scheduling gates are removed", edits=edits)


def _gates_text(pod: ApiObject) -> str:
    gates = (pod.get("spec") or {}).get("schedulingGates") or ()
    return f"its scheduling gates are not removed: {', '.join(str(gate.get('name')) for gate in gates)}"


def _on_node(pod: ApiObject, world: World) -> str:
    """The phase of a bound pod, and while its containers wait, the last warning about it."""
    status = pod.get("status") or {}
    phase = str(status.get("phase") or "Pending")
    waits = any((entry.get("state") or {}).get("waiting") for entry in status.get("containerStatuses") or ())
    if phase != "Pending" and not waits:
        return phase
    warnings = [event for event in world.events if event.get("type") == "Warning"]
    last = max(warnings, key=event_time, default=None)
    return phase if last is None else f"{phase}; last warning: {last.get('reason')}: {last.get('message')}"


def _without(pod: ApiObject, world: World) -> str:
    """Facts of the node that were not checked for a pod with its own nodeName."""
    name = str((pod.get("spec") or {}).get("nodeName"))
    node = world.find("nodes", "", name)
    if node is None:
        return "" if "nodes" in world.hidden else ", which does not exist"
    capacity = (node.get("status") or {}).get("capacity") or {}
    if (pod.get("status") or {}).get("extendedResourceClaimStatus"):
        return ""  # claims have their devices
    missing = [name for name in PodRequest.of(dict(pod)).requests if is_device_resource(name) and name not in capacity]
    # A kubelet admits such a pod, but without the devices.
    return f", which offers no {', '.join(missing)}: the pod has none of it" if missing else ""


def _fits(world: World, pod: ApiObject, nodes: Sequence[str], refused: str) -> tuple[str, str, tuple[CureReport, ...]]:
    shown = nodes[0] if len(nodes) == 1 else f"{nodes[0]} and {counted_nodes(len(nodes) - 1)}"
    if not refused and _gates(pod):
        return "waits", f"waits: {_gates_text(pod)}", ()
    if not refused:
        message = _last_message(world, pod)
        if "volume" in message.lower() and _has_volume_claims(pod):
            return "waits", f"waits: {shown} has the devices, but its volumes are not available: {message}", ()
        said = f"; the scheduler last reported: {message}" if message else ""
        scheduler = _other_scheduler(pod)
        said = said or (f" by the rules of kube-scheduler; {scheduler} has not placed it" if scheduler else "")
        return "fits", f"fits now: {shown} can take it{said}", ()
    namespace, name = identity(pod)
    change = CureStep("delete", "Pod", namespace, name)
    command = f"kubectl -n {namespace} delete pod {name}"
    text = f"runs on {shown} if it is deleted and created again: a refused pod is never retried"
    cure = CureReport(text, ("recreate",), (nodes[0],), len(nodes), (change,), (command,))
    return "refused", f"refused: {refused_text(pod)}", (cure,)


def counted_nodes(count: int) -> str:
    return "1 more node" if count == 1 else f"{count} more nodes"


def _other_scheduler(pod: ApiObject) -> str:
    """The pod's scheduler unless it is kube-scheduler."""
    name = str((pod.get("spec") or {}).get("schedulerName") or "")
    return "" if name == "default-scheduler" else name


def _last_message(world: World, pod: ApiObject) -> str:
    for condition in (pod.get("status") or {}).get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return str(condition.get("message") or "")
    return str((max(world.events, key=event_time, default=None) or {}).get("message") or "")


def _unjudged(pod: ApiObject, world: World) -> list[str]:
    spec = pod.get("spec") or {}
    unjudged: list[str] = []
    if _has_volume_claims(pod):
        unjudged.append("volumes are not checked")
    if not any(map(numa.report_policy, world.reports.values())):
        unjudged.append("no NodeReport names a Topology Manager policy: NUMA nodes are not checked")
    claims = spec.get("resourceClaims") or ()
    if claims and "taint_rules" in world.hidden and not world.version.startswith(_WITHOUT_RULES):
        unjudged.append("DeviceTaintRules cannot be read: devices that they taint count as untainted")
    if "quotas" in world.hidden and any(entry.get("resourceClaimTemplateName") for entry in claims):
        unjudged.append("ResourceQuotas cannot be read: claims that they reject count as created")
    if scheduler := _other_scheduler(pod):
        unjudged.append(f"the rules of the scheduler {scheduler} are unknown")
    return unjudged


def _has_volume_claims(pod: ApiObject) -> bool:
    return any(volume.get("persistentVolumeClaim") for volume in (pod.get("spec") or {}).get("volumes") or ())


def _evidence(search: Search) -> Iterable[NodeEvidence]:
    groups: dict[str, tuple[str, list[str]]] = {}
    for verdict, names in search.verdicts():
        if not verdict.fits:
            groups.setdefault(group_text(verdict), (reason_name(verdict), []))[1].extend(names)
    for text, (reason, members) in sorted(groups.items(), key=lambda item: -len(item[1][1])):
        yield NodeEvidence(reason, text, len(members), tuple(members[:3]))


def _dominant(search: Search, cures: Sequence[Cure]) -> NodeVerdict:
    """The class of nodes of the first cure, otherwise the class nearest to running the pod."""
    if not search.base:
        words = "nodes cannot be read" if "nodes" in search.oracle.world.hidden else "the cluster has no nodes"
        return NodeVerdict("", failure=DeviceFailure("error", message=words))
    if search.stopping:
        return search.base[search.stopping[0]]
    if cures:
        return search.base[cures[0].nodes[0]]
    return search.base[min(search.base, key=search.nearness)]


def _checks(oracle: Oracle, pod: ApiObject, verdict: NodeVerdict) -> tuple[str, ...]:
    namespace, name = identity(pod)
    lines = [f"kubectl -n {namespace} describe pod {name}"] if identity(pod) in oracle.holders.pods else []
    failure = verdict.failure
    if failure is not None and failure.kind == "error":
        kinds = ("resourceclaimtemplates", "resourceclaims", "deviceclasses", "resourcequotas")
        named = [kind for kind in kinds if _NAMES[kind].lower() in failure.message.lower()]
        lines += [
            f"kubectl get {kind}" if kind == "deviceclasses" else f"kubectl -n {namespace} get {kind}" for kind in named
        ]
        lines += ["kubectl get resourceslices -o yaml"] if failure.reasons else []
        return (*lines, f"kubectl plugwright lint -n {namespace}")
    if failure is not None and failure.kind in ("count", "numa"):
        lines.append(f"kubectl describe node {verdict.node}")
    elif failure is not None and verdict.node:
        lines.append(f"kubectl get resourceslices --field-selector spec.nodeName={verdict.node} -o yaml")
        lines.append("kubectl get resourceclaims -A")
    elif verdict.node:
        lines.append(f"kubectl describe node {verdict.node}")
    return tuple(lines)


def _chosen(cures: Sequence[Cure]) -> list[Cure]:
    """The cheapest cure of each kind, at most three."""
    chosen: dict[object, Cure] = {}
    for cure in cures:
        chosen.setdefault(tuple(entry.kind for entry in cure.relaxations), cure)
    return list(chosen.values())[:_MOST_CURES]
