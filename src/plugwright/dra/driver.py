"""The DRA driver of one resource: creates, connects and runs its parts.

    inventory → placement, taints → the content of the pool → publisher → ResourceSlices
    kubelet → registration → preparation → plugin, checkpoint, CDI files

A driver that cannot start, because it does not know its node or its API server, logs that in one line and retries;
other resources continue without it.
"""

import asyncio
import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

import msgspec
from msgspec.structs import asdict, replace

from plugwright.dra import driver_paths
from plugwright.dra.claims_only import ClaimsOnly
from plugwright.dra.device_access import PluginDevices
from plugwright.dra.device_placement import DevicePlacement
from plugwright.dra.device_taints.taints import Taint, TaintController
from plugwright.dra.driver_paths import DriverPaths
from plugwright.dra.health import HealthService
from plugwright.dra.registration import DriverRegistration, DriverServices, DriverSockets
from plugwright.dra.resource_api_client import ResourceClient
from plugwright.dra.resource_claims.allocated_claims import AllocatedClaims
from plugwright.dra.resource_claims.claim_files import ClaimFiles
from plugwright.dra.resource_claims.claim_setup import ClaimSetup
from plugwright.dra.resource_claims.claim_status import ClaimStatus
from plugwright.dra.resource_claims.device_metadata import DeviceMetadata
from plugwright.dra.resource_claims.preparation import Preparation
from plugwright.dra.resource_claims.prepared_claims import PreparedClaim, PreparedClaims
from plugwright.dra.resource_slices.publisher import PublisherState, PublisherStatus, SlicePublisher
from plugwright.dra.resource_slices.slice_devices import pool_content, published_devices
from plugwright.errors import ConfigError, InvalidValue, PlugwrightError
from plugwright.grammars import DNS_SUBDOMAIN
from plugwright.kube.answers import SMALL
from plugwright.kube.api_client import ApiClient
from plugwright.sdk import cdi
from plugwright.sdk.driver_names import check_driver_name, driver_name
from plugwright.sdk.holdings.records import ClaimRecord
from plugwright.sdk.holdings.sources import CDI_OWNER
from plugwright.sdk.inventory import Snapshot
from plugwright.sdk.registration import RegistrationState, RegistrationStatus
from plugwright.sdk.resource_runtime import ResourceRuntime
from plugwright.sdk.serve_settings import DriverState, ServeMode
from plugwright.sdk.settings import Settings
from plugwright.system.blocking import BlockingCalls
from plugwright.system.boot import boot_id
from plugwright.system.concurrency import Backoff, in_thread
from plugwright.system.latest import Latest, Signal
from plugwright.system.log_once import LogOnce

__all__ = ["Driver", "find_api_server"]

logger = logging.getLogger(__name__)

_TAINTS = "taints.json"
_CONNECT_LIMIT = 10.0  # seconds to read a kubeconfig or the files of a service account
_RETRY = 1.0, 30.0  # seconds; the first and the longest wait of a driver that cannot start


def find_api_server(settings: Settings) -> ResourceClient:
    """The API server of the settings' kubeconfig, otherwise of the pod, otherwise of KUBECONFIG."""
    if settings.kubeconfig is not None:
        return ApiClient.of_kubeconfig(settings.kubeconfig, sizes=SMALL)
    return ApiClient.find(os.environ, sizes=SMALL)


class _DriverParts(msgspec.Struct, frozen=True):
    node: str
    api: ResourceClient
    prepared: PreparedClaims
    placement: DevicePlacement
    taints: TaintController
    publisher: SlicePublisher
    preparation: Preparation
    claim_status: ClaimStatus
    registration: DriverRegistration


class Driver:
    """Implements `sdk.serve_settings.ResourceDriver`."""

    def __init__(
        self,
        runtime: ResourceRuntime,
        connect: Callable[[Settings], ResourceClient] = find_api_server,
        wrap: Callable[[DevicePlacement], DevicePlacement] = lambda placement: placement,
    ) -> None:
        """`wrap` is for tests that replace the decisions of a placement."""
        self.state = Latest(DriverState(RegistrationState.STARTING.value, since=time.time()))
        self.name = check_driver_name(runtime.serve.driver or driver_name(runtime.resource))
        self._runtime, self._connect, self._wrap = runtime, connect, wrap
        self._parts: _DriverParts | None = None
        self._unpublishable = ""  # why the devices cannot be in slices
        self._problems = LogOnce(logger)
        self._connections = BlockingCalls("reading the access to the API server", _CONNECT_LIMIT)
        runtime.inventory.withhold({}, offered=())  # until it is known which API offers them

    async def run(self) -> None:
        retry = Backoff(*_RETRY)
        while True:
            try:
                parts = await self._made()
            except (ConfigError, OSError) as error:
                await self._cannot_begin(str(error))
                await asyncio.sleep(retry.delay())
                continue
            try:
                self._parts = parts
                await self._serve(parts)
            finally:
                self._parts = None
                parts.api.close()

    async def finish(self) -> None:
        if self._parts is not None:
            await self._parts.registration.finish()

    def fail(self, reason: str) -> None:
        self.state.publish(DriverState("failed", reason, since=time.time()))

    def status(self) -> Mapping[str, object]:
        state, parts = self.state.value, self._parts
        common = {"name": self.name, "ready": state.ready, "state": state.state, "reason": state.reason}
        if parts is None:
            return common
        registration, slices = parts.registration.status.value, parts.publisher.status.value
        placement = parts.placement.status()
        return {
            **common,
            "node": parts.node,
            "registration": {
                "state": registration.state.value,
                "reason": registration.reason,
                "since": round(registration.since, 3),
                "endpoint": str(parts.registration.sockets.service),
            },
            "slices": {**asdict(slices), "state": slices.state.value, "dropped": list(slices.dropped)},
            "claims": _claims_status(parts.prepared.latest.value.values()),
            "taints": parts.taints.status(),
            **placement,
            "problem": placement["problem"] or parts.prepared.problem,
        }

    async def command(self, name: str, arguments: Mapping[str, str]) -> str:
        parts = self._parts
        if parts is None:
            raise ConfigError(f"the DRA driver of {self._runtime.resource} does not run: {self.state.value.reason}")
        return await parts.placement.command(name, arguments)

    async def _made(self) -> _DriverParts:
        """Makes the parts; `ConfigError` or OSError if something necessary is missing."""
        runtime, settings, serve = self._runtime, self._runtime.settings, self._runtime.serve
        node = _node_name(settings)
        sockets = DriverSockets.of(settings.paths, self.name, settings.pod_uid)
        api = await self._connections.run(partial(self._connect, settings))
        own = DriverPaths.of(settings, self.name)
        await in_thread("name of the resource", partial(driver_paths.record_resource, own, runtime.resource))
        metadata = DeviceMetadata(own.directory, self.name)
        files = ClaimFiles(self.name, cdi.SpecDirectory(Path(serve.cdi), owner=CDI_OWNER), metadata)
        prepared = PreparedClaims(own.checkpoint, boot_id(), files.find)
        prepared.latest.subscribe(partial(self._record_claims, prepared))
        placement = self._wrap(self._placement(own, api, prepared))
        claim_status = ClaimStatus(api, self.name)
        host_root = Path(serve.host_root) if serve.host_root else None
        taints = TaintController(runtime.inventory, serve.taints, (settings.state_dir or own.directory) / _TAINTS)
        setup = ClaimSetup(PluginDevices(runtime, placement, taints), prepared, files, host_root)
        preparation = Preparation(AllocatedClaims(api, self.name, node), setup, claim_status.report)
        services = DriverServices(preparation, HealthService(runtime.inventory, node))
        return _DriverParts(
            node=node,
            api=api,
            prepared=prepared,
            placement=placement,
            taints=taints,
            publisher=SlicePublisher(api, self.name, node),
            preparation=preparation,
            claim_status=claim_status,
            registration=DriverRegistration(self.name, sockets, services, runtime.service.metrics),
        )

    def _record_claims(self, prepared: PreparedClaims) -> None:
        """Passes the claims to the ledger, which keeps back the same hardware in other resources."""
        records = [
            ClaimRecord(
                self.name,
                device.name,
                device.id,
                namespace=claim.namespace,
                claim=claim.name,
                uid=claim.uid,
                share_id=device.share_id,
                admin_access=device.admin_access,
            )
            for claim in prepared.latest.value.values()
            for device in claim.devices
        ]
        self._runtime.ledger.take_prepared(self.name, records)

    def _placement(self, files: DriverPaths, api: ResourceClient, prepared: PreparedClaims) -> DevicePlacement:
        if self._runtime.serve.api is not ServeMode.BOTH:
            return ClaimsOnly(self._runtime, prepared, files)
        from plugwright.dra.both.operators import OperatedSplit  # only `serve: both` loads its package

        return OperatedSplit.of(self._runtime, files, prepared, api)

    async def _serve(self, parts: _DriverParts) -> None:
        """Runs the parts until one of them fails."""
        ends = [
            source.subscribe(partial(self._set_state, parts))
            for source in (parts.registration.status, parts.publisher.status)
        ]
        ends += [
            source.subscribe(partial(self._confirm, parts))
            for source in (parts.publisher.published, parts.publisher.status)
        ]
        try:
            async with asyncio.TaskGroup() as group:
                working = (parts.placement, parts.taints, parts.publisher, parts.preparation, parts.claim_status)
                for part in (*working, parts.registration):
                    group.create_task(part.run(), name=f"{type(part).__name__} of {self.name}")
                group.create_task(self._offer(parts))
        finally:
            for end in ends:
                end()

    async def _offer(self, parts: _DriverParts) -> None:
        """Publishes the devices for claims, whenever they or their taints change."""
        inventory, changes = self._runtime.inventory.latest, Signal()
        sources = (inventory, parts.taints.taints, parts.placement.changed)
        ends = [source.subscribe(changes.notify) for source in sources]
        try:
            async for _ in changes.notifications():
                snapshot, taints = inventory.value, parts.taints.taints.value
                if snapshot is not None and taints is not None:
                    self._publish(parts, snapshot, taints)
        finally:
            for end in ends:
                end()

    def _publish(self, parts: _DriverParts, snapshot: Snapshot, taints: Mapping[str, Sequence[Taint]]) -> None:
        """Publishes devices. If that is impossible, the slices stay unchanged, and claims are still prepared."""
        offered = parts.placement.in_slices(snapshot.devices)
        if offered is None and snapshot.devices:
            return  # published devices stay until it is known which devices belong to claims
        self._unpublishable = ""
        try:
            content = pool_content(snapshot, offered or (), taints, parts.placement.taints())
            parts.publisher.content.publish_if_changed(content)
            self._problems.recovered()
        except InvalidValue as error:
            self._unpublishable = str(error)
            facts = {"driver": self.name, "error": str(error)}
            self._problems.error("devices cannot be published", str(error), extra=facts)
        self._set_state(parts)

    def _confirm(self, parts: _DriverParts) -> None:
        """Tells the placement which devices the API server has stored."""
        published = parts.publisher.published.value
        if published is not None and parts.publisher.is_current:
            dropped = "taints" in parts.publisher.status.value.dropped
            parts.placement.confirm(published_devices(published), taints_dropped=dropped)

    def _set_state(self, parts: _DriverParts) -> None:
        state = _driver_state(parts.registration.status.value, parts.publisher.status.value)
        if self._unpublishable and state.ready:
            state = replace(state, state="unpublished", reason=self._unpublishable, ready=False)
        self.state.publish_if_changed(state)

    async def _cannot_begin(self, reason: str) -> None:
        facts = {"resource": self._runtime.resource, "error": reason}
        self._problems.error("DRA driver cannot start", reason, extra=facts)
        if self.state.value.reason != reason:
            self.state.publish(DriverState("failed", reason, since=time.time()))
        if self._runtime.serve_asked.api is ServeMode.DEVICE_PLUGIN:
            await self._give_back_unclaimed()

    async def _give_back_unclaimed(self) -> None:
        """Returns the devices of a device plugin resource without a driver, except those of claims."""
        files = DriverPaths.of(self._runtime.settings, self.name)
        try:
            claims = (await PreparedClaims(files.checkpoint, boot_id()).read()).values()
        except (PlugwrightError, OSError) as error:
            logger.error("devices of claims are unknown", extra={"driver": self.name, "error": str(error)})
            return
        held = {device.id: f"held by ResourceClaim {claim}" for claim in claims for device in claim.devices}
        self._runtime.inventory.withhold(held)


def _node_name(settings: Settings) -> str:
    name = settings.node_name
    if not name:
        raise ConfigError("the name of this node is not known: set NODE_NAME or --node-name")
    if not DNS_SUBDOMAIN.fullmatch(name) or len(name) > 253:
        raise ConfigError(f"the name of this node must be that of a Node, got {name!r}")
    return name


def _driver_state(registration: RegistrationStatus, slices: PublisherStatus) -> DriverState:
    """Ready when registered and published; slices stay in an unreachable API server, so they count then too."""
    is_published = slices.state is PublisherState.PUBLISHED
    was_published = slices.state is PublisherState.AWAY and slices.slices > 0
    if registration.state is not RegistrationState.REGISTERED:
        return DriverState(registration.state.value, registration.reason, False, registration.since)
    if slices.unwatched:
        return DriverState("unwatched", slices.unwatched, False, registration.since)
    if is_published or was_published:
        return DriverState(registration.state.value, slices.reason, True, registration.since)
    reason = slices.reason or "its devices are not published yet"
    return DriverState("unpublished", reason, False, registration.since)


def _claims_status(claims: Iterable[PreparedClaim]) -> list[dict[str, object]]:
    return [
        {
            "namespace": claim.namespace,
            "name": claim.name,
            "uid": claim.uid,
            "state": claim.state.value,
            "devices": sorted({device.id for device in claim.devices}),
        }
        for claim in sorted(claims, key=lambda claim: (claim.namespace, claim.name, claim.uid))
    ]
