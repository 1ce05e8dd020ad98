"""The devices of a claim for the plugin and for the kubelet: plain functions between an allocation and a CDI spec.

A container can get a single request of a claim, so allocate() is called once with all devices of one request, and its
answer is one CDI device, named after the request's first device. The spec names the other devices too, so that the file
alone accounts for every device of the claim. A container can also get the whole claim; if two requests then set one
environment variable, the container has the value of the later one.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace

from plugwright.attributes import Capacity, ClaimReference
from plugwright.dra.resource_claims.claims import AllocatedClaim, AllocatedDevice
from plugwright.dra.resource_claims.prepared_claims import ClaimedDevice, PreparedClaim
from plugwright.model import Allocation, Device
from plugwright.protocol.dra import PreparedDevice
from plugwright.sdk import cdi
from plugwright.sdk.cdi.recreation import names_in

__all__ = [
    "ClaimSpec",
    "answer",
    "cdi_kind",
    "claimed",
    "device_of_claim",
    "devices_by_request",
    "missing_nodes",
    "spec_of",
    "with_names",
]


_MARK = "PLUGWRIGHT_CLAIMED_DEVICE"


class ClaimSpec(msgspec.Struct, frozen=True):
    """The CDI spec of a claim, if it needs one, and the CDI names for each of its requests."""

    spec: cdi.Spec | None
    names: Mapping[str, tuple[str, ...]]


def cdi_kind(driver: str) -> str:
    """`<driver>/claim`; a driver's name can start with a digit, a CDI vendor's cannot."""
    return f"{driver}/claim" if driver[:1].isalpha() else f"dra-{driver}/claim"


def claimed(claim: AllocatedClaim, devices: Mapping[str, Device]) -> tuple[ClaimedDevice, ...]:
    """The claim's devices for the checkpoint; the id of an unknown device is its name."""
    return tuple(
        ClaimedDevice(
            result.device,
            devices[result.device].id if result.device in devices else result.device,
            result.pool,
            result.request,
            result.share_id,
            result.admin_access,
            consumed=dict(result.consumed),
            parameters=dict(result.parameters),
        )
        for result in claim.results
    )


def devices_by_request(claim: AllocatedClaim, devices: Mapping[str, Device]) -> dict[str, list[Device]]:
    """The devices for allocate(). Two shares of one device in one request are one device with both.

    It then has the name of the first share, which belongs to no other claim.
    """
    requests: dict[str, dict[str, list[AllocatedDevice]]] = {}
    for result in claim.results:
        requests.setdefault(result.request, {}).setdefault(result.device, []).append(result)
    return {
        request: [
            device_of_claim(
                devices[name],
                results[0].consumed if len(results) == 1 else _total(result.consumed for result in results),
                results[-1].parameters,
                results[0].share_id,
            ).replace(
                admin_access=results[0].admin_access,
                claim=ClaimReference(claim.uid, claim.namespace, claim.name, request),
            )
            for name, results in by_name.items()
        ]
        for request, by_name in requests.items()
    }


def device_of_claim(
    device: Device, consumed: Mapping[str, int], parameters: Mapping[str, object], share_id: str = ""
) -> Device:
    """The device with the claim's part of its capacity, the name of that part, and the claim's parameters."""
    capacity = {**device.capacity, **{name: Capacity(amount) for name, amount in consumed.items()}}
    return device.replace(capacity=capacity, parameters=parameters, share_id=share_id)


def missing_nodes(allocations: Iterable[Allocation], root: Path) -> list[str]:
    """Device nodes missing on the host: a runtime would start the container without them, or not at all."""
    paths = sorted({node.host_path for allocation in allocations for node in allocation.nodes})
    return [path for path in paths if not _is_there(root / path.lstrip("/"))]


def spec_of(
    driver: str, claim: AllocatedClaim, allocations: Mapping[str, Allocation], mounts: Mapping[str, cdi.Mount]
) -> ClaimSpec:
    """The spec of a claim; `allocations` and `mounts` are by request. A request without edits has no CDI device."""
    devices: dict[str, cdi.Device] = {}
    names: dict[str, tuple[str, ...]] = {}
    for request, allocation in allocations.items():
        edits = cdi.edits_of(allocation)
        if request in mounts:
            edits = msgspec.structs.replace(edits, mounts=(*edits.mounts, mounts[request]))
        passed_on = names_in(allocation.cdi, allocation.annotations)
        if edits:
            name = _device_name(claim, request, devices)
            devices[name] = cdi.Device(name, edits)
            passed_on = [cdi.qualified_name(cdi_kind(driver), name), *passed_on]
        names[request] = tuple(passed_on)
    if devices:
        for result in claim.results:  # in case only the file is left; no container gets these CDI devices
            name = f"{claim.uid}-{result.device}"
            if not result.admin_access and name not in devices:
                devices[name] = cdi.Device(name, cdi.ContainerEdits(env={_MARK: result.device}))  # otherwise rejected
    return ClaimSpec(cdi.Spec(cdi_kind(driver), list(devices.values())) if devices else None, names)


def answer(claim: PreparedClaim) -> tuple[PreparedDevice, ...]:
    return tuple(
        PreparedDevice(device.pool, device.name, (device.request,), device.cdi, device.share_id)
        for device in claim.devices
    )


def with_names(devices: Sequence[ClaimedDevice], names: Mapping[str, tuple[str, ...]]) -> tuple[ClaimedDevice, ...]:
    """The devices with the CDI names of their requests, each name only at the first device of its request."""
    left = dict(names)
    return tuple(replace(device, cdi=left.pop(device.request, ())) for device in devices)


def _is_there(path: Path) -> bool:
    """Whether a path exists; a link can lead to a path that only the host has."""
    return path.exists() or path.is_symlink()


def _device_name(claim: AllocatedClaim, request: str, taken: Collection[str]) -> str:
    """`<uid>-<device>`: unique among all claims, so no runtime has an outdated one of that name in its cache."""
    first = next(result.device for result in claim.results if result.request == request)
    name = f"{claim.uid}-{first}"
    while name in taken:
        name += f"-{request}"
    return name


def _total(shares: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for share in shares:
        for name, amount in share.items():
            total[name] = total.get(name, 0) + amount
    return total
