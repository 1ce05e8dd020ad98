"""Simulated GPUs served by claims: through the driver, its slices and a kubelet, to what the container gets."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.plugins.nvidia.harness import machine, simulated
from tests.plugins.nvidia.mps.node import RESOURCE, MpsNode, becomes

from plugwright.plugins.nvidia import sharing
from plugwright.plugins.nvidia.config import (
    MigStrategy,
    NvidiaConfig,
    NvidiaMps,
    NvidiaPattern,
    NvidiaShare,
    NvidiaVgpu,
    SharingStrategy,
)
from plugwright.plugins.nvidia.mps.plan import plan_daemons
from plugwright.plugins.nvidia.mps.sharing import MpsSharing
from plugwright.plugins.nvidia.mps.state import Condition
from plugwright.plugins.nvidia.plugin import Nvidia
from plugwright.plugins.nvidia.vgpu import VgpuSharing
from plugwright.testing import claim_requesting, pod_requesting, running
from plugwright.testing.harness import PluginKubelet

GIB = 2**30
GPU = "nvidia.com/gpu"
LIMITS = "/usr/local/plugwright/vgpu/limits"


async def container(kubelet: PluginKubelet, resource: str = GPU, **requests: Any) -> Any:
    pod = await kubelet.admit(pod_requesting({}, claims=[claim_requesting({resource: requests or 1})]))
    return kubelet.container(pod)


def host_paths(given: Any) -> dict[str, str]:
    return {mount.container_path: mount.host_path for mount in given.mounts}


async def test_a_claim_has_a_whole_gpu(tmp_path: Path) -> None:
    async with running(Nvidia(GPU, NvidiaConfig(), machine("hgx-h200")), tmp_path, serve="dra") as kubelet:
        given = await container(kubelet)
        assert given.env["PLUGWRIGHT_GPU_UUID"].startswith("GPU-")


async def test_mig_devices_are_published_with_the_counters_of_their_cards(tmp_path: Path) -> None:
    parts = NvidiaConfig(mig=MigStrategy.MIXED, select=NvidiaPattern(profile="*"))
    async with running(Nvidia(GPU, parts, machine("hgx-h100-mig")), tmp_path, serve="dra") as kubelet:
        given = await container(kubelet)
        specs = [found["spec"] for found in kubelet.api.slices]
    assert given.env["PLUGWRIGHT_GPU_UUID"].startswith("MIG-")
    assert sum(len(spec.get("sharedCounters", ())) for spec in specs) == 8
    devices = [device for spec in specs for device in spec.get("devices", ())]
    assert len(devices) == 56
    assert all(device["consumesCounters"] for device in devices)


async def test_claims_of_60_gib_are_held_to_them_and_one_of_40_waits(tmp_path: Path) -> None:
    for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
        (tmp_path / name).touch()
    settings = NvidiaVgpu(builtin=str(tmp_path), root=str(tmp_path / "vgpu"))
    share = NvidiaShare(by=SharingStrategy.VGPU, memory="20Gi", vgpu=settings)
    plugin = Nvidia(GPU, NvidiaConfig(share=share), machine("h200"), VgpuSharing(GPU, share))
    async with running(plugin, tmp_path, serve="dra") as kubelet:
        first, second = await container(kubelet, memory="60Gi"), await container(kubelet, memory="60Gi")
        limits = [Path(host_paths(given)[LIMITS]) for given in (first, second)]
        assert limits[0] != limits[1]
        assert [path.read_text().split()[1] for path in limits] == [str(60 * GIB)] * 2
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await container(kubelet, memory="40Gi")


async def test_an_mps_claim_is_a_client_of_the_daemon_of_its_size(root: Path) -> None:
    node = MpsNode(root)
    share = NvidiaShare(by=SharingStrategy.MPS, memory="20Gi", most=3, mps=NvidiaMps(root=str(node.paths.root)))
    monitor = machine("h200")
    [card] = simulated(monitor).read().gpus
    plans = plan_daemons(share, sharing.first_shares([sharing.whole_device(card)], share))
    plugin = Nvidia(RESOURCE, NvidiaConfig(share=share), monitor, MpsSharing(RESOURCE, share))
    async with node.supervised(plans) as supervisor:
        await becomes(supervisor, Condition.READY)
        async with running(plugin, root, serve="dra") as kubelet:
            given = await container(kubelet, RESOURCE, memory="60Gi", percent=14)
    assert host_paths(given)["/tmp/nvidia-mps"] == str(node.paths.pipe(card.uuid, 3))
    assert given.env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=61440M"
