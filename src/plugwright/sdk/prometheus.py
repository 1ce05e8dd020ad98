"""The daemon's metrics page for Prometheus. Needs the extra `metrics`.

It is made in the thread of the probes while the event loop goes on. A dict of the loop's is copied before it is walked
through: the copy is one step of the interpreter, in which nothing can change it.
"""

import asyncio
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, InfoMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from plugwright.sdk import logs
from plugwright.sdk.daemon import Daemon, ResourceRuntime
from plugwright.sdk.holdings.holding import Holdings
from plugwright.sdk.metrics import BUCKETS
from plugwright.sdk.plugin import Plugin
from plugwright.sdk.serve_settings import ServeMode
from plugwright.sdk.share_usage import SHARE_LABELS, share_metrics
from plugwright.sdk.status import ConfigState
from plugwright.system.histogram import Histogram
from plugwright.version import __version__

__all__ = ["page"]

_BUILD = {"version": __version__, "python": ".".join(map(str, sys.version_info[:3]))}
_HOLDERS_AGE = 15.0  # seconds


def page(daemon: Daemon) -> Callable[[], tuple[str, bytes]]:
    """Makes the page as it is at each call: its content type and its text."""
    registry = CollectorRegistry()
    registry.register(_DaemonCollector(daemon, asyncio.get_running_loop()))
    ProcessCollector(registry=registry)
    return lambda: (CONTENT_TYPE_LATEST, generate_latest(registry))


class _DaemonCollector(Collector):
    def __init__(self, daemon: Daemon, loop: asyncio.AbstractEventLoop) -> None:
        self._daemon, self._loop = daemon, loop
        self._asked_at = -_HOLDERS_AGE

    def collect(self) -> Iterator[Metric]:
        runtimes = [runtime for _, runtime in sorted(dict(self._daemon.resources).items())]
        yield InfoMetricFamily("plugwright_build", "The version of plugwright and of its Python", _BUILD)
        yield from _devices(runtimes)
        yield from _expected(runtimes)
        yield _calls(runtimes)
        yield _durations(runtimes)
        yield _registrations(runtimes)
        yield from _streams(runtimes)
        yield from _owners(runtimes, self._daemon.rivals.found.value)
        yield _drivers(runtimes)
        yield from _discovery(runtimes)
        yield from _supervision(runtimes)
        self._read_holders(runtimes)
        yield from _share_use(runtimes, self._daemon.ledger.latest.value)
        yield CounterMetricFamily(
            "plugwright_stalls", "Stalls of the event loop by plugin code", self._daemon.stalls.count
        )
        yield CounterMetricFamily(
            "plugwright_log_lines_dropped", "Log lines that nobody read in time", logs.dropped_lines()
        )
        if self._daemon.config.value is not None:
            yield from _config(self._daemon.config.value)

    def _read_holders(self, runtimes: list[ResourceRuntime]) -> None:
        """Before the next page, if use is measured: nothing else reads who has been given a share."""
        if time.monotonic() - self._asked_at < _HOLDERS_AGE:
            return
        if any(map(_measures_shares, runtimes)):
            self._asked_at = time.monotonic()
            with suppress(RuntimeError):  # the event loop has ended
                self._loop.call_soon_threadsafe(self._daemon.ledger.read_soon)


def _measures_shares(runtime: ResourceRuntime) -> bool:
    snapshot = runtime.inventory.latest.value
    measures = type(runtime.service.plugin).usage is not Plugin.usage
    return measures and snapshot is not None and any(device.sharing for device in snapshot.devices.values())


def _devices(runtimes: list[ResourceRuntime]) -> Iterator[Metric]:
    by_health = GaugeMetricFamily(
        "plugwright_devices",
        "Devices by health; Removed are those that discovery no longer lists and a pod may still hold",
        labels=["resource", "health"],
    )
    by_code = GaugeMetricFamily(
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
            by_health.add_metric([runtime.resource, health], count)
        for code, count in sorted(Counter(device.code for device in devices if not device.healthy).items()):
            by_code.add_metric([runtime.resource, code], count)
    yield from (by_health, by_code)


def _expected(runtimes: list[ResourceRuntime]) -> Iterator[Metric]:
    least = GaugeMetricFamily(
        "plugwright_devices_expected", "Devices that the configuration expects at least", labels=["resource"]
    )
    missing = GaugeMetricFamily(
        "plugwright_devices_missing",
        "Devices fewer than the configuration expects, or than before the last start",
        labels=["resource"],
    )
    shortfalls = GaugeMetricFamily(
        "plugwright_devices_shortfall", "1 while the devices are not the expected ones", labels=["resource", "code"]
    )
    for runtime in runtimes:
        expect, shortfall = runtime.service.plugin.expect, runtime.expected.shortfall.value
        if expect is not None:
            least.add_metric([runtime.resource], expect.least)
        missing.add_metric([runtime.resource], shortfall.missing if shortfall is not None else 0)
        if shortfall is not None:
            shortfalls.add_metric([runtime.resource, shortfall.code], 1)
    yield from (least, missing, shortfalls)


def _calls(runtimes: list[ResourceRuntime]) -> Metric:
    family = CounterMetricFamily(
        "plugwright_calls", "Calls by the kubelet, by outcome", labels=["resource", "method", "outcome"]
    )
    for runtime in runtimes:
        for (method, outcome), count in sorted(dict(runtime.service.metrics.calls).items()):
            family.add_metric([runtime.resource, method, outcome], count)
    return family


def _durations(runtimes: list[ResourceRuntime]) -> Metric:
    family = HistogramMetricFamily(
        "plugwright_call_duration_seconds", "Duration of calls by the kubelet", labels=["resource", "method"]
    )
    for runtime in runtimes:
        for method, durations in sorted(dict(runtime.service.metrics.durations).items()):
            family.add_metric([runtime.resource, method], _buckets(durations), durations.total)
    return family


def _buckets(durations: Histogram) -> list[tuple[str, float]]:
    bounds, total = [], 0
    for bound, count in zip([*map(str, BUCKETS), "+Inf"], list(durations.counts), strict=True):
        total += count
        bounds.append((bound, float(total)))
    return bounds


def _registrations(runtimes: list[ResourceRuntime]) -> Metric:
    family = CounterMetricFamily(
        "plugwright_registrations", "Registrations with the kubelet by outcome", labels=["resource", "outcome"]
    )
    for runtime in runtimes:
        for outcome in ("failed", "ok"):
            family.add_metric([runtime.resource, outcome], runtime.service.metrics.registrations[outcome])
    return family


def _streams(runtimes: list[ResourceRuntime]) -> Iterator[Metric]:
    opened = GaugeMetricFamily("plugwright_streams", "Open ListAndWatch streams", labels=["resource"])
    without = GaugeMetricFamily(
        "plugwright_seconds_without_stream", "Seconds since the kubelet last had a stream open", labels=["resource"]
    )
    idle = GaugeMetricFamily(
        "plugwright_resource_idle", "Whether the node has nothing for the resource to serve", labels=["resource"]
    )
    for runtime in runtimes:
        has_none = runtime.is_idle or runtime.serve.api is ServeMode.DRA
        opened.add_metric([runtime.resource], runtime.service.streams.value.open)
        without.add_metric([runtime.resource], 0 if has_none else runtime.service.seconds_without_stream)
        idle.add_metric([runtime.resource], int(runtime.is_idle))
    yield from (opened, without, idle)


def _owners(runtimes: list[ResourceRuntime], rivals: Mapping[str, str]) -> Iterator[Metric]:
    waiting = GaugeMetricFamily(
        "plugwright_resource_waits_for_owner", "Whether another daemon owns the resource", labels=["resource"]
    )
    rival = GaugeMetricFamily(
        "plugwright_resource_rival", "Whether another plugin serves the resource too", labels=["resource"]
    )
    for runtime in runtimes:
        waiting.add_metric([runtime.resource], int(bool(runtime.ownership.owner.value)))
        rival.add_metric([runtime.resource], int(runtime.resource in rivals))
    yield from (waiting, rival)


def _drivers(runtimes: list[ResourceRuntime]) -> Metric:
    family = GaugeMetricFamily(
        "plugwright_dra_driver_ready",
        "Whether the DRA driver is registered and its devices are published",
        labels=["resource"],
    )
    for runtime in runtimes:
        if runtime.driver is not None:
            family.add_metric([runtime.resource], int(runtime.driver.state.value.ready))
    return family


def _discovery(runtimes: list[ResourceRuntime]) -> Iterator[Metric]:
    failures = CounterMetricFamily("plugwright_discovery_failures", "Failures of discover()", labels=["resource"])
    refused = CounterMetricFamily(
        "plugwright_lists_refused", "Device lists of discover() that were refused", labels=["resource"]
    )
    for runtime in runtimes:
        failures.add_metric([runtime.resource], runtime.service.metrics.discovery_failures)
        refused.add_metric([runtime.resource], runtime.service.metrics.lists_refused)
    yield from (failures, refused)


def _supervision(runtimes: list[ResourceRuntime]) -> Iterator[Metric]:
    restarts = CounterMetricFamily(
        "plugwright_resource_restarts", "Parts of a resource that failed and were started again", labels=["resource"]
    )
    abandoned = CounterMetricFamily(
        "plugwright_discover_abandoned", "discover() calls that did not end when cancelled", labels=["resource"]
    )
    stuck = GaugeMetricFamily(
        "plugwright_stuck_threads", "Threads that hang in a method of the plugin", labels=["resource", "method"]
    )
    for runtime in runtimes:
        restarts.add_metric([runtime.resource], runtime.service.metrics.restarts)
        abandoned.add_metric([runtime.resource], runtime.service.metrics.abandoned)
        for method, count in sorted(runtime.stuck.items()):
            stuck.add_metric([runtime.resource, method], count)
    yield from (restarts, abandoned, stuck)


def _share_use(runtimes: list[ResourceRuntime], holdings: Holdings) -> Iterator[Metric]:
    measured = [(runtime.resource, runtime.service.plugin.usage) for runtime in runtimes]
    for name, text, samples in share_metrics(measured, holdings):
        kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
        family = kind(name.removesuffix("_total"), text, labels=SHARE_LABELS)
        for labels, value in samples:
            family.add_metric(labels, value)
        yield family


def _config(state: ConfigState) -> Iterator[Metric]:
    yield GaugeMetricFamily(
        "plugwright_config_last_reload_successful",
        "Whether the latest version of the configuration file is in force",
        int(state.refused is None),
    )
    yield GaugeMetricFamily(
        "plugwright_config_last_reload_timestamp_seconds",
        "When the configuration in force was last read",
        state.loaded,
    )
    yield CounterMetricFamily(
        "plugwright_config_reload_failures", "Reloads of the configuration that were refused", state.failures
    )
    yield GaugeMetricFamily(
        "plugwright_config_refused_names", "Resources left out because of their names", len(state.refused_names)
    )
    yield GaugeMetricFamily(
        "plugwright_config_restored",
        "Whether the file was refused at the start and its last good version is in force",
        int(state.restored),
    )
    info = InfoMetricFamily("plugwright_config", "The configuration file in force and the refused one, by SHA-256")
    info.add_metric([], {"sha256": state.sha256, "refused_sha256": state.refused.sha256 if state.refused else ""})
    yield info
