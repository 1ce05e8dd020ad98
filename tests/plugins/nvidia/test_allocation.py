"""What a container gets with its GPUs, on a tree that looks like a machine's."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.sdk.cdi.resolution import resolve

from plugwright import Allocation, DeviceNode, Mount, PluginError
from plugwright.plugins.nvidia import sharing, simulated_machines
from plugwright.plugins.nvidia.allocation import Answers
from plugwright.plugins.nvidia.cdi import Specs
from plugwright.plugins.nvidia.config import Features, Ids, Options, Places, Strategy
from plugwright.plugins.nvidia.driver import Gpu
from plugwright.plugins.nvidia.driver_files import Files
from plugwright.plugins.nvidia.sharing import Extras, Share, Unit
from plugwright.sdk import cdi

H100 = simulated_machines.load("hgx-h100").gpus
CUT = simulated_machines.load("dgx-a100-mig").gpus
LIMITS = Extras(limits={"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "25"})
GPU = "k8s.device-plugin.nvidia.com/gpu"

Make = Callable[..., Answers]


@pytest.fixture
def places(tmp_path: Path) -> Places:
    """A machine's files: nodes, the driver's libraries under a root of its own, the numbers of MIG's capabilities."""
    for name in (
        "nvidiactl",
        "nvidia-uvm",
        "nvidia-modeset",
        "nvidia0",
        "nvidia1",
        "gdrdrv",
        "nvidia-fs0",
        "nvidia-fs1",
    ):
        _touch(tmp_path / "dev" / name)
    _touch(tmp_path / "dev/infiniband/uverbs0")
    _touch(tmp_path / "dev/nvidia-caps-imex-channels/channel0")
    libraries = tmp_path / "driver/usr/lib64"
    for name in ("libcuda.so.580.1", "libnvidia-ml.so.580.1", "libnvidia-ptxjitcompiler.so.1", "libc.so.6"):
        _touch(libraries / name)
    (libraries / "libcuda.so.1").symlink_to("libcuda.so.580.1")
    _touch(tmp_path / "driver/usr/bin/nvidia-smi")
    minors = tmp_path / "proc/driver/nvidia-caps/mig-minors"
    _touch(minors)
    minors.write_text("config 1\ngpu0/gi7/access 30\ngpu0/gi7/ci0/access 31\n")
    return Places(
        root=tmp_path / "driver",
        host_root=Path("/run/nvidia/driver"),
        dev_root=tmp_path,
        proc=tmp_path / "proc",
        cdi=tmp_path / "cdi",
        libraries=("/usr/local/nvidia/lib64",),
    )


@pytest.fixture
def make(places: Places) -> Make:
    def answers(*strategies: Strategy, **others: object) -> Answers:
        options = Options(strategies=strategies, places=places, **others)  # type: ignore[arg-type]
        files = Files(places)
        return Answers(options, files, Specs(files))

    return answers


def _touch(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()


def whole(*gpus: Gpu) -> list[Unit]:
    return [sharing.whole(gpu) for gpu in gpus]


def given(answers: Answers, units: list[Unit], extras: Extras | None = None) -> Allocation:
    return answers.answer(units, extras or Extras())


def test_by_env_the_runtime_is_told(make: Make) -> None:
    answer = given(make(Strategy.ENVVAR), whole(*H100[:2]))
    assert answer == Allocation(env={"NVIDIA_VISIBLE_DEVICES": f"{H100[0].uuid},{H100[1].uuid}"})


def test_by_index_the_same(make: Make) -> None:
    parts = [sharing.whole(CUT[0], CUT[0].mig[1]), *whole(CUT[5])]
    answer = given(make(Strategy.ENVVAR, ids=Ids.INDEX), parts)
    assert answer.env == {"NVIDIA_VISIBLE_DEVICES": "0:1,5"}


def test_a_device_is_named_once_however_many_shares_of_it(make: Make) -> None:
    shares = sharing.share(sharing.whole(H100[0]), Share(replicas=4))
    assert given(make(Strategy.ENVVAR), shares[:3]).env["NVIDIA_VISIBLE_DEVICES"] == H100[0].uuid


def test_by_mounts_an_image_cannot_ask_for_more(make: Make) -> None:
    answer = given(make(Strategy.VOLUME_MOUNTS, features=Features(imex=(0,))), whole(H100[0]))
    directory = "/var/run/nvidia-container-devices"
    assert answer.env == {"NVIDIA_VISIBLE_DEVICES": directory}
    assert answer.mounts == (
        Mount("/dev/null", f"{directory}/{H100[0].uuid}"),
        Mount("/dev/null", f"{directory}/imex/0"),
    )


def test_by_nodes_any_runtime_will_do(make: Make, places: Places) -> None:
    answer = given(make(Strategy.DEVICE_NODES), whole(*H100[:2]))
    names = ["nvidiactl", "nvidia-uvm", "nvidia-modeset", "nvidia0", "nvidia1"]
    assert answer.nodes == tuple(DeviceNode(f"{places.dev_root}/dev/{name}", f"/dev/{name}") for name in names)
    host, inside = "/run/nvidia/driver/usr", "/usr/local/nvidia/lib64"
    assert set(answer.mounts) == {
        Mount(f"{host}/lib64/libcuda.so.580.1", f"{inside}/libcuda.so.1", read_only=True),
        Mount(f"{host}/lib64/libcuda.so.580.1", f"{inside}/libcuda.so.580.1", read_only=True),
        Mount(f"{host}/lib64/libnvidia-ml.so.580.1", f"{inside}/libnvidia-ml.so.580.1", read_only=True),
        Mount(f"{host}/lib64/libnvidia-ptxjitcompiler.so.1", f"{inside}/libnvidia-ptxjitcompiler.so.1", read_only=True),
        Mount(f"{host}/bin/nvidia-smi", "/usr/bin/nvidia-smi", read_only=True),
    }


def test_a_part_of_a_gpu_brings_its_capabilities(make: Make) -> None:
    answer = given(make(Strategy.DEVICE_NODES), [sharing.whole(CUT[0], CUT[0].mig[0])])
    assert [node.container_path for node in answer.nodes][-3:] == [
        "/dev/nvidia0",
        "/dev/nvidia-caps/nvidia-cap30",
        "/dev/nvidia-caps/nvidia-cap31",
    ]
    with pytest.raises(PluginError, match="does not know gpu0/gi8/access"):
        given(make(Strategy.DEVICE_NODES), [sharing.whole(CUT[0], CUT[0].mig[1])])


def test_a_node_that_cuda_needs_and_is_missing_is_said(make: Make, places: Places) -> None:
    (places.dev_root / "dev/nvidia-uvm").unlink()
    with pytest.raises(PluginError, match="/dev/nvidia-uvm does not exist"):
        given(make(Strategy.DEVICE_NODES), whole(H100[0]))


def test_what_is_switched_on_comes_along(make: Make) -> None:
    features = Features(gdrcopy=True, gds=True, mofed=True, imex=(0, 1))
    answer = given(make(Strategy.DEVICE_NODES, features=features), whole(H100[0]))
    assert {name for name in answer.env if name != "NVIDIA_VISIBLE_DEVICES"} == {
        "NVIDIA_GDRCOPY",
        "NVIDIA_GDS",
        "NVIDIA_MOFED",
    }
    assert {node.container_path for node in answer.nodes} >= {
        "/dev/gdrdrv",
        "/dev/nvidia-fs0",
        "/dev/nvidia-fs1",
        "/dev/infiniband/uverbs0",
        "/dev/nvidia-caps-imex-channels/channel0",
    }
    env = given(make(Strategy.ENVVAR, features=features), whole(H100[0])).env
    assert (env["NVIDIA_IMEX_CHANNELS"], env["NVIDIA_GDS"]) == ("0,1", "enabled")


def test_a_channel_that_is_required_and_missing_is_said(make: Make) -> None:
    with pytest.raises(PluginError, match="channel1 does not exist"):
        given(make(Strategy.DEVICE_NODES, features=Features(imex=(1,), imex_required=True)), whole(H100[0]))


def test_by_cdi_names_are_given_and_a_file_has_them(make: Make, places: Places) -> None:
    answers = make(Strategy.CDI_CRI, features=Features(gds=True, imex=(0, 1)))
    answers.specs.write(H100[:2], answers.options.features)
    answer = given(answers, whole(H100[1]))
    vendor = "k8s.device-plugin.nvidia.com"
    assert answer.cdi == (f"{GPU}={H100[1].uuid}", f"{vendor}/imex-channel=0", f"{vendor}/gds=all")
    found = resolve([places.cdi])
    assert set(answer.cdi) <= set(found)
    assert [node.path for node in found[answer.cdi[0]].edits.device_nodes] == ["/dev/nvidia1"]
    assert found[f"{GPU}=1"].edits == found[answer.cdi[0]].edits
    [spec] = [cdi.read(path) for path in places.cdi.iterdir() if path.name.startswith(GPU.replace("/", "-") + "_")]
    assert spec.edits.env["NVIDIA_VISIBLE_DEVICES"] == "void"
    assert [node.path for node in spec.edits.device_nodes][:2] == ["/dev/nvidiactl", "/dev/nvidia-uvm"]


def test_a_device_that_is_gone_is_taken_out_of_the_file(make: Make, places: Places) -> None:
    answers = make(Strategy.CDI_CRI)
    answers.specs.write(H100[:2], Features())
    answers.specs.write(H100[:1], Features())
    assert set(resolve([places.cdi])) == {f"{GPU}=0", f"{GPU}={H100[0].uuid}"}


def test_files_that_nvidias_plugin_left_do_not_make_our_names_unusable(make: Make, places: Places) -> None:
    answers = make(Strategy.CDI_CRI, features=Features(gds=True))
    names = {f"{GPU}={H100[0].uuid}", "k8s.device-plugin.nvidia.com/gds=all"}
    answers.specs.write(H100[:1], answers.options.features)
    for path in list(places.cdi.iterdir()):
        path.rename(path.with_name(path.name.partition("_")[0] + ".json"))
    (places.cdi / "nvidia.com-gpu.json").write_text("another's")
    answers.specs.write(H100[:1], answers.options.features)
    assert names <= set(resolve([places.cdi]))
    assert (places.cdi / "nvidia.com-gpu.json").exists()


def test_the_last_device_that_is_gone_takes_its_file_along(make: Make, places: Places) -> None:
    answers = make(Strategy.CDI_CRI)
    answers.specs.write(H100[:1], Features())
    answers.specs.write((), Features())
    assert resolve([places.cdi]) == {}


def test_by_annotation_the_same_names(make: Make) -> None:
    answer = given(make(Strategy.CDI_ANNOTATIONS, annotation_prefix="example.com/"), whole(*H100[:2]))
    [(key, names)] = answer.annotations.items()
    assert key.startswith("example.com/plugwright-nvidia_")
    assert names == f"{GPU}={H100[0].uuid},{GPU}={H100[1].uuid}"
    assert not answer.cdi


def test_limits_go_through_cdi_where_they_must_hold(make: Make, places: Places) -> None:
    loose = given(make(Strategy.ENVVAR), whole(H100[0]), LIMITS)
    assert loose.env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "25"
    for answers in (make(Strategy.ENVVAR, confine=True), make(Strategy.CDI_CRI)):
        tight = given(answers, whole(H100[0]), LIMITS)
        assert "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" not in tight.env
        [name] = [each for each in tight.cdi if "/limits=" in each]
        assert resolve([places.cdi])[name].edits.env == LIMITS.limits
    assert len(list(places.cdi.iterdir())) == 1  # the same limits are the same file


def test_several_ways_at_once(make: Make) -> None:
    answer = given(make(Strategy.ENVVAR, Strategy.CDI_CRI), whole(H100[0]))
    assert (answer.env["NVIDIA_VISIBLE_DEVICES"], len(answer.cdi)) == (H100[0].uuid, 1)


@pytest.mark.parametrize("other", [Strategy.ENVVAR, Strategy.VOLUME_MOUNTS, Strategy.CDI_CRI])
def test_beside_another_way_nodes_come_alone_in_whichever_order(make: Make, other: Strategy) -> None:
    one = given(make(Strategy.DEVICE_NODES, other), whole(H100[0]))
    assert one == given(make(other, Strategy.DEVICE_NODES), whole(H100[0]))
    assert "/dev/nvidia0" in [node.container_path for node in one.nodes]
    assert not [mount for mount in one.mounts if "/lib" in mount.container_path]
    if other is not Strategy.CDI_CRI:
        assert one.env["NVIDIA_VISIBLE_DEVICES"] != "void"


def test_a_rehearsal_hands_out_harmless_nodes(tmp_path: Path) -> None:
    places = Places(cdi=tmp_path)
    files = Files(places, simulated=True)
    answers = Answers(Options(strategies=(Strategy.DEVICE_NODES, Strategy.CDI_CRI)), files, Specs(files))
    answers.specs.write(CUT, Features())
    answer = given(answers, [sharing.whole(CUT[0], CUT[0].mig[0])])
    assert {node.host_path for node in answer.nodes} == {"/dev/null"}
    assert not answer.mounts
    for path in tmp_path.iterdir():
        assert "/dev/null" in json.dumps(json.loads(path.read_text()))
