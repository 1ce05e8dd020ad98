"""The status of a daemon, composed of its resources, and the reasons why it is not ready.

`status` defines the fields, `control` and `probes` show them.
"""

import time
from collections.abc import Iterator, Mapping

import msgspec

from plugwright.sdk import logs
from plugwright.sdk.daemon import Daemon
from plugwright.sdk.holdings.holding import Holdings, HoldingSource, UnknownSource
from plugwright.sdk.registration import RegistrationState, RegistrationStatus
from plugwright.sdk.resource_runtime import ResourceRuntime
from plugwright.sdk.serve_settings import DriverState, ServeMode
from plugwright.sdk.share_usage import incidents
from plugwright.sdk.status import NOT_SERVING, DaemonStatus, DeviceStatus, HungStatus, ResourceStatus, shown
from plugwright.system.blocking import HungCall
from plugwright.text import clean

__all__ = ["is_ready", "one_line", "report", "unready", "without_pods"]


def without_pods(reason: str) -> Holdings:
    return Holdings(unknown={HoldingSource.POD_RESOURCES: UnknownSource(reason, 0.0)})


_NOT_ASKED = without_pods("the kubelet was not asked")


def report(daemon: Daemon, holdings: Holdings = _NOT_ASKED, stalled: str = "") -> DaemonStatus:
    """The status. `stalled` is why the event loop is blocked, if another thread has found that."""
    runtimes = [runtime for _, runtime in sorted(dict(daemon.resources).items())]
    unknown = holdings.unknown.get(HoldingSource.POD_RESOURCES)
    return DaemonStatus(
        ready=all(map(is_ready, runtimes)) and not daemon.cordons.unreadable,
        registration=daemon.settings.registration.value,
        directory=str(daemon.directory),
        stalled=stalled,
        stalls=daemon.stalls.count,
        hung=[_hung(call) for call in daemon.hung.value],
        cordons=daemon.cordons.listed(),
        cordons_unreadable=daemon.cordons.unreadable,
        pods_unreadable=unknown.reason if unknown is not None else "",
        waiting=dict(daemon.ledger.waiting),
        log_lines_dropped=logs.dropped_lines(),
        config=msgspec.to_builtins(daemon.config.value) if daemon.config.value is not None else None,
        resources=[_resource(runtime, holdings, daemon.rivals.found.value) for runtime in runtimes],
    )


def _hung(call: HungCall) -> HungStatus:
    return HungStatus(name=clean(call.name), since=round(time.time() - call.seconds, 3), line=call.line)


def one_line(daemon: Daemon) -> str:
    idle = sum(runtime.is_idle for runtime in daemon.resources.values())
    ready = sum(map(is_ready, daemon.resources.values())) - idle
    line = f"{ready} of {len(daemon.resources)} resources registered and watched by the kubelet"
    return f"{line}, {idle} idle" if idle else line


def is_ready(runtime: ResourceRuntime) -> bool:
    """Whether it is idle, or registered without a fault with an open stream, or with published devices."""
    return not any(_waiting(runtime))


def unready(daemon: Daemon) -> list[str]:
    """The reasons why a readiness probe fails, one per line; empty if the daemon serves all of its resources."""
    waiting = [] if daemon.serving else [NOT_SERVING]
    if daemon.cordons.unreadable:
        waiting.append(clean(daemon.cordons.unreadable))
    config = daemon.config.value
    if config is not None and config.restored:  # a rollout stops at the node that rejects its file
        waiting += map(clean, config.problems())
    for name, runtime in sorted(dict(daemon.resources).items()):
        waiting += [clean(f"{name}: {reason}") for reason in _waiting(runtime)]
    return waiting


def _waiting(runtime: ResourceRuntime) -> Iterator[str]:
    """The owner that a resource waits for, or a line for each API that should serve it and does not."""
    if owner := runtime.ownership.owner.value:
        yield f"{RegistrationState.WAITING} {owner}"
        return
    if (shortfall := runtime.expected.shortfall.value) is not None and shortfall.is_blocking:
        yield shortfall.reason
    if runtime.is_idle:
        return
    if fault := runtime.supervisor.fault.value:
        yield fault
    failing = runtime.discovery.failing.value or runtime.inventory.refused.value
    if runtime.serve.api is not ServeMode.DRA:
        status = runtime.registration.status.value
        is_registered = status.state is RegistrationState.REGISTERED
        if not is_registered or not runtime.service.streams.value.open:
            yield f"{'no stream open' if is_registered else status.state} {status.reason or failing}"
    if waiting := runtime.ledger.waiting.get(runtime.resource):
        yield f"devices wait: {waiting}"
    if runtime.driver is not None and not (driver := runtime.driver.state.value).ready:
        yield f"DRA driver {driver.state} {driver.reason or failing}"


def _resource(runtime: ResourceRuntime, holdings: Holdings, rivals: Mapping[str, str]) -> ResourceStatus:
    idle = runtime.discovery.idle.value
    status: RegistrationStatus | DriverState = runtime.registration.status.value
    if runtime.serve.api is ServeMode.DRA and runtime.driver is not None:
        status = runtime.driver.state.value
    if owner := runtime.ownership.owner.value:
        status = RegistrationStatus(RegistrationState.WAITING, status.since, owner)
    driver = dict(runtime.driver.status()) if runtime.driver is not None else None
    return ResourceStatus(
        name=runtime.resource,
        state="idle" if runtime.is_idle else str(status.state),
        reason=idle if runtime.is_idle else status.reason,
        since=round(status.since, 3),
        owner=owner,
        rival=rivals.get(runtime.resource, ""),
        endpoint=runtime.registration.endpoint,
        streams=runtime.service.streams.value.open,
        registrations=runtime.service.metrics.registrations["ok"],
        fault=runtime.supervisor.fault.value,
        restarts=runtime.service.metrics.restarts,
        held=runtime.removed_devices.unreadable.value,
        stuck=runtime.stuck,
        failures=dict(runtime.service.metrics.failures),
        discovery=runtime.discovery.failing.value
        or ("" if runtime.is_idle else idle or runtime.inventory.unconfirmed.value),
        empty=runtime.discovery.empty.value,
        expected=expected.words if (expected := runtime.service.plugin.expect) is not None else "",
        shortfall=shortfall.reason if (shortfall := runtime.expected.shortfall.value) is not None else "",
        shortfall_code=shortfall.code if shortfall is not None else "",
        refused=runtime.inventory.refused.value,
        serve=runtime.serve.api.value,
        exceeded=incidents(runtime.resource, holdings, runtime.service.plugin.usage),
        driver=driver,
        devices=_devices(runtime, holdings, driver),
    )


def _devices(runtime: ResourceRuntime, holdings: Holdings, driver: Mapping[str, object] | None) -> list[DeviceStatus]:
    snapshot = runtime.inventory.latest.value
    if snapshot is None:
        return []
    places, pods = _places(driver), _pods(runtime.resource, holdings)
    return [
        DeviceStatus(
            id=device.id,
            health=device.health.value,
            reason=device.reason,
            code=device.code,
            since=round(snapshot.since[device.id], 3),
            numa=list(device.numa),
            pods=pods.get(device.id, []),
            api=_api(places.get(device.id), driver),
            claims=_claims(places.get(device.id)),
            attributes={clean(name): shown(value) for name, value in device.attributes.items()},
            capacity={name: capacity.value for name, capacity in device.capacity.items()},
        )
        for device in snapshot.devices.values()
    ]


def _pods(resource: str, holdings: Holdings) -> dict[str, list[str]]:
    """By device id, the pods that hold it through the device plugin API, as namespace/name."""
    pods: dict[str, set[str]] = {}
    for holding in holdings.holdings:
        if holding.key.resource == resource and holding.key.api is ServeMode.DEVICE_PLUGIN and holding.pod:
            pods.setdefault(holding.key.device_id, set()).add(clean(f"{holding.namespace}/{holding.pod}"))
    return {device_id: sorted(names) for device_id, names in pods.items()}


def _places(driver: Mapping[str, object] | None) -> Mapping[str, object]:
    """The driver's status of each device, by device id."""
    devices = driver.get("devices") if driver is not None else None
    return devices if isinstance(devices, Mapping) else {}


def _api(place: object, driver: object) -> str:
    if driver is None:
        return ServeMode.DEVICE_PLUGIN.value
    return clean(place.get("api") or "") if isinstance(place, Mapping) else ""


def _claims(place: object) -> list[str]:
    claims = place.get("claims") if isinstance(place, Mapping) else None
    return [clean(claim) for claim in claims] if isinstance(claims, list) else []
