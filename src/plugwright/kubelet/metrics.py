"""The kubelet's metrics about devices, with the real kubelet's names, labels and buckets, as plain values.

Nothing is exported here; a test, a page or an endpoint reads `KubeletMetrics.snapshot`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from plugwright.system.histogram import Histogram

__all__ = ["KubeletMetrics", "MetricName", "MetricSample", "rejection_reason"]

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_MILLISECONDS = tuple(0.05 * 2**power for power in range(15))
_EXTENDED_RESOURCES = "OutOfExtendedResources"
_Labels = tuple[tuple[str, str], ...]

# The reasons for which an emulated kubelet refuses pods; the real list is longer.
_REASONS = frozenset(
    {
        "OutOfcpu",
        "OutOfephemeral-storage",
        "OutOfmemory",
        "OutOfpods",
        "TopologyAffinityError",
        "UnexpectedAdmissionError",
    }
)


class MetricName(StrEnum):
    REGISTRATIONS = "kubelet_device_plugin_registration_total"
    ALLOCATION_SECONDS = "kubelet_device_plugin_alloc_duration_seconds"
    WATCHED_PLUGINS = "plugin_manager_total_plugins"
    POD_RESOURCES = "kubelet_pod_resources_endpoint_requests_total"
    POD_RESOURCES_LIST = "kubelet_pod_resources_endpoint_requests_list"
    POD_RESOURCES_ALLOCATABLE = "kubelet_pod_resources_endpoint_requests_get_allocatable"
    POD_RESOURCES_GET = "kubelet_pod_resources_endpoint_requests_get"
    POD_RESOURCES_LIST_ERRORS = "kubelet_pod_resources_endpoint_errors_list"
    POD_RESOURCES_ALLOCATABLE_ERRORS = "kubelet_pod_resources_endpoint_errors_get_allocatable"
    POD_RESOURCES_GET_ERRORS = "kubelet_pod_resources_endpoint_errors_get"
    ADMISSIONS = "kubelet_topology_manager_admission_requests_total"
    ADMISSION_ERRORS = "kubelet_topology_manager_admission_errors_total"
    ADMISSION_MILLISECONDS = "kubelet_topology_manager_admission_duration_ms"
    ALIGNED = "kubelet_container_aligned_compute_resources_count"
    NOT_ALIGNED = "kubelet_container_aligned_compute_resources_failure_count"
    REJECTIONS = "kubelet_admission_rejections_total"


class _Kind(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class _Definition:
    kind: _Kind
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


def _counter(*labels: str) -> _Definition:
    return _Definition(_Kind.COUNTER, labels)


_VERSIONED = _counter("server_api_version")
_DEFINITIONS: Mapping[MetricName, _Definition] = MappingProxyType(
    {
        MetricName.REGISTRATIONS: _counter("resource_name"),
        MetricName.ALLOCATION_SECONDS: _Definition(_Kind.HISTOGRAM, ("resource_name",), _SECONDS),
        MetricName.WATCHED_PLUGINS: _Definition(_Kind.GAUGE, ("socket_path", "state")),
        **{name: _VERSIONED for name in MetricName if name.startswith("kubelet_pod_resources_endpoint_")},
        MetricName.ADMISSIONS: _counter(),
        MetricName.ADMISSION_ERRORS: _counter(),
        MetricName.ADMISSION_MILLISECONDS: _Definition(_Kind.HISTOGRAM, (), _MILLISECONDS),
        MetricName.ALIGNED: _counter("scope", "boundary"),
        MetricName.NOT_ALIGNED: _counter("scope", "boundary"),
        MetricName.REJECTIONS: _counter("reason"),
    }
)


@dataclass(frozen=True, slots=True)
class MetricSample:
    """One number; a histogram has several, named and labelled as in Prometheus."""

    name: str
    labels: _Labels
    value: float


def _samples(histogram: Histogram, name: str, labels: _Labels) -> Iterator[MetricSample]:
    below = 0
    for count, bound in zip(histogram.counts, [*map("{:g}".format, histogram.buckets), "+Inf"], strict=True):
        below += count
        yield MetricSample(f"{name}_bucket", (*labels, ("le", bound)), below)
    yield MetricSample(f"{name}_sum", labels, histogram.total)
    yield MetricSample(f"{name}_count", labels, below)


class KubeletMetrics:
    """The metrics of one kubelet since its start; those without labels exist from the beginning, as 0."""

    def __init__(self) -> None:
        unlabelled = {name: definition for name, definition in _DEFINITIONS.items() if not definition.labels}
        self._numbers: dict[tuple[MetricName, _Labels], float] = {
            (name, ()): 0 for name, definition in unlabelled.items() if definition.kind is _Kind.COUNTER
        }
        self._histograms: dict[tuple[MetricName, _Labels], Histogram] = {
            (name, ()): Histogram(definition.buckets) for name, definition in unlabelled.items() if definition.buckets
        }

    def count(self, name: str, /, **labels: str) -> None:
        key = _key(name, _Kind.COUNTER, labels)
        self._numbers[key] = self._numbers.get(key, 0) + 1

    def observe(self, name: str, value: float, /, **labels: str) -> None:
        key = _key(name, _Kind.HISTOGRAM, labels)
        self._histograms.setdefault(key, Histogram(_DEFINITIONS[key[0]].buckets)).observe(value)

    def set(self, name: str, value: float, /, **labels: str) -> None:
        """Sets a gauge; at 0 the gauge disappears, as in the kubelet's plugin manager."""
        key = _key(name, _Kind.GAUGE, labels)
        self._numbers.pop(key, None)
        if value:
            self._numbers[key] = value

    def value(self, name: str, /, **labels: str) -> float:
        """The value of a counter or a gauge, or the number of observations of a histogram; 0 if there is none."""
        key = _key(name, None, labels)
        histogram = self._histograms.get(key)
        return self._numbers.get(key, 0) if histogram is None else sum(histogram.counts)

    def snapshot(self) -> tuple[MetricSample, ...]:
        """Every sample, sorted by name and labels."""
        numbers = [(key, [MetricSample(*key, value)]) for key, value in self._numbers.items()]
        histograms = [(key, list(_samples(histogram, *key))) for key, histogram in self._histograms.items()]
        ordered = sorted([*numbers, *histograms], key=lambda entry: entry[0])
        return tuple(sample for _, samples in ordered for sample in samples)


def _key(name: str, kind: _Kind | None, labels: Mapping[str, str]) -> tuple[MetricName, _Labels]:
    known = MetricName(name)
    definition = _DEFINITIONS[known]
    if kind is not None and definition.kind is not kind:
        raise ValueError(f"{name} must be used as a {definition.kind}, got a {kind}")
    if {*labels} != {*definition.labels}:
        raise ValueError(f"labels of {name} must be {definition.labels}, got {tuple(labels)}")
    return known, tuple((label, labels[label]) for label in definition.labels)


def rejection_reason(reason: str) -> str:
    """The label of the rejection metric: a fixed set of values, independent of the resources."""
    if reason in _REASONS:
        return reason
    return _EXTENDED_RESOURCES if reason.startswith("OutOf") else "Other"
