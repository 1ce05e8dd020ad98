"""What a driver says of itself, for `plugwright status`, probes and metrics: plain functions over its parts' states."""

from collections.abc import Iterable
from dataclasses import asdict

from plugwright.dra.resource_claims.prepared_claims import PreparedClaim
from plugwright.dra.resource_slices.publisher import PublisherState, PublisherStatus
from plugwright.sdk.registration import RegistrationState, RegistrationStatus
from plugwright.sdk.serve_settings import DriverState

__all__ = ["claims_status", "driver_state", "registration_status", "slices_status"]


def driver_state(registration: RegistrationStatus, slices: PublisherStatus) -> DriverState:
    """Ready when registered and published; slices stay in an API server that is away, so they count then too."""
    is_registered = registration.state is RegistrationState.REGISTERED
    is_published = slices.state is PublisherState.PUBLISHED
    was_published = slices.state is PublisherState.AWAY and slices.slices > 0
    if not is_registered:
        return DriverState(registration.state.value, registration.reason, False, registration.since)
    if is_published or was_published:
        return DriverState(registration.state.value, slices.reason, True, registration.since)
    reason = slices.reason or "its devices are not published yet"
    return DriverState("unpublished", reason, False, registration.since)


def registration_status(status: RegistrationStatus, endpoint: str) -> dict[str, object]:
    return {
        "state": status.state.value,
        "reason": status.reason,
        "since": round(status.since, 3),
        "endpoint": endpoint,
    }


def slices_status(status: PublisherStatus) -> dict[str, object]:
    return {**asdict(status), "state": status.state.value, "dropped": list(status.dropped)}


def claims_status(claims: Iterable[PreparedClaim]) -> list[dict[str, object]]:
    return [
        {
            "namespace": claim.namespace,
            "name": claim.name,
            "uid": claim.uid,
            "state": claim.state.value,
            "devices": sorted({device.id for device in claim.devices}),
        }
        for claim in sorted(claims, key=lambda claim: (claim.namespace, claim.name, claim.uid))
    ]
