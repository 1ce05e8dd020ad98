"""Every single change that could let a pod run: of the pod, its claims, the holders, devices and nodes.

Costs: below 2 nothing is lost (a cordon ends, an unused claim is removed), 2 another user's workload ends or hardware
recovers, 3 the pod gets less, 4 it gets devices with a defect, 5 its requirements are dropped, 6 a node changes.
"""

from collections.abc import Iterator, Sequence
from difflib import get_close_matches

from plugwright.cluster.scheduling.pod_request import PodRequest
from plugwright.explain import numa
from plugwright.explain.counterfactual import Edit, Relaxation, Situation
from plugwright.explain.device_relaxations import device_changes, recoveries
from plugwright.explain.oracle import Oracle, hard_taints, taint_text
from plugwright.explain.request_relaxations import class_selectors, request_relaxations
from plugwright.explain.world import ApiObject, ObjectId, identity, is_device_resource

__all__ = ["ending", "of_node", "of_pod"]

_AFFINITY = ("spec", "affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution")
_CORDON = "node.kubernetes.io/unschedulable"
_NOT_READY = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")


def of_pod(oracle: Oracle, situation: Situation, nodes: Sequence[str]) -> Iterator[Relaxation]:
    """Changes of the pod and its claims, which apply to every node. `nodes` contains one of each kind."""
    yield from _counts(oracle, situation, nodes)
    yield from request_relaxations(oracle, situation, nodes)
    yield from class_selectors(oracle, situation, nodes)
    yield from _node_filters(oracle, situation, nodes)
    yield from _references(oracle, situation)
    yield from _names(oracle, situation, nodes)
    for short in oracle.quota_shortages(situation):
        value = str(short.used + short.wanted)
        text = f"if {short.key} of ResourceQuota {short.quota} is {value} instead of {short.hard}"
        yield Relaxation(
            kind="quota", cost=2, text=text, quotas=frozenset({(short.quota, short.key, value)}), subject=short.key,
            commands=(f"kubectl -n {short.namespace} edit resourcequota {short.quota}",),
        )  # fmt: skip


def of_node(oracle: Oracle, situation: Situation, node: str) -> Iterator[Relaxation]:
    """Changes of one node, its devices and its holders."""
    yield from _endings(oracle, situation, node)
    yield from recoveries(oracle, situation, node)
    yield from device_changes(oracle, node)
    changed = oracle.nodes[node]
    if (changed.get("spec") or {}).get("unschedulable"):
        yield Relaxation(
            kind="uncordon-node", cost=1, text=f"if node {node} is uncordoned", nodes=frozenset({node}),
            changed_nodes=(_schedulable(changed),), commands=(f"kubectl uncordon {node}",),
        )  # fmt: skip
    policy = numa.report_policy(oracle.world.reports.get(node))
    if policy in numa.STRICT:
        text = f"if the kubelet of {node} has the Topology Manager policy best-effort instead of {policy}"
        yield Relaxation(
            kind="topology-policy", cost=6, text=text, policies=((node, "best-effort"),), nodes=frozenset({node})
        )


def _counts(oracle: Oracle, situation: Situation, nodes: Sequence[str]) -> Iterator[Relaxation]:
    """Fewer devices of an extended resource: as many as a node has free, for the container with the largest request."""
    requests, spec = PodRequest.of(dict(situation.pod)).requests, situation.pod.get("spec") or {}
    for resource, wanted in requests.items():
        if not is_device_resource(resource):
            continue
        asked = {
            (group, number): _asked(container, resource)
            for group in ("containers", "initContainers")
            for number, container in enumerate(spec.get(group) or ())
        }
        (group, number), most = max(asked.items(), key=lambda item: item[1], default=(("containers", 0), 0))
        free = {
            oracle.info(node).allocatable.get(resource, 0) - oracle.info(node).requested.get(resource, 0)
            for node in nodes
        }
        counts = {amount - (wanted - most) for amount in free if 0 < amount < wanted}
        counts |= set(range(1, min(most, 9))) if numa_matters(oracle) or resource in oracle.backed else set()
        counts |= {count + 1 for count in counts}  # one more than suffices: the nearest insufficient change
        for count in sorted((count for count in counts if 0 < count < most), reverse=True):
            resources = spec[group][number].get("resources") or {}
            edits = tuple(
                Edit(("spec", group, number, "resources", part, resource), str(count))
                for part in ("limits", "requests")
                if resource in (resources.get(part) or {})
            )
            kind = "init container" if group == "initContainers" else "container"
            is_only = group == "containers" and sum(map(bool, asked.values())) == 1
            whose = "" if is_only else f" in {kind} {spec[group][number].get('name')}"
            yield Relaxation(
                kind="count", cost=3 + (most - count) / most, text=f"with {count} instead of {most} {resource}{whose}",
                edits=edits, subject=f"{resource}/{group}/{number}",
            )  # fmt: skip


def _names(oracle: Oracle, situation: Situation, nodes: Sequence[str]) -> Iterator[Relaxation]:
    """Other names for misspelt extended resources that no node offers."""
    known = {name for node in nodes for name in oracle.info(node).allocatable if is_device_resource(name)}
    known |= oracle.backed.keys()
    for resource in PodRequest.of(dict(situation.pod)).requests:
        if not is_device_resource(resource) or resource in known:
            continue
        for name in get_close_matches(resource, sorted(known), n=3, cutoff=0.5):
            edits = tuple(_renamed(situation.pod, resource, name))
            text = f"with {name} instead of {resource}"
            yield Relaxation(kind="resource", cost=1, text=text, edits=edits, subject=resource)


def _renamed(pod: ApiObject, resource: str, name: str) -> Iterator[Edit]:
    for group in ("containers", "initContainers"):
        for number, container in enumerate((pod.get("spec") or {}).get(group) or ()):
            for part, amounts in (container.get("resources") or {}).items():
                if part in ("limits", "requests") and resource in amounts:
                    path = ("spec", group, number, "resources", part)
                    yield Edit((*path, resource))
                    yield Edit((*path, name), amounts[resource])


def numa_matters(oracle: Oracle) -> bool:
    return any(numa.report_policy(report) in numa.STRICT for report in oracle.world.reports.values())


def _asked(container: ApiObject, resource: str) -> int:
    resources = container.get("resources") or {}
    text = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}.get(resource) or 0
    return int(text) if str(text).isdecimal() else 0


def _node_filters(oracle: Oracle, situation: Situation, nodes: Sequence[str]) -> Iterator[Relaxation]:
    spec = situation.pod.get("spec") or {}
    for key, value in (spec.get("nodeSelector") or {}).items():
        edit = Edit(("spec", "nodeSelector", key))
        text = f"without nodeSelector {key}: {value}"
        yield Relaxation(kind="node-selector", cost=5, text=text, edits=(edit,), subject=key)
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    if affinity.get("requiredDuringSchedulingIgnoredDuringExecution"):
        yield Relaxation(
            kind="node-affinity", cost=5, text="without its required node affinity", edits=(Edit(_AFFINITY),)
        )
    request, seen = PodRequest.of(dict(situation.pod)), set()
    for node in nodes:
        for taint in hard_taints(request, oracle.info(node)):
            name = taint_text(taint)
            if name in seen or taint["key"] == _CORDON or taint["key"] in _NOT_READY:
                continue
            seen.add(name)
            toleration = {"key": taint["key"], "operator": "Exists", "effect": taint["effect"]}
            edit = Edit(("spec", "tolerations", -1), toleration)
            yield Relaxation(
                kind="node-toleration", cost=4, text=f"with a toleration of the node taint {name}", edits=(edit,),
                subject=name,
            )  # fmt: skip


def _references(oracle: Oracle, situation: Situation) -> Iterator[Relaxation]:
    """Another name for a missing template or claim."""
    entries = (situation.pod.get("spec") or {}).get("resourceClaims") or ()
    world = oracle.world
    for number, source in enumerate(situation.sources):
        if source.claim is not None:
            continue
        kind, field = (
            ("templates", "resourceClaimTemplateName")
            if source.kind == "ResourceClaimTemplate"
            else ("claims", "resourceClaimName")
        )
        names = [identity(entry)[1] for entry in getattr(world, kind) if identity(entry)[0] == source.namespace]
        place = next(index for index, entry in enumerate(entries) if entry["name"] == source.entry)
        for name in get_close_matches(source.name, names, n=3, cutoff=0.5):
            found = world.find(kind, source.namespace, name) or {}
            spec = found.get("spec") or {}
            spec = spec.get("spec") or {} if kind == "templates" else spec
            edits = (
                Edit(("spec", "resourceClaims", place, field), name),
                Edit(("metadata",), {"namespace": source.namespace, "name": f"{name}-of-pod"}, number),
                Edit(("spec",), spec, number),
            )
            text = f"with the {source.kind} {name} instead of {source.name}"
            yield Relaxation(kind="reference", cost=1, text=text, edits=edits, subject=source.entry)


def _endings(oracle: Oracle, situation: Situation, node: str) -> Iterator[Relaxation]:
    """Ends of pods, and of allocated claims that no pod uses."""
    holders, own = oracle.holders, identity(situation.pod)
    resources = {name for name in PodRequest.of(dict(situation.pod)).requests if is_device_resource(name)}
    pods, claims = _holding(oracle, node, bool(situation.claims) or bool(resources & oracle.backed.keys()))
    for pod in dict.fromkeys([*holders.on_node.get(node, ()), *pods]):
        known = holders.requests.get(pod)
        holds = pod in pods or (known is not None and bool(resources & known[1].requests.keys()))
        if pod == own or not holds:
            continue
        yield ending(oracle, own[0], frozenset({pod}), node)
    for claim in map(identity, situation.claims):
        users = frozenset(holders.users.get(claim, ())) - {own}
        if users and not users <= pods and claim in holders.freed_by(users):
            yield ending(oracle, own[0], users, node)
    for claim in claims:
        namespace, name = claim
        command = f"kubectl -n {namespace} delete resourceclaim {name}"
        yield Relaxation(
            kind="unused-claim", cost=1, text=f"if claim {namespace}/{name}, which no pod uses, is deleted",
            freed=frozenset({claim}), nodes=frozenset({node}), commands=(command,), subject=f"{namespace}/{name}",
        )  # fmt: skip


def ending(oracle: Oracle, namespace: str, pods: frozenset[ObjectId], node: str) -> Relaxation:
    """The end of pods of a node, with the claims that nothing uses after them."""
    holders = oracle.holders
    leaving = {pod for pod in pods if holders.is_live(pod) and holders.is_terminating(pod)}
    named = [f"{pod[1]} ({pod[0]}{', being deleted' if pod in leaving else ''})" for pod in sorted(pods)]
    shown = ", ".join(named[:3]) + (f" and {len(named) - 3} more" if len(named) > 3 else "")
    finished = not any(holders.is_live(pod) for pod in pods)
    verb = "are deleted" if len(named) > 1 else "is deleted" if finished else "ends"
    verb = "end" if len(named) > 1 and not finished else verb
    kind = "finished-pod" if finished else "holder-ends"
    foreign = sum(owner != namespace for owner, _ in pods)
    commands = tuple(f"kubectl -n {owner} delete pod {name}" for owner, name in sorted(pods - leaving))
    text = f"on {node} if {'finished pod ' if finished else ''}{shown} {verb}"
    return Relaxation(
        kind=kind, cost=(1 if finished else 2 * len(pods) - len(leaving)) + foreign * 0.1, text=text, ended=pods,
        freed=holders.freed_by(pods), nodes=frozenset({node}), commands=commands, subject=node,
    )  # fmt: skip


def _holding(oracle: Oracle, node: str, has_claims: bool) -> tuple[set[ObjectId], list[ObjectId]]:
    """Pods that use claims with devices that the node can reach, and such claims that no pod uses."""
    pods: set[ObjectId] = set()
    unused: dict[ObjectId, None] = {}
    index = oracle.allocator.slices
    for published in (*index.on_node.get(node, ()), *index.elsewhere) if has_claims else ():
        for device in published.devices:
            for claim in oracle.holders.of_device(device.id):
                users = oracle.holders.users[claim]
                pods.update(users)
                if not users and not (oracle.holders.claims[claim].get("status") or {}).get("reservedFor"):
                    unused[claim] = None
    return pods, list(unused)


def _schedulable(node: ApiObject) -> ApiObject:
    spec = dict(node.get("spec") or {})
    spec.pop("unschedulable", None)
    spec["taints"] = [taint for taint in spec.get("taints") or () if taint.get("key") != _CORDON]
    return {**node, "spec": spec}
