"""`/metrics/resource` as metrics-server reads it: five names, three labels, and what it drops."""

from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from plugwright.cluster.joined.usage import NodeSeconds, resource_metrics
from plugwright.cluster.nodes.node_status import NodeIdentity

NODE = NodeIdentity("gpu-1")
BEGIN = 4_000_000_000.0  # a time after the start of any process


def running(name: str, **requests: str) -> Any:
    container = {"name": "main", "resources": {"requests": requests}}
    state = {"running": {"startedAt": "2096-10-02T07:06:40Z"}}
    status = {"phase": "Running", "containerStatuses": [{"name": "main", "state": state}]}
    return {"metadata": {"name": name, "namespace": "default"}, "spec": {"containers": [container]}, "status": status}


def read(pods: list[Any], seconds: NodeSeconds, moment: float) -> dict[tuple[str, ...], tuple[float, Any]]:
    """Value and time of each sample, by name and the values of its labels."""
    text = "".join(resource_metrics(NODE, pods, seconds, moment))
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): (sample.value, sample.timestamp)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_containers_and_the_node_have_what_metrics_server_needs_of_them() -> None:
    found = read([running("one", cpu="500m", memory="1Gi"), running("bare")], NodeSeconds(BEGIN), BEGIN + 60)
    assert found["container_cpu_usage_seconds_total", "main", "default", "one"] == (30.0, BEGIN + 60)
    assert found["container_memory_working_set_bytes", "main", "default", "one"] == (2.0**30, BEGIN + 60)
    assert found["container_start_time_seconds", "main", "default", "one"][0] == BEGIN
    # A value of 0 would have the whole pod dropped.
    assert found["container_cpu_usage_seconds_total", "main", "default", "bare"][0] > 0
    assert found["container_memory_working_set_bytes", "main", "default", "bare"][0] > 0
    assert found[("node_cpu_usage_seconds_total",)] == (60 * (0.05 + 0.5 + 0.001), BEGIN + 60)
    assert found[("node_memory_working_set_bytes",)][0] > 2**30


def test_the_counter_of_a_node_never_decreases_though_pods_end() -> None:
    """metrics-server leaves a node out whose counter has."""
    seconds, pods = NodeSeconds(BEGIN), [running("one", cpu="8")]
    values = [read(present, seconds, BEGIN + 60 * n)[("node_cpu_usage_seconds_total",)][0]
              for n, present in enumerate((pods, pods, [], [], pods))]  # fmt: skip
    assert values == sorted(values)
    assert values[3] - values[2] == 60 * 0.05
