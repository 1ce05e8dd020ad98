"""Logs which pod got which devices: one line per allocation, some seconds after it.

Allocate does not name the pod; the kubelet's pod-resources API does, once the pod is admitted. So after an allocation
the audit lists pods once for all allocations since then, and twice more for those whose pod is not listed yet. It sends
no requests while nothing is allocated. Pending allocations have no device in common, so there are never more of them
than devices.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping, Sequence

from plugwright.errors import HoldersUnknown
from plugwright.protocol.pod_resources import HeldDevice, held_in
from plugwright.sdk.holdings.ledger import Ledger
from plugwright.system.concurrency import cancel
from plugwright.system.log_once import LogOnce
from plugwright.text import clean

__all__ = ["AllocationAudit"]

logger = logging.getLogger(__name__)

_DELAYS = (1, 4, 15)  # before each list, as multiples of the first; after the last one, the allocation is abandoned
# A pod's containers can get the devices of its init containers, for which the kubelet calls Allocate again.
_AGAIN = "their devices were allocated again: to the pod's next container, or to another pod"
_NOT_HELD = "no pod holds its devices: the pod was refused, or has ended"

HeldDevices = Mapping[tuple[str, str], HeldDevice]  # by resource and device id


class _PendingAllocation:
    """An allocation whose pod is not known yet."""

    __slots__ = ("device_ids", "questions", "resource")

    def __init__(self, resource: str, device_ids: Sequence[str]) -> None:
        self.resource, self.device_ids = resource, device_ids
        self.questions = 0  # lists that did not contain the pod


class AllocationAudit:
    """`add` is called after each allocation; `close` drops pending lines."""

    def __init__(self, ledger: Ledger, delay: float) -> None:
        self._ledger, self._delays = ledger, [delay * part for part in _DELAYS]
        self._pending: dict[tuple[str, str], _PendingAllocation] = {}  # by resource and device id
        self._asking: asyncio.Task[None] | None = None
        self._repeated: Counter[str] = Counter()  # by resource: allocations replaced by a later one
        self._failure = ""  # why the kubelet's pods could not be listed
        self._problems = LogOnce(logger)

    def add(self, resource: str, device_ids: Sequence[str]) -> None:
        """On the hot path: must not log."""
        if not logger.isEnabledFor(logging.INFO):
            return  # the result would not be logged
        allocation = _PendingAllocation(resource, device_ids)
        for device_id in device_ids:
            earlier = self._pending.get((resource, device_id))
            if earlier is not None:
                self._forget(earlier)
                self._repeated[resource] += 1
        self._pending |= {(resource, device_id): allocation for device_id in allocation.device_ids}
        if self._asking is None and self._pending:
            self._asking = asyncio.create_task(self._ask_until_known(), name="allocation audit")

    async def close(self) -> None:
        if self._asking is not None:
            await cancel(self._asking)

    async def _ask_until_known(self) -> None:
        try:
            while self._pending:
                least = min(allocation.questions for allocation in self._pending.values())
                await asyncio.sleep(self._delays[least])
                asked = {id(allocation): allocation for allocation in self._pending.values()}
                held = await self._held()
                for allocation in asked.values():
                    if self._is_pending(allocation):
                        self._log_holders(allocation, held)
                self._log_repeated()
        except Exception:
            logger.exception("allocations not attributed to pods")
            self._pending = {}
        finally:
            self._asking = None

    async def _held(self) -> HeldDevices:
        """The held devices by pods; empty if the kubelet does not answer, which is logged once for each reason."""
        try:
            pods = await self._ledger.list_pods()
        except HoldersUnknown as error:
            self._failure = clean(error)
            self._problems.warning("allocations not attributed to pods", self._failure, extra={"error": self._failure})
            return {}
        self._failure = ""
        self._problems.recovered()
        return {(device.resource, device.device_id): device for device in held_in(pods)}

    def _log_holders(self, allocation: _PendingAllocation, held: HeldDevices) -> None:
        containers: dict[tuple[str, str, str], list[str]] = {}
        for device_id in allocation.device_ids:
            device = held.get((allocation.resource, device_id))
            if device is not None:
                containers.setdefault((device.namespace, device.pod, device.container), []).append(device_id)
        for (namespace, pod, container), device_ids in sorted(containers.items()):
            holder = {"namespace": clean(namespace), "pod": clean(pod), "container": clean(container)}
            facts: dict[str, object] = {"resource": allocation.resource, "devices": device_ids, **holder}
            logger.info("allocated to pod", extra=facts)
        allocation.questions += 1
        if containers:
            self._forget(allocation)
        elif allocation.questions >= len(self._delays):
            self._give_up(allocation, self._failure or _NOT_HELD)

    def _log_repeated(self) -> None:
        repeated, self._repeated = self._repeated, Counter()
        for resource, count in sorted(repeated.items()):
            facts = {"resource": resource, "count": count, "reason": _AGAIN}
            logger.info("allocated to pods that are not known", extra=facts)

    def _give_up(self, allocation: _PendingAllocation, reason: str) -> None:
        facts = {"resource": allocation.resource, "devices": list(allocation.device_ids), "reason": reason}
        logger.info("allocated to a pod that is not known", extra=facts)
        self._forget(allocation)

    def _is_pending(self, allocation: _PendingAllocation) -> bool:
        return self._pending.get((allocation.resource, allocation.device_ids[0])) is allocation

    def _forget(self, allocation: _PendingAllocation) -> None:
        for device_id in allocation.device_ids:
            self._pending.pop((allocation.resource, device_id), None)
