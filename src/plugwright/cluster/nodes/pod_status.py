"""A pod's status as written by its node: phase, conditions, containers, devices. Pure.

It is composed from the kubelet's state of the pod and from the previous status, which keeps the times of unchanged
parts.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from plugwright import quantity
from plugwright.apiserver.store import Object
from plugwright.cluster.nodes.container_runs import ContainerRun, Termination, exit_reason
from plugwright.kubelet.devicemanager.manager import DeviceHealth
from plugwright.kubelet.dra.health import ClaimDeviceHealth
from plugwright.kubelet.pod_table import Container, Phase, Pod
from plugwright.kubelet.pods import ContainerKind

__all__ = ["PodStatusInputs", "container_statuses", "rejected_status", "status"]

# Written by the API server, controllers and the scheduler.
_OTHERS = ("extendedResourceClaimStatus", "qosClass", "resourceClaimStatuses")
_FINISHED = (Phase.SUCCEEDED, Phase.FAILED)
_KILLED = 137  # exit code of a container that was killed
_CONDITIONS = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")


@dataclass(frozen=True, slots=True)
class PodStatusInputs:
    """Facts for the status besides the kubelet's pod. `runs` are those of containers run as processes."""

    now: str
    host_address: str
    pod_address: str
    health: Mapping[str, tuple[DeviceHealth, ...]] = field(default_factory=dict)
    claim_health: Mapping[str, tuple[ClaimDeviceHealth, ...]] = field(default_factory=dict)
    runs: Mapping[str, ContainerRun] = field(default_factory=dict)
    has_sandbox: bool = True  # whether its volumes are mounted, so that containers can be created


def rejected_status(stored: Object, reason: str, message: str, now: str) -> Object:
    """The status of a rejected pod: Failed, without containers (3.64 to 3.67)."""
    before = stored.get("status") or {}
    return {
        **{key: before[key] for key in ("conditions", *_OTHERS) if key in before},
        "observedGeneration": _generation(stored),
        "phase": "Failed",
        "reason": reason,
        "message": message,
        "startTime": before.get("startTime") or now,
    }


def status(stored: Object, pod: Pod, inputs: PodStatusInputs) -> Object:
    before = stored.get("status") or {}
    init = [container for container in pod.containers.values() if container.spec.kind is not ContainerKind.MAIN]
    main = [container for container in pod.containers.values() if container.spec.kind is ContainerKind.MAIN]
    statuses = _ContainerStatuses(stored, pod, inputs)
    result: Object = {
        **{key: before[key] for key in _OTHERS if key in before},
        "observedGeneration": _generation(stored),
        "phase": pod.phase.value,
        "hostIP": inputs.host_address,
        "hostIPs": [{"ip": inputs.host_address}],
        "podIP": inputs.pod_address,
        "podIPs": [{"ip": inputs.pod_address}],
        "startTime": before.get("startTime") or inputs.now,
        "containerStatuses": [statuses.of(container) for container in main],
    }
    if init:
        result["initContainerStatuses"] = [statuses.of(container) for container in init]
    result |= _resources(stored["spec"])
    for key, value in (("reason", pod.reason), ("message", pod.message)):
        if value:
            result[key] = value
    result["conditions"] = list(_conditions(stored, pod, result, inputs))
    return result


@dataclass(frozen=True, slots=True)
class _ContainerStatuses:
    stored: Object
    pod: Pod
    inputs: PodStatusInputs

    def of(self, container: Container) -> Object:
        name = container.spec.name
        spec, before, run = self._spec(name), self._previous(name), self.inputs.runs.get(name)
        state = self._state_of_run(container, run) if run else self._state(container, before)
        attempt = run.attempt if run else container.starts - 1
        is_done = run.has_succeeded if run else container.is_done
        result: Object = {
            "name": name,
            "state": state,
            "lastState": self._last_state(container, run, before),
            "ready": "running" in state or (is_done and container.spec.kind is ContainerKind.INIT),
            "restartCount": max(0, attempt),
            "image": spec.get("image", ""),
            "imageID": spec.get("image", "") if attempt >= 0 else "",
            "started": "running" in state,
            "resources": {part: amounts for part, amounts in (spec.get("resources") or {}).items() if amounts},
        }
        if run and container.spec.kind is ContainerKind.INIT:
            result["ready"] = is_done
        if attempt >= 0:
            result["containerID"] = self._id(name, attempt)
        if requests := (spec.get("resources") or {}).get("requests"):
            result["allocatedResources"] = requests
        devices, claims = self.inputs.health.get(name, ()), self.inputs.claim_health.get(name, ())
        if health := [*_device_health(devices), *_claim_health(claims)]:
            result["allocatedResourcesStatus"] = health
        return result

    def _state_of_run(self, container: Container, run: ContainerRun) -> Object:
        if run.reason:
            return {"waiting": {"reason": run.reason} | ({"message": run.message} if run.message else {})}
        if not run.has_started:
            return {"waiting": {"reason": "PodInitializing" if self._has_init else "ContainerCreating"}}
        if run.termination:
            return {"terminated": self._ended(container.spec.name, run.termination)}
        return {"running": {"startedAt": run.started_at}}

    def _last_state(self, container: Container, run: ContainerRun | None, before: Object) -> Object:
        name = container.spec.name
        if run:
            last = run.termination if run.reason and run.termination else run.previous
            return {"terminated": self._ended(name, last)} if last else {}
        has_restarted = before and before.get("containerID") != self._id(name, container.starts - 1)
        if has_restarted and "running" in before["state"]:
            return self._terminated(before, 0)
        return before.get("lastState") or {}

    def _ended(self, name: str, end: Termination) -> Object:
        state: Object = {
            "exitCode": end.exit_code,
            "reason": end.reason,
            "startedAt": end.started_at,
            "finishedAt": end.finished_at,
            "containerID": self._id(name, end.attempt),
        }
        return state | ({"message": end.message} if end.message else {})

    def _state(self, container: Container, before: Object) -> Object:
        """The state of an unstarted container: it counts as running from its start to the end of its pod."""
        is_same = before.get("containerID") == self._id(container.spec.name, container.starts - 1)
        previous = before.get("state") or {}
        if container.reason:
            is_first = container.reason == "PodInitializing" and not self._has_init
            reason = "ContainerCreating" if is_first else container.reason
            # The reason why claims are not prepared is only in an event (11.15).
            message = "" if reason == "ContainerCreating" else container.message
            return {"waiting": {"reason": reason} | ({"message": message} if message else {})}
        if container.running and self.pod.phase not in _FINISHED:
            started = previous["running"]["startedAt"] if is_same and "running" in previous else self.inputs.now
            return {"running": {"startedAt": started}}
        if is_same and "terminated" in previous:
            return dict(previous)
        return self._terminated(before, _KILLED if self.pod.reason and not container.is_done else 0)

    def _terminated(self, before: Object, exit_code: int) -> Object:
        started = ((before.get("state") or {}).get("running") or {}).get("startedAt") or self.inputs.now
        state: Object = {
            "exitCode": exit_code,
            "reason": exit_reason(exit_code),
            "startedAt": started,
            "finishedAt": self.inputs.now,
        }
        return {"terminated": state | ({"containerID": before["containerID"]} if "containerID" in before else {})}

    @property
    def _has_init(self) -> bool:
        """PodInitializing is for containers waiting for init containers; without those it is ContainerCreating."""
        return any(container.spec.kind is not ContainerKind.MAIN for container in self.pod.containers.values())

    def _spec(self, name: str) -> Object:
        spec = self.stored["spec"]
        containers = [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]
        return next((container for container in containers if container["name"] == name), {})

    def _previous(self, name: str) -> Object:
        return container_statuses(self.stored).get(name, {})

    def _id(self, name: str, attempt: int) -> str:
        text = f"{self.pod.uid}/{name}/{attempt + 1}"
        return f"plugwright://{hashlib.sha256(text.encode()).hexdigest()}"


def container_statuses(stored: Object) -> dict[str, Object]:
    """The container statuses in a pod's status, by name."""
    before = stored.get("status") or {}
    statuses = (*(before.get("initContainerStatuses") or ()), *(before.get("containerStatuses") or ()))
    return {shown["name"]: shown for shown in statuses}


def _device_health(devices: tuple[DeviceHealth, ...]) -> Iterator[Object]:
    for resource in dict.fromkeys(device.resource for device in devices):
        resources = [
            {"resourceID": device.device_id, "health": device.health.value}
            for device in devices
            if device.resource == resource
        ]
        yield {"name": resource, "resources": resources}


def _claim_health(devices: tuple[ClaimDeviceHealth, ...]) -> Iterator[Object]:
    for resource in dict.fromkeys(device.resource for device in devices):
        resources = [
            {"resourceID": device.resource_id, "health": device.health}
            | ({"message": device.message} if device.message else {})
            for device in devices
            if device.resource == resource
        ]
        yield {"name": resource, "resources": resources}


def _resources(spec: Object) -> Object:
    """The sum over all containers; real kubelets omit it if init containers have resources."""
    if any(container.get("resources") for container in spec.get("initContainers") or ()):
        return {}
    resources = [container.get("resources") or {} for container in spec.get("containers") or ()]
    totals = {part: _total([entry.get(part) or {} for entry in resources]) for part in ("limits", "requests")}
    if not totals["requests"]:
        return {}
    return {
        "resources": {part: total for part, total in totals.items() if total},
        "allocatedResources": totals["requests"],
    }


def _total(amounts: list[Mapping[str, str]]) -> dict[str, str]:
    if len(amounts) == 1:
        return dict(amounts[0])
    total = quantity.add({name: quantity.zero_if_invalid(text) for name, text in entry.items()} for entry in amounts)
    return {name: quantity.as_text(value) for name, value in sorted(total.items())}


def _conditions(stored: Object, pod: Pod, result: Object, inputs: PodStatusInputs) -> Iterator[Object]:
    """The kubelet's conditions, followed by those set by other components."""
    known = (stored.get("status") or {}).get("conditions") or ()
    before = {condition["type"]: condition for condition in known}
    now = inputs.now
    for kind, value, reason, message in _condition_values(pod, result, inputs.has_sandbox, _closed_gates(stored)):
        previous = before.get(kind) or {}
        since = previous.get("lastTransitionTime", now) if previous.get("status") == value else now
        condition: Object = {
            "type": kind,
            "observedGeneration": _generation(stored),
            "status": value,
            "lastProbeTime": None,
            "lastTransitionTime": since,
        }
        yield condition | {key: text for key, text in (("reason", reason), ("message", message)) if text}
    yield from (condition for kind, condition in before.items() if kind not in _CONDITIONS)


def _closed_gates(stored: Object) -> str:
    """Why the pod's readiness gates keep it from being ready; empty if they do not."""
    conditions = (stored.get("status") or {}).get("conditions") or ()
    statuses = {condition["type"]: condition["status"] for condition in conditions}
    texts = []
    for gate in stored["spec"].get("readinessGates") or ():
        kind = gate["conditionType"]
        if kind not in statuses:
            texts.append(f'corresponding condition of pod readiness gate "{kind}" does not exist.')
        elif statuses[kind] != "True":
            texts.append(f'the status of pod readiness gate "{kind}" is not "True", but {statuses[kind]}')
    return ", ".join(texts)


def _condition_values(pod: Pod, result: Object, has_sandbox: bool, gates: str) -> Iterator[tuple[str, str, str, str]]:
    finished = "PodCompleted" if pod.phase is Phase.SUCCEEDED else "PodFailed" if pod.phase is Phase.FAILED else ""
    incomplete = _not_ready(result.get("initContainerStatuses") or ())
    unready = _not_ready(result["containerStatuses"])
    yield "PodReadyToStartContainers", "True" if has_sandbox and not finished else "False", "", ""
    # Once a regular container has started, the pod is initialized, whatever its sidecars do.
    has_started = any("containerID" in shown for shown in result["containerStatuses"])
    if incomplete and not has_started and finished != "PodCompleted":
        message = f"containers with incomplete status: [{incomplete}]"
        yield "Initialized", "False", "ContainersNotInitialized", message
    else:
        yield "Initialized", "True", "PodCompleted" if finished == "PodCompleted" else "", ""
    for kind in ("Ready", "ContainersReady"):
        if finished:
            yield kind, "False", finished, ""
        elif unready:
            yield kind, "False", "ContainersNotReady", f"containers with unready status: [{unready}]"
        elif kind == "Ready" and gates:
            yield kind, "False", "ReadinessGatesNotReady", gates
        else:
            yield kind, "True", "", ""
    yield "PodScheduled", "True", "", ""  # also for a pod with its own nodeName


def _not_ready(statuses: Iterable[Object]) -> str:
    return " ".join(container["name"] for container in statuses if not container["ready"])


def _generation(stored: Object) -> int:
    return int(stored["metadata"].get("generation", 1))
