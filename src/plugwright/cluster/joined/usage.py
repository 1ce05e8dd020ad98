"""The CPU and memory use reported by a joined node, enough for `kubectl top`: derived from requests.

An emulated container uses nothing, and the use of its process concerns only this machine. For autoscalers and `kubectl
top`, a running container reports its requested CPU and memory, but at least a little, because metrics-server drops pods
without values, and nodes with a decreased counter.
"""

import time
from collections.abc import Iterator
from datetime import UTC, datetime

from plugwright import quantity
from plugwright.apiserver import clock
from plugwright.apiserver.store import Object
from plugwright.cluster.nodes.node_status import NodeIdentity

__all__ = ["NodeSeconds", "now", "resource_metrics", "summary"]

_LEAST = {"cpu": 0.001, "memory": float(2**20)}
_SYSTEM = {"cpu": 0.05, "memory": float(200 * 2**20)}  # of the node itself
_BEGIN = time.time()  # counters start with the process, or with their container


def now() -> float:
    return time.time()


class NodeSeconds:
    """A node's counter of CPU time, which still includes ended containers."""

    def __init__(self, begin: float = _BEGIN) -> None:
        self._read, self._seconds = begin, 0.0

    def counted(self, pods: list[Object], moment: float) -> float:
        """The seconds until now, if the running containers have run since the last call."""
        self._seconds += max(0.0, moment - self._read) * _node_use(pods)["cpu"]
        self._read = max(moment, self._read)
        return self._seconds


def resource_metrics(node: NodeIdentity, pods: list[Object], seconds: NodeSeconds, moment: float) -> Iterator[str]:
    """The text of `/metrics/resource`, with the names of the real kubelet."""
    millis = int(moment * 1000)
    containers = [(pod, entry) for pod in _running(pods) for entry in _containers(pod)]
    yield from _family("container_cpu_usage_seconds_total", "counter")
    for pod, (name, used, started) in containers:
        yield f"container_cpu_usage_seconds_total{_labels(pod, name)} {used['cpu'] * (moment - started):.6f} {millis}\n"
    yield from _family("container_memory_working_set_bytes", "gauge")
    for pod, (name, used, _) in containers:
        yield f"container_memory_working_set_bytes{_labels(pod, name)} {used['memory']:.0f} {millis}\n"
    yield from _family("container_start_time_seconds", "gauge")
    for pod, (name, _, started) in containers:
        yield f"container_start_time_seconds{_labels(pod, name)} {started:.3f}\n"
    used = _node_use(pods)
    yield from _family("node_cpu_usage_seconds_total", "counter")
    yield f"node_cpu_usage_seconds_total {seconds.counted(pods, moment):.6f} {millis}\n"
    yield from _family("node_memory_working_set_bytes", "gauge")
    yield f"node_memory_working_set_bytes {min(used['memory'], _amount(node.shape.memory)):.0f} {millis}\n"
    yield from _family("pod_cpu_usage_seconds_total", "counter")
    for pod in _running(pods):
        of_pod = sum(use["cpu"] * (moment - started) for _, use, started in _containers(pod))
        yield f"pod_cpu_usage_seconds_total{_labels(pod)} {of_pod:.6f} {millis}\n"
    yield from _family("pod_memory_working_set_bytes", "gauge")
    for pod in _running(pods):
        yield f"pod_memory_working_set_bytes{_labels(pod)} {sum(use['memory'] for _, use, _ in _containers(pod)):.0f} "
        yield f"{millis}\n"
    yield from _family("resource_scrape_error", "gauge")
    yield "resource_scrape_error 0\n"


def summary(node: NodeIdentity, pods: list[Object], seconds: NodeSeconds, moment: float) -> Object:
    """The document of `/stats/summary`."""
    at = clock.timestamp(datetime.fromtimestamp(moment, UTC))
    memory = min(_node_use(pods)["memory"], _amount(node.shape.memory))
    return {
        "node": {
            "nodeName": node.name,
            "startTime": clock.timestamp(datetime.fromtimestamp(_BEGIN, UTC)),
            "cpu": _cpu(at, _node_use(pods)["cpu"], seconds.counted(pods, moment)),
            "memory": _memory(at, memory) | {"availableBytes": int(_amount(node.shape.memory) - memory)},
        },
        "pods": [_pod_summary(pod, at, moment) for pod in _running(pods)],
    }


def _pod_summary(pod: Object, at: str, moment: float) -> Object:
    metadata = pod["metadata"]
    containers = list(_containers(pod))
    cpu, memory = (sum(used[name] for _, used, _ in containers) for name in ("cpu", "memory"))
    return {
        "podRef": {"name": metadata["name"], "namespace": metadata["namespace"], "uid": metadata["uid"]},
        "startTime": (pod.get("status") or {}).get("startTime"),
        "cpu": _cpu(at, cpu, sum(used["cpu"] * (moment - started) for _, used, started in containers)),
        "memory": _memory(at, memory),
        "containers": [
            {
                "name": name,
                "startTime": clock.timestamp(datetime.fromtimestamp(started, UTC)),
                "cpu": _cpu(at, used["cpu"], used["cpu"] * (moment - started)),
                "memory": _memory(at, used["memory"]),
            }
            for name, used, started in containers
        ],
    }


def _cpu(at: str, cores: float, seconds: float) -> Object:
    return {"time": at, "usageNanoCores": int(cores * 1e9), "usageCoreNanoSeconds": int(seconds * 1e9)}


def _memory(at: str, size: float) -> Object:
    return {"time": at, "usageBytes": int(size), "workingSetBytes": int(size), "rssBytes": int(size)}


def _running(pods: list[Object]) -> list[Object]:
    return [pod for pod in pods if (pod.get("status") or {}).get("phase") == "Running"]


def _containers(pod: Object) -> Iterator[tuple[str, dict[str, float], float]]:
    """The running containers: name, use, and start time of each."""
    started = {}
    for entry in (pod.get("status") or {}).get("containerStatuses") or ():
        if running := (entry.get("state") or {}).get("running"):
            started[entry["name"]] = max(_BEGIN, clock.parse(running["startedAt"]).timestamp())
    for container in pod["spec"]["containers"]:
        if container["name"] in started:
            requests = (container.get("resources") or {}).get("requests") or {}
            used = {name: max(least, _amount(requests.get(name, "0"))) for name, least in _LEAST.items()}
            yield container["name"], used, started[container["name"]]


def _node_use(pods: list[Object]) -> dict[str, float]:
    uses = [used for pod in _running(pods) for _, used, _ in _containers(pod)]
    return {name: system + sum(used[name] for used in uses) for name, system in _SYSTEM.items()}


def _amount(text: object) -> float:
    return float(quantity.zero_if_invalid(text))


def _family(name: str, kind: str) -> Iterator[str]:
    yield f"# TYPE {name} {kind}\n"


def _labels(pod: Object, container: str = "") -> str:
    metadata = pod["metadata"]
    first = f'container="{container}",' if container else ""
    return f'{{{first}namespace="{metadata["namespace"]}",pod="{metadata["name"]}"}}'
