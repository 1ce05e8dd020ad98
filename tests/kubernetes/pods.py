"""Pods of a test: made from a few words, looked at as the API shows them, and gone when the test ends."""

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.kubernetes.images import BUSYBOX
from tests.kubernetes.kubectl import Kubectl, KubectlFailed, Object
from tests.kubernetes.waiting import until

__all__ = ["Pod", "Pods", "Refusal", "event_texts", "refusal"]

_STAY = "trap exit TERM; sleep 1000000 & wait"
_REFUSALS = {
    "cannot allocate unregistered device": "3.15",
    "no healthy devices present": "3.16",
}


@dataclass(frozen=True, slots=True)
class Refusal:
    """A pod that the kubelet did not admit; `fact` is its number in the reference, if it is an expected one."""

    pod: str
    fact: str
    message: str


def refusal(pod: Object) -> Refusal | None:
    status = pod["status"]
    if status.get("phase") != "Failed":
        return None
    message = f"{status.get('reason', '')}: {status.get('message', '')}"
    fact = next((number for text, number in _REFUSALS.items() if text in message), "")
    return Refusal(pod["metadata"]["name"], fact, message)


def event_texts(kubectl: Kubectl, reason: str) -> dict[str, str]:
    """The texts of all events with this reason, by pod."""
    texts: dict[str, str] = {}
    for event in kubectl.every("events", f"--field-selector=reason={reason}"):
        name = event["involvedObject"]["name"]
        texts[name] = f"{texts.get(name, '')} {event['message']}"
    return texts


@dataclass(frozen=True, slots=True)
class Pod:
    name: str
    kubectl: Kubectl

    def read(self) -> Object:
        found = self.kubectl.get("pod", self.name)
        assert found is not None, f"there is no pod {self.name}"
        return found

    @property
    def uid(self) -> str:
        return str(self.read()["metadata"]["uid"])

    def runs(self) -> "Pod":
        """Itself, once all its containers run; fails at once if it was refused."""
        until(f"pod {self.name} runs", self._is_running, last=lambda: self.read()["status"])
        return self

    def exec(self, *command: str) -> str:
        """What a command prints inside; tried again while a kubelet that was restarted does not answer yet."""
        printed: list[str] = []
        until(f"{command} in {self.name}", lambda: self._executed(command, printed), last=lambda: printed, limit=15)
        return printed[-1]

    def environment(self) -> dict[str, str]:
        """What its first process was given."""
        given = self.exec("cat", "/proc/1/environ").rstrip("\0").split("\0")
        return dict(line.split("=", 1) for line in given)

    def devices(self, variable: str = "MOCK_VISIBLE_DEVICES") -> list[str]:
        return sorted(self.environment()[variable].split(","))

    def health(self) -> dict[str, str]:
        """The devices that the pod's status names, and how they are."""
        return {
            str(device["resourceID"]): str(device["health"])
            for container in self.read()["status"].get("containerStatuses", [])
            for resource in container.get("allocatedResourcesStatus", [])
            for device in resource["resources"]
        }

    def shows(self, wanted: Mapping[str, str]) -> None:
        """Waits until the pod's status has this health of these devices."""
        until(f"{self.name} shows {wanted}", lambda: wanted.items() <= self.health().items(), last=self.health)

    def containers(self) -> list[tuple[str, int]]:
        """Each container's id, and how often it was started again: the same for as long as nobody disturbs it."""
        statuses = self.read()["status"]["containerStatuses"]
        return [(str(each.get("containerID", "")), int(each["restartCount"])) for each in statuses]

    def delete(self) -> None:
        self.kubectl("delete", "pod", self.name, "--wait", "--timeout=60s")

    def _is_running(self) -> bool:
        pod = self.read()
        refused = refusal(pod)
        assert refused is None, refused
        statuses = pod["status"].get("containerStatuses", [])
        return bool(statuses) and all("running" in each["state"] for each in statuses)

    def _executed(self, command: Sequence[str], printed: list[str]) -> bool:
        try:
            printed.append(self.kubectl("exec", self.name, "--", *command))
        except (KubectlFailed, subprocess.TimeoutExpired) as error:
            printed.append(str(error))
            return False
        return True


class Pods:
    def __init__(self, kubectl: Kubectl) -> None:
        self.kubectl = kubectl

    def create(
        self,
        name: str,
        wants: Mapping[str, int],
        command: str = _STAY,
        env: Mapping[str, str] | None = None,
        image: str = BUSYBOX,
        **spec: object,
    ) -> Pod:
        """A pod of one container `main`, with so many of these resources and this shell command."""
        container: dict[str, Any] = {
            "name": "main",
            "image": image,
            "imagePullPolicy": "Never",
            "command": ["sh", "-c", command],
            "env": [{"name": each, "value": text} for each, text in (env or {}).items()],
            "resources": {"limits": {resource: str(count) for resource, count in wants.items()}},
        }
        whole = {"containers": [container], "terminationGracePeriodSeconds": 5, **spec}
        self.kubectl.create({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": whole})
        return Pod(name, self.kubectl)

    def every(self) -> dict[str, Object]:
        return {pod["metadata"]["name"]: pod for pod in self.kubectl.every("pods")}

    def delete(self, *names: str) -> None:
        """Asks for their end, and does not wait for it."""
        self.kubectl("delete", "pod", *names, "--wait=false")

    def end(self) -> None:
        self.kubectl("delete", "pods", "--all", "--wait", "--timeout=60s")
