"""A pod that exceeds its vgpu share, from its process to the pod's name in the status and the NodeReport."""

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.observed_kubelet import QUICK
from tests.plugins.nvidia.harness import INTERVALS
from tests.plugins.nvidia.test_vgpu_usage import ENCLOSE, MIB, MOUNT

from plugwright import Settings, serving
from plugwright.kubelet import Kubelet, KubeletSettings
from plugwright.plugins.nvidia.config import NvidiaConfig, NvidiaShare, NvidiaVgpu, SharingStrategy
from plugwright.plugins.nvidia.monitor import GpuMonitor
from plugwright.plugins.nvidia.plugin import Nvidia
from plugwright.plugins.nvidia.simulation import SimulatedDriver
from plugwright.plugins.nvidia.vgpu import VgpuSharing
from plugwright.sdk import daemon_status
from plugwright.sdk.daemon import Daemon
from plugwright.sdk.node_report import KubeletReport
from plugwright.sdk.node_reporting import node_report
from plugwright.testing import pod_requesting

NAME = "nvidia.com/gpu-shared"


@pytest.fixture
def plugin(tmp_path: Path) -> Nvidia:
    for soname in ("libcuda.so.1", "libnvidia-ml.so.1"):
        (tmp_path / "artefact").mkdir(exist_ok=True)
        (tmp_path / "artefact" / soname).write_text(soname)
    vgpu = NvidiaVgpu(builtin=str(tmp_path / "artefact"), root=str(tmp_path / "vgpu"))
    share = NvidiaShare(by=SharingStrategy.VGPU, replicas=4, vgpu=vgpu)
    monitor = GpuMonitor(SimulatedDriver("t4"), INTERVALS)
    return Nvidia(NAME, NvidiaConfig(share=share), monitor, VgpuSharing(NAME, share, pause=0.01))


async def made(daemon: Daemon) -> tuple[list[str], Any]:
    """The incidents of the resource, and the use of its one holder in the NodeReport."""
    holdings = await daemon.ledger.refreshed()
    status = daemon_status.report(daemon, holdings)
    document: Any = node_report(daemon, status, holdings, KubeletReport(registration="direct", directory="/x"), ())
    [resource] = document["resources"]
    holders = [holder for device in resource["devices"] for holder in device["holders"]]
    return status["resources"][0]["exceeded"], holders[0]["usage"] if holders else None


async def test_a_pod_that_exceeds_its_share_is_named(plugin: Nvidia, root: Path, settings: Settings) -> None:
    async with Kubelet(root, KubeletSettings(timing=QUICK)) as kubelet, serving(plugin, settings=settings) as daemon:
        await kubelet.allocatable(NAME, 16)
        pod = await kubelet.admit(pod_requesting({NAME: 1}, name="greedy"))
        mounts = {mount.container_path: mount.host_path for mount in pod.container("main").mounts}
        command = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"])]
        enclosed = [*command, "sh", "-c", ENCLOSE, "enclose", mounts[MOUNT], MOUNT]
        with subprocess.Popen(enclosed, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdout
            if process.stdout.readline() != b"ready\n":
                pytest.skip("mount namespaces cannot be made here")
            gpu = pod.container("main").env["PLUGWRIGHT_GPU_UUID"]
            await plugin.command("process", {"id": gpu, "pid": str(process.pid), "mib": "9000"})
            exceeded, usage = await made(daemon)
            while not exceeded or not usage["exceeded"]:
                exceeded, usage = await made(daemon)
            process.kill()
    assert exceeded[0].startswith("default/greedy exceeds its share now: at most 9000 of 3840 MiB of GPU-")
    assert (usage["driver"], usage["incidents"], usage["used"]) == (9000 * MIB, 1, 0)
