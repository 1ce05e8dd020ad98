"""The users of claims' devices: pods and their containers, as known to the API server."""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from plugwright.explain.world import ApiObject, World, allocation_of, identity

__all__ = ["ClaimUsers", "FleetHolder", "FleetValue", "claims_of_pod", "text_of"]


class FleetValue(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Base of the values of a fleet, which `-o json` prints as JSON."""


class FleetHolder(FleetValue, frozen=True, kw_only=True):
    """A container or a claim that holds a device. Empty strings are unknown."""

    api: str  # device-plugin or dra
    namespace: str = ""
    pod: str = ""
    container: str = ""
    claim: str = ""
    since: str = ""
    admin_access: bool = False  # it only monitors the device

    @property
    def name(self) -> str:
        """`namespace/pod/container`, or the claim if no pod is known."""
        if self.pod:
            return "/".join(part for part in (self.namespace, self.pod, self.container) if part)
        return f"claim {self.namespace}/{self.claim}" if self.claim else "a pod that is not known"


class ClaimUsers:
    """The pods and containers that use each device through claims."""

    def __init__(self, world: World) -> None:
        self._pods = {identity(pod): pod for pod in world.pods}
        self._claims = {identity(claim): claim for claim in world.claims}
        self.has_all_pods = bool(world.nodes) and not any(entry.startswith("pods") for entry in world.unseen)
        self.is_complete = not any(entry.startswith("claims") for entry in world.unseen)
        self._by_device: dict[tuple[str, str, str], list[tuple[ApiObject, ApiObject]]] = {}
        for claim in world.claims:
            for result in ((allocation_of(claim) or {}).get("devices") or {}).get("results") or ():
                device = text_of(result.get("driver")), text_of(result.get("pool")), text_of(result.get("device"))
                self._by_device.setdefault(device, []).append((claim, result))

    def of(self, device: tuple[str, str, str]) -> Iterator[tuple[FleetHolder, bool]]:
        """The holders of a device, and whether each has only a share of it."""
        for claim, result in self._by_device.get(device, ()):
            (namespace, name), is_share = identity(claim), bool(result.get("shareID"))
            is_admin = bool(result.get("adminAccess"))
            since = text_of(((claim.get("status") or {}).get("allocation") or {}).get("allocationTimestamp"))
            known = FleetHolder(api="dra", namespace=namespace, claim=name, since=since, admin_access=is_admin)
            for pod, container in self._users(claim) or [("", "")]:
                yield replace(known, pod=pod, container=container), is_share

    def completed(self, entry: Mapping[str, Any]) -> Iterator[FleetHolder]:
        """The holders in a NodeReport, completed with the pods of claims from the API server.

        Omits a holder whose name the kubelet no longer lists, and whose uid belongs to no pod in the API server. The
        objects must have been read after the report.
        """
        known = FleetHolder(
            api=text_of(entry.get("api")),
            namespace=text_of(entry.get("namespace")),
            pod=text_of(entry.get("pod")),
            container=text_of(entry.get("container")),
            claim=text_of(entry.get("claim")),
            since=text_of(entry.get("since")),
            admin_access=bool(entry.get("adminAccess")),
        )
        uid = text_of(entry.get("podUid"))
        if self.has_all_pods and uid and not known.pod and self._with_uid(uid) is None:
            return  # its pod has ended; the kubelet frees its devices when it next admits a pod
        named = self._with_uid(uid) if not known.pod else None
        if named is not None:
            known = replace(known, namespace=named[0], pod=named[1])
        claim = self._claims.get((known.namespace, known.claim)) if not known.container else None
        users = self._users(claim) if claim is not None else []
        own = [user for user in users if known.pod in ("", user[0])]
        for pod, container in own or [(known.pod, known.container)]:
            yield replace(known, pod=pod, container=container)

    def _with_uid(self, uid: str) -> tuple[str, str] | None:
        if not uid:
            return None
        return next((key for key, pod in self._pods.items() if pod["metadata"].get("uid") == uid), None)

    def _users(self, claim: ApiObject) -> list[tuple[str, str]]:
        namespace, name = identity(claim)
        found: list[tuple[str, str]] = []
        for user in (claim.get("status") or {}).get("reservedFor") or ():
            pod = text_of(user.get("name"))
            containers = _containers(self._pods.get((namespace, pod)) or {}, name)
            found += [(pod, container) for container in containers] or [(pod, "")]
        return found


def _containers(pod: ApiObject, claim: str) -> list[str]:
    """The containers of a pod that use the claim with that name."""
    spec, status = pod.get("spec") or {}, pod.get("status") or {}
    generated = {
        entry.get("name"): entry.get("resourceClaimName") for entry in status.get("resourceClaimStatuses") or ()
    }
    entries = {
        entry.get("name")
        for entry in spec.get("resourceClaims") or ()
        if claim in (entry.get("resourceClaimName"), generated.get(entry.get("name")))
    }
    return [
        text_of(container.get("name"))
        for container in (*(spec.get("initContainers") or ()), *(spec.get("containers") or ()))
        if any(use.get("name") in entries for use in (container.get("resources") or {}).get("claims") or ())
    ]


def claims_of_pod(pod: ApiObject) -> Iterator[str]:
    """The names of the claims that a pod uses."""
    spec, status = pod.get("spec") or {}, pod.get("status") or {}
    used = *(spec.get("resourceClaims") or ()), *(status.get("resourceClaimStatuses") or ())
    for entry in (*used, status.get("extendedResourceClaimStatus") or {}):
        if name := text_of(entry.get("resourceClaimName")):
            yield name


def text_of(value: object) -> str:
    """An untrusted text or number; empty for other types."""
    return str(value) if isinstance(value, str | int) and not isinstance(value, bool) else ""
