"""The DRA manager: has the claims of a pod prepared before its containers start, and unprepared after they end.

All checks come first, and leave no trace; only then is the pod recorded, and the drivers are called (11.12, 11.13).
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from plugwright.errors import ClaimNotPrepared, KubeletError, PlugwrightError
from plugwright.kubelet.devicemanager.endpoints import grpc_status_text
from plugwright.kubelet.dra.claims import ClaimInfo, ClaimInfos
from plugwright.kubelet.dra.drivers import DRAPlugin, Drivers
from plugwright.kubelet.dra.health import ClaimDeviceHealth, ClaimHealth
from plugwright.kubelet.dra.resource_api import KubeClient, ResourceClaim
from plugwright.kubelet.pod_table import Pod, PodTable
from plugwright.kubelet.pods import ContainerKind, ContainerSpec, PodSpec
from plugwright.kubelet.settings import KubeletContext
from plugwright.protocol.dra import Claim, PreparedDevice
from plugwright.protocol.pod_resources import DynamicResource

__all__ = ["DRAManager"]


class DRAManager:
    def __init__(self, context: KubeletContext, api: KubeClient | None, tasks: asyncio.TaskGroup) -> None:
        self._context = context
        self._api = api
        self._tasks = tasks
        clock, limit = context.settings.clock, context.profile.health_entries
        self.health = ClaimHealth(clock, self._health_changed, context.paths.root, limit)
        self.drivers = Drivers(context, api, tasks, self.health)
        self.claims = ClaimInfos(context.paths.root)

    async def prepare(self, pod: PodSpec) -> None:
        """Raises `ClaimNotPrepared` with the kubelet's text; devices of other drivers stay prepared (11.15)."""
        try:
            claims = [await self._checked(pod, name, generated) for name, generated in _claim_names(pod)]
            await self._prepare(self._recorded(pod, claims))
        except KubeletError as error:
            raise ClaimNotPrepared(f"prepare dynamic resources: {error}") from error

    async def unprepare(self, pod: PodSpec) -> None:
        """Unprepares the claims without other pods; raises `ClaimNotPrepared` if a driver fails (11.19)."""
        names = {name for name, _ in _claim_names(pod)} | {info.claim.name for info in self.claims.used_by(pod.uid)}
        await self._end_claims([info for name in sorted(names) if (info := self._unused_without(pod, name))])

    async def reconcile(self, pods: PodTable) -> None:
        """Unprepares the claims of deleted pods, such as those force-deleted while the kubelet was down (11.19a)."""
        while True:
            await asyncio.sleep(self._context.settings.timing.claim_reconcile)
            if pods.sources_ready:
                users = {uid for info in self.claims for uid in info.pods}
                for uid in sorted(uid for uid in users if not _is_active(pods.get(uid))):
                    try:
                        await self._end_claims([info for info in self.claims.used_by(uid) if self._is_last(info, uid)])
                    except ClaimNotPrepared as error:
                        self._context.record("reconciling", uid, str(error))

    async def _end_claims(self, ending: Sequence[ClaimInfo]) -> None:
        """If a driver fails to unprepare a claim, it stays marked as `unpreparing` until another try succeeds."""
        try:
            for driver, claims in _by_driver(ending).items():
                await self._unprepare(self.drivers.get(driver), claims)
        except KubeletError as error:
            raise ClaimNotPrepared(f"unprepare dynamic resources: {error}") from error
        for info in ending:
            self.claims.remove(info)
            self._context.record("unprepared", f"{info.claim.namespace}/{info.claim.name}")
        self.claims.save()

    async def end(self, pod: PodSpec, done: Callable[[], None]) -> None:
        """`unprepare` for an ended pod, then `done`; failures are retried in the background (11.19)."""
        try:
            await self.unprepare(pod)
        except ClaimNotPrepared as error:
            self._context.record("terminating", pod.key, str(error))
            self.end_later(pod, done, self._context.settings.timing.unprepare_retry)
        else:
            done()

    def end_later(self, pod: PodSpec, done: Callable[[], None] = lambda: None, delay: float = 0.0) -> None:
        async def end() -> None:
            await asyncio.sleep(delay)
            await self.end(pod, done)

        self._tasks.create_task(end())

    def cdi_devices(self, pod: PodSpec, container: ContainerSpec) -> list[str]:
        """The CDI names for a container, of its named requests or of whole claims (11.20)."""
        names = {claim.name: claim.claim_name for claim in pod.claims}
        return [
            cdi_device
            for claim in container.claims
            if (info := self.claims.get(pod.namespace, names.get(claim.name, ""))) is not None
            for _, device in info.devices(claim.request)
            for cdi_device in device.cdi_devices
        ]

    def dynamic_resources(self, pod: PodSpec, container: ContainerSpec) -> list[DynamicResource]:
        """The claims of a container in the pod-resources API: none while any of them is unknown here (11.27)."""
        used = {claim.name for claim in container.claims}
        infos = [self.claims.get(pod.namespace, claim.claim_name) for claim in pod.claims if claim.name in used]
        known = [info for info in infos if info is not None]
        return [info.dynamic_resource() for info in known] if len(known) == len(infos) else []

    def device_health(self, pod: PodSpec) -> dict[str, tuple[ClaimDeviceHealth, ...]]:
        """The devices of the claims of each main container, as the pod status has them (11.26a)."""
        found = {
            container.name: [*self._health_of(pod, container)]
            for container in pod.containers
            if container.kind is ContainerKind.MAIN
        }
        return {
            name: tuple({(health.resource, health.resource_id): health for health in reversed(devices)}.values())[::-1]
            for name, devices in found.items()
        }

    def _health_of(self, pod: PodSpec, container: ContainerSpec) -> Iterator[ClaimDeviceHealth]:
        names = {claim.name: claim.claim_name for claim in pod.claims}
        for use in container.claims:
            info = self.claims.get(pod.namespace, names.get(use.name, ""))
            # The claim for extended resources has no name in the pod, and no health (11.26a).
            if info is None or not use.name:
                continue
            resource = f"claim:{use.name}/{use.request}" if use.request else f"claim:{use.name}"
            for driver, device in info.devices(use.request):
                health, message = self.health.of(driver, device.pool, device.name)
                named = device.cdi_devices[0] if device.cdi_devices else f"{driver}/{device.pool}/{device.name}"
                yield ClaimDeviceHealth(resource, named, health.name.capitalize(), message)

    def _health_changed(self, driver: str, changed: set[tuple[str, str]]) -> None:
        """The statuses of pods with any of these devices are written again."""
        users = {
            pod
            for info in self.claims
            if any((device.pool, device.name) in changed for device in info.drivers.get(driver, ()))
            for pod in info.pods
        }
        for uid in sorted(users):
            self._context.record("health", uid, f"{driver} has told of {', '.join(sorted(map('/'.join, changed)))}")

    async def _checked(self, pod: PodSpec, name: str, generated: bool) -> ResourceClaim:
        if self._api is None:
            raise KubeletError(f"fetch ResourceClaim {name}: this kubelet has no API server")
        claim = ResourceClaim.read(await self._api.claim(pod.namespace, name))
        claim.check_usable(pod.uid, pod.name, generated=generated)
        for driver in claim.drivers or ():
            self.drivers.get(driver)
        return claim

    def _recorded(self, pod: PodSpec, claims: Iterable[ResourceClaim]) -> list[ClaimInfo]:
        """Records the pod as a user of its claims, on disk; returns the unprepared claims."""
        unprepared = []
        for claim in claims:
            info = self.claims.get(claim.namespace, claim.name)
            if info is None:
                info = ClaimInfo.of(claim)
                self.claims.add(info)
            elif info.claim.uid != claim.uid:
                raise KubeletError(
                    f"old ResourceClaim with same name {claim.name} and different UID {info.claim.uid} still exists "
                    "(previous pod force-deleted?!)"
                )
            elif info.unpreparing and self._context.profile.spares_claims_in_use:
                raise KubeletError(f"ResourceClaim {claim.name} is being unprepared")
            info.pods.add(pod.uid)
            self.claims.save()
            if not info.prepared:
                unprepared.append(info)
        return unprepared

    async def _prepare(self, infos: Sequence[ClaimInfo]) -> None:
        by_uid = {info.claim.uid: info for info in infos}
        for driver, claims in _by_driver(infos).items():
            plugin = self.drivers.get(driver)
            try:
                answer = await plugin.prepare(claims)
            except PlugwrightError as error:
                raise KubeletError(f"NodePrepareResources: {grpc_status_text(error)}") from error
            for uid, result in answer.items():
                claim = _asked("NodePrepareResources", claims, uid)
                if isinstance(result, str):
                    raise KubeletError(f"NodePrepareResources failed for ResourceClaim {claim.name}: {result}")
                by_uid[uid].drivers[driver] = tuple(result)
                self._report_subrequests(driver, result)
            _check_complete("NodePrepareResources", claims, answer)
        for info in infos:
            info.prepared = True
            self._context.record("prepared", f"{info.claim.namespace}/{info.claim.name}", _devices_text(info))
        self.claims.save()

    async def _unprepare(self, plugin: DRAPlugin, claims: Sequence[Claim]) -> None:
        try:
            answer = await plugin.unprepare(claims)
        except PlugwrightError as error:
            raise KubeletError(f"NodeUnprepareResources: {grpc_status_text(error)}") from error
        for uid, problem in answer.items():
            claim = _asked("NodeUnprepareResources", claims, uid)
            if problem:
                raise KubeletError(f"NodeUnprepareResources failed for ResourceClaim {claim.name}: {problem}")
        _check_complete("NodeUnprepareResources", claims, answer)

    def _unused_without(self, pod: PodSpec, name: str) -> ClaimInfo | None:
        """The claim, if this pod is its last."""
        info = self.claims.get(pod.namespace, name)
        if info is None:
            return None
        if pod.uid not in info.pods and self._context.profile.spares_claims_in_use:
            return None
        if not self._is_last(info, pod.uid):
            return None
        if info.pods and pod.uid not in info.pods:
            self._context.findings.report(
                "11.22",
                f"{pod.namespace}/{name}",
                f"{pod.name} goes, which never had it prepared, while another pod uses it",
                "has it unprepared under that other pod",
            )
        return info

    def _is_last(self, info: ClaimInfo, pod_uid: str) -> bool:
        """Removes the pod from a claim of others; marks a claim without further pods."""
        if len(info.pods) > 1:
            info.pods.discard(pod_uid)
            return False
        info.unpreparing = True
        return True

    def _report_subrequests(self, driver: str, devices: Iterable[PreparedDevice]) -> None:
        for device in devices:
            for request in device.requests:
                if "/" in request:
                    self._context.findings.report(
                        "11.21",
                        driver,
                        f"device {device.name} is prepared for {request!r}, which names a subrequest",
                        "gives it to no container that names the request, and starts the pod without it",
                    )


def _is_active(pod: Pod | None) -> bool:
    return pod is not None and (pod.terminating or not pod.has_ended)


def _claim_names(pod: PodSpec) -> list[tuple[str, bool]]:
    """The names of the pod's claims, and whether they were generated for it; an error if there is none yet."""
    for claim in pod.claims:
        if not claim.claim_name and claim.generated:
            raise KubeletError(
                f'pod "{pod.key}": pod claim {claim.name}: ResourceClaim has not been created for it yet'
            )
    return [(claim.claim_name, claim.generated) for claim in pod.claims if claim.claim_name]


def _devices_text(info: ClaimInfo) -> str:
    return ", ".join(f"{driver}/{device.pool}/{device.name}" for driver, device in info.devices()) or "no devices"


def _by_driver(infos: Iterable[ClaimInfo]) -> dict[str, list[Claim]]:
    """One call for each driver, with all claims of the pod (11.14)."""
    batches: dict[str, list[Claim]] = {}
    for info in infos:
        for driver in sorted(info.drivers):
            batches.setdefault(driver, []).append(info.claim)
    return batches


def _asked(call: str, claims: Iterable[Claim], uid: str) -> Claim:
    for claim in claims:
        if claim.uid == uid:
            return claim
    raise KubeletError(f"{call} returned result for unknown claim UID {uid}")


def _check_complete(call: str, claims: Sequence[Claim], answer: Mapping[str, object]) -> None:
    if skipped := len(claims) - len(answer):
        raise KubeletError(f"{call} skipped {skipped} ResourceClaims")
