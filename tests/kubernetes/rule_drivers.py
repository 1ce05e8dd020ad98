"""Mutants of the small driver beside a real kubelet, many at a time, and what pods with their claims meet.

Each mutant has a driver's name of its own; one class has them all, and requests select a driver by its name.
"""

import signal
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.kubernetes.claims import let_nodes_read_claims
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.components import NODE
from tests.kubernetes.enclosure import Process
from tests.kubernetes.images import BUSYBOX
from tests.kubernetes.kubectl import Object
from tests.kubernetes.pods import Pod, event_texts
from tests.kubernetes.serving import Plugins
from tests.kubernetes.waiting import until

__all__ = ["PART", "SHARED", "RuleDrivers", "container"]

PART, SHARED = "device.allowMultipleAllocations == false", "device.allowMultipleAllocations == true"
_API = "resource.k8s.io/v1"
_CLASS = "rules"
_STAY = "ls /dev | grep -E '^(part|half|shared|gone)'; trap exit TERM; sleep 1000000 & wait"


def container(claim: str = "c0", request: str = "", name: str = "main") -> Object:
    """One that says which of its devices it sees, and stays."""
    used = {"name": claim, "request": request} if request else {"name": claim}
    return {
        "name": name,
        "image": BUSYBOX,
        "imagePullPolicy": "Never",
        "command": ["sh", "-c", _STAY],
        "resources": {"claims": [used]},
    }


class RuleDrivers:
    """Starts mutants and makes objects; `end` removes them."""

    def __init__(self, cluster: Cluster, plugins: Plugins) -> None:
        self.cluster, self.kubectl, self.plugins = cluster, cluster.kubectl, plugins
        self.processes: dict[str, Process] = {}
        let_nodes_read_claims(self.kubectl)
        self.create(_document("DeviceClass", _CLASS, {}))

    def start(self, *mutants: str, node: str = NODE) -> None:
        for mutant in mutants:
            self.processes[mutant] = self.plugins.driver(self.driver(mutant), mutant, node=node)

    def start_correct(self, *names: str, node: str = NODE) -> None:
        for name in names:
            self.processes[name] = self.plugins.driver(self.driver(name), node=node)

    def published(self, *mutants: str) -> None:
        """Waits until these are registered and all their slices are there."""
        until("they are registered", lambda: all(self.processes[one].lines("registered") for one in mutants))
        until("they have slices", lambda: all(len(self.slices(one)) > 1 for one in mutants))

    def serve(self, *mutants: str) -> None:
        self.start(*mutants)
        self.published(*mutants)

    def repair(self, *mutants: str) -> None:
        """Puts the correct driver in a mutant's place: what the defect kept from going on goes on."""
        for mutant in mutants:
            self.processes[mutant].stop()
        self.start_correct(*mutants)

    def kill(self, *mutants: str) -> None:
        for mutant in mutants:
            self.processes[mutant].stop(signal.SIGKILL)

    @staticmethod
    def driver(mutant: str) -> str:
        return f"{mutant}.test"  # short: a socket's path has 107 bytes at most

    def checkpoint(self, mutant: str) -> Path:
        return self.cluster.kubelet_dir / "plugins" / self.driver(mutant) / "checkpoint.json"

    def slices(self, mutant: str) -> list[Object]:
        return self.slices_of(self.driver(mutant))

    def slices_of(self, driver: str) -> list[Object]:
        every = self.kubectl.every("resourceslices", f"--field-selector=spec.driver={driver}")
        return sorted(every, key=lambda found: str(found["metadata"]["name"]))

    def create(self, *objects: Object) -> None:
        self.kubectl.create(*objects)

    def request(self, mutant: str, *expressions: str, **exactly: object) -> Object:
        wanted = (f'device.driver == "{self.driver(mutant)}"', *expressions)
        selectors = [{"cel": {"expression": expression}} for expression in wanted]
        return {"name": "device", "exactly": {"deviceClassName": _CLASS, "selectors": selectors, **exactly}}

    def claim(self, name: str, *requests: Object, **devices: object) -> Object:
        return _document("ResourceClaim", name, {"devices": {"requests": list(requests), **devices}})

    def parameters(self, mutant: str) -> Object:
        """Parameters for a driver, of which the small one takes none."""
        parameters = {"apiVersion": "example.com/v1", "kind": "Unknown"}
        return {"opaque": {"driver": self.driver(mutant), "parameters": parameters}}

    def pod(self, name: str, *claims: str, containers: Sequence[Object] = (), **spec: object) -> Object:
        """A pod with these claims, c0 and so on; its one container uses the first unless others are given."""
        whole = {
            "containers": list(containers) or [container()],
            "resourceClaims": [{"name": f"c{n}", "resourceClaimName": claim} for n, claim in enumerate(claims)],
            "terminationGracePeriodSeconds": 1,
            **spec,
        }
        return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": whole}

    def claimed(self, name: str, mutant: str, *expressions: str, **exactly: object) -> list[Object]:
        """A claim for one device, and a pod of the same name that uses it."""
        return [self.claim(name, self.request(mutant, *expressions, **exactly)), self.pod(name, name)]

    def read(self, name: str) -> Pod:
        return Pod(name, self.kubectl)

    def say(self, reason: str, words: Mapping[str, str], limit: float = 60) -> None:
        """Waits until events of this reason have these words, by pod."""

        def missing() -> dict[str, str]:
            texts = event_texts(self.kubectl, reason)
            return {name: texts.get(name, "") for name, wanted in words.items() if wanted not in texts.get(name, "")}

        until(f"{reason} of {sorted(words)}", lambda: not missing(), limit, last=missing)

    def not_prepared(self, words: Mapping[str, str], limit: float = 60) -> None:
        self.say("FailedPrepareDynamicResources", words, limit)

    def not_scheduled(self, words: Mapping[str, str]) -> None:
        self.say("FailedScheduling", words)

    def run(self, names: Iterable[str]) -> None:
        """Waits until these pods run."""
        wanted = set(names)

        def others() -> dict[str, Any]:
            every = {pod["metadata"]["name"]: pod["status"] for pod in self.kubectl.every("pods")}
            return {name: every.get(name) for name in wanted if not _runs(every.get(name, {}))}

        until(f"{wanted} run", lambda: not others(), last=others)

    def not_created(self, names: Iterable[str]) -> None:
        """Waits until the runtime has failed to make a container of each of these pods."""
        self.say("Failed", dict.fromkeys(names, "Error: failed to "))

    def seen(self, pod: str, container: str = "main") -> list[str]:
        """The devices that a container has seen when it started."""
        return self.kubectl("logs", pod, "--container", container).split()

    def results(self, claim: str) -> list[str]:
        """The names of the devices that are allocated to a claim."""
        found = self.kubectl.get("resourceclaim", claim) or {}
        allocation = (found.get("status") or {}).get("allocation") or {}
        return [result["device"] for result in (allocation.get("devices") or {}).get("results") or ()]

    def allocate_as(self, claim: str, other: str) -> None:
        """Gives a claim the allocation of another, as a race of two schedulers does."""
        found, held = (self.kubectl.get("resourceclaim", name) for name in (claim, other))
        assert found is not None
        assert held is not None
        given = {**found, "status": {"allocation": held["status"]["allocation"]}}
        self.replace_status(given)

    def replace_status(self, document: Object) -> None:
        metadata = document["metadata"]
        path = f"/apis/{_API}/namespaces/default/resourceclaims/{metadata['name']}/status"
        self.kubectl.replace(path, document)

    def lose(self, claim: str) -> None:
        """Deletes a claim that a pod uses, as somebody may who has the right."""
        self.kubectl("delete", "resourceclaim", claim, "--wait=false")
        self.kubectl("patch", "resourceclaim", claim, "--type=merge", '--patch={"metadata":{"finalizers":null}}')

    def end(self) -> None:
        """By force, since mutants keep pods from ending."""
        self.kubectl("delete", "pods", "--all", "--force", "--grace-period=0", "--wait", "--timeout=60s")
        self.kubectl("delete", "resourceclaims", "--all", "--wait", "--timeout=60s")
        self.kubectl("delete", "deviceclass", _CLASS)


def _document(kind: str, name: str, spec: Mapping[str, object]) -> Object:
    return {"apiVersion": _API, "kind": kind, "metadata": {"name": name}, "spec": spec}


def _runs(status: Object) -> bool:
    statuses = status.get("containerStatuses") or ()
    return bool(statuses) and all("running" in one["state"] for one in statuses)
