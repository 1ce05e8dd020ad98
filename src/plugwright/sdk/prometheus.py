"""The daemon's metrics page for Prometheus.

It is made in the thread of the probes while the event loop runs. A dict of the loop is copied before it is iterated:
the copy is one step of the interpreter, during which the dict cannot change.
"""

import asyncio
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress

from plugwright.sdk import logs
from plugwright.sdk.daemon import Daemon
from plugwright.sdk.device_metrics import device_metrics
from plugwright.sdk.exposition import CONTENT_TYPE, MetricFamily, process_metrics, rendered, single
from plugwright.sdk.holdings.holding import Holdings
from plugwright.sdk.resource_runtime import ResourceRuntime
from plugwright.sdk.serve_settings import ServeMode
from plugwright.sdk.share_usage import SHARE_LABELS, share_metrics
from plugwright.sdk.status import ConfigState
from plugwright.text import clean
from plugwright.version import __version__

__all__ = ["page"]


def page(daemon: Daemon) -> Callable[[], tuple[str, bytes]]:
    """Returns a function for the current page: its content type and its text."""
    loop, node = asyncio.get_running_loop(), daemon.settings.node_name
    common = {"node": clean(node)} if node else {}

    def made() -> tuple[str, bytes]:
        text = rendered([*_families(daemon), *process_metrics()], common)
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(daemon.ledger.wanted.notify)  # for the next scrape
        return CONTENT_TYPE, text

    return made


def _families(daemon: Daemon) -> Iterator[MetricFamily]:
    runtimes = [runtime for _, runtime in sorted(dict(daemon.resources).items())]
    build = MetricFamily("plugwright_build_info", "The version of plugwright and of its Python", ["version", "python"])
    build.add([__version__, ".".join(map(str, sys.version_info[:3]))], 1)
    yield build
    yield from _devices(runtimes)
    yield from device_metrics(runtimes, daemon.ledger.latest.value)
    yield from _expected(runtimes)
    yield _calls(runtimes)
    yield _durations(runtimes)
    yield _registrations(runtimes)
    yield from _streams(runtimes)
    yield from _owners(runtimes, daemon.rivals.found.value)
    yield from _drivers(runtimes)
    yield from _discovery(runtimes)
    yield from _supervision(runtimes)
    yield from _shares(runtimes, daemon.ledger.latest.value)
    yield single("plugwright_stalls_total", "Stalls of the event loop by plugin code", daemon.stalls.count)
    yield single(
        "plugwright_log_lines_dropped_total",
        "Log lines dropped because they were not read in time",
        logs.dropped_lines(),
    )
    if daemon.config.value is not None:
        yield from _config(daemon.config.value)


def _devices(runtimes: list[ResourceRuntime]) -> Iterator[MetricFamily]:
    by_health = MetricFamily(
        "plugwright_devices",
        "Devices by health; Removed are those that discovery no longer lists and a pod may still hold",
        labels=["resource", "health"],
    )
    by_code = MetricFamily(
        "plugwright_unhealthy_devices", "Unhealthy devices by the code of their reason", labels=["resource", "code"]
    )
    for runtime in runtimes:
        snapshot = runtime.inventory.latest.value
        removed = runtime.inventory.removed_since
        devices = list(snapshot.devices.values()) if snapshot else []
        counts = Counter({"Cordoned": 0, "Healthy": 0, "Removed": 0, "Unhealthy": 0})
        for device in devices:
            cordoned = snapshot is not None and device.id in snapshot.cordoned
            counts["Removed" if device.id in removed else "Cordoned" if cordoned else device.health.value] += 1
        for health, count in sorted(counts.items()):
            by_health.add([runtime.resource, health], count)
        for code, count in sorted(Counter(device.code for device in devices if not device.healthy).items()):
            by_code.add([runtime.resource, code], count)
    yield from (by_health, by_code)


def _expected(runtimes: list[ResourceRuntime]) -> Iterator[MetricFamily]:
    least = MetricFamily(
        "plugwright_devices_expected", "Devices that the configuration expects at least", labels=["resource"]
    )
    missing = MetricFamily(
        "plugwright_devices_missing",
        "Devices fewer than the configuration expects, or than before the last start",
        labels=["resource"],
    )
    shortfalls = MetricFamily(
        "plugwright_devices_shortfall", "1 while the devices are not the expected ones", labels=["resource", "code"]
    )
    for runtime in runtimes:
        expect, shortfall = runtime.service.plugin.expect, runtime.expected.shortfall.value
        if expect is not None:
            least.add([runtime.resource], expect.least)
        missing.add([runtime.resource], shortfall.missing if shortfall is not None else 0)
        if shortfall is not None:
            shortfalls.add([runtime.resource, shortfall.code], 1)
    yield from (least, missing, shortfalls)


def _calls(runtimes: list[ResourceRuntime]) -> MetricFamily:
    family = MetricFamily(
        "plugwright_calls_total", "Calls by the kubelet, by outcome", labels=["resource", "method", "outcome"]
    )
    for runtime in runtimes:
        # From the start, because increase() does not count the event with which a series begins.
        failed = {(method, "failed"): 0 for method in _methods(runtime.serve.api)}
        for (method, outcome), count in sorted((failed | dict(runtime.service.metrics.calls)).items()):
            family.add([runtime.resource, method, outcome], count)
    return family


def _methods(api: ServeMode) -> Iterator[str]:
    """Calls of the kubelet that a pod waits for."""
    if api is not ServeMode.DRA:
        yield from ("Allocate", "GetPreferredAllocation", "PreStartContainer")
    if api is not ServeMode.DEVICE_PLUGIN:
        yield from ("NodePrepareResources", "NodeUnprepareResources")


def _durations(runtimes: list[ResourceRuntime]) -> MetricFamily:
    family = MetricFamily(
        "plugwright_call_duration_seconds", "Duration of calls by the kubelet", labels=["resource", "method"]
    )
    for runtime in runtimes:
        for method, durations in sorted(dict(runtime.service.metrics.durations).items()):
            family.add_histogram([runtime.resource, method], durations)
    return family


def _registrations(runtimes: list[ResourceRuntime]) -> MetricFamily:
    family = MetricFamily(
        "plugwright_registrations_total", "Registrations with the kubelet by outcome", labels=["resource", "outcome"]
    )
    for runtime in runtimes:
        for outcome in ("failed", "ok"):
            family.add([runtime.resource, outcome], runtime.service.metrics.registrations[outcome])
    return family


def _streams(runtimes: list[ResourceRuntime]) -> Iterator[MetricFamily]:
    opened = MetricFamily("plugwright_streams", "Open ListAndWatch streams", labels=["resource"])
    without = MetricFamily(
        "plugwright_seconds_without_stream", "Seconds since the kubelet last had a stream open", labels=["resource"]
    )
    idle = MetricFamily(
        "plugwright_resource_idle", "Whether the node has nothing for the resource to serve", labels=["resource"]
    )
    for runtime in runtimes:
        has_none = runtime.is_idle or runtime.serve.api is ServeMode.DRA
        opened.add([runtime.resource], runtime.service.streams.value.open)
        without.add([runtime.resource], 0 if has_none else runtime.service.seconds_without_stream)
        idle.add([runtime.resource], int(runtime.is_idle))
    yield from (opened, without, idle)


def _owners(runtimes: list[ResourceRuntime], rivals: Mapping[str, str]) -> Iterator[MetricFamily]:
    waiting = MetricFamily(
        "plugwright_resource_waits_for_owner", "Whether another daemon owns the resource", labels=["resource"]
    )
    rival = MetricFamily(
        "plugwright_resource_rival", "Whether another plugin serves the resource too", labels=["resource"]
    )
    for runtime in runtimes:
        waiting.add([runtime.resource], int(bool(runtime.ownership.owner.value)))
        rival.add([runtime.resource], int(runtime.resource in rivals))
    yield from (waiting, rival)


def _drivers(runtimes: list[ResourceRuntime]) -> Iterator[MetricFamily]:
    held_back = MetricFamily(
        "plugwright_dra_evictions_held_back",
        "Failed devices whose pods are not evicted because the budget is spent",
        labels=["resource", "driver"],
    )
    family = MetricFamily(
        "plugwright_dra_driver_ready",
        "Whether the DRA driver is registered and its devices are published",
        labels=["resource", "driver"],
    )
    for runtime in runtimes:
        if (driver := runtime.driver) is not None:
            labels = [runtime.resource, driver.name]
            family.add(labels, int(driver.state.value.ready))
            taints = driver.status().get("taints")
            if isinstance(taints, Mapping):
                held_back.add(labels, len(taints["held_back"]))
    yield from (family, held_back)


def _discovery(runtimes: list[ResourceRuntime]) -> Iterator[MetricFamily]:
    failing = MetricFamily(
        "plugwright_discovery_failing",
        "Whether discover() fails, has listed nothing in time, or does not confirm its last list",
        labels=["resource"],
    )
    failures = MetricFamily("plugwright_discovery_failures_total", "Failures of discover()", labels=["resource"])
    refused = MetricFamily(
        "plugwright_list_refused", "Whether the latest device list of discover() was refused", labels=["resource"]
    )
    all_refused = MetricFamily(
        "plugwright_lists_refused_total", "Device lists of discover() that were refused", labels=["resource"]
    )
    for runtime in runtimes:
        failing.add([runtime.resource], int(runtime.discovery.is_failing))
        failures.add([runtime.resource], runtime.service.metrics.discovery_failures)
        refused.add([runtime.resource], int(bool(runtime.inventory.refused.value)))
        all_refused.add([runtime.resource], runtime.service.metrics.lists_refused)
    yield from (failing, failures, refused, all_refused)


def _supervision(runtimes: list[ResourceRuntime]) -> Iterator[MetricFamily]:
    restarts = MetricFamily(
        "plugwright_resource_restarts_total",
        "Parts of a resource that failed and were started again",
        labels=["resource"],
    )
    abandoned = MetricFamily(
        "plugwright_discover_abandoned_total", "discover() calls that did not end when cancelled", labels=["resource"]
    )
    stuck = MetricFamily(
        "plugwright_stuck_threads", "Threads that hang in a method of the plugin", labels=["resource", "method"]
    )
    for runtime in runtimes:
        restarts.add([runtime.resource], runtime.service.metrics.restarts)
        abandoned.add([runtime.resource], runtime.service.metrics.abandoned)
        for method, count in sorted(runtime.stuck.items()):
            stuck.add([runtime.resource, method], count)
    yield from (restarts, abandoned, stuck)


def _shares(runtimes: list[ResourceRuntime], holdings: Holdings) -> Iterator[MetricFamily]:
    measured = [(runtime.resource, runtime.service.plugin.usage) for runtime in runtimes]
    for name, text, samples in share_metrics(measured, holdings):
        family = MetricFamily(name, text, SHARE_LABELS)
        for labels, value in samples:
            family.add(labels, value)
        yield family


def _config(state: ConfigState) -> Iterator[MetricFamily]:
    yield single(
        "plugwright_config_last_reload_successful",
        "Whether the latest version of the configuration file is in force",
        int(state.refused is None),
    )
    yield single(
        "plugwright_config_last_reload_timestamp_seconds",
        "When the configuration in force was last read",
        state.loaded,
    )
    yield single(
        "plugwright_config_reload_failures_total", "Reloads of the configuration that were refused", state.failures
    )
    yield single(
        "plugwright_config_refused_names", "Resources left out because of their names", len(state.refused_names)
    )
    yield single(
        "plugwright_config_restored",
        "Whether the file was refused at the start and its last good version is in force",
        int(state.restored),
    )
    info = MetricFamily(
        "plugwright_config_info",
        "The configuration file in force and the refused one, by SHA-256",
        labels=["sha256", "refused_sha256"],
    )
    info.add([state.sha256, state.refused.sha256 if state.refused else ""], 1)
    yield info
