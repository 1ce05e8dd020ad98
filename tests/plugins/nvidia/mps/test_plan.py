"""Daemon plans follow from the configuration alone, and the state file carries them to the plugin."""

import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.plugins.nvidia.mps.node import gpu

from plugwright.errors import ConfigError, PathTooLong, PluginError
from plugwright.plugins.nvidia import config, sharing
from plugwright.plugins.nvidia.config import (
    ComputeModePolicy,
    NvidiaConfig,
    NvidiaMps,
    NvidiaShare,
    SharingStrategy,
)
from plugwright.plugins.nvidia.driver import ComputeMode, Gpu, MigDevice
from plugwright.plugins.nvidia.mps import state
from plugwright.plugins.nvidia.mps.daemon import same_memory, same_percent
from plugwright.plugins.nvidia.mps.plan import DaemonPlan, MpsPaths, max_clients, plan_daemons, unsupported_reason
from plugwright.plugins.nvidia.mps.state import Condition, DaemonState, ResourceState, unusable_reason
from plugwright.plugins.nvidia.sharing import GpuUnit

GIB = 2**30
EXCLUSIVE = NvidiaMps(mode=ComputeModePolicy.EXCLUSIVE)

shares = st.builds(
    NvidiaShare,
    by=st.just(SharingStrategy.MPS),
    replicas=st.integers(1, 48),
    memory=st.sampled_from([0, GIB, 4 * GIB]),
    percent=st.integers(0, 100),
    most=st.integers(0, 6),
)
conditions = st.sampled_from(list(Condition))
texts = st.text(st.characters(codec="utf-8"), max_size=20)
plans = st.builds(
    DaemonPlan,
    gpu=texts,
    size=st.integers(1, 48),
    percent=st.integers(1, 100),
    mebibytes=st.integers(1, 10**6),
)
states = st.builds(
    ResourceState,
    resource=texts,
    daemons=st.lists(
        st.builds(
            DaemonState,
            plan=plans,
            condition=conditions,
            reason=texts,
            since=st.floats(0, 1e10),
            servers=st.lists(st.integers(1, 2**22)).map(tuple),
        )
    ).map(tuple),
    beat=st.floats(0, 1e9),
    modes=st.dictionaries(texts, texts),
)


def split(share: NvidiaShare, *gpus: Gpu) -> list[GpuUnit]:
    return sharing.split_all([sharing.whole_device(gpu) for gpu in gpus], share)


def planned(share: NvidiaShare, *gpus: Gpu) -> list[DaemonPlan]:
    return plan_daemons(share, split(share, *gpus))


def test_replicas_divide_memory_and_percent_evenly() -> None:
    share = NvidiaShare(by=SharingStrategy.MPS, replicas=4)
    assert planned(share, gpu(0), gpu(1, 40 * GIB)) == [
        DaemonPlan(gpu=gpu(0).uuid, size=1, percent=25, mebibytes=20480),
        DaemonPlan(gpu=gpu(1).uuid, size=1, percent=25, mebibytes=10240),
    ]


def test_a_share_can_be_configured_by_memory_or_percent() -> None:
    by_memory = NvidiaShare(by=SharingStrategy.MPS, memory=10 * GIB)
    assert len(split(by_memory, gpu(0))) == 8
    assert planned(by_memory, gpu(0)) == [DaemonPlan(gpu=gpu(0).uuid, size=1, percent=12, mebibytes=10240)]
    by_percent = NvidiaShare(by=SharingStrategy.MPS, percent=30)
    assert planned(by_percent, gpu(0)) == [DaemonPlan(gpu=gpu(0).uuid, size=1, percent=30, mebibytes=27306)]


def test_containers_of_different_sizes_have_daemons_of_their_own() -> None:
    share = NvidiaShare(by=SharingStrategy.MPS, replicas=4, most=3)
    assert [(plan.size, plan.percent, plan.mebibytes) for plan in planned(share, gpu(0))] == [
        (1, 25, 20480),
        (2, 50, 40960),
        (3, 75, 61440),
    ]


def test_a_gpu_in_exclusive_mode_has_one_daemon_for_all_sizes() -> None:
    share = NvidiaShare(by=SharingStrategy.MPS, replicas=4, most=3)
    assert [plan.size for plan in planned(msgspec.structs.replace(share, mps=EXCLUSIVE), gpu(0))] == [3]
    by_the_operator = gpu(0, mode=ComputeMode.EXCLUSIVE_PROCESS)
    assert [plan.size for plan in planned(share, by_the_operator)] == [3]
    assert [plan.size for plan in planned(share, by_the_operator, gpu(1))] == [3, 1, 2, 3]


@given(share=shares, sizes=st.lists(st.integers(1, 200), min_size=1, max_size=4))
def test_no_daemon_allows_more_than_the_gpu_has_or_the_share_says(share: NvidiaShare, sizes: list[int]) -> None:
    gpus = [gpu(index, size * GIB) for index, size in enumerate(sizes)]
    units = split(share, *gpus)
    by_uuid = {gpu.uuid: gpu for gpu in gpus}
    for plan in plan_daemons(share, units):
        assert 1 <= plan.percent <= 100
        unit = next(unit for unit in units if unit.uuid == plan.gpu)
        assert plan.mebibytes * 2**20 <= min(unit.memory * plan.size, by_uuid[plan.gpu].memory)
        assert plan.percent <= unit.percent * plan.size


def test_devices_that_mps_does_not_support_are_left_out_with_a_reason() -> None:
    mig = MigDevice(uuid="MIG-1", index=0, profile="1g.10gb", memory=10 * GIB, gpu_instance=1, compute_instance=0)
    share = NvidiaShare(by=SharingStrategy.MPS, replicas=2)
    partitioned = sharing.whole_device(gpu(0), mig)
    assert "MIG is enabled" in unsupported_reason(partitioned)
    assert plan_daemons(share, sharing.split_all([partitioned], share)) == []
    many = NvidiaShare(by=SharingStrategy.MPS, replicas=50)
    assert [unsupported_reason(unit) for unit in split(many, gpu(0))].count("") == 48
    assert "too small" in unsupported_reason(
        split(NvidiaShare(by=SharingStrategy.MPS, replicas=40), gpu(0, GIB // 1024))[0]
    )


@pytest.mark.parametrize(("capability", "clients"), [((6, 1), 16), ((7, 0), 48), ((9, 0), 48), ((0, 0), 48)])
def test_the_number_of_clients_depends_on_the_compute_capability(capability: tuple[int, int], clients: int) -> None:
    assert max_clients(capability) == clients


def test_a_path_too_long_for_a_socket_and_a_relative_one_are_refused() -> None:
    with pytest.raises(PathTooLong):
        MpsPaths(Path("/run/plugwright/mps"), "nvidia.com/" + "x" * 63)
    share = NvidiaShare(by=SharingStrategy.MPS, replicas=1, mps=NvidiaMps(root="mps"))
    with pytest.raises(ConfigError, match="absolute"):
        config.check(NvidiaConfig(share=share))


@given(written=states)
def test_a_state_is_read_as_written(written: ResourceState, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("state") / "state.json"
    state.write(path, written)
    assert state.read(path) == written


def test_the_state_file_is_that_of_earlier_releases(tmp_path: Path) -> None:
    plan = {"gpu": "GPU-0", "size": 1, "percent": 25, "mebibytes": 1024}
    daemon = {"plan": plan, "condition": "ready", "reason": "", "since": 1.5, "restarts": 0, "corrections": 0}
    content = {
        "version": 2,
        "resource": "nvidia.com/gpu",
        "problem": "",
        "daemons": [{**daemon, "servers": [7]}],
        "beat": 2.5,
        "lasting": 60.0,
        "modes": {"GPU-0": "Default"},
    }
    path = tmp_path / "state.json"
    path.write_text(json.dumps(content))
    found = state.read(path)
    assert found is not None
    assert (found.daemons[0].plan.percent, found.daemons[0].condition) == (25, Condition.READY)
    state.write(path, found)
    assert path.read_text() == json.dumps(content, indent=2) + "\n"
    assert path.stat().st_mode & 0o777 == 0o644


def test_a_state_that_the_supervisor_cannot_read_is_set_aside(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    path.write_text('{"version": 3}')
    with pytest.raises(PluginError, match=r"later version of plugwright.*; it is kept as state\.json\.damaged"):
        state.read_or_set_aside(path)
    assert state.read(path) is None


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"version": 1}', '{"version": 2, "daemons": [{}]}'])
def test_a_file_without_a_state_is_refused(content: str, tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    path.write_text(content)
    with pytest.raises(PluginError, match=r"state\.json"):
        state.read(path)


PLAN = DaemonPlan(gpu="GPU-0", size=1, percent=25, mebibytes=1024)


def known(plan: DaemonPlan = PLAN, condition: Condition = Condition.READY, reason: str = "") -> ResourceState:
    daemon = DaemonState(plan=plan, condition=condition, reason=reason)
    return ResourceState(resource="a/b", daemons=(daemon,), beat=100.0, lasting=10.0)


@pytest.mark.parametrize(
    ("current", "gpu_uuid", "now", "text"),
    [
        (known(), "GPU-0", 110.0, ""),
        (known(), "GPU-0", 110.1, "no MPS supervisor has reported for 10 s"),
        (None, "GPU-0", 0.0, "no MPS daemon: `plugwright mps run` has not started one here"),
        (known(condition=Condition.DOWN, reason="killed"), "GPU-0", 100.0, "MPS daemon down: killed"),
        (known(condition=Condition.STOPPED), "GPU-0", 100.0, "MPS daemon stopped"),
        (known(replace(PLAN, percent=50)), "GPU-0", 100.0, "limits of another configuration"),
        (known(replace(PLAN, gpu="GPU-1")), "GPU-0", 100.0, "no MPS daemon for containers with 1 of this GPU"),
        (known(replace(PLAN, size=2)), "GPU-0", 100.0, "no MPS daemon for containers"),
    ],
)
def test_a_share_is_unusable_with_a_reason(current: ResourceState | None, gpu_uuid: str, now: float, text: str) -> None:
    reason = unusable_reason(current, [PLAN], gpu_uuid, now)
    assert text in reason
    assert bool(text) == bool(reason)


@pytest.mark.parametrize(
    ("answer", "mebibytes", "same"),
    [("20G", 20480, True), ("20G", 20000, True), ("20G", 19456, False), ("512M", 512, True), ("79G", 512, False),
     ("1024MB", 1024, True), ("", 512, True), ("not set", 512, True)],
)  # fmt: skip
def test_a_size_is_compared_in_the_drivers_spelling(answer: str, mebibytes: int, same: bool) -> None:
    assert same_memory(answer, mebibytes) is same


@pytest.mark.parametrize(("answer", "same"), [("25.0", True), ("25", True), ("100.0", False), ("", True), ("?", True)])
def test_a_percentage_is_compared_in_the_drivers_spelling(answer: str, same: bool) -> None:
    assert same_percent(answer, 25) is same
