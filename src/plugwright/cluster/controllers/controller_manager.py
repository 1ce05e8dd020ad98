"""The controllers following the store: garbage, namespaces, taints, claims, workloads.

All share one reader of the changes. A controller whose write fails reads everything again after a second. The node
lifecycle controller in `node_lifecycle` runs by the clock.
"""

import asyncio
import logging
from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial
from typing import Protocol

from plugwright.apiserver.store import Change
from plugwright.cluster.controllers.cron_jobs import CronJobController
from plugwright.cluster.controllers.daemon_sets import DaemonSetController
from plugwright.cluster.controllers.deployments import DeploymentController
from plugwright.cluster.controllers.device_taint_eviction import DeviceTaintEvictionController
from plugwright.cluster.controllers.garbage_collector import GarbageCollector
from plugwright.cluster.controllers.job_controller import JobController
from plugwright.cluster.controllers.namespace_controller import NamespaceController
from plugwright.cluster.controllers.pod_gc import PodGarbageCollector
from plugwright.cluster.controllers.replica_sets import ReplicaSetController
from plugwright.cluster.controllers.resource_claim_controller import ResourceClaimController
from plugwright.cluster.controllers.taint_eviction import TaintEvictionController
from plugwright.cluster.events import MALFORMED, ClusterClient
from plugwright.errors import ClusterError, Expired

__all__ = ["Controller", "ControllerManager"]

logger = logging.getLogger(__name__)

_RETRY = timedelta(seconds=1)  # until a controller retries a failed write
_YIELD_AFTER = 64  # changes after which other tasks can run


class Controller(Protocol):
    """`resync` reads everything, `handle` one change; `run_due` does all due work."""

    def resync(self) -> None: ...

    def handle(self, change: Change) -> None: ...

    def next_due(self) -> datetime | None: ...

    def run_due(self) -> None: ...


class ControllerManager:
    def __init__(self, client: ClusterClient) -> None:
        self._client = client
        self._controllers: list[Controller] = [
            GarbageCollector(client),
            NamespaceController(client),
            PodGarbageCollector(client),
            TaintEvictionController(client),
            ResourceClaimController(client),
            DeviceTaintEvictionController(client),
            DeploymentController(client),
            ReplicaSetController(client),
            DaemonSetController(client),
            JobController(client),
            CronJobController(client),
        ]
        self._retries: dict[int, datetime] = {}  # when a failed controller reads everything again
        self._revision = 0

    async def run(self) -> None:
        """Runs until cancelled."""
        self.resync()
        while True:
            await self.step(self._wait())

    def resync(self) -> None:
        self._revision = self._client.store.revision
        self._retries.clear()
        for index, controller in enumerate(self._controllers):
            self._supervised(index, controller.resync)

    async def step(self, timeout: float | None) -> None:
        """Handles the changes that exist or arrive within `timeout` seconds, and everything due by then."""
        try:
            changes = await self._client.store.changes(self._revision, timeout)
        except Expired:
            self.resync()
            return
        for number, change in enumerate(changes):
            self._revision = change.revision
            for index, controller in enumerate(self._controllers):
                self._supervised(index, partial(controller.handle, change))
            if number % _YIELD_AFTER == _YIELD_AFTER - 1:
                await asyncio.sleep(0)
        self._run_due()

    def _run_due(self) -> None:
        now = self._client.now()
        for index, controller in enumerate(self._controllers):
            due = self._due(index)
            if due is None or due > now:
                continue
            is_retry = self._retries.pop(index, None) is not None
            self._supervised(index, controller.resync if is_retry else controller.run_due)

    def _due(self, index: int) -> datetime | None:
        return self._retries.get(index) or self._controllers[index].next_due()

    def _wait(self) -> float | None:
        """The seconds until something is due; None if nothing is."""
        due = [moment for index in range(len(self._controllers)) if (moment := self._due(index))]
        return max(0.0, (min(due) - self._client.now()).total_seconds()) if due else None

    def _supervised(self, index: int, work: Callable[[], None]) -> None:
        try:
            work()
        except ClusterError as error:
            self._retries[index] = self._client.now() + _RETRY
            name = type(self._controllers[index]).__name__
            logger.warning("controller failed, it tries again", extra={"controller": name, "error": str(error)})
        except MALFORMED as error:
            name = type(self._controllers[index]).__name__
            logger.warning("object is malformed", extra={"controller": name, "error": repr(error)})
