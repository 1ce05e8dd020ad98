"""The kubelet's settings: its file, feature gates, the topology manager; and its records of holders and policies."""

import json
import shlex
import zlib

from plugwright.doctor.doctor_report import DoctorCheck, found, healthy
from plugwright.doctor.examined_node import ON_THE_NODE, ExaminedNode
from plugwright.doctor.node_processes import KubeletConfiguration, kubelet_configuration, processes
from plugwright.errors import ConfigError, NotVisible, PlugwrightError
from plugwright.model import some

__all__ = ["feature_gates", "held_devices", "kubelet_file", "manager_states", "topology_policy"]

_NUMA_LIMIT = 8  # maximum number of nodes with which a topology manager starts (5.17)
_STRICT = ("restricted", "single-numa-node")
_STATES = {
    "dra_manager_state": "",
    "cpu_manager_state": "cpuManagerPolicy",
    "memory_manager_state": "memoryManagerPolicy",
}  # by file in the kubelet's directory: the setting that must agree with it
_GATES = {
    "DevicePlugins": "device plugins cannot register",
    "KubeletPluginsWatcher": "DRA drivers and plugins of --registration watcher are not found",
    "DevicePluginCDIDevices": "CDI names in a plugin's answer are ignored: containers start without their devices",
    "KubeletPodResources": "holders of devices stay unknown",
    "KubeletPodResourcesGetAllocatable": "monitoring cannot list the node's devices",
    "KubeletPodResourcesDynamicResources": "holders of claims stay unknown",
}  # by gate: why it must not be off
_CLAIM_GATES = {"DynamicResourceAllocation": "pods with ResourceClaims do not start"}


def kubelet_file(view: ExaminedNode) -> DoctorCheck:
    """Whether the kubelet could start again with its configuration file."""
    name, why = "kubelet-configuration", "the kubelet does not start again with it: the node becomes NotReady"
    view.need_node()
    for kubelet in processes(view, "kubelet"):
        file = kubelet.flag("config")
        if file and not view.exists(file) and not view.exists(f"/proc/{kubelet.pid}/root{file}"):
            fix = f"restore {file}, on kubeadm's nodes with: kubeadm upgrade node phase kubelet-config"
            return found(name, f"the kubelet's file {file} does not exist", why, fix)
    try:
        sources = kubelet_configuration(view).sources
    except (ConfigError, ValueError) as error:
        return found(name, str(error), why, "correct the file, then systemctl restart kubelet")
    return healthy(name, f"read from {', '.join(sources)}")


def manager_states(view: ExaminedNode) -> DoctorCheck:
    """State files that keep the kubelet from starting if they are damaged or belong to another policy."""
    name, why = "kubelet-state", "the kubelet does not start again with it: the node becomes NotReady"
    view.need_node()
    root, states = view.kubelet.root, 0
    for file, setting in _STATES.items():
        if (text := view.read_if_there(root / file)) is None:
            continue
        states += 1
        fix = f"drain the node; systemctl stop kubelet; rm {shlex.quote(str(root / file))}; systemctl start kubelet"
        if problem := _state_problem(text):
            return found(name, f"{root / file} is damaged: {problem}", why, fix)
        stored, configured = _policies(view, text, setting)
        if stored and configured and stored != configured:
            return found(name, f"{root / file} is of policy {stored}, the kubelet has {setting} {configured}", why, fix)
    return healthy(name, f"{states} state files of the kubelet can be read")


def _state_problem(text: str) -> str:
    """Why the kubelet cannot read a state file; empty if it can."""
    try:
        content = json.loads(text)
        if not isinstance(content, dict):
            return "it must be a JSON object"
        if "Data" in content and zlib.crc32(content["Data"].encode()) != content.get("Checksum"):
            return "it does not match its checksum"
    except (ValueError, AttributeError, RecursionError) as error:
        return f"{error}"
    return ""


def _policies(view: ExaminedNode, text: str, setting: str) -> tuple[str, str]:
    """The policy in a state file, and the configured one; empty if unknown."""
    stored = json.loads(text).get("policyName")
    try:
        configuration = kubelet_configuration(view)
    except (OSError, ValueError, PlugwrightError):
        return "", ""
    is_known = setting and isinstance(stored, str) and any(map(_is_file, configuration.sources))
    return (str(stored).lower(), _policy(configuration, setting)) if is_known else ("", "")


def _is_file(source: str) -> bool:
    return source.startswith("/")


def _policy(configuration: KubeletConfiguration, setting: str) -> str:
    return (configuration.text(setting) or "none").lower()


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
