"""Writes `status.devices` of claims, which tells their owners whether devices are ready, and what they wait for.

Best effort, and not on the path of the call that prepares a claim: if the API server is unreachable or forbids it, only
the text is missing. Server-side apply with the driver's name as field manager changes only this driver's entries; the
API server removes them when the claim is deallocated. From 1.36 on the account needs the verb `associated-node:patch`
on `resourceclaims/driver` besides `patch` on `resourceclaims/status`; without it the response is Invalid.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Protocol

import msgspec

from plugwright.dra.resource_claims.claims import AllocatedClaim
from plugwright.errors import ConfigError, MalformedMessage, PeerGone, PeerRefused
from plugwright.system.concurrency import Backoff
from plugwright.system.latest import Signal
from plugwright.system.log_once import LogOnce
from plugwright.text import clean

__all__ = ["ClaimStatus", "StatusWriter", "status_patch"]

logger = logging.getLogger(__name__)

_API_VERSION = "resource.k8s.io/v1"
_REMEMBERED = 256  # size of the cache of last-written statuses
_MESSAGE_LIMIT = 1024
_RETRY = 1.0, 60.0  # seconds; the first and the longest wait for an unreachable API server


class StatusWriter(Protocol):
    async def patch(self, path: str, body: object, kind: str, **query: str) -> Mapping[str, object]: ...


class _Report(msgspec.Struct, frozen=True):
    claim: AllocatedClaim
    reason: str
    at: float


class ClaimStatus:
    """`report` can be called at any time; `run` writes the latest report of each claim. `problem` is why it cannot."""

    def __init__(self, api: StatusWriter, driver: str, clock: Callable[[], float] = time.time) -> None:
        self.problem = ""
        self._problems = LogOnce(logger)
        self._api, self._driver, self._clock = api, driver, clock
        self._reports: dict[str, _Report] = {}  # yet to be written, by the claim's uid
        self._written: dict[str, str] = {}  # the written reasons, the latest one last
        self._changes = Signal()

    def report(self, claim: AllocatedClaim, reason: str) -> None:
        """Reports that the claim waits for `reason`, or that it is prepared if that is empty."""
        pending = self._reports.get(claim.uid)
        known = pending.reason if pending is not None else self._written.get(claim.uid)
        if claim.results and known != reason:
            self._reports[claim.uid] = _Report(claim, reason, self._clock())
            self._changes.notify()

    async def run(self) -> None:
        backoff = Backoff(*_RETRY)
        async for _ in self._changes.notifications():
            while self._reports:
                uid, report = next(iter(self._reports.items()))
                try:
                    await self._write(report)
                except (ConfigError, MalformedMessage, PeerGone) as error:
                    self._failed("PeerGone", str(error))
                    await asyncio.sleep(backoff.delay())
                    continue
                backoff.reset()
                if self._reports.get(uid) is report:
                    del self._reports[uid]

    async def _write(self, report: _Report) -> None:
        claim = report.claim
        path = f"/apis/{_API_VERSION}/namespaces/{claim.namespace}/resourceclaims/{claim.name}/status"
        body = status_patch(claim, self._driver, report.reason, report.at)
        try:
            await self._api.patch(path, body, "apply-patch", fieldManager=self._driver, force="true")
        except PeerRefused as error:
            if error.code not in ("NotFound", "Conflict"):  # the claim was deleted, or replaced by another of that name
                self._failed(error.code, str(error))
            return
        self.problem = ""
        self._problems.recovered()
        self._written.pop(claim.uid, None)
        self._written[claim.uid] = report.reason
        while len(self._written) > _REMEMBERED:
            del self._written[next(iter(self._written))]

    def _failed(self, failure: str, problem: str) -> None:
        """Logs once for each kind of failure, because the texts name the claim."""
        facts = {"driver": self._driver, "reason": clean(problem)}
        self._problems.warning("status of claims not written, they are prepared all the same", failure, extra=facts)
        self.problem = problem


def status_patch(claim: AllocatedClaim, driver: str, reason: str, at: float) -> dict[str, object]:
    """The claim's devices of this driver, each with a condition `Ready`; the uid excludes another claim."""
    condition = {
        "type": "Ready",
        "status": "False" if reason else "True",
        "reason": "Waiting" if reason else "Prepared",
        "message": clean(reason, _MESSAGE_LIMIT),
        "lastTransitionTime": datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
    keys = dict.fromkeys((result.pool, result.device, result.share_id) for result in claim.results)
    devices = [
        {
            "driver": driver,
            "pool": pool,
            "device": device,
            **({"shareID": share_id} if share_id else {}),
            "conditions": [condition],
        }
        for pool, device, share_id in keys
    ]
    return {
        "apiVersion": _API_VERSION,
        "kind": "ResourceClaim",
        "metadata": {"name": claim.name, "namespace": claim.namespace, "uid": claim.uid},
        "status": {"devices": devices},
    }
