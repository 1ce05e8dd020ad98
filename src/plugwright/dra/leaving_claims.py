"""A DRA driver for a resource that no longer serves claims: it ends the claims prepared earlier.

A pod with a claim cannot end before its driver has unprepared the claim, and its devices are not free before. So a
daemon that finds prepared claims keeps their driver registered until the last one is unprepared. This does not need the
API server, because the pod of such a daemon has no token: recorded claims are prepared again from the record, for
example after a reboot, and new ones are refused.

The ResourceSlices of the driver would attract new claims. The kubelet deletes them when the driver has been
unregistered for 30 s, and registering earlier cancels that (11.8). So the driver registers only after this time.
"""

import asyncio
import logging
import time
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from plugwright.dra.device_access import PluginDevices
from plugwright.dra.device_placement import DeviceState, device_status, hardware_units
from plugwright.dra.driver_paths import DriverPaths, PlacementLock
from plugwright.dra.health import HealthService
from plugwright.dra.registration import DriverRegistration, DriverServices, DriverSockets
from plugwright.dra.resource_claims.allocated_claims import RecordedClaims
from plugwright.dra.resource_claims.claim_files import ClaimFiles
from plugwright.dra.resource_claims.claim_setup import ClaimSetup
from plugwright.dra.resource_claims.device_metadata import DeviceMetadata
from plugwright.dra.resource_claims.preparation import Preparation
from plugwright.dra.resource_claims.prepared_claims import PreparedClaim, PreparedClaims, State
from plugwright.errors import ConfigError, PlugwrightError
from plugwright.model import Device, natural_order
from plugwright.sdk import cdi
from plugwright.sdk.driver_names import check_driver_name, device_name
from plugwright.sdk.holdings.sources import CDI_OWNER
from plugwright.sdk.resource_runtime import ResourceRuntime
from plugwright.sdk.serve_settings import DriverState, ServeMode
from plugwright.system.blocking import BlockingCalls
from plugwright.system.boot import boot_id
from plugwright.system.concurrency import Backoff, first
from plugwright.system.latest import Latest
from plugwright.system.log_once import LogOnce
from plugwright.text import clean

__all__ = ["LeavingDriver"]

logger = logging.getLogger(__name__)

_DISK_LIMIT = 5.0  # seconds
_RETRY = 0.5, 10.0  # seconds; the first and the longest wait before files are read again


class LeavingDriver:
    """Implements `sdk.serve_settings.ResourceDriver`. Ready once the claims are known, when devices can be served."""

    def __init__(self, runtime: ResourceRuntime, driver: str) -> None:
        self.name = check_driver_name(driver)
        self.state = Latest(DriverState("leaving", "the claims of earlier are not read yet", since=time.time()))
        self._runtime, self._paths = runtime, DriverPaths.of(runtime.settings, self.name)
        metadata = DeviceMetadata(self._paths.directory, self.name)
        directory = cdi.SpecDirectory(Path(runtime.serve.cdi), owner=CDI_OWNER)
        self._files = ClaimFiles(self.name, directory, metadata)
        self._prepared = PreparedClaims(self._paths.checkpoint, boot_id(), self._files.find)
        self._lock = PlacementLock(self._paths.lock)
        self._disk = BlockingCalls(f"split of {runtime.resource}", _DISK_LIMIT)
        self._registration: DriverRegistration | None = None
        self._known = False  # whether the claims have been read
        self._withheld: Mapping[str, str] | None = None
        self._problems = LogOnce(logger)
        runtime.inventory.withhold({}, offered=())  # until the devices held by claims are known

    async def run(self) -> None:
        ends = [source.subscribe(self._withhold) for source in (self._prepared.latest, self._runtime.inventory.latest)]
        try:
            await self._until_known()
            if self._prepared.latest.value:
                await self._leave()
            await self._finish()
            await asyncio.Event().wait()  # the supervisor would restart a part that ends
        finally:
            for end in ends:
                end()
            self._lock.close()

    async def finish(self) -> None:
        if self._registration is not None:
            await self._registration.finish()

    def fail(self, reason: str) -> None:
        self.state.publish(DriverState("failed", reason, since=time.time()))

    def status(self) -> Mapping[str, object]:
        state, claims = self.state.value, self._prepared.latest.value.values()
        snapshot = self._runtime.inventory.latest.value
        held = self._held(snapshot.devices if snapshot is not None else {})
        devices = {
            key: device_status(
                key,
                DeviceState.LISTED if self._known and key not in held else DeviceState.WITHHELD,
                ServeMode.DEVICE_PLUGIN,
                _reason(held[key]) if key in held else "",
                map(str, held.get(key, ())),
            )
            for key in sorted(snapshot.devices if snapshot is not None else (), key=natural_order)
        }
        return {
            "name": self.name,
            "ready": state.ready,
            "state": state.state,
            "reason": state.reason,
            "leaving": sorted(_shown(claim) for claim in claims),
            "handover": "",
            "problem": self._prepared.problem,
            "devices": devices,
        }

    async def command(self, name: str, arguments: Mapping[str, str]) -> str:
        text = f"{self._runtime.resource} is served by {ServeMode.DEVICE_PLUGIN} alone"
        raise ConfigError(f"{text}: devices move if the operator's file has `serve: both`")

    def refusal(self, device_id: str) -> str:
        """Never refuses: only recorded claims arrive here, which get their devices again."""
        return ""

    async def arriving(self, names: Collection[str]) -> None:
        """Does nothing: no device has to move."""

    async def _until_known(self) -> None:
        """Returns when no other process places devices and the claims are read; offers no device before."""
        retry = Backoff(*_RETRY)
        while True:
            try:
                if await self._disk.run(self._lock.take):
                    await self._prepared.read()
                    break
                problem = "another process of the daemon decides until it ends"
            except (OSError, PlugwrightError) as error:
                problem = f"the claims of earlier cannot be read: {clean(error)}"
            facts = {"driver": self.name, "reason": problem}
            self._problems.warning("devices are not offered yet", problem, extra=facts)
            self._set_state("leaving", problem, ready=False)
            await asyncio.sleep(retry.delay())
        self._known = True
        self._withhold()

    async def _leave(self) -> None:
        """Returns when the last claim is unprepared."""
        claims = self._prepared.latest.value.values()
        wait, settings = self._runtime.settings.timeouts.wiped, self._runtime.settings
        logger.warning(
            "earlier claims hold devices, their driver stays until they end",
            extra={"driver": self.name, "claims": sorted(map(_shown, claims)), "registers_in": wait},
        )
        sockets = DriverSockets.of(settings.paths, self.name, settings.pod_uid)
        sockets.remove_stale(self.name)  # the kubelet counts from the end of the last registration
        self._set_state("leaving", "registers when the kubelet has removed the driver's slices")
        preparation = Preparation(RecordedClaims(self._prepared), self._setup())
        pool = next((device.pool for claim in claims for device in claim.devices if device.pool), settings.node_name)
        services = DriverServices(preparation, HealthService(self._runtime.inventory, pool))
        registration = DriverRegistration(self.name, sockets, services, self._runtime.service.metrics)
        self._registration = registration
        await first(self._serve(registration, preparation, wait), self._undo_ended(), self._until_left())

    async def _serve(self, registration: DriverRegistration, preparation: Preparation, wait: float) -> None:
        await asyncio.sleep(wait)

        def show() -> None:
            status = registration.status.value
            self._set_state("leaving", f"driver {status.state} {status.reason}".strip())

        show()
        end = registration.status.subscribe(show)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(registration.run())
                group.create_task(preparation.run())
        finally:
            end()

    async def _undo_ended(self) -> None:
        """Runs forever; undoes claims that the kubelet has unprepared already, when their last pod has ended."""
        setup, retry = self._setup(), Backoff(*_RETRY)
        while True:
            await self._prepared.latest.until(lambda claims: any(map(_is_kept_for_pods, claims.values())))
            await asyncio.sleep(retry.delay())
            try:
                active = {(pod.namespace, pod.name) for pod in await self._runtime.ledger.list_pods()}
                async with self._prepared.transaction() as transaction:
                    for claim in list(transaction.claims.values()):
                        if _is_kept_for_pods(claim) and active.isdisjoint(_pods(claim)):
                            await setup.undo(transaction, claim)
                            facts = {"claim": str(claim), "uid": claim.uid}
                            logger.info("unprepared a claim whose last pod has ended", extra=facts)
            except (OSError, PlugwrightError) as error:
                facts = {"driver": self.name, "reason": clean(error)}
                self._problems.warning("ended claims stay", clean(error), extra=facts)

    async def _until_left(self) -> None:
        await self._prepared.latest.until(lambda claims: not claims)

    async def _finish(self) -> None:
        """Gives all devices to the device plugin API; a later start needs no driver."""
        with suppress(PlugwrightError, OSError):
            await self._disk.run(self._forget)
        logger.info("no claim holds a device any more", extra={"driver": self.name})
        self._set_state("left", "no claim of earlier is left")

    def _forget(self) -> None:
        """In a thread. Removes the records of `serve: both` or `dra`, which are outdated."""
        self._paths.split.unlink(missing_ok=True)
        self._lock.remove()

    def _setup(self) -> ClaimSetup:
        root = self._runtime.serve.host_root
        devices = PluginDevices(self._runtime, self)
        return ClaimSetup(devices, self._prepared, self._files, Path(root) if root else None)

    def _held(self, devices: Mapping[str, Device]) -> dict[str, list[PreparedClaim]]:
        """The claims that hold each device or the same hardware."""
        by_name = self._prepared.held()
        units = hardware_units(devices.values())
        return {
            key: found
            for key in devices
            if (found := [claim for one in units[key] for claim in by_name.get(device_name(one), ())])
        }

    def _withhold(self) -> None:
        snapshot = self._runtime.inventory.latest.value
        if not self._known or snapshot is None:
            return
        withheld = {key: _reason(claims) for key, claims in self._held(snapshot.devices).items()}
        if withheld != self._withheld:
            self._withheld = withheld
            self._runtime.inventory.withhold(withheld)

    def _set_state(self, state: str, reason: str, *, ready: bool = True) -> None:
        before = self.state.value
        if (before.state, before.reason, before.ready) != (state, reason, ready):
            self.state.publish(DriverState(state, reason, ready, time.time()))


def _is_kept_for_pods(claim: PreparedClaim) -> bool:
    """Whether it has ended and all pods that may still use it are known."""
    pods = _pods(claim)
    return claim.state is State.ENDED and bool(pods) and all(name for _, name in pods)


def _pods(claim: PreparedClaim) -> list[tuple[str, str]]:
    return [(claim.namespace, name) for name in claim.pods or ()]


def _reason(claims: Iterable[PreparedClaim]) -> str:
    return f"held by ResourceClaim {', '.join(sorted(set(map(str, claims))))} until it ends"


def _shown(claim: PreparedClaim) -> str:
    return clean(f"{claim} ({', '.join(sorted({device.id for device in claim.devices}))})")
