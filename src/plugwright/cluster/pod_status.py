"""A pod's status as its node writes it: phase, conditions, containers, devices. Pure.

It is made from what the kubelet knows of the pod and from what stood there before, so that times stay what they were.
"""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from plugwright import quantity
from plugwright.cluster.store import Object
from plugwright.kubelet.devicemanager.manager import DeviceHealth
from plugwright.kubelet.pod_table import Container, Phase, Pod
from plugwright.kubelet.pods import ContainerKind

__all__ = ["Facts", "refused", "status"]

_OVER = (Phase.SUCCEEDED, Phase.FAILED)


@dataclass(frozen=True, slots=True)
class Facts:
    """What a node adds to what its kubelet knows; `exits` are the codes of the containers that have ended."""

    now: str
    host: str
    address: str
    health: Mapping[str, tuple[DeviceHealth, ...]] = field(default_factory=dict)
    exits: Mapping[str, int] = field(default_factory=dict)


def refused(stored: Object, reason: str, message: str, now: str) -> Object:
    """A pod that was not admitted has failed for good (3.64 to 3.67)."""
    before = stored.get("status") or {}
    return {
        **{key: before[key] for key in ("conditions", "qosClass") if key in before},
        "observedGeneration": _generation(stored),
        "phase": "Failed",
        "reason": reason,
        "message": message,
        "startTime": before.get("startTime") or now,
    }


def status(stored: Object, pod: Pod, facts: Facts) -> Object:
    before = stored.get("status") or {}
    inits = [each for each in pod.containers.values() if each.spec.kind is not ContainerKind.MAIN]
    mains = [each for each in pod.containers.values() if each.spec.kind is ContainerKind.MAIN]
    shown = _Shown(stored, pod, facts)
    made: Object = {
        **{key: before[key] for key in ("qosClass",) if key in before},
        "observedGeneration": _generation(stored),
        "phase": pod.phase.value,
        "hostIP": facts.host,
        "hostIPs": [{"ip": facts.host}],
        "podIP": facts.address,
        "podIPs": [{"ip": facts.address}],
        "startTime": before.get("startTime") or facts.now,
        "containerStatuses": [shown.container(each) for each in mains],
    }
    if inits:
        made["initContainerStatuses"] = [shown.container(each) for each in inits]
    made |= _resources(stored["spec"])
    for key, value in (("reason", pod.reason), ("message", pod.message)):
        if value:
            made[key] = value
    made["conditions"] = list(_conditions(stored, pod, made, facts.now))
    return made


def _resources(spec: Object) -> Object:
    """Of all containers together; where init containers ask for something, nobody is told."""
    if any(each.get("resources") for each in spec.get("initContainers") or ()):
        return {}
    asked = [each.get("resources") or {} for each in spec.get("containers") or ()]
    totals = {part: _total([each.get(part) or {} for each in asked]) for part in ("limits", "requests")}
    found = {part: total for part, total in totals.items() if total}
    return {"resources": found, "allocatedResources": totals["requests"]} if totals["requests"] else {}


def _total(amounts: list[Mapping[str, str]]) -> dict[str, str]:
    if len(amounts) == 1:
        return dict(amounts[0])
    total = quantity.add({name: quantity.zero_if_invalid(text) for name, text in each.items()} for each in amounts)
    return {name: quantity.as_text(value) for name, value in sorted(total.items())}


@dataclass(frozen=True, slots=True)
class _Shown:
    stored: Object
    pod: Pod
    facts: Facts

    def container(self, container: Container) -> Object:
        name = container.spec.name
        written = self._written(name)
        before = self._before(name)
        state = self._state(container, before)
        made: Object = {
            "name": name,
            "state": state,
            "lastState": before.get("lastState") or {},
            "ready": "running" in state or (container.is_done and container.spec.kind is ContainerKind.INIT),
            "restartCount": max(0, container.starts - 1),
            "image": written.get("image", ""),
            "imageID": written.get("image", "") if container.starts else "",
            "started": "running" in state,
            "resources": {part: amounts for part, amounts in (written.get("resources") or {}).items() if amounts},
        }
        if container.starts:
            made["containerID"] = self._id(container)
        if before and before.get("containerID") != made.get("containerID") and "running" in before["state"]:
            made["lastState"] = self._ended(before, 0)
        if requests := (written.get("resources") or {}).get("requests"):
            made["allocatedResources"] = requests
        if health := self.facts.health.get(name):
            made["allocatedResourcesStatus"] = list(_devices(health))
        return made

    def _state(self, container: Container, before: Object) -> Object:
        name, was = container.spec.name, before.get("state") or {}
        same = before.get("containerID") == self._id(container)
        if container.reason:
            waiting = "ContainerCreating" if self._is_first(container) else container.reason
            return {"waiting": {"reason": waiting} | ({"message": container.message} if container.message else {})}
        if container.running and name not in self.facts.exits and self.pod.phase not in _OVER:
            started = was["running"]["startedAt"] if same and "running" in was else self.facts.now
            return {"running": {"startedAt": started}}
        known = was["terminated"]["exitCode"] if same and "terminated" in was else None
        if known is not None and self.facts.exits.get(name, known) == known:
            return dict(was)
        return self._ended(before, self.facts.exits.get(name, 0))

    def _ended(self, before: Object, code: int) -> Object:
        started = ((before.get("state") or {}).get("running") or {}).get("startedAt") or self.facts.now
        made: Object = {
            "exitCode": code,
            "reason": "Error" if code else "Completed",
            "startedAt": started,
            "finishedAt": self.facts.now,
        }
        return {"terminated": made | ({"containerID": before["containerID"]} if "containerID" in before else {})}

    def _is_first(self, container: Container) -> bool:
        """Only those after an init container say that they wait for it."""
        has_inits = any(each.spec.kind is not ContainerKind.MAIN for each in self.pod.containers.values())
        return container.reason == "PodInitializing" and not has_inits

    def _written(self, name: str) -> Object:
        spec = self.stored["spec"]
        containers = [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]
        return next((each for each in containers if each["name"] == name), {})

    def _before(self, name: str) -> Object:
        status = self.stored.get("status") or {}
        found = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
        return next((each for each in found if each["name"] == name), {})

    def _id(self, container: Container) -> str:
        text = f"{self.pod.uid}/{container.spec.name}/{container.starts}"
        return f"plugwright://{hashlib.sha256(text.encode()).hexdigest()}"


def _devices(health: tuple[DeviceHealth, ...]) -> Iterator[Object]:
    for resource in dict.fromkeys(each.resource for each in health):
        devices = [
            {"resourceID": each.device_id, "health": each.health.value} for each in health if each.resource == resource
        ]
        yield {"name": resource, "resources": devices}


def _conditions(stored: Object, pod: Pod, made: Object, now: str) -> Iterator[Object]:
    before = {each["type"]: each for each in (stored.get("status") or {}).get("conditions") or ()}
    for kind, status, reason, message in _truths(pod, made):
        known = before.get(kind) or {}
        since = known.get("lastTransitionTime", now) if known.get("status") == status else now
        condition: Object = {
            "type": kind,
            "observedGeneration": _generation(stored),
            "status": status,
            "lastProbeTime": None,
            "lastTransitionTime": since,
        }
        yield condition | {key: text for key, text in (("reason", reason), ("message", message)) if text}
    yield from (each for kind, each in before.items() if kind not in _KNOWN)


_KNOWN = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")


def _truths(pod: Pod, made: Object) -> Iterator[tuple[str, str, str, str]]:
    over = "PodCompleted" if pod.phase is Phase.SUCCEEDED else "PodFailed" if pod.phase is Phase.FAILED else ""
    waiting = [each["name"] for each in made.get("initContainerStatuses") or () if not each["ready"]]
    unready = [each["name"] for each in made["containerStatuses"] if not each["ready"]]
    yield "PodReadyToStartContainers", "False" if over else "True", "", ""
    if waiting and not over:
        incomplete = f"containers with incomplete status: [{' '.join(waiting)}]"
        yield "Initialized", "False", "ContainersNotInitialized", incomplete
    else:
        yield "Initialized", "True", "PodCompleted" if over == "PodCompleted" else "", ""
    unready_text = f"containers with unready status: [{' '.join(unready)}]"
    for kind in ("Ready", "ContainersReady"):
        if over:
            yield kind, "False", over, ""
        elif unready:
            yield kind, "False", "ContainersNotReady", unready_text
        else:
            yield kind, "True", "", ""
    yield "PodScheduled", "True", "", ""  # also for a pod that named its node itself


def _generation(stored: Object) -> int:
    return int(stored["metadata"].get("generation", 1))
