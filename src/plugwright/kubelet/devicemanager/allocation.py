"""Device allocation for one container: which devices it gets, and the Allocate call for them (3.8 to 3.46).

`select_devices` is pure: a generator which yields a query when the kubelet calls GetPreferredAllocation, is sent the
plugin's preference, and returns the devices. If the kubelet takes devices in random order, this takes natural order, so
equal requests get equal devices. `Allocator` is the shell around it, which calls the plugin and records the result. The
order of containers is `admission`.
"""

import time
from collections.abc import Collection, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from plugwright.errors import AllocationFailed, KubeletError, PlugwrightError
from plugwright.kubelet.devicemanager import pod_devices
from plugwright.kubelet.devicemanager.devices import ResourceDevices
from plugwright.kubelet.devicemanager.endpoints import Endpoint, grpc_status_text
from plugwright.kubelet.devicemanager.manager import DeviceManager
from plugwright.kubelet.devicemanager.pod_devices import AllocationKey, ReusableDevices
from plugwright.kubelet.metrics import MetricName
from plugwright.kubelet.pod_table import PodTable
from plugwright.kubelet.pods import ContainerSpec, PodSpec
from plugwright.model import PreferenceRequest, natural_order

__all__ = ["AllocationRequest", "Allocator", "NumaMask", "PreferenceQuery", "check_allocatable", "select_devices"]

NumaMask = frozenset[int] | None  # the NUMA nodes the topology manager decided on; None for any


class Allocator:
    def __init__(self, manager: DeviceManager, table: PodTable) -> None:
        self._manager = manager
        self._table = table
        self._context = manager.context
        self._reusable = ReusableDevices(keeps_sidecars=manager.context.profile.keeps_sidecars)

    def is_device_plugin_resource(self, resource: str) -> bool:
        """Whether a plugin listed the resource, or devices of it are in use (3.10)."""
        return resource in self._manager.devices or self._manager.pod_devices.has_resource(resource)

    def update_allocated_devices(self) -> None:
        """Frees the devices of inactive pods, once all pods are known after a start (3.57)."""
        if self._table.sources_ready:
            self._manager.update_allocated_devices(self._table.active)

    def reusable(self, pod: PodSpec, resource: str) -> frozenset[str]:
        return self._reusable.of(pod.uid, resource)

    def available(self, resource: str) -> frozenset[str]:
        return self._manager.devices.of(resource).healthy.difference(self._manager.pod_devices.in_use(resource))

    async def allocate(self, pod: PodSpec, container: ContainerSpec, mask: NumaMask) -> None:
        """Allocates every resource of one container; raises `AllocationFailed`.

        Several resources are not a transaction: if the second fails, the first stays recorded (3.46).
        """
        resources = [resource for resource in sorted(container.limits) if self.is_device_plugin_resource(resource)]
        keys = [AllocationKey(pod.uid, container.name, resource) for resource in resources]
        if keys:
            self.update_allocated_devices()
        called = [await self._allocate(key, container, mask) for key in keys]
        if any(called):
            self._write_checkpoint()
        held = {key.resource: self._manager.pod_devices.device_ids(key) for key in keys}
        self._reusable.update(pod.uid, container.kind, dict(held))

    async def _allocate(self, key: AllocationKey, container: ContainerSpec, mask: NumaMask) -> bool:
        """Allocates one resource; whether Allocate was called."""
        request = self._request(key, container, mask)
        if request.held and request.needed:
            raise AllocationFailed(
                f'pod "{key.pod_uid}" container "{key.container}" changed request for resource '
                f'"{key.resource}" from {len(request.held)} to {request.required}'
            )
        if self._was_running_at_start(key):
            return False
        check_allocatable(
            request,
            is_registered=key.resource in self._manager.devices,
            refuses_unhealthy=self._context.profile.refuses_unhealthy,
        )
        if request.needed <= 0:
            return False
        await self._call_allocate(key, await self._select(request))
        return True

    def _request(self, key: AllocationKey, container: ContainerSpec, mask: NumaMask) -> "AllocationRequest":
        return AllocationRequest(
            resource=key.resource,
            required=container.requested(key.resource),
            held=frozenset(self._manager.pod_devices.device_ids(key)),
            reusable=self._reusable.of(key.pod_uid, key.resource),
            available=self.available(key.resource),
            mask=mask,
            devices=self._manager.devices.of(key.resource),
        )

    def _was_running_at_start(self, key: AllocationKey) -> bool:
        """A running container keeps its devices over a restart of the kubelet without any call (3.14)."""
        if self._table.sources_ready or not self._context.profile.skips_running:
            return False
        running = (key.pod_uid, key.container) in self._table.running_at_start
        if (
            running
            and not self._context.profile.sees_every_running
            and self._table.was_restarted(key.pod_uid, key.container)
        ):
            self._context.findings.report(
                "3.14",
                f"{key.pod_uid}/{key.container}",
                "the container was started more than once before the kubelet was restarted",
                "of this version looks at one of its runs only, and may refuse the pod for one that has ended",
            )
        return running

    async def _select(self, request: "AllocationRequest") -> frozenset[str]:
        selection = select_devices(request)
        try:
            query = next(selection)
            while True:
                query = selection.send(await self._preference(request.resource, query))
        except StopIteration as selected:
            return frozenset(selected.value)

    async def _preference(self, resource: str, query: "PreferenceQuery") -> list[str]:
        endpoint = self._manager.endpoints.get(resource)
        if endpoint is None:  # The kubelet refuses a resource without an endpoint in these words (3.31).
            raise AllocationFailed(f"endpoint not found in cache for a registered resource: {resource}")
        if not endpoint.options.preference:
            return []
        try:
            return await endpoint.prefer(query.request)
        except KubeletError:
            raise
        except PlugwrightError as error:
            if query.selected:
                self._report_leak(resource, sorted(query.selected), "GetPreferredAllocation failed")
            text = f"device plugin GetPreferredAllocation rpc failed with err: {grpc_status_text(error)}"
            raise AllocationFailed(text) from error

    async def _call_allocate(self, key: AllocationKey, device_ids: frozenset[str]) -> None:
        """Calls Allocate and records the response (3.36 to 3.44)."""
        self._manager.pod_devices.mark_in_use(key.resource, device_ids)
        try:
            endpoint = self._manager.endpoints.get(key.resource)
            if endpoint is None:  # The endpoint was removed in the meantime (3.42).
                raise AllocationFailed(f"unknown Device Plugin {key.resource}")
            response = await self._response(endpoint, sorted(device_ids, key=natural_order))
        except BaseException:
            self._manager.pod_devices.rebuild_in_use()
            raise
        devices = self._manager.devices.of(key.resource)
        nodes = {device_id: devices.nodes(device_id) for device_id in device_ids}
        self._manager.pod_devices.insert(key, pod_devices.by_numa_node(device_ids, nodes), response)

    async def _response(self, endpoint: Endpoint, device_ids: list[str]) -> bytes:
        try:
            with self._observe_allocation(endpoint.resource, device_ids):
                responses = await endpoint.allocate_encoded(device_ids)
        except KubeletError:
            raise
        except PlugwrightError as error:  # The kubelet refuses the pod with the plugin's gRPC status (3.39).
            raise AllocationFailed(grpc_status_text(error)) from error
        if not responses:  # Here the kubelet forgets to rebuild its table of devices in use (3.40).
            self._report_leak(endpoint.resource, device_ids, "the answer to Allocate has no container in it")
            raise AllocationFailed("no containers return in allocation response")
        return responses[0]

    @contextmanager
    def _observe_allocation(self, resource: str, device_ids: list[str]) -> Iterator[None]:
        began = time.perf_counter()
        self._manager.allocating[resource] = frozenset(device_ids)
        try:
            yield
        finally:
            del self._manager.allocating[resource]
            seconds = time.perf_counter() - began
            self._manager.metrics.observe(MetricName.ALLOCATION_SECONDS, seconds, resource_name=resource)

    def _write_checkpoint(self) -> None:
        # If the checkpoint cannot be written, the container's allocation fails (3.45).
        try:
            self._manager.write_checkpoint()
        except OSError as error:
            name = self._context.paths.checkpoint.name
            raise AllocationFailed(f'failed to write checkpoint file "{name}": {error.strerror}') from error

    def _report_leak(self, resource: str, device_ids: list[str], happened: str) -> None:
        self._context.findings.report(
            "3.43", resource, happened, f"keeps {device_ids} marked as in use until its next clean-up"
        )


@dataclass(frozen=True, slots=True)
class AllocationRequest:
    """The required number of devices of a resource, and the devices to choose from."""

    resource: str
    required: int
    held: frozenset[str]
    reusable: frozenset[str]
    available: frozenset[str]  # healthy and not in use
    mask: NumaMask
    devices: ResourceDevices

    @property
    def needed(self) -> int:
        return self.required - len(self.held)


@dataclass(frozen=True, slots=True)
class PreferenceQuery:
    """A GetPreferredAllocation call: which of `available` the plugin prefers beside those already `selected`."""

    allocation: AllocationRequest
    available: frozenset[str]
    selected: frozenset[str]

    @property
    def request(self) -> PreferenceRequest:
        devices, available = self.allocation.devices, self.available | self.selected
        return PreferenceRequest(
            tuple(devices.first(len(available), available)),
            tuple(devices.first(len(self.selected), self.selected)),
            self.allocation.required,
        )


@dataclass(slots=True)
class _Selected:
    """The devices selected so far, and how many are missing."""

    needed: int
    devices: ResourceDevices
    ids: set[str] = field(default_factory=set)

    @property
    def missing(self) -> int:
        return self.needed - len(self.ids)

    def take(self, candidates: Collection[str]) -> None:
        unselected = set(candidates) - self.ids if self.ids else candidates
        self.ids.update(self.devices.first(self.missing, unselected))

    def take_preferred(self, preference: Sequence[str], allowed: frozenset[str]) -> None:
        """Takes the plugin's preference in its order, limited to the allowed devices and the missing number (3.29)."""
        usable = dict.fromkeys(device_id for device_id in preference if device_id in allowed)
        self.take([device_id for device_id in usable if device_id not in self.ids][: self.missing])


def check_allocatable(request: AllocationRequest, *, is_registered: bool, refuses_unhealthy: bool) -> None:
    """Refuses, whatever the number, an unregistered resource and unhealthy devices (3.15 to 3.17)."""
    if not is_registered:
        raise AllocationFailed(f"cannot allocate unregistered device {request.resource}")
    if not refuses_unhealthy:
        return
    if not request.devices.healthy:
        raise AllocationFailed(f"no healthy devices present; cannot allocate unhealthy devices {request.resource}")
    if not request.held <= request.devices.healthy:
        raise AllocationFailed(
            f"previously allocated devices are no longer healthy; cannot allocate unhealthy devices {request.resource}"
        )


def select_devices(request: AllocationRequest) -> Generator[PreferenceQuery, Sequence[str], frozenset[str]]:
    selected = _Selected(request.needed, request.devices)
    # Reusable devices come first, whatever their health and without asking for a preference (3.19).
    selected.take(request.reusable)
    if not selected.missing:
        return frozenset(selected.ids)
    if len(request.available) < selected.missing:
        raise AllocationFailed(
            f"requested number of devices unavailable for {request.resource}. "
            f"Requested: {selected.missing}, Available: {len(request.available)}"
        )
    yield from _select_available(request, selected)
    if selected.missing:
        raise AllocationFailed(
            "unexpectedly allocated less resources than required. "
            f"Requested: {request.required}, Got: {request.required - selected.missing}"
        )
    return frozenset(selected.ids)


def _select_available(
    request: AllocationRequest, selected: _Selected
) -> Generator[PreferenceQuery, Sequence[str], None]:
    alignment = _align(request)
    # More aligned devices than needed: the plugin's preference among them, then any of them (3.23).
    if selected.missing < len(alignment.aligned):
        preference = yield PreferenceQuery(request, alignment.aligned, frozenset(selected.ids))
        selected.take_preferred(preference, alignment.aligned)
        selected.take(alignment.aligned)
        return
    # Else all aligned devices, then the preference among all, then unaligned ones, then those without affinity (3.24).
    selected.take(alignment.aligned)
    if not selected.missing:
        return
    preference = yield PreferenceQuery(request, request.available, frozenset(selected.ids))
    selected.take_preferred(preference, request.available)
    selected.take(alignment.unaligned)
    selected.take(alignment.no_affinity)


@dataclass(frozen=True, slots=True)
class _Alignment:
    aligned: frozenset[str]
    unaligned: frozenset[str]
    no_affinity: frozenset[str]


def _align(request: AllocationRequest) -> _Alignment:
    # Without a mask, or if no known device has NUMA nodes, no device has an affinity (3.21).
    if request.mask is None or not request.devices.has_topology:
        return _Alignment(frozenset(), frozenset(), request.available)
    nodes = {device_id: request.devices.nodes(device_id) for device_id in request.available}
    aligned = frozenset(device_id for device_id, near in nodes.items() if request.mask.intersection(near))
    no_affinity = frozenset(device_id for device_id, near in nodes.items() if not near)
    return _Alignment(aligned, request.available - aligned - no_affinity, no_affinity)
