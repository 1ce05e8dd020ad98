"""One attempt to prepare or undo a claim: calls the plugin and writes the files, recorded in the checkpoint.

`preparation` decides when to try and retry. Every method works inside a transaction of the checkpoint, so that only one
claim is set up or undone at a time.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol

import msgspec
from msgspec.structs import replace

from plugwright.attributes import ClaimReference
from plugwright.dra.resource_claims import claim_devices
from plugwright.dra.resource_claims.claim_files import ClaimFiles
from plugwright.dra.resource_claims.claims import AllocatedClaim, AllocatedDevice
from plugwright.dra.resource_claims.prepared_claims import (
    ClaimedDevice,
    ClaimTransaction,
    PreparedClaim,
    PreparedClaims,
    State,
    held_by_another,
)
from plugwright.errors import ClaimRefused, ClaimWaits, PluginError, PluginTimeout
from plugwright.model import Allocation, Device
from plugwright.sdk import cdi

__all__ = ["ClaimSetup", "DeviceAccess", "PreparationSettings"]


class DeviceAccess(Protocol):
    """The plugin and its devices, which are identified here by their names in the slice."""

    def device(self, name: str) -> Device | None: ...

    def refusal(self, device: Device) -> str:
        """Why, besides its health, a claim cannot get the device now; empty if it can."""
        ...

    def failure_taints(self, device: Device) -> Sequence[Mapping[str, str]]:
        """The taints that the slice contains or is about to contain for an Unhealthy device."""
        ...

    async def arriving(self, names: Collection[str]) -> None:
        """A claim names these devices, which could have to move to claims first."""
        ...

    async def allocate(self, devices: Sequence[Device]) -> Allocation: ...

    async def release(self, devices: Sequence[Device]) -> None: ...

    async def check_parameters(self, parameters: Mapping[str, object]) -> None:
        """Raises `PluginError` if they cannot be applied."""
        ...


class PreparationSettings(msgspec.Struct, frozen=True, kw_only=True):
    """`limit`: seconds within which a call is answered; `lookup`: between two lookups of abandoned claims.

    `lookup_ended` is for claims kept for a pod that could be gone. `host_root` is the path of the host's root; if None,
    the host's files are not checked.
    """

    limit: float = 40.0  # the kubelet waits 45
    first_retry: float = 0.1
    longest_retry: float = 2.0
    lookup: float = 60.0
    lookup_ended: float = 5.0
    host_root: Path | None = Path("/")


class ClaimSetup:
    """`host_root` is the path of the host's root; if None, device nodes are not checked."""

    def __init__(
        self, devices: DeviceAccess, prepared: PreparedClaims, files: ClaimFiles, host_root: Path | None = Path("/")
    ) -> None:
        self.devices, self.prepared, self.files, self._host_root = devices, prepared, files, host_root

    async def prepare(self, transaction: ClaimTransaction, claim: AllocatedClaim) -> PreparedClaim:
        """Prepares a claim; a prepared claim gets the same answer.

        `ClaimWaits` or `PluginError` if a later attempt could succeed.
        """
        stored = transaction.claims.get(claim.uid)
        if stored is not None and not _is_allocation(stored, claim):
            await self.undo(transaction, stored)  # reallocated without an unprepare in between
        elif stored is not None and stored.is_ready(self.prepared.boot_id):
            return await self.restore(transaction, stored, claim)
        await self._check_parameters(claim)
        devices = {result.device: self._usable(result) for result in claim.results}
        capacity = {name: {key: each.value for key, each in found.capacity.items()} for name, found in devices.items()}
        if reason := held_by_another(transaction.claims, claim, capacity):
            raise ClaimWaits(reason)
        taken = claim_devices.claimed(claim, devices)
        started = PreparedClaim(
            claim.uid, claim.namespace, claim.name, State.STARTED, self.prepared.boot_id, devices=taken
        )
        # Stored before the plugin is called: a crash must not leave a device both taken and free.
        await transaction.run(partial(transaction.put, started))
        requests = claim_devices.devices_by_request(claim, devices)
        allocations = {request: await self.devices.allocate(given) for request, given in requests.items()}
        return await transaction.run(partial(self._finish, transaction, started, (claim, allocations, devices)))

    async def restore(
        self, transaction: ClaimTransaction, claim: PreparedClaim, allocated: AllocatedClaim | None = None
    ) -> PreparedClaim:
        """A prepared claim, with files restored that have vanished since.

        Metadata files need the `allocated` claim of the API server.
        """
        devices = {each.name: device for each in claim.devices if (device := self.devices.device(each.name))}
        await transaction.run(partial(self.files.write_again, claim, allocated, devices))
        return await self.mark(transaction, claim, State.DONE)

    async def mark(self, transaction: ClaimTransaction, claim: PreparedClaim, state: State) -> PreparedClaim:
        marked = replace(claim, state=state)
        if marked != claim:
            await transaction.run(partial(transaction.put, marked))
        return marked

    async def undo(self, transaction: ClaimTransaction, claim: PreparedClaim) -> None:
        """Releases the devices and removes every trace.

        If any step fails, the claim keeps its devices: it can be undone again, or set up again from the beginning.
        """
        if claim.uid in transaction.claims:
            # Stored before anything is removed: a half undone claim must not seem prepared.
            claim = await self.mark(transaction, claim, State.STARTED)
        if devices := [self._released(device, claim) for device in claim.devices]:
            await self.devices.release(devices)
        await transaction.run(partial(self._remove, transaction, claim))

    def _remove(self, transaction: ClaimTransaction, claim: PreparedClaim) -> None:
        self.files.remove(claim)
        transaction.remove(claim.uid)

    async def _check_parameters(self, claim: AllocatedClaim) -> None:
        checked: list[Mapping[str, object]] = []
        for result in claim.results:
            if not result.parameters or result.parameters in checked:
                continue
            checked.append(result.parameters)
            try:
                await self.devices.check_parameters(result.parameters)
            except PluginTimeout as error:
                raise ClaimWaits(str(error)) from error
            except PluginError as error:
                raise ClaimRefused(f"parameters for request {result.request}: {error}") from error

    def _usable(self, result: AllocatedDevice) -> Device:
        device = self.devices.device(result.device)
        if device is None:
            raise ClaimWaits(f"device {result.device} is not on this node")
        if result.admin_access:
            return device  # a claim holds it, whatever its health
        if refusal := self.devices.refusal(device):
            raise ClaimWaits(f"device {result.device} cannot be given to a claim: {refusal}")
        if not device.healthy and not all(map(result.tolerates, self.devices.failure_taints(device))):
            raise ClaimWaits(f"device {result.device} is Unhealthy: {device.reason}")
        return device

    def _finish(
        self,
        transaction: ClaimTransaction,
        started: PreparedClaim,
        given: tuple[AllocatedClaim, Mapping[str, Allocation], Mapping[str, Device]],
    ) -> PreparedClaim:
        """In a thread: writes the claim's files, and then records that it is done."""
        claim, allocations, devices = given
        if self._host_root is not None:
            missing = claim_devices.missing_nodes(allocations.values(), self._host_root)
            if missing:
                raise ClaimWaits(f"device node {', '.join(missing)} is not there on the node")
        made = self.files.write(claim, allocations, devices)
        done = replace(
            started,
            state=State.DONE,
            devices=claim_devices.with_names(started.devices, made.names),
            spec=cdi.to_plain(made.spec) if made.spec is not None else None,
        )
        transaction.put(done)
        return done

    def _released(self, claimed: ClaimedDevice, claim: PreparedClaim) -> Device:
        """The device for release(); a missing device has only its id."""
        device = self.devices.device(claimed.name) or Device(claimed.id)
        given = claim_devices.device_of_claim(device, claimed.consumed, claimed.parameters, claimed.share_id)
        reference = ClaimReference(claim.uid, claim.namespace, claim.name, claimed.request)
        return given.replace(claim=reference, admin_access=claimed.admin_access)


def _is_allocation(stored: PreparedClaim, claim: AllocatedClaim) -> bool:
    """Whether the claim has the same devices as the stored one."""
    if stored.found:
        return {device.name for device in stored.devices} <= {result.device for result in claim.results}
    return _keys(stored.devices) == _keys(claim_devices.claimed(claim, {}))


def _keys(devices: Iterable[ClaimedDevice]) -> list[tuple[str, str, str, str, bool]]:
    return sorted(device.key for device in devices)
