"""After a reboot, and after GPUs are counted anew, a stored answer means what it meant, or the GPU says why not."""

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from tests.plugins.nvidia.harness import INTERVALS

from plugwright import Allocation, Device, Plugin, Settings
from plugwright.kubelet.pod_table import RunContainerOptions
from plugwright.plugins.nvidia import stored
from plugwright.plugins.nvidia.config import (
    DeviceIdStrategy,
    DeviceListStrategy,
    NvidiaCdi,
    NvidiaConfig,
    NvidiaShare,
    NvidiaVgpu,
    SharingStrategy,
    VgpuLibrary,
)
from plugwright.plugins.nvidia.driver import Gpu
from plugwright.plugins.nvidia.monitor import GpuMonitor
from plugwright.plugins.nvidia.plugin import Nvidia
from plugwright.plugins.nvidia.simulation import SimulatedDriver
from plugwright.plugins.nvidia.vgpu import VgpuSharing
from plugwright.sdk import cdi
from plugwright.sdk.cdi import recreation
from plugwright.sdk.cdi.resolution import edits_for
from plugwright.sdk.node_state import StoredAllocation
from plugwright.testing import KubeletSettings, Machine, pod_requesting, running

NAME = "nvidia.com/gpu"
UUIDS = ["GPU-aaaaaaaa-0000-0000-0000-000000000000", "GPU-bbbbbbbb-0000-0000-0000-000000000000"]
LINKS = "\tGPU0\tGPU1\tNUMA Affinity\nGPU0\t X \tNV4\t0\nGPU1\tNV4\t X \t0\n"
QUIET = KubeletSettings(timeout=60)


def populate(machine: Machine) -> None:
    lines = [f"GPU {index}: NVIDIA H100 (UUID: {uuid})\n" for index, uuid in enumerate(machine.enumerated(UUIDS))]
    machine.path("/sys/gpus").write_text(LINKS + "".join(lines))


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path / "machine", populate)


def config(
    machine: Machine,
    strategy: DeviceListStrategy = DeviceListStrategy.CDI_CRI,
    share: NvidiaShare | None = None,
    ids: DeviceIdStrategy = DeviceIdStrategy.UUID,
) -> NvidiaConfig:
    return NvidiaConfig(strategy=strategy, share=share, ids=ids, cdi=NvidiaCdi(dir=str(machine.path("/run/cdi"))))


def vgpu(machine: Machine) -> NvidiaShare:
    library = machine.path("/var/libvgpu.so")
    library.touch()
    files = NvidiaVgpu(
        library=str(library), root=str(machine.path("/var/vgpu")), locks=str(machine.path("/tmp/vgpulock"))
    )
    return NvidiaShare(by=SharingStrategy.VGPU, replicas=4, library=VgpuLibrary.HAMI, vgpu=files)


def nvidia(machine: Machine, settings: NvidiaConfig) -> Nvidia:
    monitor = GpuMonitor(SimulatedDriver(str(machine.path("/sys/gpus"))), INTERVALS)
    sharing = VgpuSharing(NAME, settings.share) if settings.share else None
    return Nvidia(NAME, settings, monitor, sharing)


async def given_to_a_pod(machine: Machine, settings: NvidiaConfig, tmp_path: Path) -> RunContainerOptions:
    async with running(nvidia(machine, settings), tmp_path, QUIET) as kubelet:
        return (await kubelet.admit(pod_requesting({NAME: 1}))).container("main")


async def test_limits_and_directories_of_shares_are_made_again(machine: Machine, tmp_path: Path) -> None:
    settings = config(machine, share=vgpu(machine))
    given = await given_to_a_pod(machine, settings, tmp_path)
    before = edits_for(given.cdi, [machine.path("/run/cdi")])
    used = machine.path("/var/vgpu/containers").iterdir()
    next(used).joinpath("usage").touch()
    machine.reboot()
    assert set(given.cdi) < set(machine.missing(given))
    async with running(nvidia(machine, settings), tmp_path, QUIET):
        assert machine.missing(given) == []
        *_, gpu, limits = edits_for(given.cdi, [machine.path("/run/cdi")])
        assert limits == before[-1]
        assert [node.path for node in gpu.device_nodes] == ["/dev/nvidia1"], "it was 0 before the reboot"
    assert machine.path("/tmp/vgpulock").stat().st_mode & 0o7777 == 0o1777
    assert list(machine.path("/var/vgpu/containers").glob("*/usage")), "a container that runs keeps its files"


async def test_names_that_pods_have_are_written_whatever_the_strategy_is_now(machine: Machine, tmp_path: Path) -> None:
    given = await given_to_a_pod(machine, config(machine), tmp_path)
    machine.reboot()
    async with running(nvidia(machine, config(machine, DeviceListStrategy.ENVVAR)), tmp_path, QUIET):
        assert machine.missing(given) == []


async def test_an_index_that_was_another_gpus_is_no_name_any_more(machine: Machine, tmp_path: Path) -> None:
    settings = config(machine, ids=DeviceIdStrategy.INDEX)
    given = await given_to_a_pod(machine, settings, tmp_path)
    machine.reboot()
    async with running(nvidia(machine, settings), tmp_path, QUIET) as kubelet:
        assert machine.missing(given) == list(given.cdi)
        other = (await kubelet.admit(pod_requesting({NAME: 1}))).container("main")
        assert other.cdi[0].partition("=")[2] in UUIDS


class ByPipe(Plugin):
    """Hands out shares of an MPS daemon that there was before the reboot."""

    resource = NAME

    async def discover(self) -> list[Device]:
        return [Device(UUIDS[0])]

    async def allocate(self, devices: Sequence[Device]) -> Allocation:
        return Allocation(mounts=["/run/plugwright/mps/old/pipe", "/usr/lib/libcuda.so.1"])


async def test_a_container_whose_mps_daemon_is_no_longer_planned_is_named_in_the_log(
    machine: Machine, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(ByPipe(), tmp_path, QUIET) as kubelet:
        await kubelet.admit(pod_requesting({NAME: 1}))
    async with running(nvidia(machine, config(machine)), tmp_path, QUIET):
        pass
    reasons = [vars(record).get("reason", "") for record in caplog.records]
    assert "no MPS daemon is planned for /run/plugwright/mps/old/pipe" in reasons


class ByNode(Plugin):
    """Hands out GPUs by their nodes, as they were counted before the reboot."""

    resource = NAME

    async def discover(self) -> list[Device]:
        return [Device(UUIDS[0])]

    async def allocate(self, devices: Sequence[Device]) -> Allocation:
        return Allocation(nodes=["/dev/nvidia0", "/dev/nvidiactl"])


async def test_a_gpu_whose_node_was_another_gpus_is_unhealthy_until_the_pod_is_gone(
    machine: Machine, tmp_path: Path
) -> None:
    async with running(ByNode(), tmp_path, QUIET) as kubelet:
        pod = await kubelet.admit(pod_requesting({NAME: 1}))
    machine.reboot()
    plugin = nvidia(machine, config(machine))
    async with running(plugin, tmp_path, QUIET) as kubelet:
        reason = await kubelet.reason(NAME, UUIDS[1])
        assert reason == f"pod {pod.uid} gets it as /dev/nvidia0, which was another GPU's: delete that pod"
        [device] = [each for each in kubelet.status()["resources"][0]["devices"] if each["id"] == UUIDS[1]]
        assert device["code"] == "renumbered"
        plugin.monitor.republish()  # this kubelet does not have the pod any more
        assert await kubelet.reason(NAME, UUIDS[1], "Healthy") == ""


def test_a_gpu_is_moved_by_its_minor_number_or_its_index_and_never_by_its_uuid() -> None:
    gpus = [Gpu(uuid=uuid, index=index, minor=index + 4) for index, uuid in enumerate(UUIDS)]
    first, second = UUIDS

    def moved(**answer: object) -> list[str]:
        stored_answer = StoredAllocation("pod", "main", (f"{first}::3",), **answer)  # type: ignore[arg-type]
        return [gpu.uuid for gpu in stored.moved_gpus("x.com", [stored_answer], gpus)]

    assert moved(nodes=("/dev/nvidia4", "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia9")) == []
    assert moved(nodes=("/dev/nvidia5",)) == [second]
    assert moved(env={"NVIDIA_VISIBLE_DEVICES": f"0,{second}"}) == []
    assert moved(env={"NVIDIA_VISIBLE_DEVICES": "0,1"}) == [second]
    assert moved(cdi=(f"x.com/gpu={first}", "x.com/gpu=1", "y.com/gpu=1", "x.com/limits=1")) == [second]
    assert moved(annotations={"cdi.k8s.io/a": "x.com/gpu=0,x.com/gpu=1:3"}) == [second]


def test_a_stored_name_that_is_made_in_another_way_now_still_resolves(tmp_path: Path) -> None:
    directory = cdi.SpecDirectory(tmp_path, "test")
    edits = cdi.ContainerEdits(env={"LIMIT": "1"})
    directory.write(cdi.Spec("x.com/limits", [cdi.Device("new", edits)]), part="new")
    names = recreation.names_in(["x.com/limits=old", "x.com/gpu=a"], {"a": "x.com/limits=older,nonsense", "b": "="})
    assert names == ["x.com/limits=old", "x.com/gpu=a", "x.com/limits=older"]
    recreation.keep_names(directory, "x.com/limits", names, ["x.com/limits=new", "x.com/gpu=a"])
    assert edits_for(["x.com/limits=old"], [tmp_path]) == [cdi.ContainerEdits(), edits]
    recreation.keep_names(directory, "x.com/limits", ["x.com/limits=odd"], [])
    directory.write(cdi.Spec("x.com/gpu", [cdi.Device("a", edits)]))
    assert recreation.unresolved(directory, ["x.com/limits=odd", *names]) == ["x.com/limits=odd"]


async def test_a_container_whose_share_is_no_longer_made_is_named_in_the_log(
    machine: Machine, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    share = vgpu(machine)
    given = await given_to_a_pod(machine, config(machine, share=share), tmp_path)
    smaller = config(machine, share=msgspec.structs.replace(share, replicas=8))
    machine.reboot()
    async with running(nvidia(machine, smaller), tmp_path, QUIET):
        [limits] = [name for name in given.cdi if "/limits=" in name]
        assert limits in machine.missing(given)
    [record] = [record for record in caplog.records if record.message.startswith("a container may not start again")]
    assert vars(record)["reason"] == f"no CDI device {limits}"


async def test_the_daemons_state_directory_keeps_xids(machine: Machine, tmp_path: Path) -> None:
    state = Settings(state_dir=tmp_path / "state")
    async with running(nvidia(machine, config(machine)), tmp_path, QUIET, state) as kubelet:
        await kubelet.daemon.resource(NAME).command("xid", {"id": UUIDS[0], "xid": "95"})
        await kubelet.reason(NAME, UUIDS[0])
    async with running(nvidia(machine, config(machine)), tmp_path, QUIET, state) as kubelet:
        assert "Xid 95" in await kubelet.reason(NAME, UUIDS[0])
        await kubelet.daemon.resource(NAME).command("recover", {"id": UUIDS[0]})
        await kubelet.allocatable(NAME, 2)
