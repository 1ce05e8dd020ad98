"""Makes the NodeReport of a running daemon. Loaded with the first request for a report."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from plugwright.model import Device
from plugwright.sdk.daemon import Daemon
from plugwright.sdk.holdings.holding import DeviceKey, Holding, Holdings
from plugwright.sdk.node_report import (
    CallFailureReport,
    ConfigReport,
    CordonReport,
    DaemonReport,
    DeviceReport,
    DriverReport,
    HolderReport,
    HoldingsReport,
    HungCallReport,
    KubeletReport,
    MoveReport,
    NodeReport,
    RefusedConfigReport,
    ReportMetadata,
    ResourceReport,
    ShareReport,
    ShareUsageReport,
    UnknownReport,
    timestamp,
)
from plugwright.sdk.resource_runtime import ResourceRuntime
from plugwright.sdk.serve_settings import ServeMode
from plugwright.sdk.settings import Settings
from plugwright.sdk.share_usage import ShareUsage, usages
from plugwright.sdk.status import ConfigState, CordonStatus, DaemonStatus, DeviceStatus, ResourceStatus
from plugwright.system import files
from plugwright.version import __version__

__all__ = ["kubelet_report", "node_report"]

_LARGEST_SETTINGS = 256 * 1024  # bytes; a larger configuration of the kubelet is not read
_SETTING = re.compile(
    rb"^(topologyManagerPolicy|topologyManagerScope):[ \t]*[\"']?([a-z-]{1,32})[\"']?[ \t]*\r?$", re.MULTILINE
)
_UsageByHolding: TypeAlias = Mapping[tuple[int, str], ShareUsage]  # by the holding's id() and the physical device

_NOT_ATTRIBUTES = frozenset({"links"})  # shown under its own key


def node_report(
    daemon: Daemon, status: DaemonStatus, holdings: Holdings, kubelet: KubeletReport, waiting: Sequence[str]
) -> dict[str, object]:
    """The report as JSON values. `status` is the daemon's present one, `waiting` the lines of its readiness probe."""
    report = NodeReport(
        metadata=ReportMetadata(
            node_name=daemon.settings.node_name, release=daemon.settings.release, generated_at=datetime.now(UTC)
        ),
        daemon=DaemonReport(
            version=__version__,
            ready=status["ready"] and not waiting,
            waiting_for=tuple(waiting),
            stalled=status["stalled"],
            stalls=status["stalls"],
            hung=tuple(
                HungCallReport(name=call["name"], since=timestamp(call["since"]), line=call["line"])
                for call in status["hung"]
            ),
            log_lines_dropped=status["log_lines_dropped"],
            config=_config(daemon.config.value) if daemon.config.value is not None else None,
        ),
        kubelet=kubelet,
        holdings=HoldingsReport(
            complete=holdings.is_complete,
            unknown=tuple(
                UnknownReport(source=source.value, reason=unknown.reason, since=timestamp(unknown.since))
                for source, unknown in sorted(holdings.unknown.items())
            ),
        ),
        cordons=tuple(map(_cordon, status["cordons"])),
        cordons_unreadable=status["cordons_unreadable"],
        resources=tuple(
            _resource(resource, daemon.resources.get(resource["name"]), holdings, status["waiting"])
            for resource in status["resources"]
        ),
        history=tuple(daemon.history.latest) if daemon.history is not None else (),
    )
    document: dict[str, object] = msgspec.to_builtins(report)
    return document


def kubelet_report(settings: Settings, directory: Path) -> KubeletReport:
    """Reads the kubelet's configuration file if it is in its usual place. Can block."""
    found: dict[bytes, bytes] = {}
    with suppress(OSError, ValueError):  # as in a container, which sees only the directories of plugins
        found = dict(_SETTING.findall(files.read(settings.paths.root / "config.yaml", _LARGEST_SETTINGS)))
    policy, scope = found.get(b"topologyManagerPolicy"), found.get(b"topologyManagerScope")
    return KubeletReport(
        registration=settings.registration.value,
        directory=str(directory),
        topology_manager_policy=policy.decode() if policy else None,
        topology_manager_scope=scope.decode() if scope else None,
    )


def _config(config: ConfigState) -> ConfigReport:
    refused = None
    if config.refused is not None:
        since = _time(config.refused.since)
        refused = RefusedConfigReport(sha256=config.refused.sha256, since=since, error=config.refused.error)
    return ConfigReport(
        path=config.path,
        sha256=config.sha256,
        loaded_at=_time(config.loaded),
        restored=config.restored,
        failures=config.failures,
        refused=refused,
        refused_resources=config.refused_names,
        unnamed=config.unnamed,
    )


def _cordon(cordon: CordonStatus) -> CordonReport:
    return CordonReport(
        resource=cordon["resource"],
        id=cordon["id"],
        reason=cordon["reason"],
        by=cordon["by"],
        since=timestamp(cordon["since"]),
        until=timestamp(cordon["until"]),
        declared=cordon["declared"],
        served=cordon["served"],
    )


def _resource(
    resource: ResourceStatus, runtime: ResourceRuntime | None, holdings: Holdings, waiting: Mapping[str, str]
) -> ResourceReport:
    driver = resource["driver"]
    return ResourceReport(
        name=resource["name"],
        serve=resource["serve"],
        state=resource["state"],
        reason=resource["reason"],
        since=_time(resource["since"]),
        owner=resource["owner"],
        rival=resource["rival"],
        waiting=waiting.get(resource["name"], ""),
        endpoint=resource["endpoint"],
        streams=resource["streams"],
        registrations=resource["registrations"],
        restarts=resource["restarts"],
        fault=resource["fault"],
        discovery=resource["discovery"],
        empty=resource["empty"],
        expected=resource["expected"],
        shortfall=resource["shortfall"],
        shortfall_code=resource["shortfall_code"],
        refused=resource["refused"],
        stuck=resource["stuck"],
        failures={
            method: CallFailureReport(time=_time(time), reason=reason)
            for method, (time, reason) in resource["failures"].items()
        },
        simulates=runtime.service.plugin.simulates if runtime is not None else (),
        driver=_driver(driver) if driver is not None else None,
        devices=tuple(_devices(resource, runtime, holdings)),
    )


def _driver(driver: Mapping[str, Any]) -> DriverReport:
    taints = driver.get("taints", {})
    return DriverReport(
        name=driver["name"],
        ready=driver["ready"],
        state=driver["state"],
        reason=driver["reason"],
        problem=driver.get("problem", ""),
        claims=tuple(driver.get("claims", ())),
        slices=_camel(driver.get("slices", {})),
        taints=_camel({key: value for key, value in taints.items() if key != "devices"}),
        handover=driver.get("handover", ""),
        leaving=tuple(driver.get("leaving", ())),
    )


def _camel(names: Mapping[str, object]) -> dict[str, object]:
    parts = ((name.split("_"), value) for name, value in names.items())
    return {first + "".join(map(str.title, rest)): value for (first, *rest), value in parts}


def _devices(resource: ResourceStatus, runtime: ResourceRuntime | None, holdings: Holdings) -> Iterator[DeviceReport]:
    snapshot = runtime.inventory.latest.value if runtime is not None else None
    listed: Mapping[str, Device] = snapshot.devices if snapshot is not None else {}
    cordons = snapshot.cordoned if snapshot is not None else {}
    driver: Mapping[str, Any] = resource["driver"] or {}
    moves, taints = driver.get("devices", {}), driver.get("taints", {}).get("devices", {})
    used = _used(runtime, holdings) if runtime is not None else {}
    for status in resource["devices"]:
        device_id = status["id"]
        device = listed.get(device_id)
        key = DeviceKey(ServeMode.DEVICE_PLUGIN, resource["name"], device_id)
        links = status["attributes"].get("links")
        yield DeviceReport(
            id=device_id,
            health=status["health"],
            reason=status["reason"],
            code=status["code"],
            since=_time(status["since"]),
            api=status["api"],
            numa=tuple(status["numa"]),
            physical=device.physical if device is not None else (),
            links=links if isinstance(links, dict) else {},
            attributes={name: value for name, value in status["attributes"].items() if name not in _NOT_ATTRIBUTES},
            capacity=status["capacity"],
            share=_share(status, device),
            holders=tuple(_holder(holding, used) for holding in holdings.of(resource["name"], device_id)),
            closed=holdings.closed.get(key, ""),
            cordoned=status["reason"].removeprefix("cordoned: ") if device_id in cordons else "",
            taints=tuple(taints.get(device_id, ())),
            move=_move(moves.get(device_id)) if resource["serve"] == ServeMode.BOTH else None,
        )


def _share(status: DeviceStatus, device: Device | None) -> ShareReport | None:
    """The physical device and limits of a device shared by containers; None for others."""
    if device is None or not device.sharing:
        return None
    by = status["attributes"].get("sharing")
    memory, percent = status["attributes"].get("memory"), status["attributes"].get("percent")
    limited = bool(percent)  # time-sliced shares have no limits
    return ShareReport(
        by=by if isinstance(by, str) else "count",
        of=device.physical[0] if device.physical else "",
        memory=memory if limited and isinstance(memory, int) else None,
        percent=percent if limited and isinstance(percent, int) else None,
    )


def _used(runtime: ResourceRuntime, holdings: Holdings) -> _UsageByHolding:
    return {
        (id(holding), usage.of): usage
        for holders, usage in usages(runtime.resource, holdings, runtime.service.plugin.usage)
        for holding in holders
    }


def _holder(holding: Holding, used: _UsageByHolding) -> HolderReport:
    usage = next((used[id(holding), name] for name in holding.physical if (id(holding), name) in used), None)
    return HolderReport(
        api=holding.key.api.value,
        namespace=holding.namespace,
        pod=holding.pod,
        pod_uid=holding.pod_uid,
        container=holding.container,
        claim=holding.claim,
        claim_uid=holding.claim_uid,
        share_id=holding.share_id,
        admin_access=holding.admin_access,
        since=timestamp(holding.since),
        source=holding.source.value,
        usage=_usage(usage) if usage is not None else None,
    )


def _usage(usage: ShareUsage) -> ShareUsageReport:
    return ShareUsageReport(
        limit=usage.limit,
        used=usage.used,
        peak=usage.peak,
        refusals=usage.refusals,
        processes=usage.processes,
        driver=usage.driver,
        driver_peak=usage.driver_peak,
        exceeded=usage.exceeded,
        incidents=usage.incidents,
        measured_at=timestamp(usage.at),
    )


def _move(placement: Mapping[str, Any] | None) -> MoveReport | None:
    if placement is None:
        return None
    return MoveReport(phase=placement["phase"], target=placement["target"], waits_for=placement["waits"])


def _time(seconds: float) -> datetime:
    return timestamp(seconds) or datetime.fromtimestamp(0, UTC)
