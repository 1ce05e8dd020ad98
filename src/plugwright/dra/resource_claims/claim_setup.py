"""One attempt to prepare a claim, and the way back: the plugin called, the files written, the checkpoint around them.

When to try, and again, is `preparation`; nothing here is called twice at a time.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

from plugwright.dra.device_taints import taints
from plugwright.dra.resource_claims import claim_devices
from plugwright.dra.resource_claims.claim_devices import ClaimSpec
from plugwright.dra.resource_claims.claim_files import ClaimFiles
from plugwright.dra.resource_claims.claims import AllocatedClaim, AllocatedDevice
from plugwright.dra.resource_claims.prepared_claims import (
    ClaimedDevice,
    PreparedClaim,
    PreparedClaims,
    State,
    held_by_another,
)
from plugwright.errors import ClaimRefused, ClaimWaits, PluginError, PluginTimeout
from plugwright.model import Allocation, Device
from plugwright.sdk import cdi
from plugwright.system.concurrency import begin_in_thread

__all__ = ["ClaimSetup", "DeviceAccess", "PreparationSettings"]

logger = logging.getLogger(__name__)

T = TypeVar("T")
_DISK_LIMIT = 10.0  # seconds that a write may keep a call from ending


class DeviceAccess(Protocol):
    """The plugin and its devices, which are known here by their names in the slice."""

    def device(self, name: str) -> Device | None: ...

    def refusal(self, device: Device) -> str:
        """Why the device may not be given to a claim now, beside its health; empty if it may."""
        ...

    async def arriving(self, names: Collection[str]) -> None:
        """A claim names these devices: they may have to be moved to claims first."""
        ...

    async def allocate(self, devices: Sequence[Device]) -> Allocation: ...

    async def release(self, devices: Sequence[Device]) -> None: ...

    async def check_parameters(self, parameters: Mapping[str, object]) -> None:
        """Raises `PluginError` where they cannot be followed."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparationSettings:
    """`limit`: seconds within which a call is answered; `lookup`: between two looks at claims that were left behind.

    `lookup_ended` is for those that are kept for a pod which may be gone. `host_root` is where the host's files are
    seen; None: not looked for.
    """

    limit: float = 40.0  # a kubelet waits 45
    first_retry: float = 0.1
    longest_retry: float = 2.0
    lookup: float = 60.0
    lookup_ended: float = 5.0
    host_root: Path | None = Path("/")


class ClaimSetup:
    """`host_root` is where the host's files are seen; None: not looked whether device nodes are there."""

    def __init__(
        self, devices: DeviceAccess, prepared: PreparedClaims, files: ClaimFiles, host_root: Path | None = Path("/")
    ) -> None:
        self.devices, self.prepared, self._files, self._host_root = devices, prepared, files, host_root
        self.turn = asyncio.Lock()  # while a claim is set up or undone

    async def prepare(self, claim: AllocatedClaim) -> PreparedClaim:
        """The same answer for a claim that is prepared; `ClaimWaits` where a later attempt may succeed."""
        stored = (await self.prepared.read()).get(claim.uid)
        if stored is not None and not _is_allocation(stored, claim):
            await self.undo(stored)  # allocated once more, without an unprepare in between
        elif stored is not None and stored.is_ready(self.prepared.boot_id):
            return await self.restore(stored)
        await self._check_parameters(claim)
        devices = {result.device: self._usable(result) for result in claim.results}
        started = await self._start(claim, devices)
        allocations = await self._allocate(claim, devices)
        made = await _in_thread(partial(self._files.write, claim, allocations, devices))
        return await self._finish(started, made)

    async def restore(self, claim: PreparedClaim) -> PreparedClaim:
        """A claim that is prepared, with the CDI file that may have vanished since."""
        await self.write_again(claim)
        return await self.mark(claim, State.DONE)

    async def write_again(self, claim: PreparedClaim) -> None:
        await _in_thread(partial(self._files.write_again, claim))

    async def mark(self, claim: PreparedClaim, state: State) -> PreparedClaim:
        marked = replace(claim, state=state)
        if marked != claim:
            await self.prepared.change(lambda claims: claims.__setitem__(claim.uid, marked))
        return marked

    async def undo(self, claim: PreparedClaim) -> None:
        """Gives the devices back and removes every trace. A plugin that fails is logged, and does not stop it."""
        try:
            if devices := [self._released(device) for device in claim.devices if not device.admin_access]:
                await self.devices.release(devices)
        except PluginError as error:
            facts = {"claim": str(claim), "uid": claim.uid, "reason": str(error)}
            logger.error("devices of a claim were not released by the plugin", extra=facts)
        await _in_thread(partial(self._files.remove, claim))
        await self.prepared.change(lambda claims: claims.pop(claim.uid, None))

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
            return device
        if refusal := self.devices.refusal(device):
            raise ClaimWaits(f"device {result.device} cannot be given to a claim: {refusal}")
        if not device.healthy and not result.tolerates(taints.UNHEALTHY, device.code):
            raise ClaimWaits(f"device {result.device} is Unhealthy: {device.reason}")
        return device

    async def _start(self, claim: AllocatedClaim, devices: Mapping[str, Device]) -> PreparedClaim:
        """Takes the devices, unless another claim has them."""
        capacity = {
            name: {key: amount.value for key, amount in device.capacity.items()} for name, device in devices.items()
        }
        started = PreparedClaim(
            claim.uid,
            claim.namespace,
            claim.name,
            State.STARTED,
            self.prepared.boot_id,
            claim_devices.claimed(claim, devices),
        )

        def start(claims: dict[str, PreparedClaim]) -> None:
            if reason := held_by_another(claims, claim, capacity):
                raise ClaimWaits(reason)
            claims[claim.uid] = started

        await self.prepared.change(start)
        return started

    async def _allocate(self, claim: AllocatedClaim, devices: Mapping[str, Device]) -> dict[str, Allocation]:
        try:
            allocations = {
                request: await self.devices.allocate(given)
                for request, given in claim_devices.devices_by_request(claim, devices).items()
            }
        except PluginError as error:
            raise ClaimWaits(str(error)) from error
        if self._host_root is None:
            return allocations
        nodes = partial(claim_devices.missing_nodes, allocations.values(), self._host_root)
        if missing := await _in_thread(nodes):
            raise ClaimWaits(f"device node {', '.join(missing)} is not there on the node")
        return allocations

    async def _finish(self, started: PreparedClaim, made: ClaimSpec) -> PreparedClaim:
        done = replace(
            started,
            state=State.DONE,
            devices=claim_devices.with_names(started.devices, made.names),
            spec=cdi.to_plain(made.spec) if made.spec is not None else None,
        )

        def finish(claims: dict[str, PreparedClaim]) -> PreparedClaim | None:
            now = claims.get(started.uid)
            if now is not None and _keys(now.devices) == _keys(started.devices):
                claims[started.uid] = done
            return now

        now = await self.prepared.change(finish)
        if now is None:  # unprepared by another process of this driver
            await self.undo(started)
        if now is None or _keys(now.devices) != _keys(started.devices):
            raise ClaimRefused(f"ResourceClaim {started} was unprepared while it was prepared")
        return done

    def _released(self, claimed: ClaimedDevice) -> Device:
        """As the plugin knows it; a device that is gone has nothing but its id."""
        device = self.devices.device(claimed.name) or Device(claimed.id)
        return claim_devices.device_of_claim(device, claimed.consumed, claimed.parameters, claimed.share_id)


def _is_allocation(stored: PreparedClaim, claim: AllocatedClaim) -> bool:
    """Whether the claim has the same devices as when it was stored."""
    if stored.found:
        return {device.name for device in stored.devices} <= {result.device for result in claim.results}
    return _keys(stored.devices) == _keys(claim_devices.claimed(claim, {}))


def _keys(devices: Iterable[ClaimedDevice]) -> list[tuple[str, str, str, str, bool]]:
    return sorted(device.key for device in devices)


async def _in_thread(function: Callable[[], T]) -> T:
    """To its end, also where the caller is cancelled: files must not appear when others have been removed."""
    call = begin_in_thread("claim files", function)
    call.add_done_callback(lambda call: call.exception())  # retrieved: its caller may no longer wait
    try:
        await asyncio.wait((call,))
    except asyncio.CancelledError:
        await asyncio.wait((call,), timeout=_DISK_LIMIT)
        raise
    return call.result()
