"""How a daemon stands, told in the shapes of `report`."""

from plugwright.sdk.lifecycle import State
from plugwright.sdk.report import DaemonReport, DeviceReport, ResourceReport
from plugwright.sdk.runtime import Daemon, ResourceRuntime

__all__ = ["is_ready", "report"]


def report(daemon: Daemon) -> DaemonReport:
    runtimes = [daemon.resources[name] for name in sorted(daemon.resources)]
    return DaemonReport(
        ready=all(map(is_ready, runtimes)),
        registration=daemon.settings.registration.value,
        directory=str(daemon.directory),
        stalled=daemon.stalls.stalled,
        stalls=daemon.stalls.count,
        resources=[_resource(runtime) for runtime in runtimes],
    )


def is_ready(runtime: ResourceRuntime) -> bool:
    """Registered, and the kubelet is watching the list."""
    return runtime.lifecycle.standing.value.state is State.REGISTERED and runtime.service.streams.value.open > 0


def _resource(runtime: ResourceRuntime) -> ResourceReport:
    standing = runtime.lifecycle.standing.value
    return ResourceReport(
        name=runtime.resource,
        state=standing.state.value,
        reason=standing.reason,
        since=round(standing.since, 3),
        endpoint=runtime.lifecycle.endpoint,
        streams=runtime.service.streams.value.open,
        registrations=runtime.service.tally.registrations["ok"],
        discovery=runtime.discovery.failing.value,
        refused=runtime.inventory.refused.value,
        devices=_devices(runtime),
    )


def _devices(runtime: ResourceRuntime) -> list[DeviceReport]:
    snapshot = runtime.inventory.newest.value
    if snapshot is None:
        return []
    return [
        DeviceReport(
            id=device.id,
            health=device.health.value,
            reason=device.reason,
            since=round(snapshot.since[device.id], 3),
            numa=list(device.numa),
            attributes=dict(device.attributes),
        )
        for device in snapshot.devices.values()
    ]
