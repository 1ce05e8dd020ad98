"""The devices of claims and whether pods still use them: by the API server, or by our own record without one."""

import asyncio
from collections.abc import Mapping
from typing import Protocol

import msgspec

from plugwright.dra.resource_claims import claims
from plugwright.dra.resource_claims.claims import AllocatedClaim, AllocatedDevice
from plugwright.dra.resource_claims.prepared_claims import ClaimedDevice, PreparedClaims
from plugwright.errors import (
    ClaimGone,
    ClaimWaits,
    MalformedMessage,
    PeerGone,
    PeerRefused,
    PlugwrightError,
    ProtocolError,
)
from plugwright.protocol.dra import Claim

__all__ = ["AllocatedClaims", "ClaimSource", "RecordedClaims"]

_CLAIM = "/apis/resource.k8s.io/v1/namespaces/{}/resourceclaims/{}"
_NOT_KNOWN = ("unknown",)  # the pods that use a claim, which only the API server knows
_RESERVATIONS_LIMIT = 2.0  # seconds; a claim is unprepared even without an API server


class ClaimReader(Protocol):
    """Implemented by `kube.api_client.ApiClient`."""

    async def get(self, path: str) -> Mapping[str, object]:
        """The object; `PeerRefused` with the code `NotFound` if it does not exist, `PeerGone` without a response."""
        ...


class ClaimSource(Protocol):
    """The devices allocated to claims: by the API server, or by our own record."""

    async def allocated(self, claim: Claim) -> AllocatedClaim:
        """`ClaimGone` if it is not that claim, `ClaimWaits` if it cannot be read, `ClaimRefused` if it is invalid."""
        ...

    async def several_users(self, claim: Claim) -> tuple[str, ...]:
        """The pods that use the claim, if there are several; empty if unknown."""
        ...


class AllocatedClaims(msgspec.Struct, frozen=True):
    """Implements `ClaimSource` for one driver whose devices are in one pool."""

    api: ClaimReader
    driver: str
    pool: str

    async def allocated(self, claim: Claim) -> AllocatedClaim:
        """The claim with its devices; see `ClaimSource`."""
        claims.check_identity(claim.namespace, claim.name, claim.uid)
        where = f"ResourceClaim {claim.namespace}/{claim.name}"
        path = _CLAIM.format(claim.namespace, claim.name)  # both are valid Kubernetes names
        try:
            allocated = claims.read_claim(_checked(await self.api.get(path)), self.driver)
        except PeerRefused as error:
            if error.code == "NotFound":
                raise ClaimGone(f"{where} does not exist") from error
            raise ClaimWaits(f"{where} cannot be read: {error}") from error
        except (PeerGone, OSError) as error:
            raise ClaimWaits(f"{where} cannot be read, the API server does not answer: {error}") from error
        except ProtocolError as error:
            raise ClaimWaits(f"{where} cannot be read: {error}") from error
        if allocated.uid != claim.uid:
            raise ClaimGone(f"{where} was replaced: its uid is {allocated.uid}, not {claim.uid}")
        for result in allocated.results:
            if result.pool != self.pool:
                raise ClaimGone(f"device {result.device} of pool {result.pool} is not on this node, {self.pool}")
        return allocated

    async def several_users(self, claim: Claim) -> tuple[str, ...]:
        """The names of the pods that have it reserved, if there are several; empty if the API server is unreachable."""
        try:
            async with asyncio.timeout(_RESERVATIONS_LIMIT):
                allocated = await self.allocated(claim)
        except (PlugwrightError, OSError):  # includes TimeoutError
            return ()
        return allocated.pods if len(allocated.reserved_for) > 1 else ()


class RecordedClaims:
    """Implements `ClaimSource` for a driver that only ends earlier claims."""

    def __init__(self, prepared: PreparedClaims) -> None:
        self._prepared = prepared

    async def allocated(self, claim: Claim) -> AllocatedClaim:
        """The claim with its recorded devices; `ClaimGone` if it is not recorded."""
        claims.check_identity(claim.namespace, claim.name, claim.uid)
        try:
            stored = (await self._prepared.read()).get(claim.uid)
        except (OSError, PlugwrightError) as error:
            raise ClaimWaits(f"the record of claims cannot be read: {error}") from error
        if stored is None:
            where = f"ResourceClaim {claim.namespace}/{claim.name}"
            text = "the devices of this node are served by the device plugin API now, and new claims are refused"
            raise ClaimGone(f"{where}: {text}")
        results = tuple(map(_result, stored.devices))
        return AllocatedClaim(claim.namespace, claim.name, claim.uid, results, reserved_for=_NOT_KNOWN)

    async def several_users(self, claim: Claim) -> tuple[str, ...]:
        """Unknown without the API server: the kubelet decides."""
        return ()


def _checked(document: Mapping[str, object]) -> Mapping[str, object]:
    """Checks that the document shows whether the claim is allocated, because a wrong answer must not end a claim."""
    metadata, status = document.get("metadata"), document.get("status", {})
    uid = metadata.get("uid") if isinstance(metadata, Mapping) else None
    allocation = status.get("allocation") if isinstance(status, Mapping) else status
    if not isinstance(uid, str) or not claims.is_uid(uid) or not isinstance(allocation, Mapping | None):
        raise MalformedMessage("the answer must be a ResourceClaim with its uid and allocation")
    return document


def _result(device: ClaimedDevice) -> AllocatedDevice:
    return AllocatedDevice(
        request=device.request,
        pool=device.pool,
        device=device.name,
        share_id=device.share_id,
        admin_access=device.admin_access,
        consumed=device.consumed,
        parameters=device.parameters,
        reference=device.request,
    )
