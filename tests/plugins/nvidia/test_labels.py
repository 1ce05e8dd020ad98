"""Node labels under the names of GPU feature discovery, in a file for node-feature-discovery."""

import re
from pathlib import Path

import pytest

from plugwright.config import schema
from plugwright.plugins.nvidia import selection, sharing, simulated_machines
from plugwright.plugins.nvidia.config import MigStrategy, NvidiaConfig, NvidiaPattern, NvidiaShare, SharingStrategy
from plugwright.plugins.nvidia.driver import Gpu, GpuSnapshot
from plugwright.plugins.nvidia.labels import NodeLabels, machine_labels, resource_labels
from plugwright.testing import running

GPU = "nvidia.com/gpu"
# What Kubernetes accepts.
LABEL = re.compile(
    r"[a-z0-9.-]+/[A-Za-z0-9][A-Za-z0-9._-]{0,61}[A-Za-z0-9]=(?:[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?"
)


def labels_of(config: NvidiaConfig, machine: str, resource: str = GPU) -> dict[str, str]:
    whole = selection.select_devices(simulated_machines.load(machine).gpus, selection.from_config(config))
    return resource_labels(resource, config, whole, sharing.split_all(whole, config.share))


def test_whole_gpus_have_the_labels_that_gfd_gives_them() -> None:
    assert labels_of(NvidiaConfig(), "hgx-h100") == {
        "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3",
        "nvidia.com/gpu.count": "8",
        "nvidia.com/gpu.replicas": "1",
        "nvidia.com/gpu.sharing-strategy": "none",
        "nvidia.com/gpu.memory": "81559",
        "nvidia.com/gpu.family": "hopper",
        "nvidia.com/gpu.compute.major": "9",
        "nvidia.com/gpu.compute.minor": "0",
    }


@pytest.mark.parametrize(
    ("machine", "family"),
    [("dgx-1", "volta"), ("t4", "turing"), ("dgx-a100", "ampere"), ("l40s", "ada-lovelace"), ("gb200", "blackwell")],
)
def test_a_family_follows_from_the_compute_capability(machine: str, family: str) -> None:
    assert labels_of(NvidiaConfig(), machine)["nvidia.com/gpu.family"] == family


def test_shares_have_their_number_and_say_so_in_the_product_unless_the_resource_has_another_name() -> None:
    shared = NvidiaConfig(share=NvidiaShare(by=SharingStrategy.MPS, replicas=4))
    labels = labels_of(shared, "t4")
    assert labels["nvidia.com/gpu.product"] == "Tesla-T4-SHARED"
    assert (labels["nvidia.com/gpu.replicas"], labels["nvidia.com/gpu.sharing-strategy"]) == ("4", "mps")
    renamed = labels_of(shared, "t4", "nvidia.com/gpu-shared")
    assert renamed["nvidia.com/gpu-shared.product"] == "Tesla-T4"


def test_mig_devices_have_their_profile_and_slices() -> None:
    single = labels_of(NvidiaConfig(mig=MigStrategy.SINGLE), "hgx-h100-mig")
    assert single["nvidia.com/gpu.product"] == "NVIDIA-H100-80GB-HBM3-MIG-1g.10gb"
    assert (single["nvidia.com/gpu.count"], single["nvidia.com/gpu.memory"]) == ("56", "10240")
    assert (single["nvidia.com/gpu.slices.gi"], single["nvidia.com/gpu.slices.ci"]) == ("1", "1")
    mixed = NvidiaConfig(mig=MigStrategy.MIXED, select=NvidiaPattern(profile="3g.20gb"))
    assert labels_of(mixed, "dgx-a100-mig", "nvidia.com/mig-3g.20gb")["nvidia.com/mig-3g.20gb.slices.gi"] == "3"


def test_a_resource_without_devices_says_so() -> None:
    nothing = NvidiaConfig(select=NvidiaPattern(model="none"))
    assert labels_of(nothing, "t4") == {"nvidia.com/gpu.count": "0"}


def test_versions_and_the_machine_are_labels_too(tmp_path: Path) -> None:
    name = tmp_path / "class/dmi/id/product_name"
    name.parent.mkdir(parents=True)
    name.write_text("PowerEdge XE9680 (rev. 2)\n")
    snapshot = GpuSnapshot(driver="580.159.04", cuda="13.0", gpus=(Gpu(uuid="GPU-0", index=0, capability=(8, 9)),))
    assert machine_labels(snapshot, NvidiaConfig(mig=MigStrategy.MIXED), tmp_path) == {
        "nvidia.com/gpu.machine": "PowerEdge-XE9680-rev.-2",
        "nvidia.com/mig.capable": "false",
        "nvidia.com/mig.strategy": "mixed",
        "nvidia.com/mps.capable": "false",
        "nvidia.com/cuda.driver-version.full": "580.159.04",
        "nvidia.com/cuda.driver-version.major": "580",
        "nvidia.com/cuda.driver-version.minor": "159",
        "nvidia.com/cuda.driver-version.revision": "04",
        "nvidia.com/cuda.driver.major": "580",
        "nvidia.com/cuda.driver.minor": "159",
        "nvidia.com/cuda.driver.rev": "04",
        "nvidia.com/cuda.runtime-version.full": "13.0",
        "nvidia.com/cuda.runtime-version.major": "13",
        "nvidia.com/cuda.runtime-version.minor": "0",
        "nvidia.com/cuda.runtime.major": "13",
        "nvidia.com/cuda.runtime.minor": "0",
    }


@pytest.mark.parametrize("model", ["", "NVIDIA " + "X" * 80, "a\nnvidia.com/gpu.count=99", "…", "NVIDIA (test) / 1 "])
def test_no_name_of_a_model_makes_an_invalid_line(model: str, tmp_path: Path) -> None:
    labels = NodeLabels(GPU, NvidiaConfig(labels=str(tmp_path), share=NvidiaShare(replicas=2)), tmp_path)
    labels.begin()
    whole = [sharing.whole_device(Gpu(uuid="GPU-0", index=0, model=model, memory=2**30))]
    labels.update(GpuSnapshot(gpus=(whole[0].gpu,)), whole, whole * 2)
    lines = (tmp_path / "plugwright-nvidia.com_gpu").read_text().splitlines()
    assert [line for line in lines if not LABEL.fullmatch(line)] == []
    assert [line for line in lines if line.startswith("nvidia.com/gpu.count=")] == ["nvidia.com/gpu.count=1"]


async def test_the_file_is_there_while_the_resource_is_served(tmp_path: Path) -> None:
    directory = tmp_path / "features.d"
    text = f"resources: [{{name: {GPU}, nvidia: {{simulate: l40s, labels: {directory}}}}}]"
    plugins = schema.read("plugwright.yaml", text).plugins()
    async with running(plugins, tmp_path):
        file = directory / "plugwright-nvidia.com_gpu"
        assert "nvidia.com/gpu.product=NVIDIA-L40S\n" in file.read_text()
        assert file.stat().st_mode & 0o777 == 0o644
        assert [path.name for path in directory.iterdir()] == [file.name]
    assert list(directory.iterdir()) == []


async def test_labels_that_cannot_be_written_cost_no_device(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    text = f"resources: [{{name: {GPU}, nvidia: {{simulate: l40s, labels: {tmp_path}/file/features.d}}}}]"
    async with running(schema.read("plugwright.yaml", text).plugins(), tmp_path) as kubelet:
        assert await kubelet.allocatable(GPU, 4) == 4
    assert "node labels cannot be written" in caplog.text
