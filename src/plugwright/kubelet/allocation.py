"""One container gets its devices: which, and what the plugin answers for them (3.8 to 3.46).

Which devices is `choice`'s decision; the order of containers is `admission`'s.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from plugwright.errors import AllocationFailed, KubeletError, PlugwrightError
from plugwright.kubelet import choice, ledger
from plugwright.kubelet.choice import Claim, Question
from plugwright.kubelet.endpoint import Endpoint
from plugwright.kubelet.ledger import Place
from plugwright.kubelet.manager import DeviceManager
from plugwright.kubelet.metrics import Name
from plugwright.kubelet.pods import ContainerSpec, PodSpec
from plugwright.kubelet.reuse import Reusable
from plugwright.kubelet.table import PodTable
from plugwright.kubelet.texts import status_text
from plugwright.model import natural_order

__all__ = ["Allocator", "Mask"]

Mask = frozenset[int] | None


class Allocator:
    def __init__(self, manager: DeviceManager, table: PodTable) -> None:
        self._manager = manager
        self._table = table
        self._context = manager.context
        self._reusable = Reusable(keeps_sidecars=manager.context.profile.keeps_sidecars)

    def is_device(self, resource: str) -> bool:
        """Whether it is ours to hand out: a plugin listed it, or somebody holds one of it (3.10)."""
        return resource in self._manager.stock or self._manager.ledger.knows(resource)

    def collect(self) -> None:
        """Frees what pods hold that are over (3.57)."""
        if self._table.sources_ready:
            self._manager.forget(self._table.active)

    def reusable(self, pod: PodSpec, resource: str) -> frozenset[str]:
        return self._reusable.of(pod.uid, resource)

    def available(self, resource: str) -> frozenset[str]:
        return self._manager.stock.shelf(resource).healthy.difference(self._manager.ledger.in_use(resource))

    async def allocate(self, pod: PodSpec, container: ContainerSpec, mask: Mask) -> None:
        """Every resource of one container; raises `AllocationFailed`. What was recorded before stays (3.46)."""
        devices = [resource for resource in sorted(container.limits) if self.is_device(resource)]
        if devices:
            self.collect()
        recorded = [await self._allocate(Place(pod.uid, container.name, each), container, mask) for each in devices]
        if any(recorded):
            self._save()
        held = {each: self._manager.ledger.held(Place(pod.uid, container.name, each)) for each in devices}
        self._reusable.pass_on(pod.uid, container.kind, dict(held))

    async def _allocate(self, place: Place, container: ContainerSpec, mask: Mask) -> bool:
        """Whether the plugin was asked and a record made."""
        claim = self._claim(place, container, mask)
        if claim.held and claim.needed:
            raise AllocationFailed(
                f'pod "{place.pod_uid}" container "{place.container}" changed request for resource '
                f'"{place.resource}" from {len(claim.held)} to {claim.required}'
            )
        if self._is_running(place):
            return False
        choice.refuse_early(
            claim,
            in_stock=place.resource in self._manager.stock,
            refuses_unhealthy=self._context.profile.refuses_unhealthy,
        )
        if claim.needed <= 0:
            return False
        await self._ask(place, await self._choose(claim))
        return True

    def _claim(self, place: Place, container: ContainerSpec, mask: Mask) -> Claim:
        return Claim(
            resource=place.resource,
            required=container.wanted(place.resource),
            held=frozenset(self._manager.ledger.held(place)),
            reusable=self._reusable.of(place.pod_uid, place.resource),
            available=self.available(place.resource),
            mask=mask,
            shelf=self._manager.stock.shelf(place.resource),
        )

    def _is_running(self, place: Place) -> bool:
        """After a restart: a container that runs is not asked for again (3.14)."""
        if self._table.sources_ready or not self._context.profile.skips_running:
            return False
        running = (place.pod_uid, place.container) in self._table.running_at_start
        if (
            running
            and not self._context.profile.sees_every_running
            and self._table.was_restarted(place.pod_uid, place.container)
        ):
            self._context.findings.report(
                "3.14",
                f"{place.pod_uid}/{place.container}",
                "the container was started more than once before the kubelet was restarted",
                "of this version looks at one of its runs only, and may refuse the pod for one that has ended",
            )
        return running

    async def _choose(self, claim: Claim) -> frozenset[str]:
        choosing = choice.choose(claim)
        try:
            question = next(choosing)
            while True:
                question = choosing.send(await self._preferred(claim.resource, question))
        except StopIteration as chosen:
            return frozenset(chosen.value)

    async def _preferred(self, resource: str, question: Question) -> list[str]:
        endpoint = self._manager.connections.get(resource)
        if endpoint is None:
            raise AllocationFailed(f"endpoint not found in cache for a registered resource: {resource}")  # 3.31
        if not endpoint.options.preference:
            return []
        try:
            return await endpoint.prefer(question.request)
        except KubeletError:
            raise
        except PlugwrightError as error:
            if question.taken:
                self._report_leak(resource, sorted(question.taken), "GetPreferredAllocation failed")
            text = f"device plugin GetPreferredAllocation rpc failed with err: {status_text(error)}"
            raise AllocationFailed(text) from error

    async def _ask(self, place: Place, device_ids: frozenset[str]) -> None:
        """Allocate, and the record of it (3.36 to 3.44)."""
        book = self._manager.ledger
        book.mark(place.resource, device_ids)
        try:
            endpoint = self._manager.connections.get(place.resource)
            if endpoint is None:
                raise AllocationFailed(f"unknown Device Plugin {place.resource}")  # 3.42
            answer = await self._answer(endpoint, sorted(device_ids, key=natural_order))
        except BaseException:
            book.rebuild()
            raise
        shelf = self._manager.stock.shelf(place.resource)
        nodes = {device_id: shelf.nodes(device_id) for device_id in device_ids}
        book.record(place, ledger.by_node(device_ids, nodes), answer)

    async def _answer(self, endpoint: Endpoint, device_ids: list[str]) -> bytes:
        try:
            with self._asking(endpoint.resource, device_ids):
                answers = await endpoint.answers(device_ids)
        except KubeletError:
            raise
        except PlugwrightError as error:
            raise AllocationFailed(status_text(error)) from error  # 3.39
        if not answers:
            self._report_leak(endpoint.resource, device_ids, "the answer to Allocate has no container in it")
            raise AllocationFailed("no containers return in allocation response")  # 3.40
        return answers[0]

    @contextmanager
    def _asking(self, resource: str, device_ids: list[str]) -> Iterator[None]:
        began = time.perf_counter()
        self._manager.asked[resource] = frozenset(device_ids)
        try:
            yield
        finally:
            del self._manager.asked[resource]
            seconds = time.perf_counter() - began
            self._manager.metrics.observe(Name.ALLOCATION_SECONDS, seconds, resource_name=resource)

    def _save(self) -> None:
        try:
            self._manager.save()
        except OSError as error:  # 3.45
            name = self._context.paths.checkpoint.name
            raise AllocationFailed(f'failed to write checkpoint file "{name}": {error.strerror}') from error

    def _report_leak(self, resource: str, device_ids: object, happened: str) -> None:
        self._context.findings.report(
            "3.43", resource, happened, f"keeps {device_ids} marked as in use until its next clean-up"
        )
