"""Devices by claims: classes, claims and pods of a test, and what is published of a driver."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tests.kubernetes.components import NODE
from tests.kubernetes.images import BUSYBOX
from tests.kubernetes.kubectl import Kubectl, Object
from tests.kubernetes.pods import Pod
from tests.kubernetes.waiting import until

__all__ = ["Claims", "let_nodes_read_claims"]

_API = "resource.k8s.io/v1"
_STAY = "trap exit TERM; sleep 1000000 & wait"


class Claims:
    """Of one driver, with a class of the driver's name. `end` removes what a test has made, but for pods."""

    def __init__(self, kubectl: Kubectl, driver: str, extended: str = "") -> None:
        self.kubectl, self.driver = kubectl, driver
        let_nodes_read_claims(kubectl)
        spec: dict[str, Any] = {"selectors": [{"cel": {"expression": f'device.driver == "{driver}"'}}]}
        if extended:
            spec["extendedResourceName"] = extended
        self._create("DeviceClass", driver, spec)

    def request(self, name: str = "device", **exactly: object) -> Object:
        return {"name": name, "exactly": {"deviceClassName": self.driver, **exactly}}

    def claim(self, name: str, *requests: Object, **devices: object) -> None:
        self._create("ResourceClaim", name, {"devices": {"requests": requests or [self.request()], **devices}})

    def template(self, name: str, *requests: Object, **devices: object) -> None:
        spec = {"devices": {"requests": requests or [self.request()], **devices}}
        self._create("ResourceClaimTemplate", name, {"spec": spec})

    def pod(self, name: str, *templates: str, claims: Sequence[str] = (), **spec: object) -> Pod:
        """A pod of one container `main` with all of the claims."""
        named = {f"t{number}": {"resourceClaimTemplateName": template} for number, template in enumerate(templates)}
        named |= {f"c{number}": {"resourceClaimName": claim} for number, claim in enumerate(claims)}
        container = {
            "name": "main",
            "image": BUSYBOX,
            "imagePullPolicy": "Never",
            "command": ["sh", "-c", _STAY],
            "resources": {"claims": [{"name": key} for key in named]},
        }
        whole = {
            "containers": [container],
            "resourceClaims": [{"name": key, **source} for key, source in named.items()],
            "terminationGracePeriodSeconds": 1,
            **spec,
        }
        self.kubectl.create({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": whole})
        return Pod(name, self.kubectl)

    def slices(self) -> list[Object]:
        every = self.kubectl.every("resourceslices")
        return [found for found in every if found["spec"]["driver"] == self.driver]

    def devices(self) -> dict[str, Object]:
        """The published devices by name, of a pool that is whole; else none."""
        slices = self.slices()
        newest = max((found["spec"]["pool"]["generation"] for found in slices), default=0)
        current = [found["spec"] for found in slices if found["spec"]["pool"]["generation"] == newest]
        if any(spec["pool"]["resourceSliceCount"] != len(current) for spec in current):
            return {}
        assert all(spec["nodeName"] == NODE for spec in current)
        return {device["name"]: device for spec in current for device in spec.get("devices") or []}

    def published(self, count: int) -> dict[str, Object]:
        """The devices, once so many are published."""
        until(f"{self.driver} has {count} devices", lambda: len(self.devices()) == count, last=self.slices)
        return self.devices()

    def taints(self) -> dict[str, list[tuple[str, str]]]:
        """The key and effect of each taint, by the name of the device; devices without one are left out."""
        every = {name: device.get("taints") or [] for name, device in self.devices().items()}
        return {name: [(taint["key"], taint["effect"]) for taint in taints] for name, taints in every.items() if taints}

    def allocated(self) -> dict[str, list[str]]:
        """The devices of each claim that has some, by the name of the claim."""
        found = {}
        for claim in self.kubectl.every("resourceclaims"):
            allocation = (claim.get("status") or {}).get("allocation") or {}
            results = (allocation.get("devices") or {}).get("results") or []
            found[claim["metadata"]["name"]] = [
                result["device"] for result in results if result["driver"] == self.driver
            ]
        return {name: devices for name, devices in found.items() if devices}

    def results(self, claim: str) -> list[Object]:
        """What was allocated to a claim."""
        found = self.kubectl.get("resourceclaim", claim) or {}
        return list(found["status"]["allocation"]["devices"]["results"])

    def conditions(self, claim: str) -> list[tuple[str, str, str]]:
        """Of all devices in the status of a claim: type, status and reason."""
        found = self.kubectl.get("resourceclaim", claim) or {}
        devices = (found.get("status") or {}).get("devices") or []
        every = [condition for device in devices for condition in device.get("conditions") or []]
        return [(condition["type"], condition["status"], condition["reason"]) for condition in every]

    def end(self) -> None:
        for kind in ("resourceclaims", "resourceclaimtemplates"):
            self.kubectl("delete", kind, "--all", "--wait", "--timeout=60s")
        self.kubectl("delete", "deviceclass", self.driver, "--ignore-not-found")

    def _create(self, kind: str, name: str, spec: Mapping[str, object]) -> None:
        self.kubectl.create(
            json.loads(json.dumps({"apiVersion": _API, "kind": kind, "metadata": {"name": name}, "spec": spec}))
        )


def let_nodes_read_claims(kubectl: Kubectl) -> None:
    """An API server may refuse a kubelet the claim of a pod that it has just got: its authorizer lags behind.

    The kubelet then tries again after more than a minute, for which no test can wait.
    """
    rights, name = "rbac.authorization.k8s.io", "nodes-read-claims-of-tests"
    rule = {"apiGroups": ["resource.k8s.io"], "resources": ["resourceclaims"], "verbs": ["get"]}
    role = {"apiVersion": f"{rights}/v1", "kind": "ClusterRole", "metadata": {"name": name}, "rules": [rule]}
    binding = {
        "apiVersion": f"{rights}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": name},
        "roleRef": {"apiGroup": rights, "kind": "ClusterRole", "name": name},
        "subjects": [{"apiGroup": rights, "kind": "Group", "name": "system:nodes"}],
    }
    kubectl("apply", "--filename=-", given=json.dumps({"apiVersion": "v1", "kind": "List", "items": [role, binding]}))
