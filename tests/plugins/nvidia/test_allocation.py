"""The allocation of a container with GPUs, by each device list strategy, on a copy of a machine's file tree."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.plugins.nvidia.driver_tree import install_driver

from plugwright import Allocation, DeviceNode, Mount, PluginError
from plugwright.plugins.nvidia import sharing, simulated_machines
from plugwright.plugins.nvidia.allocation import AllocationBuilder
from plugwright.plugins.nvidia.cdi import GpuSpecs
from plugwright.plugins.nvidia.config import (
    DeviceIdStrategy,
    DeviceListStrategy,
    NvidiaCdi,
    NvidiaConfig,
    NvidiaDriver,
    NvidiaImex,
    NvidiaShare,
)
from plugwright.plugins.nvidia.driver import Gpu
from plugwright.plugins.nvidia.driver_files import DriverFiles
from plugwright.plugins.nvidia.driver_libraries import ORIGINALS
from plugwright.plugins.nvidia.sharing import ContainerExtras, GpuUnit
from plugwright.sdk import cdi
from plugwright.sdk.cdi.resolution import edits_for, resolve

H100 = simulated_machines.load("hgx-h100").gpus
MIG = simulated_machines.load("dgx-a100-mig").gpus
LIMITS = ContainerExtras(limits={"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "25"})
GPU = "k8s.device-plugin.nvidia.com/gpu"

Make = Callable[..., AllocationBuilder]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A machine's files: nodes, the driver's libraries in a root of their own, and the minor numbers of MIG."""
    names = ("nvidiactl", "nvidia-uvm", "nvidia-modeset", "nvidia0", "nvidia1", "gdrdrv", "nvidia-fs0", "nvidia-fs1")
    nodes = (*names, *(f"nvidia-caps/nvidia-cap{minor}" for minor in (30, 31)), "nvidia-caps-imex-channels/channel0")
    infiniband = ("infiniband/uverbs0", "infiniband/rdma_cm", "infiniband/umad0", "infiniband/by-ibdev/uverbs0")
    for name in (*nodes, *infiniband, "dri/card1", "dri/renderD128", "dri/card2"):
        _touch(tmp_path / "dev" / name)
    for name in ("card1", "renderD128", "controlD64"):
        _touch(tmp_path / "sys/bus/pci/devices" / H100[0].pci / "drm" / name / "dev")
    install_driver(tmp_path / "driver")
    minors = tmp_path / "proc/driver/nvidia-caps/mig-minors"
    _touch(minors)
    minors.write_text("config 1\ngpu0/gi7/access 30\ngpu0/gi7/ci0/access 31\n")
    return tmp_path


@pytest.fixture
def make(root: Path) -> Make:
    def builder(
        *strategies: DeviceListStrategy, annotations: str = "cdi.k8s.io/", hooks: str = "auto", **keys: object
    ) -> AllocationBuilder:
        config = NvidiaConfig(
            strategy=list(strategies),
            driver=NvidiaDriver(
                root=str(root / "driver"),
                host="/run/nvidia/driver",
                dev=str(root),
                libraries=["/usr/local/nvidia/lib64"],
            ),
            cdi=NvidiaCdi(dir=str(root / "cdi"), annotations=annotations, hooks=hooks),
            **keys,  # type: ignore[arg-type]
        )
        files = DriverFiles(config, proc=root / "proc", sys=root / "sys")
        return AllocationBuilder(config, files, GpuSpecs(config, files))

    return builder


def _touch(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()


def whole(*gpus: Gpu) -> list[GpuUnit]:
    return [sharing.whole_device(gpu) for gpu in gpus]


def build(builder: AllocationBuilder, units: list[GpuUnit], extras: ContainerExtras | None = None) -> Allocation:
    return builder.build(units, extras or ContainerExtras())


def test_envvar_names_the_gpus_to_the_runtime(make: Make) -> None:
    allocation = build(make(DeviceListStrategy.ENVVAR), whole(*H100[:2]))
    assert allocation == Allocation(env={"NVIDIA_VISIBLE_DEVICES": f"{H100[0].uuid},{H100[1].uuid}"})


def test_envvar_can_name_gpus_by_index(make: Make) -> None:
    parts = [sharing.whole_device(MIG[0], MIG[0].mig[1]), *whole(MIG[5])]
    allocation = build(make(DeviceListStrategy.ENVVAR, ids=DeviceIdStrategy.INDEX), parts)
    assert allocation.env == {"NVIDIA_VISIBLE_DEVICES": "0:1,5"}


def test_a_device_is_named_once_for_several_shares(make: Make) -> None:
    shares = sharing.split(sharing.whole_device(H100[0]), NvidiaShare(replicas=4))
    assert build(make(DeviceListStrategy.ENVVAR), shares[:3]).env["NVIDIA_VISIBLE_DEVICES"] == H100[0].uuid


def test_volume_mounts_name_the_gpus_by_mounts(make: Make) -> None:
    allocation = build(make(DeviceListStrategy.VOLUME_MOUNTS, imex=NvidiaImex(channels=[0])), whole(H100[0]))
    directory = "/var/run/nvidia-container-devices"
    assert allocation.env == {"NVIDIA_VISIBLE_DEVICES": directory}
    assert allocation.mounts == (
        Mount("/dev/null", f"{directory}/{H100[0].uuid}"),
        Mount("/dev/null", f"{directory}/imex/0"),
    )


def test_device_nodes_bring_nodes_and_libraries(make: Make, root: Path) -> None:
    allocation = build(make(DeviceListStrategy.DEVICE_NODES), whole(*H100[:2]))
    names = ["nvidiactl", "nvidia-uvm", "nvidia-modeset", "nvidia0", "nvidia1", "dri/card1", "dri/renderD128"]
    assert allocation.nodes == tuple(DeviceNode(f"{root}/dev/{name}", f"/dev/{name}") for name in names)
    sources = {mount.container_path: mount.host_path for mount in allocation.mounts}
    host, inside = "/run/nvidia/driver/usr", "/usr/local/nvidia/lib64"
    assert sources[f"{inside}/libcuda.so.1"] == sources[f"{inside}/libcuda.so"] == f"{host}/lib64/libcuda.so.1"
    assert sources["/usr/bin/nvidia-smi"] == f"{host}/bin/nvidia-smi"
    assert all(mount.read_only for mount in allocation.mounts)
    assert allocation.env == {"NVIDIA_VISIBLE_DEVICES": "void", "TRITON_LIBCUDA_PATH": inside}


def test_a_mig_device_brings_its_capabilities(make: Make) -> None:
    allocation = build(make(DeviceListStrategy.DEVICE_NODES), [sharing.whole_device(MIG[0], MIG[0].mig[0])])
    assert [node.container_path for node in allocation.nodes][-3:] == [
        "/dev/nvidia0",
        "/dev/nvidia-caps/nvidia-cap30",
        "/dev/nvidia-caps/nvidia-cap31",
    ]
    with pytest.raises(PluginError, match="has no entry gpu0/gi8/access"):
        build(make(DeviceListStrategy.DEVICE_NODES), [sharing.whole_device(MIG[0], MIG[0].mig[1])])


@pytest.mark.parametrize("strategy", [DeviceListStrategy.DEVICE_NODES, DeviceListStrategy.CDI_CRI])
@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("dev/nvidia-uvm", "/dev/nvidia-uvm does not exist"),
        ("dev/nvidia0", "/dev/nvidia0 does not exist"),
        ("driver/usr/lib64/libcuda.so.1", "no libcuda.so.1 under"),
    ],
)
def test_a_device_whose_files_are_missing_has_that_fault(
    make: Make, root: Path, strategy: DeviceListStrategy, path: str, reason: str
) -> None:
    builder = make(strategy)
    [unit] = whole(H100[0])
    assert not builder.fault(unit)
    (root / path).unlink()
    assert reason in builder.fault(unit)
    if strategy is DeviceListStrategy.DEVICE_NODES:
        with pytest.raises(PluginError, match=reason):
            build(builder, [unit])
    assert not make(DeviceListStrategy.ENVVAR).fault(unit), "NVIDIA's runtime hands out the files"


def test_a_missing_uvm_node_is_made_by_nvidia_modprobe(make: Make, root: Path) -> None:
    (root / "dev/nvidia-uvm").unlink()
    program = root / "driver/usr/bin/nvidia-modprobe"
    program.write_text(f'#!/bin/sh\n[ "$*" = "-u -c 0" ] && touch {root}/dev/nvidia-uvm\n')
    program.chmod(0o755)
    assert not make(DeviceListStrategy.DEVICE_NODES).fault(whole(H100[0])[0])


def test_features_bring_what_nvidias_toolkit_gives(make: Make, root: Path) -> None:
    _touch(root / "driver/etc/cufile.json")
    (root / "driver/run/udev").mkdir(parents=True)
    keys = {"gdrcopy": True, "gds": True, "mofed": True, "imex": NvidiaImex(channels=[0, 1])}
    allocation = build(make(DeviceListStrategy.DEVICE_NODES, **keys), whole(H100[1]))
    assert {name for name in allocation.env if name.startswith("NVIDIA_")} == {
        "NVIDIA_GDRCOPY",
        "NVIDIA_GDS",
        "NVIDIA_MOFED",
        "NVIDIA_VISIBLE_DEVICES",
    }
    assert [node.container_path for node in allocation.nodes][4:] == [
        "/dev/gdrdrv",
        "/dev/nvidia-fs0",
        "/dev/nvidia-fs1",
        "/dev/infiniband/uverbs0",
        "/dev/infiniband/rdma_cm",
        "/dev/nvidia-caps-imex-channels/channel0",
    ]
    mounts = {mount.container_path for mount in allocation.mounts}
    assert {"/run/udev", "/etc/cufile.json"} <= mounts
    env = build(make(DeviceListStrategy.ENVVAR, **keys), whole(H100[0])).env
    assert (env["NVIDIA_IMEX_CHANNELS"], env["NVIDIA_GDS"]) == ("0,1", "enabled")


def test_a_missing_required_imex_channel_is_an_error(make: Make) -> None:
    imex = NvidiaImex(channels=[1], required=True)
    with pytest.raises(PluginError, match="channel1 does not exist"):
        build(make(DeviceListStrategy.DEVICE_NODES, imex=imex), whole(H100[0]))


def test_cdi_cri_names_devices_that_the_spec_has(make: Make, root: Path) -> None:
    builder = make(DeviceListStrategy.CDI_CRI, gds=True, imex=NvidiaImex(channels=[0, 1]))
    builder.specs.write(H100[:2])
    allocation = build(builder, whole(H100[1]))
    vendor = "k8s.device-plugin.nvidia.com"
    assert allocation.cdi == (f"{GPU}={H100[1].uuid}", f"{vendor}/imex-channel=0", f"{vendor}/gds=all")
    resolved = resolve([root / "cdi"])
    assert set(allocation.cdi) <= set(resolved)
    assert [node.path for node in resolved[allocation.cdi[0]].edits.device_nodes] == ["/dev/nvidia1"]
    nodes = [node.path for node in resolved[f"{GPU}=0"].edits.device_nodes]
    assert nodes == ["/dev/nvidia0", "/dev/dri/card1", "/dev/dri/renderD128"]
    assert resolved[f"{GPU}=1"].edits == resolved[allocation.cdi[0]].edits
    [spec] = [cdi.read(path) for path in (root / "cdi").iterdir() if path.name.startswith(GPU.replace("/", "-") + "_")]
    assert spec.edits.env["NVIDIA_VISIBLE_DEVICES"] == "void"
    assert [node.path for node in spec.edits.device_nodes][:2] == ["/dev/nvidiactl", "/dev/nvidia-uvm"]


def test_a_gpu_that_is_gone_is_removed_from_the_spec(make: Make, root: Path) -> None:
    builder = make(DeviceListStrategy.CDI_CRI)
    builder.specs.write(H100[:2])
    builder.specs.write(H100[:1])
    assert set(resolve([root / "cdi"])) == {f"{GPU}=0", f"{GPU}={H100[0].uuid}"}


def test_specs_left_by_nvidias_plugin_are_replaced(make: Make, root: Path) -> None:
    builder = make(DeviceListStrategy.CDI_CRI, gds=True)
    names = {f"{GPU}={H100[0].uuid}", "k8s.device-plugin.nvidia.com/gds=all"}
    builder.specs.write(H100[:1])
    for path in list((root / "cdi").iterdir()):
        path.rename(path.with_name(path.name.partition("_")[0] + ".json"))
    (root / "cdi" / "nvidia.com-gpu.json").write_text("another's")
    builder.specs.write(H100[:1])
    assert names <= set(resolve([root / "cdi"]))
    assert (root / "cdi" / "nvidia.com-gpu.json").exists()


def test_the_spec_is_removed_with_its_last_device(make: Make, root: Path) -> None:
    builder = make(DeviceListStrategy.CDI_CRI)
    builder.specs.write(H100[:1])
    builder.specs.write(())
    assert resolve([root / "cdi"]) == {}


def test_cdi_annotations_have_the_cdi_names(make: Make) -> None:
    allocation = build(make(DeviceListStrategy.CDI_ANNOTATIONS, annotations="example.com/"), whole(*H100[:2]))
    [(key, names)] = allocation.annotations.items()
    assert key.startswith("example.com/plugwright-nvidia_")
    assert names == f"{GPU}={H100[0].uuid},{GPU}={H100[1].uuid}"
    assert not allocation.cdi


def test_limits_are_a_cdi_device_if_confined_or_by_cdi_alone(make: Make, root: Path) -> None:
    loose = build(make(DeviceListStrategy.ENVVAR), whole(H100[0]), LIMITS)
    assert loose.env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "25"
    for builder in (make(DeviceListStrategy.ENVVAR, confine="cdi"), make(DeviceListStrategy.CDI_CRI)):
        tight = build(builder, whole(H100[0]), LIMITS)
        assert "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" not in tight.env
        [name] = [name for name in tight.cdi if "/limits=" in name]
        assert resolve([root / "cdi"])[name].edits.env == LIMITS.limits
    assert len(list((root / "cdi").iterdir())) == 1  # the same limits are the same file


def test_a_limiters_library_stands_in_for_the_drivers(make: Make, root: Path) -> None:
    limiter = ContainerExtras(libraries={"libcuda.so.1": "/opt/limiter.so"})
    by_mounts = build(make(DeviceListStrategy.DEVICE_NODES), whole(H100[0]), limiter).mounts
    builder = make(DeviceListStrategy.CDI_CRI)
    builder.specs.write(H100[:1])
    names = build(builder, whole(H100[0]), limiter).cdi
    by_cdi = [mount for edits in edits_for(names, [root / "cdi"]) for mount in edits.mounts]
    for mounts in (by_mounts, by_cdi):
        sources = {mount.container_path: mount.host_path for mount in mounts}  # of two at one path the later one counts
        assert sources["/usr/local/nvidia/lib64/libcuda.so.1"] == "/opt/limiter.so"
        assert sources["/usr/local/nvidia/lib64/libcuda.so"] == "/opt/limiter.so"
        assert sources[f"{ORIGINALS}/libcuda.so.1"] == "/run/nvidia/driver/usr/lib64/libcuda.so.1"
    with pytest.raises(PluginError, match="a limiter's libraries need the strategy device-nodes alone"):
        build(make(DeviceListStrategy.ENVVAR), whole(H100[0]), limiter)


def test_several_strategies_are_combined(make: Make) -> None:
    allocation = build(make(DeviceListStrategy.ENVVAR, DeviceListStrategy.CDI_CRI), whole(H100[0]))
    assert (allocation.env["NVIDIA_VISIBLE_DEVICES"], len(allocation.cdi)) == (H100[0].uuid, 1)


@pytest.mark.parametrize(
    "other", [DeviceListStrategy.ENVVAR, DeviceListStrategy.VOLUME_MOUNTS, DeviceListStrategy.CDI_CRI]
)
def test_device_nodes_beside_another_strategy_bring_no_libraries(make: Make, other: DeviceListStrategy) -> None:
    one = build(make(DeviceListStrategy.DEVICE_NODES, other), whole(H100[0]))
    assert one == build(make(other, DeviceListStrategy.DEVICE_NODES), whole(H100[0]))
    assert "/dev/nvidia0" in [node.container_path for node in one.nodes]
    assert not [mount for mount in one.mounts if "/lib" in mount.container_path]
    if other is not DeviceListStrategy.CDI_CRI:
        assert one.env["NVIDIA_VISIBLE_DEVICES"] != "void"


def test_a_simulated_machine_hands_out_harmless_nodes(tmp_path: Path) -> None:
    strategies = [DeviceListStrategy.DEVICE_NODES, DeviceListStrategy.CDI_CRI]
    config = NvidiaConfig(strategy=strategies, cdi=NvidiaCdi(dir=str(tmp_path)))
    files = DriverFiles(config, simulated=True)
    builder = AllocationBuilder(config, files, GpuSpecs(config, files))
    builder.specs.write(MIG)
    allocation = build(builder, [sharing.whole_device(MIG[0], MIG[0].mig[0])])
    assert {node.host_path for node in allocation.nodes} == {"/dev/null"}
    assert not allocation.mounts
    for path in tmp_path.iterdir():
        assert "/dev/null" in json.dumps(json.loads(path.read_text()))
