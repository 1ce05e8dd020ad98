"""The kubelet's settings: feature gates and the topology manager; and its records compared with the served devices."""

from plugwright.doctor.doctor_report import DoctorCheck, found, healthy
from plugwright.doctor.examined_node import ON_THE_NODE, ExaminedNode
from plugwright.doctor.node_processes import kubelet_configuration
from plugwright.errors import NotVisible
from plugwright.model import some

__all__ = ["feature_gates", "held_devices", "topology_policy"]

_NUMA_LIMIT = 8  # maximum number of nodes with which a topology manager starts (5.17)
_STRICT = ("restricted", "single-numa-node")
_GATES = {
    "DevicePlugins": "device plugins cannot register",
    "KubeletPluginsWatcher": "DRA drivers and plugins of --registration watcher are not found",
    "DevicePluginCDIDevices": "CDI names in a plugin's answer are ignored: containers start without their devices",
    "KubeletPodResources": "holders of devices stay unknown",
    "KubeletPodResourcesGetAllocatable": "monitoring cannot list the node's devices",
    "KubeletPodResourcesDynamicResources": "holders of claims stay unknown",
}  # by gate: why it must not be off
_CLAIM_GATES = {"DynamicResourceAllocation": "pods with ResourceClaims do not start"}


def feature_gates(view: ExaminedNode) -> DoctorCheck:
    name, configuration = "kubelet-feature-gates", kubelet_configuration(view)
    needed = dict(_GATES)
    if any(configuration.gates.get(gate) is False for gate in _CLAIM_GATES) and _serves_claims(view):
        needed |= _CLAIM_GATES
    off = [gate for gate in needed if configuration.gates.get(gate) is False]
    places = ", ".join(configuration.sources)
    if off:
        return found(
            name,
            f"{some(off)} off in {places}",
            "; ".join(needed[gate] for gate in off),
            f"remove {', '.join(off)} from featureGates in {configuration.sources[0]}, then systemctl restart kubelet",
        )
    return healthy(name, f"no gate that devices need is off in {places}")


def _serves_claims(view: ExaminedNode) -> bool:
    return any(resource.driver is not None for resource in view.report.resources)


def topology_policy(view: ExaminedNode) -> DoctorCheck:
    """Whether the topology manager can align devices with their NUMA nodes."""
    name, configuration = "topology-policy", kubelet_configuration(view)
    policy = configuration.text("topologyManagerPolicy") or "none"
    present = _numa_nodes(view)
    if policy == "none":
        return healthy(name, "none: devices are chosen without regard to NUMA nodes")
    file = configuration.sources[0]
    options = configuration.settings.get("topologyManagerPolicyOptions")
    raised = isinstance(options, dict) and "max-allowable-numa-nodes" in options
    if len(present) > _NUMA_LIMIT and not raised:
        return found(
            name,
            f"policy {policy} on a machine with {len(present)} NUMA nodes",
            f"the kubelet does not start with more than {_NUMA_LIMIT}",
            f"set topologyManagerPolicyOptions: {{max-allowable-numa-nodes: '{len(present)}'}} in {file}, "
            "then systemctl restart kubelet",
        )
    unknown = [] if not present or policy not in _STRICT else _devices_elsewhere(view, present)
    if unknown:
        return found(
            name,
            f"policy {policy}, and devices name NUMA nodes that the machine does not have: {some(unknown)}",
            "the kubelet ignores such nodes, and refuses pods with TopologyAffinityError",
            "plugwright status -o json: correct `numa` in the configuration of these devices",
        )
    return healthy(name, f"{policy}: pods that do not fit get TopologyAffinityError")


def _numa_nodes(view: ExaminedNode) -> set[int]:
    names = view.names("/sys/devices/system/node")
    return {int(name[4:]) for name in names if name.startswith("node") and name[4:].isdecimal()}


def _devices_elsewhere(view: ExaminedNode, present: set[int]) -> list[str]:
    return [
        device.id
        for resource in view.report.resources
        for device in resource.devices
        if device.numa and not set(device.numa) <= present
    ]


def held_devices(view: ExaminedNode) -> DoctorCheck:
    """Devices that running pods hold under ids unknown to discovery: of an earlier plugin, or lost."""
    name = "held-devices"
    if not view.exists(view.kubelet.root / "pods"):
        raise NotVisible(ON_THE_NODE)
    listed = {
        resource.name: {device.id for device in resource.devices if device.code != "gone"}
        for resource in view.report.resources
    }
    if view.checkpoint is None:
        return healthy(name, "no container holds a device")
    lost: dict[str, str] = {}
    for entry in view.checkpoint.entries or ():
        ids = {each for several in (entry.devices or {}).values() for each in several or ()}
        if entry.resource in listed and _is_pod(view, entry.pod_uid):
            lost |= dict.fromkeys(sorted(ids - listed[entry.resource]), entry.pod_uid)
    if lost:
        return found(
            name,
            f"running pods hold devices that the daemon does not find: {some(sorted(lost))}",
            "their hardware is lost, or an earlier plugin named it differently and it may be given out a second time",
            f"plugwright checkpoint show; delete the pods with uid {some(sorted(set(lost.values())))}; their names: "
            "kubectl get pods -A -o custom-columns=:.metadata.uid,:.metadata.namespace,:.metadata.name",
        )
    return healthy(name, "every held device is found")


def _is_pod(view: ExaminedNode, uid: str) -> bool:
    return bool(uid) and "/" not in uid and uid not in (".", "..") and view.exists(view.kubelet.root / "pods" / uid)
