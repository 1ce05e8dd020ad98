"""A pod's status as its node writes it: phase, conditions, containers, devices. Pure.

It is composed from what the kubelet knows of the pod and from the previous status, so that times of what has not
changed stay.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from plugwright import quantity
from plugwright.cluster.store import Object
from plugwright.kubelet.devicemanager.manager import DeviceHealth
from plugwright.kubelet.dra.health import ClaimDeviceHealth
from plugwright.kubelet.pod_table import Container, Phase, Pod
from plugwright.kubelet.pods import ContainerKind

__all__ = ["PodStatusInputs", "rejected_status", "status"]

_OTHERS = ("qosClass", "resourceClaimStatuses")  # that the API server and controllers have written
_FINISHED = (Phase.SUCCEEDED, Phase.FAILED)
_CONDITIONS = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")


@dataclass(frozen=True, slots=True)
class PodStatusInputs:
    """Facts for the status beside the kubelet's pod. `exit_codes` are those of containers that have ended."""

    now: str
    host_address: str
    pod_address: str
    health: Mapping[str, tuple[DeviceHealth, ...]] = field(default_factory=dict)
    claim_health: Mapping[str, tuple[ClaimDeviceHealth, ...]] = field(default_factory=dict)
    exit_codes: Mapping[str, int] = field(default_factory=dict)


def rejected_status(stored: Object, reason: str, message: str, now: str) -> Object:
    """Of a pod that was not admitted: Failed, without containers (3.64 to 3.67)."""
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
    result["conditions"] = list(_conditions(stored, pod, result, inputs.now))
    return result


@dataclass(frozen=True, slots=True)
class _ContainerStatuses:
    stored: Object
    pod: Pod
    inputs: PodStatusInputs

    def of(self, container: Container) -> Object:
        name = container.spec.name
        spec, before = self._spec(name), self._previous(name)
        state = self._state(container, before)
        result: Object = {
            "name": name,
            "state": state,
            "lastState": before.get("lastState") or {},
            "ready": "running" in state or (container.is_done and container.spec.kind is ContainerKind.INIT),
            "restartCount": max(0, container.starts - 1),
            "image": spec.get("image", ""),
            "imageID": spec.get("image", "") if container.starts else "",
            "started": "running" in state,
            "resources": {part: amounts for part, amounts in (spec.get("resources") or {}).items() if amounts},
        }
        if container.starts:
            result["containerID"] = self._id(container)
        if before and before.get("containerID") != result.get("containerID") and "running" in before["state"]:
            result["lastState"] = self._terminated(before, 0)
        if requests := (spec.get("resources") or {}).get("requests"):
            result["allocatedResources"] = requests
        devices, claims = self.inputs.health.get(name, ()), self.inputs.claim_health.get(name, ())
        if health := [*_device_health(devices), *_claim_health(claims)]:
            result["allocatedResourcesStatus"] = health
        return result

    def _state(self, container: Container, before: Object) -> Object:
        name, exit_codes = container.spec.name, self.inputs.exit_codes
        is_same = before.get("containerID") == self._id(container)
        previous = before.get("state") or {}
        if container.reason:
            reason = "ContainerCreating" if self._is_first(container) else container.reason
            # Why claims are not prepared is in an event alone (11.15).
            message = "" if reason == "ContainerCreating" else container.message
            return {"waiting": {"reason": reason} | ({"message": message} if message else {})}
        if container.running and name not in exit_codes and self.pod.phase not in _FINISHED:
            started = previous["running"]["startedAt"] if is_same and "running" in previous else self.inputs.now
            return {"running": {"startedAt": started}}
        known = previous["terminated"]["exitCode"] if is_same and "terminated" in previous else None
        if known is not None and exit_codes.get(name, known) == known:
            return dict(previous)
        return self._terminated(before, exit_codes.get(name, 0))

    def _terminated(self, before: Object, exit_code: int) -> Object:
        started = ((before.get("state") or {}).get("running") or {}).get("startedAt") or self.inputs.now
        state: Object = {
            "exitCode": exit_code,
            "reason": "Error" if exit_code else "Completed",
            "startedAt": started,
            "finishedAt": self.inputs.now,
        }
        return {"terminated": state | ({"containerID": before["containerID"]} if "containerID" in before else {})}

    def _is_first(self, container: Container) -> bool:
        """PodInitializing is for containers that wait for init containers; without those it is ContainerCreating."""
        has_init = any(other.spec.kind is not ContainerKind.MAIN for other in self.pod.containers.values())
        return container.reason == "PodInitializing" and not has_init

    def _spec(self, name: str) -> Object:
        spec = self.stored["spec"]
        containers = [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]
        return next((container for container in containers if container["name"] == name), {})

    def _previous(self, name: str) -> Object:
        before = self.stored.get("status") or {}
        statuses = [*(before.get("initContainerStatuses") or ()), *(before.get("containerStatuses") or ())]
        return next((container for container in statuses if container["name"] == name), {})

    def _id(self, container: Container) -> str:
        text = f"{self.pod.uid}/{container.spec.name}/{container.starts}"
        return f"plugwright://{hashlib.sha256(text.encode()).hexdigest()}"


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
    """The sum over all containers; real kubelets leave it out where init containers have resources."""
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


def _conditions(stored: Object, pod: Pod, result: Object, now: str) -> Iterator[Object]:
    """The kubelet's conditions, then those that other components have set."""
    known = (stored.get("status") or {}).get("conditions") or ()
    before = {condition["type"]: condition for condition in known}
    for kind, value, reason, message in _condition_values(pod, result):
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


def _condition_values(pod: Pod, result: Object) -> Iterator[tuple[str, str, str, str]]:
    finished = "PodCompleted" if pod.phase is Phase.SUCCEEDED else "PodFailed" if pod.phase is Phase.FAILED else ""
    incomplete = _not_ready(result.get("initContainerStatuses") or ())
    unready = _not_ready(result["containerStatuses"])
    yield "PodReadyToStartContainers", "False" if finished else "True", "", ""
    if incomplete and not finished:
        message = f"containers with incomplete status: [{incomplete}]"
        yield "Initialized", "False", "ContainersNotInitialized", message
    else:
        yield "Initialized", "True", "PodCompleted" if finished == "PodCompleted" else "", ""
    for kind in ("Ready", "ContainersReady"):
        if finished:
            yield kind, "False", finished, ""
        elif unready:
            yield kind, "False", "ContainersNotReady", f"containers with unready status: [{unready}]"
        else:
            yield kind, "True", "", ""
    yield "PodScheduled", "True", "", ""  # also for a pod that names its node


def _not_ready(statuses: Iterable[Object]) -> str:
    return " ".join(container["name"] for container in statuses if not container["ready"])


def _generation(stored: Object) -> int:
    return int(stored["metadata"].get("generation", 1))
