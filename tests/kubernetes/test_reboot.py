"""A node reboots: /run is empty, the boot id is another, GPUs are counted anew, and pods have what they had."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.node import Node
from tests.kubernetes.pods import Pod, Pods
from tests.kubernetes.serving import Plugins
from tests.kubernetes.waiting import until

_WHOLE, _SHARED = "nvidia.com/whole", "nvidia.com/shared"
_UUIDS = ["GPU-aaaaaaaa-0000-0000-0000-000000000000", "GPU-bbbbbbbb-0000-0000-0000-000000000000"]
_LIMIT = "CUDA_DEVICE_MEMORY_LIMIT_0"


@pytest.mark.essential
def test_pods_with_gpus_and_shares_by_cdi_run_again_with_what_they_had(
    cluster: Cluster, node: Node, pods: Pods, plugins: Plugins
) -> None:
    gpus = cluster.state / "gpus"
    _enumerate(gpus, _UUIDS)
    resources = _resources(gpus, cluster.state)
    daemon = plugins.run(resources)
    node.shows(_WHOLE, capacity=1, allocatable=1)
    node.shows(_SHARED, capacity=4, allocatable=4)
    whole = pods.create("whole", {_WHOLE: 1}).runs()
    shared = pods.create("shared", {_SHARED: 1}, env={_LIMIT: "999999m"}).runs()
    limit, containers = shared.environment()[_LIMIT], (whole.containers(), shared.containers())
    assert limit != "999999m"
    assert _gpu_nodes(whole) == ["/dev/nvidia0"]
    boot_id = cluster.node()["status"]["nodeInfo"]["bootID"]
    specs = cluster.state / "run" / "cdi"
    assert sorted(path.name for path in specs.iterdir())

    daemon.process.stop()
    with cluster.rebooting():
        assert not specs.exists()
        _enumerate(gpus, _UUIDS[::-1])
        again = plugins.run(resources)
        until("it is registered", lambda: again.registrations(_SHARED) and again.registrations(_WHOLE))

    until("the node has booted", lambda: cluster.node()["status"]["nodeInfo"]["bootID"] != boot_id)
    until("both have started again", lambda: _have_restarted(pods, (whole, shared), containers), last=pods.every)
    assert shared.runs().environment()[_LIMIT] == limit
    assert _gpu_nodes(whole.runs()) == ["/dev/nvidia1"], "the same GPU, which is counted as the second now"
    assert node.panics() == []


def _enumerate(path: Path, uuids: Sequence[str]) -> None:
    links = "\tGPU0\tGPU1\tNUMA Affinity\nGPU0\t X \tNV4\t0\nGPU1\tNV4\t X \t0\n"
    path.write_text(links + "".join(f"GPU {index}: NVIDIA H100 (UUID: {uuid})\n" for index, uuid in enumerate(uuids)))


def _resources(gpus: Path, state: Path) -> dict[str, Mapping[str, object]]:
    library = state / "libvgpu.so"
    library.touch()
    machine: dict[str, object] = {"simulate": str(gpus), "strategy": "cdi-cri"}
    files = {"library": str(library), "root": str(state / "vgpu"), "locks": "/run/vgpulock"}
    share = {"by": "vgpu", "replicas": 4, "library": "hami", "vgpu": files}
    return {
        _WHOLE: {"nvidia": {**machine, "select": {"uuid": _UUIDS[0]}}},
        _SHARED: {"nvidia": {**machine, "select": {"uuid": _UUIDS[1]}, "share": share}},
    }


def _gpu_nodes(pod: Pod) -> list[str]:
    return pod.exec("sh", "-c", "ls /dev/nvidia[0-9]*").split()


def _have_restarted(pods: Pods, both: Sequence[Pod], before: Sequence[list[tuple[str, int]]]) -> bool:
    every = pods.every()
    for pod in both:
        assert every[pod.name]["status"].get("phase") != "Failed", every[pod.name]["status"]
    return all(pod.containers() != old for pod, old in zip(both, before, strict=True))
