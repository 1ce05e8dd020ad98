"""Two kubelets that a scenario with ResourceClaims can be played to: the real one of the cluster, and the emulated one.

Before the real one the scheduler allocates and reserves claims, out of slices that the stage publishes for a driver;
before the emulated one the stage plays that part. What differs by nature (uids) is left out.
"""

import asyncio
import json
import re
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

from msgspec.structs import replace
from tests.kubelet.dra.stored_claims import StoredClaims
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.images import BUSYBOX
from tests.kubernetes.kubectl import Object
from tests.kubernetes.stages import RealStage, plain
from tests.kubernetes.waiting import until

from plugwright.errors import PeerGone
from plugwright.kubelet import Kubelet
from plugwright.kubelet import pods as emulated_pods
from plugwright.kubelet.dra.resource_api import ResourceClaim
from plugwright.protocol import pod_resources
from plugwright.protocol.paths import KubeletPaths
from plugwright.protocol.pod_resources import DynamicResource

__all__ = [
    "ClaimStage",
    "EmulatedClaims",
    "RealClaims",
    "generated",
    "listed_claims",
    "pod_with_claims",
    "recorded_claims",
]

CDI_KIND = "example.com/compared"
_STAY = "trap exit TERM; sleep 1000000 & wait"
_UID = "00000000-0000-4000-8000-{:012x}"
_FAILED = "FailedPrepareDynamicResources"
_GENERATED = re.compile(
    r"(?<=-dev-|rces-)[a-z0-9]{5}\b"
)  # of a claim from a template, and of one for extended resources


class ClaimStage(Protocol):
    paths: KubeletPaths

    async def offer(self, driver: str, resource: str = "") -> None:
        """The driver's slices are there; its class may serve an extended resource."""

    async def claim(self, name: str, *drivers: str, **form: object) -> None: ...

    async def template(self, name: str, driver: str) -> None: ...

    async def admit(self, pod: Object) -> None:
        """Until it runs, or its claims could not be prepared."""

    async def runs(self, name: str) -> None: ...

    async def failures(self, name: str) -> list[str]:
        """The texts of the events that tell why its claims are not prepared."""

    async def cdi_devices(self, name: str) -> dict[str, list[str]]:
        """By container."""

    async def health(self, name: str) -> dict[str, list[Object]]: ...

    async def delete(self, name: str) -> None:
        """Without waiting until it is gone."""

    async def gone(self, name: str) -> bool:
        """Whether it is gone by now."""

    async def remove(self, name: str) -> None: ...

    async def restart(self) -> None: ...

    async def new_sandbox(self, name: str) -> None:
        """The sandbox of the pod ends, and the kubelet has made another."""

    async def wiped(self, driver: str) -> None:
        """Once the driver's slices are gone."""


def pod_with_claims(
    name: str, claims: Mapping[str, str], uses: Mapping[str, Sequence[Object]], **more: object
) -> Object:
    """A pod whose claims are called as `claims` says, and containers with their `uses` of them."""
    containers = [
        {
            "name": container,
            "image": BUSYBOX,
            "imagePullPolicy": "Never",
            "command": ["sh", "-c", _STAY],
            "resources": {"claims": list(used)},
        }
        for container, used in uses.items()
    ]
    spec: Object = {
        "terminationGracePeriodSeconds": 1,
        "automountServiceAccountToken": False,
        "resourceClaims": [{"name": local, "resourceClaimName": claim} for local, claim in claims.items()],
        "containers": containers,
        **more,
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"}, "spec": spec}


def recorded_claims(paths: KubeletPaths, *names: str) -> list[str]:
    """The entries of `dra_manager_state` for these claims, as they are written but for uids."""
    document = json.loads((paths.root / "dra_manager_state").read_bytes())
    assert [*document] == ["Data", "Checksum"]
    assert zlib.crc32(document["Data"].encode()) == document["Checksum"]
    data: dict[str, Any] = json.loads(document["Data"])
    entries = [entry for entry in data.pop("ClaimInfoStateList") or () if generated(entry["ClaimName"]) in names]
    written = [json.dumps(entry) for entry in sorted(entries, key=lambda entry: str(entry["ClaimName"]))]
    return [json.dumps(data), *(generated(plain(text)) for text in written)]


def generated(text: str) -> str:
    """With one word for what is random in the names of claims."""
    return _GENERATED.sub("<random>", text)


async def listed_claims(paths: KubeletPaths, name: str) -> dict[str, tuple[DynamicResource, ...]]:
    """What List and Get say of a pod; a kubelet that was just started may not know its pods yet."""
    async with asyncio.timeout(30), pod_resources.connect(paths.pod_resources_socket) as kubelet:
        while not (listed := [pod for pod in await kubelet.pods(timeout=5) if pod.name == name]):
            await asyncio.sleep(0.2)
        assert listed == [await kubelet.pod(name, "default", timeout=5)]
    return {
        container.name: tuple(replace(claim, claim_name=generated(claim.claim_name)) for claim in container.claims)
        for container in listed[0].containers
    }


class EmulatedClaims:
    def __init__(self, kubelet: Kubelet, api: StoredClaims) -> None:
        self._kubelet, self._api = kubelet, api
        self._drivers: dict[str, tuple[str, ...]] = {}
        self._users: dict[str, set[str]] = {}
        self._resources: dict[str, str] = {}
        self.paths = kubelet.paths

    async def offer(self, driver: str, resource: str = "") -> None:
        self._api.wiped.clear()  # those of an earlier driver, or of the start
        self._resources[resource] = driver

    async def template(self, name: str, driver: str) -> None:
        await self.claim(name, driver)

    async def claim(self, name: str, *drivers: str, **form: object) -> None:
        self._drivers[name] = drivers
        self._users[name] = set()

    async def admit(self, pod: Object) -> None:
        spec = emulated_pods.read({**pod, "status": self._status(pod)})
        for claim in spec.claims:
            self._users.setdefault(claim.claim_name, set()).add(spec.uid)
            self._allocate(claim.claim_name, spec.uid if claim.generated else "")
        await self._kubelet.admit(spec)

    def _status(self, pod: Object) -> Object:
        """What the scheduler and the controller manager write: the names of claims that were made for the pod."""
        name, status = pod["metadata"]["name"], dict[str, Any]()
        for entry in pod["spec"]["resourceClaims"]:
            if template := entry.get("resourceClaimTemplateName"):
                made = f"{name}-{entry['name']}-abcde"
                self._drivers[made] = self._drivers[template]
                status["resourceClaimStatuses"] = [{"name": entry["name"], "resourceClaimName": made}]
        for number, container in enumerate(pod["spec"]["containers"]):
            for resource in container["resources"].get("limits", {}):
                made = f"{name}-extended-resources-abcde"
                self._drivers[made] = (self._resources[resource],)
                request = {"resourceName": resource, "requestName": f"container-{number}-request-0"}
                mappings = [{"containerName": container["name"], **request}]
                status["extendedResourceClaimStatus"] = {"resourceClaimName": made, "requestMappings": mappings}
        return status

    def _allocate(self, name: str, owner: str) -> None:
        uid, users = _UID.format(zlib.crc32(name.encode())), frozenset(self._users[name])
        self._api.add(ResourceClaim("default", name, uid, owner, users, self._drivers[name]))

    async def runs(self, name: str) -> None:
        await self._kubelet.start_waiting(self._pod(name))
        assert str(self._pod(name).phase) == "Running"

    async def failures(self, name: str) -> list[str]:
        texts = {container.message for container in self._pod(name).containers.values() if container.message}
        return [f"Failed to prepare dynamic resources: {plain(text)}" for text in sorted(texts)]

    async def cdi_devices(self, name: str) -> dict[str, list[str]]:
        pod = self._pod(name)
        return {container: sorted(set(pod.container(container).cdi)) for container in pod.containers}

    async def health(self, name: str) -> dict[str, list[Object]]:
        found = self._kubelet.claim_health(self._pod(name))
        return {
            container: [
                {"name": one.resource, "resourceID": one.resource_id, "health": one.health, "message": one.message}
                for one in devices
            ]
            for container, devices in found.items()
        }

    async def delete(self, name: str) -> None:
        await self._kubelet.remove(self._pod(name))

    async def gone(self, name: str) -> bool:
        return all(pod.name != name for pod in self._kubelet.pods)

    async def remove(self, name: str) -> None:
        await self.delete(name)
        await self._kubelet.until(lambda: all(pod.name != name for pod in self._kubelet.pods), 60, f"{name} stays")

    async def restart(self) -> None:
        self._api.wiped.clear()
        await self._kubelet.restart()

    async def new_sandbox(self, name: str) -> None:
        pod = self._pod(name)
        for container in pod.containers:
            self._kubelet.stop_container(pod, container)
        await self._kubelet.start_waiting(pod)

    async def wiped(self, driver: str) -> None:
        def is_wiped() -> bool:
            return driver in self._api.wiped or "" in self._api.wiped

        with suppress(PeerGone):
            await self._kubelet.until(is_wiped, 60, "slices stay")
        assert is_wiped()

    def _pod(self, name: str) -> Any:
        return next(pod for pod in self._kubelet.pods if pod.name == name)


class RealClaims:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster, self._stage = cluster, RealStage(cluster)
        self.paths = self._stage.paths
        self._write_cdi_specification()

    async def listens(self) -> None:
        await self._stage.listens()

    async def offer(self, driver: str, resource: str = "") -> None:
        def publish() -> None:
            kubectl = self._cluster.kubectl
            selector = {"cel": {"expression": f'device.driver == "{driver}"'}}
            served = {"extendedResourceName": resource} if resource else {}
            kubectl.create(_object("DeviceClass", driver, {"selectors": [selector], **served}))
            pool = {"name": "node", "generation": 1, "resourceSliceCount": 1}
            devices = [{"name": f"d{number}"} for number in range(8)]
            spec = {"driver": driver, "nodeName": "node", "pool": pool, "devices": devices}
            kubectl.create(_object("ResourceSlice", f"node-{driver}", spec))

        await asyncio.to_thread(publish)

    async def claim(self, name: str, *drivers: str, **form: object) -> None:
        def request(number: int, driver: str) -> Object:
            how = {"deviceClassName": driver}
            local = "gpu" if number == 0 else f"gpu-{number}"
            if form.get("first_available"):
                return {"name": local, "firstAvailable": [{"name": "big", **how}]}
            return {"name": local, "exactly": how}

        requests = [request(number, driver) for number, driver in enumerate(drivers)]
        await asyncio.to_thread(
            self._cluster.kubectl.create, _object("ResourceClaim", name, {"devices": {"requests": requests}})
        )

    async def template(self, name: str, driver: str) -> None:
        spec = {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": driver}}]}}
        made = _object("ResourceClaimTemplate", name, {"spec": spec})
        await asyncio.to_thread(self._cluster.kubectl.create, made)

    async def admit(self, pod: Object) -> None:
        name = pod["metadata"]["name"]
        await asyncio.to_thread(self._cluster.kubectl.create, pod)
        await asyncio.to_thread(
            until,
            f"pod {name} runs or says why not",
            lambda: self._is_running(name) or self._failures(name),
            60,
            lambda: (self._read(name)["status"], self._events(name)),
        )

    async def runs(self, name: str) -> None:
        status = lambda: self._read(name)["status"]  # noqa: E731 - shown where it does not run
        await asyncio.to_thread(until, f"pod {name} runs", lambda: self._is_running(name), 120, status)

    async def failures(self, name: str) -> list[str]:
        return sorted(set(await asyncio.to_thread(self._failures, name)))

    async def cdi_devices(self, name: str) -> dict[str, list[str]]:
        """What the runtime has made of them: every device of the specification sets a variable."""

        def read(container: str) -> list[str]:
            text = self._cluster.kubectl("exec", name, f"--container={container}", "--", "cat", "/proc/1/environ")
            given = dict(line.split("=", 1) for line in text.rstrip("\0").split("\0"))
            return sorted(value for key, value in given.items() if key.startswith("COMPARED_"))

        containers = [container["name"] for container in self._read(name)["spec"]["containers"]]
        return {container: await asyncio.to_thread(read, container) for container in containers}

    async def health(self, name: str) -> dict[str, list[Object]]:
        status = (await asyncio.to_thread(self._read, name))["status"]
        return {
            container["name"]: [
                {"name": resource["name"], "message": "", **device}
                for resource in container.get("allocatedResourcesStatus", [])
                for device in resource["resources"]
            ]
            for container in status.get("containerStatuses", [])
        }

    async def delete(self, name: str) -> None:
        await asyncio.to_thread(self._cluster.kubectl, "delete", "pod", name, "--wait=false")

    async def gone(self, name: str) -> bool:
        return await asyncio.to_thread(lambda: not self._cluster.kubectl.get("pod", name))

    async def remove(self, name: str) -> None:
        await asyncio.to_thread(self._cluster.kubectl, "delete", "pod", name, "--wait", "--timeout=60s")

    async def restart(self) -> None:
        await self._stage.restart()

    async def new_sandbox(self, name: str) -> None:
        def started() -> set[str]:
            return {container["containerID"] for container in self._read(name)["status"]["containerStatuses"]}

        before = await asyncio.to_thread(started)
        await asyncio.to_thread(self._cluster.end_containers)
        is_new = lambda: self._is_running(name) and not before & started()  # noqa: E731
        await asyncio.to_thread(until, f"pod {name} has new containers", is_new, 90)

    async def wiped(self, driver: str) -> None:
        is_gone = lambda: not self._cluster.kubectl.get("resourceslice", f"node-{driver}")  # noqa: E731
        await asyncio.to_thread(until, f"the slices of {driver} are gone", is_gone, 60)

    def end(self) -> None:
        for kind in ("resourceslice", "resourceclaim", "resourceclaimtemplate", "deviceclass"):
            self._cluster.kubectl("delete", kind, "--all", "--wait=false")

    def _read(self, name: str) -> Object:
        found = self._cluster.kubectl.get("pod", name)
        assert found is not None
        return found

    def _is_running(self, name: str) -> bool:
        status = self._read(name)["status"]
        statuses = status.get("containerStatuses", [])
        return bool(statuses) and all("running" in container["state"] for container in statuses)

    def _failures(self, name: str) -> list[str]:
        """Without those of a kubelet that the API server did not know to have the pod yet: it tries again."""
        failed = [event["message"] for event in self._events(name) if event["reason"] == _FAILED]
        return [plain(message) for message in failed if "no relationship found between node" not in message]

    def _events(self, name: str) -> list[Object]:
        return self._cluster.kubectl.every("events", f"--field-selector=involvedObject.name={name}")

    def _write_cdi_specification(self) -> None:
        devices = [
            {"name": str(number), "containerEdits": {"env": [f"COMPARED_{number}={CDI_KIND}={number}"]}}
            for number in range(8)
        ]
        directory = self._cluster.state / "run" / "cdi"
        directory.mkdir(exist_ok=True)
        content = {"cdiVersion": "0.6.0", "kind": CDI_KIND, "devices": devices}
        (directory / "compared.json").write_text(json.dumps(content))


def _object(kind: str, name: str, spec: Object) -> Object:
    return {"apiVersion": "resource.k8s.io/v1", "kind": kind, "metadata": {"name": name}, "spec": spec}
