"""The kubelet's metrics: names, labels and buckets of section 9."""

import pytest

from plugwright.kubelet.metrics import KubeletMetrics, MetricName, MetricSample, rejection_reason

TAPE = "example.com/tape"


def samples(metrics: KubeletMetrics, name: str) -> list[MetricSample]:
    return [sample for sample in metrics.snapshot() if sample.name.startswith(name)]


def test_a_counter_rises_by_one_for_its_labels_alone() -> None:  # 9
    metrics = KubeletMetrics()
    metrics.count(MetricName.REGISTRATIONS, resource_name=TAPE)
    metrics.count(MetricName.REGISTRATIONS, resource_name=TAPE)
    metrics.count(MetricName.REGISTRATIONS, resource_name="example.com/gpu")
    assert samples(metrics, "kubelet_device_plugin_registration_total") == [
        MetricSample("kubelet_device_plugin_registration_total", (("resource_name", "example.com/gpu"),), 1),
        MetricSample("kubelet_device_plugin_registration_total", (("resource_name", TAPE),), 2),
    ]
    assert metrics.value(MetricName.REGISTRATIONS, resource_name=TAPE) == 2
    assert metrics.value(MetricName.REGISTRATIONS, resource_name="other/x") == 0


def test_an_allocations_seconds_fall_into_the_buckets_of_the_real_kubelet() -> None:  # 9, 3.38
    metrics = KubeletMetrics()
    for seconds in (0.005, 0.3, 11):
        metrics.observe(MetricName.ALLOCATION_SECONDS, seconds, resource_name=TAPE)
    name, labels = "kubelet_device_plugin_alloc_duration_seconds", (("resource_name", TAPE),)
    snapshot = samples(metrics, name)
    bounds = [".005", ".01", ".025", ".05", ".1", ".25", ".5", "1", "2.5", "5", "10"]
    assert [float(dict(sample.labels)["le"]) for sample in snapshot[:-3]] == [float(bound) for bound in bounds]
    assert [sample.value for sample in snapshot[:-2]] == [1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 3]
    assert snapshot[-3] == MetricSample(f"{name}_bucket", (*labels, ("le", "+Inf")), 3)
    assert snapshot[-2:] == [
        MetricSample(f"{name}_sum", labels, 0.005 + 0.3 + 11),
        MetricSample(f"{name}_count", labels, 3),
    ]
    assert metrics.value(MetricName.ALLOCATION_SECONDS, resource_name=TAPE) == 3


def test_admissions_take_fifteen_buckets_doubling_from_a_twentieth_of_a_millisecond() -> None:  # 9
    bounds = [dict(sample.labels).get("le") for sample in samples(KubeletMetrics(), MetricName.ADMISSION_MILLISECONDS)]
    assert bounds[:3] == ["0.05", "0.1", "0.2"]
    assert bounds[14:] == ["819.2", "+Inf", None, None]


def test_metrics_without_labels_exist_from_the_start() -> None:  # 9
    snapshot = KubeletMetrics().snapshot()
    assert [sample for sample in snapshot if sample.name.endswith("_total")] == [
        MetricSample("kubelet_topology_manager_admission_errors_total", (), 0),
        MetricSample("kubelet_topology_manager_admission_requests_total", (), 0),
    ]
    assert {sample.value for sample in snapshot} == {0}


def test_gauge_has_the_last_value_and_disappears_at_zero() -> None:  # 9: watcher path
    metrics = KubeletMetrics()
    for state in ("actual_state_of_world", "desired_state_of_world"):
        metrics.set(MetricName.WATCHED_PLUGINS, 1, socket_path="/s", state=state)
    metrics.set(MetricName.WATCHED_PLUGINS, 0, socket_path="/s", state="actual_state_of_world")
    labels = (("socket_path", "/s"), ("state", "desired_state_of_world"))
    assert samples(metrics, "plugin_manager_total_plugins") == [MetricSample("plugin_manager_total_plugins", labels, 1)]


def test_snapshot_is_sorted() -> None:
    one, other = KubeletMetrics(), KubeletMetrics()
    resources = ["c/d", "a/b", "b/c"]
    for resource in resources:
        one.count(MetricName.REGISTRATIONS, resource_name=resource)
        one.observe(MetricName.ALLOCATION_SECONDS, 1, resource_name=resource)
    for resource in reversed(resources):
        other.observe(MetricName.ALLOCATION_SECONDS, 1, resource_name=resource)
        other.count(MetricName.REGISTRATIONS, resource_name=resource)
    assert one.snapshot() == other.snapshot()


def test_a_metric_may_be_named_by_its_text_but_not_by_another() -> None:
    metrics = KubeletMetrics()
    metrics.count("kubelet_admission_rejections_total", reason="Other")
    assert metrics.value(MetricName.REJECTIONS, reason="Other") == 1
    with pytest.raises(ValueError, match="kubelet_rejections"):
        metrics.count("kubelet_rejections", reason="Other")


def test_labels_and_kinds_that_are_not_the_metrics_are_refused() -> None:
    metrics = KubeletMetrics()
    with pytest.raises(ValueError, match=r"labels of .* must be"):
        metrics.count(MetricName.REGISTRATIONS)
    with pytest.raises(ValueError, match=r"labels of .* must be"):
        metrics.count(MetricName.ADMISSIONS, scope="pod")
    with pytest.raises(ValueError, match="must be used as a histogram, got a counter"):
        metrics.count(MetricName.ALLOCATION_SECONDS, resource_name=TAPE)


def test_every_metric_of_the_section_is_known_with_its_labels() -> None:  # 9
    metrics = KubeletMetrics()
    for name in MetricName:
        if "pod_resources" in name:
            metrics.count(name, server_api_version="v1")
    metrics.count(MetricName.ALIGNED, scope="container", boundary="numa_node")
    metrics.count(MetricName.NOT_ALIGNED, scope="pod", boundary="numa_node")
    metrics.count(MetricName.ADMISSIONS)
    metrics.count(MetricName.ADMISSION_ERRORS)
    metrics.observe(MetricName.ADMISSION_MILLISECONDS, 3)
    metrics.count(MetricName.REJECTIONS, reason="Other")
    names = {sample.name for sample in metrics.snapshot() if sample.value}
    endpoint = "kubelet_pod_resources_endpoint"
    assert {f"{endpoint}_{what}" for what in ("requests_total", "requests_list", "errors_get")} <= names
    assert {
        "kubelet_container_aligned_compute_resources_count",
        "kubelet_container_aligned_compute_resources_failure_count",
        "kubelet_topology_manager_admission_duration_ms_sum",
        "kubelet_admission_rejections_total",
    } <= names


@pytest.mark.parametrize(
    ("reason", "label"),
    [
        ("UnexpectedAdmissionError", "UnexpectedAdmissionError"),
        ("TopologyAffinityError", "TopologyAffinityError"),
        ("OutOfexample.com/gpu", "OutOfExtendedResources"),
        ("OutOfcpu", "OutOfcpu"),
        ("Evicted by hand", "Other"),
    ],
)
def test_refusals_are_counted_under_few_reasons(reason: str, label: str) -> None:  # 9
    assert rejection_reason(reason) == label
