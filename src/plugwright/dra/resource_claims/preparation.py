"""Prepares claims for the containers of a pod, and unprepares them afterwards: the kubelet's calls of a DRA driver.

The kubelet retries a failed claim only after a minute or more, so temporary problems (an unreachable API server, a
device still held by another claim) are retried inside the call, until shortly before its limit of 45 s. The error then
contains the last reason, which the owner of the pod reads in its events.

A claim is prepared if the checkpoint records it as done in this boot; otherwise it is prepared again from the
beginning. An attempt is one transaction of the checkpoint, so that only one is made at a time. Unprepare fails only if
a device is still in use: a pod cannot end before it has succeeded.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from msgspec.structs import replace

from plugwright.dra.resource_claims import claim_devices, claims
from plugwright.dra.resource_claims.abandoned_claims import AbandonedClaims
from plugwright.dra.resource_claims.allocated_claims import ClaimSource
from plugwright.dra.resource_claims.claim_setup import ClaimSetup, PreparationSettings
from plugwright.dra.resource_claims.claims import AllocatedClaim
from plugwright.dra.resource_claims.prepared_claims import PreparedClaim, State
from plugwright.errors import ClaimRefused, ClaimWaits, PlugwrightError
from plugwright.protocol.dra import Claim, PreparedDevice
from plugwright.system.concurrency import Backoff
from plugwright.text import clean

__all__ = ["Preparation"]

logger = logging.getLogger(__name__)


def _ignore(claim: AllocatedClaim, reason: str) -> None:
    return None


class Preparation:
    """Implements `protocol.dra.DRAPluginService`.

    `report` is called with each prepared claim, and with the reason of each waiting one.
    """

    def __init__(
        self,
        reader: ClaimSource,
        setup: ClaimSetup,
        report: Callable[[AllocatedClaim, str], None] = _ignore,
        settings: PreparationSettings | None = None,
    ) -> None:
        self._reader, self._setup, self._report = reader, setup, report
        self._devices, self._prepared = setup.devices, setup.prepared
        self._settings = settings or PreparationSettings()
        self._calls: dict[str, object] = {}  # by the uid of the claim, the latest call that prepares it
        self.abandoned = AbandonedClaims(reader, setup, self._calls.__contains__, self._settings)

    async def prepare(self, claims: Sequence[Claim]) -> Mapping[str, Sequence[PreparedDevice] | str]:
        deadline = asyncio.get_running_loop().time() + self._settings.limit
        async with asyncio.TaskGroup() as group:
            tasks = {claim.uid: group.create_task(self._prepare(claim, deadline)) for claim in claims}
        return {uid: task.result() for uid, task in tasks.items()}

    async def unprepare(self, claims: Sequence[Claim]) -> Mapping[str, str]:
        async with asyncio.TaskGroup() as group:
            tasks = {claim.uid: group.create_task(self._unprepare(claim)) for claim in claims}
        return {uid: task.result() for uid, task in tasks.items()}

    async def run(self) -> None:
        """Runs forever: see `AbandonedClaims`."""
        await self.abandoned.run()

    async def _prepare(self, claim: Claim, deadline: float) -> Sequence[PreparedDevice] | str:
        call = self._calls[claim.uid] = object()
        facts = {"claim": f"{claim.namespace}/{claim.name}", "uid": claim.uid}
        try:
            prepared = await self._until_prepared(claim, call, deadline)
        except ClaimRefused as error:
            logger.warning("claim not prepared", extra={**facts, "reason": clean(error)})
            return clean(error)
        except Exception as error:
            logger.exception("claim not prepared", extra=facts)
            return f"the driver failed: {clean(error) or type(error).__name__}"
        finally:
            if self._calls.get(claim.uid) is call:
                del self._calls[claim.uid]
        logger.info("claim prepared", extra={**facts, "devices": [device.name for device in prepared.devices]})
        return claim_devices.answer(prepared)

    async def _until_prepared(self, claim: Claim, call: object, deadline: float) -> PreparedClaim:
        """Retries until an attempt succeeds or the time is over; then raises the last reason."""
        backoff = Backoff(self._settings.first_retry, self._settings.longest_retry)
        reason = f"not prepared within {self._settings.limit:g} s"
        while True:
            try:
                async with asyncio.timeout_at(deadline):
                    return await self._attempt(claim, call)
            except TimeoutError:
                raise ClaimRefused(reason) from None
            except ClaimWaits as error:
                if str(error) != reason:
                    facts = {"claim": f"{claim.namespace}/{claim.name}", "uid": claim.uid, "reason": clean(error)}
                    logger.info("claim waits", extra=facts)
                reason = str(error)
            delay = backoff.delay()
            if asyncio.get_running_loop().time() + delay > deadline:
                raise ClaimRefused(reason)
            await self._changed(delay)

    async def _changed(self, limit: float) -> None:
        """Returns when the claims of this node have changed, or after `limit` seconds."""
        seen = self._prepared.latest.value
        with suppress(TimeoutError):
            async with asyncio.timeout(limit):
                await self._prepared.latest.until(lambda claims: claims is not seen)

    async def _attempt(self, claim: Claim, call: object) -> PreparedClaim:
        try:
            allocated = await self._reader.allocated(claim)
        except ClaimWaits:
            async with self._prepared.transaction() as transaction:
                stored = transaction.claims.get(claim.uid)
                if stored is None or not stored.is_ready(self._prepared.boot_id):
                    raise
                # Its allocation does not depend on the API server.
                return await self._setup.restore(transaction, stored)
        try:
            prepared = await self._set_up(allocated, call)
        except ClaimRefused as error:
            self._report(allocated, str(error))
            raise
        self._report(allocated, "")
        return prepared

    async def _set_up(self, claim: AllocatedClaim, call: object) -> PreparedClaim:
        try:
            if self.abandoned.has_ended:
                await self.abandoned.undo()
            known = self._prepared.latest.value.get(claim.uid)
            if known is None or not known.is_ready(self._prepared.boot_id):
                await self._devices.arriving([result.device for result in claim.results if not result.admin_access])
            async with self._prepared.transaction() as transaction:
                if self._calls.get(claim.uid) is not call:
                    raise ClaimRefused(f"ResourceClaim {claim} was unprepared while it waited")
                return await self._setup.prepare(transaction, claim)
        except ClaimRefused:
            raise
        except (PlugwrightError, OSError) as error:
            raise ClaimWaits(str(error)) from error

    async def _unprepare(self, claim: Claim) -> str:
        self._calls.pop(claim.uid, None)
        facts = {"claim": f"{claim.namespace}/{claim.name}", "uid": claim.uid}
        try:
            users = await self._reader.several_users(claim)
            async with asyncio.timeout(self._settings.limit):
                undone = await self._undo(claim, users)
        except PlugwrightError as error:
            text = clean(error)
        except TimeoutError:
            text = f"not unprepared within {self._settings.limit:g} s"
        except OSError as error:
            text = clean(error)
        except Exception as error:
            logger.exception("claim not unprepared", extra=facts)
            return f"the driver failed: {clean(error) or type(error).__name__}"
        else:
            if undone:
                logger.info("claim unprepared", extra=facts)
            return ""
        logger.warning("claim not unprepared", extra={**facts, "reason": text})
        return text

    async def _undo(self, claim: Claim, users: tuple[str, ...]) -> bool:
        """Undoes a claim; returns whether it was known: an unknown or impossible claim is not an error.

        A kubelet of 1.36 unprepares a claim in use by a running pod when another pod that shares it and could not be
        started is deleted. The running pod would not survive a restart of its container, so the claim is kept then.
        That kubelet will not call again: `AbandonedClaims` notices when the last pod is gone.
        """
        try:
            claims.check_identity(claim.namespace, claim.name, claim.uid)
        except ClaimRefused:
            return False
        async with self._prepared.transaction() as transaction:
            stored = transaction.claims.get(claim.uid)
            if stored is not None and users and stored.is_ready(self._prepared.boot_id):
                await self._setup.mark(transaction, replace(stored, pods=users), State.ENDED)
                self.abandoned.note_ended()
                logger.info("claim that several pods use kept until they are gone", extra={"claim": str(stored)})
                return False
            await self._setup.undo(transaction, stored or PreparedClaim(claim.uid, claim.namespace, claim.name))
            return stored is not None
