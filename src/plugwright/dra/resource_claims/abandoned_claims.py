"""Claims that no kubelet will unprepare: unfinished, of an earlier boot, or kept for a pod that could be gone.

The API server shows their state. Claims prepared in this boot belong to the kubelet, which reports their end.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial

from msgspec.structs import replace

from plugwright.dra.resource_claims import claim_devices
from plugwright.dra.resource_claims.allocated_claims import ClaimSource
from plugwright.dra.resource_claims.claim_setup import ClaimSetup, PreparationSettings
from plugwright.dra.resource_claims.prepared_claims import ClaimedDevice, PreparedClaim, State
from plugwright.errors import ClaimGone, ClaimRefused, PluginError, PlugwrightError
from plugwright.protocol.dra import Claim
from plugwright.system.latest import Signal
from plugwright.system.log_once import LogOnce
from plugwright.text import clean

__all__ = ["AbandonedClaims"]

logger = logging.getLogger(__name__)

_EXPECTED = (PlugwrightError, OSError)


class AbandonedClaims:
    """Undoes abandoned claims. `is_wanted` tells whether a call is preparing the claim with a uid."""

    def __init__(
        self,
        reader: ClaimSource,
        setup: ClaimSetup,
        is_wanted: Callable[[str], bool],
        settings: PreparationSettings,
    ) -> None:
        self._reader, self._setup, self._is_wanted, self._settings = reader, setup, is_wanted, settings
        self._problems, self._ended = LogOnce(logger), Signal()

    @property
    def has_ended(self) -> bool:
        """Whether claims are kept for a pod that could be gone."""
        return any(claim.state is State.ENDED for claim in self._setup.prepared.latest.value.values())

    def note_ended(self) -> None:
        """Reports the end of a claim that is kept for a pod that could be gone."""
        self._ended.notify()

    async def run(self) -> None:
        """Runs forever: looks up unfinished claims, and undoes those that no longer exist.

        First it restores CDI files that have vanished since, because no kubelet prepares a claim again when it restarts
        a container.
        """
        await self._supervised("CDI files of claims not written again", self._restore)
        while True:
            await self._supervised("abandoned claims not looked up", self.undo)
            await self._until_lookup()

    async def _supervised(self, failure: str, work: Callable[[], Awaitable[None]]) -> None:
        """Logs failures once for each reason: the driver must serve claims despite problems with old ones."""
        try:
            await work()
            self._problems.recovered()
        except Exception as error:
            problem = clean(error) or type(error).__name__
            if self._problems.is_news(problem):
                logger.warning(failure, extra={"reason": problem}, exc_info=not isinstance(error, _EXPECTED))

    async def _restore(self) -> None:
        prepared = self._setup.prepared
        async with prepared.transaction() as transaction:
            for claim in transaction.claims.values():
                if claim.is_ready(prepared.boot_id):
                    await transaction.run(partial(self._setup.files.write_again, claim))

    async def _until_lookup(self) -> None:
        """Waits for the next lookup: a short time after the end of a claim whose pod could be gone by now."""
        seen = self._ended.count
        if self.has_ended:
            await asyncio.sleep(self._settings.lookup_ended)
        else:
            await self._ended.wait(seen, self._settings.lookup)

    async def undo(self) -> None:
        """Undoes claims that no kubelet will unprepare, and that no longer exist, are unused or have other devices."""
        unknown: ClaimRefused | PluginError | None = None
        for claim in (await self._setup.prepared.read()).values():
            if claim.is_awaited(self._setup.prepared.boot_id) or not claim.name:
                continue
            try:
                await self._look_up(claim)
            except (ClaimRefused, PluginError) as error:  # one claim must not keep the others from being undone
                unknown = error
        if unknown is not None:
            raise unknown

    async def _look_up(self, claim: PreparedClaim) -> None:
        devices = await self._devices_now(claim)
        async with self._setup.prepared.transaction() as transaction:
            if transaction.claims.get(claim.uid) != claim or self._is_wanted(claim.uid):
                return
            if not devices:
                await self._setup.undo(transaction, claim)
                logger.info("unprepared an abandoned claim", extra={"claim": str(claim), "uid": claim.uid})
            elif claim.found:
                await transaction.run(partial(transaction.put, replace(claim, devices=devices)))

    async def _devices_now(self, claim: PreparedClaim) -> tuple[ClaimedDevice, ...]:
        """The claim's present devices; empty if it is another claim, has other devices, or has ended permanently."""
        try:
            allocated = await self._reader.allocated(Claim(claim.namespace, claim.name, claim.uid))
        except ClaimGone:
            return ()
        if claim.state is State.ENDED and not allocated.reserved_for:
            return ()
        known = {device.name: found for device in claim.devices if (found := self._setup.devices.device(device.name))}
        devices = claim_devices.claimed(allocated, known)
        return devices if {device.name for device in claim.devices} <= {device.name for device in devices} else ()
