"""Changes of a node's devices: they recover, cordons end, taints are removed, drivers publish the rest of a pool."""

from collections.abc import Collection, Iterator, Sequence

from plugwright.cluster.scheduling.pod_request import PodRequest
from plugwright.explain.counterfactual import Relaxation, Situation
from plugwright.explain.node_reports import Unusable, recovered_report, unusable_devices, unusable_text
from plugwright.explain.oracle import Oracle, taint_text
from plugwright.explain.world import ApiObject, identity, is_device_resource, with_taint_rules

__all__ = ["device_changes", "recoveries", "taints_removed"]

_CORDON_TAINT = "plugwright.dev/cordoned"


def recoveries(oracle: Oracle, situation: Situation, node: str) -> Iterator[Relaxation]:
    """Counted devices that the node has and does not offer: unhealthy or cordoned."""
    changed = oracle.nodes[node]
    for resource in PodRequest.of(dict(situation.pod)).requests:
        capacity, offered = oracle.capacity(node, resource), oracle.info(node).allocatable.get(resource, 0)
        if not is_device_resource(resource) or capacity <= offered:
            continue
        unusable = unusable_devices(oracle.world.reports.get(node), resource)
        if len(unusable) == capacity - offered:
            yield from _reported_recoveries(oracle, node, resource, unusable)
            continue
        missing = capacity - offered
        what = f"{missing} unhealthy or cordoned {resource}"
        text = f"on {node} if its {what} {'recovers' if missing == 1 else 'recover'}"
        yield Relaxation(
            kind="recovery", cost=2.5, text=text, changed_nodes=(_offering(changed, resource, capacity),),
            nodes=frozenset({node}), subject=resource, commands=(f"plugwright status --node {node}",),
        )  # fmt: skip


def _reported_recoveries(
    oracle: Oracle, node: str, resource: str, unusable: Sequence[Unusable]
) -> Iterator[Relaxation]:
    """Cordons that end, devices that recover, or both, as the NodeReport tells them apart."""
    offered, report = oracle.info(node).allocatable.get(resource, 0), oracle.world.reports[node]
    cordoned = [device for device in unusable if device.kind == "cordoned"]
    unhealthy = [device for device in unusable if device.kind == "unhealthy"]
    both = [*cordoned, *unhealthy] if cordoned and unhealthy else []
    for kind, cost, devices in (
        ("uncordon-device", 1.5, cordoned), ("recovery", 2.5, unhealthy), ("recovery", 2.9, both),
    ):  # fmt: skip
        if not devices:
            continue
        verbs = ("is", "are") if kind == "uncordon-device" else ("recovers", "recover")
        verb = verbs[len(devices) > 1] + (" uncordoned" if kind == "uncordon-device" else "")
        commands = [
            f"plugwright uncordon {resource} {device.id} --node {node}"
            for device in devices
            if device.kind == "cordoned"
        ][:3]
        commands += [f"plugwright status --node {node}"] if kind == "recovery" else []
        yield Relaxation(
            kind=kind, cost=cost, text=f"on {node} if its {unusable_text(devices)} {resource} {verb}",
            changed_nodes=(_offering(oracle.nodes[node], resource, offered + len(devices)),),
            reports=((node, recovered_report(report, resource, [device.id for device in devices])),),
            nodes=frozenset({node}), subject=resource, commands=tuple(commands),
        )  # fmt: skip


def _offering(node: ApiObject, resource: str, count: int) -> ApiObject:
    status = node.get("status") or {}
    return {**node, "status": {**status, "allocatable": {**(status.get("allocatable") or {}), resource: str(count)}}}


def device_changes(oracle: Oracle, node: str) -> Iterator[Relaxation]:
    """Tainted devices that recover, DeviceTaintRules that are deleted, and pools whose driver publishes the rest."""
    index = oracle.allocator.slices
    reached = (*index.on_node.get(node, ()), *index.elsewhere)
    names = {known.name for known in reached}
    own = {identity(entry)[1]: entry["spec"] for entry in oracle.world.slices if identity(entry)[1] in names}
    for known in reached:
        for device in own[known.name].get("devices") or ():
            if device.get("taints"):
                yield taints_removed(oracle, node, [(known.name, str(device["name"]))])
        pool = known.spec["pool"]
        present = sum(entry.generation == known.generation for entry in index.by_pool[known.driver, known.pool])
        if known.count > present:
            replaced = _with(known.published, pool={**pool, "resourceSliceCount": present})
            missing = f"{known.count - present} of {known.count} slices"
            text = f"on {node} if {known.driver} publishes the missing {missing} of pool {known.pool}"
            yield Relaxation(
                kind="pool-complete", cost=1.5, text=text, slices=(replaced,), nodes=frozenset({node}),
                subject=known.name,
            )  # fmt: skip
    for rule in oracle.world.taint_rules:
        yield from _without_rule(oracle, node, rule, names)


def taints_removed(oracle: Oracle, node: str, tainted: Sequence[tuple[str, str]]) -> Relaxation:
    """Devices of a node that lose their own taints. `tainted` has the names of slices and devices."""
    rules, originals = oracle.world.taint_rules, {identity(entry)[1]: entry for entry in oracle.world.slices}
    cleaned, texts, cost, cordoned = [], [], 0.0, True
    for name in dict.fromkeys(name for name, _ in tainted):
        original, devices = originals[name], []
        for device in original["spec"].get("devices") or ():
            if (name, device["name"]) not in tainted:
                devices.append(device)
                continue
            taints = [taint_text(taint) for taint in device["taints"]]
            is_cordoned = all(taint.startswith(_CORDON_TAINT) for taint in taints)
            cordoned, cost = cordoned and is_cordoned, cost + (1.5 if is_cordoned else 2.5)
            path = f"{original['spec']['driver']}/{original['spec']['pool']['name']}/{device['name']}"
            texts.append(f"device {path} loses its taint {', '.join(taints)}")
            devices.append({**device, "taints": []})
        cleaned += with_taint_rules([_with(original, devices=devices)], rules)
    return Relaxation(
        kind="uncordon-device" if cordoned else "taint-removed", cost=cost, text=f"on {node} if {' and '.join(texts)}",
        slices=tuple(cleaned), nodes=frozenset({node}), tainted=tuple(tainted),
        subject="/".join(map("/".join, tainted)),
    )  # fmt: skip


def _without_rule(oracle: Oracle, node: str, rule: ApiObject, names: Collection[str]) -> Iterator[Relaxation]:
    others = [entry for entry in oracle.world.taint_rules if entry is not rule]
    reached = [entry for entry in oracle.world.slices if identity(entry)[1] in names]
    after = with_taint_rules(reached, others)
    changed = [entry for entry in after if entry != oracle.slices[identity(entry)[1]]]
    if changed:
        name = identity(rule)[1]
        yield Relaxation(
            kind="taint-rule", cost=1.9, text=f"on {node} if the DeviceTaintRule {name} is deleted",
            slices=tuple(changed), nodes=frozenset({node}), commands=(f"kubectl delete devicetaintrule {name}",),
            subject=name,
        )  # fmt: skip


def _with(published: ApiObject, **fields: object) -> ApiObject:
    return {**published, "spec": {**published["spec"], **fields}}
