"""Which daemons there are and what they allow follows from the configuration alone; a file carries it over."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.plugins.nvidia.mps.node import gpu

from plugwright.errors import ConfigError, PathTooLong, PluginError
from plugwright.plugins.nvidia import sharing
from plugwright.plugins.nvidia.driver import ComputeMode, Gpu, MigDevice
from plugwright.plugins.nvidia.mps import state
from plugwright.plugins.nvidia.mps.daemon import same_memory, same_percent
from plugwright.plugins.nvidia.mps.plan import DaemonPlan, Mode, MpsOptions, Place, daemons, most_clients, why_not
from plugwright.plugins.nvidia.mps.state import Condition, DaemonState, ResourceState, why_unusable
from plugwright.plugins.nvidia.sharing import By, Share, Unit

GIB = 2**30
LEAVE, EXCLUSIVE = MpsOptions(), MpsOptions(mode=Mode.EXCLUSIVE)

shares = st.builds(
    Share,
    by=st.just(By.MPS),
    replicas=st.integers(1, 48),
    memory=st.sampled_from([0, GIB, 4 * GIB]),
    percent=st.integers(0, 100),
    most=st.integers(0, 6),
)
conditions = st.sampled_from(list(Condition))
texts = st.text(st.characters(codec="utf-8"), max_size=20)
plans = st.builds(
    DaemonPlan,
    size=st.integers(1, 48),
    percent=st.integers(1, 100),
    memory=st.lists(st.tuples(texts, st.integers(1, 10**6))).map(tuple),
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


def cut(share: Share, *gpus: Gpu) -> list[Unit]:
    return sharing.shared([sharing.whole(each) for each in gpus], share)


def planned(share: Share, *gpus: Gpu, options: MpsOptions = LEAVE) -> list[DaemonPlan]:
    return daemons(share, options, cut(share, *gpus))


def test_replicas_cut_memory_and_processors_evenly() -> None:
    share = Share(by=By.MPS, replicas=4)
    assert planned(share, gpu(0), gpu(1, 40 * GIB)) == [
        DaemonPlan(size=1, percent=25, memory=((gpu(0).uuid, 20480), (gpu(1).uuid, 10240)))
    ]


def test_a_share_may_be_given_by_memory_or_percent() -> None:
    by_memory = Share(by=By.MPS, memory=10 * GIB)
    assert len(cut(by_memory, gpu(0))) == 8
    assert planned(by_memory, gpu(0)) == [DaemonPlan(size=1, percent=12, memory=((gpu(0).uuid, 10240),))]
    by_percent = Share(by=By.MPS, percent=30)
    assert planned(by_percent, gpu(0)) == [DaemonPlan(size=1, percent=30, memory=((gpu(0).uuid, 27306),))]


def test_containers_of_different_sizes_have_daemons_of_their_own() -> None:
    share = Share(by=By.MPS, replicas=4, most=3)
    assert [(each.size, each.percent, each.memory[0][1]) for each in planned(share, gpu(0))] == [
        (1, 25, 20480),
        (2, 50, 40960),
        (3, 75, 61440),
    ]


def test_a_gpu_in_exclusive_mode_has_one_daemon_for_all_sizes() -> None:
    share = Share(by=By.MPS, replicas=4, most=3)
    assert [each.size for each in planned(share, gpu(0), options=EXCLUSIVE)] == [3]
    by_the_operator = gpu(0, mode=ComputeMode.EXCLUSIVE_PROCESS)
    assert [each.size for each in planned(share, by_the_operator)] == [3]


@given(share=shares, sizes=st.lists(st.integers(1, 200), min_size=1, max_size=4))
def test_no_daemon_allows_more_than_there_is_nor_than_was_asked_for(share: Share, sizes: list[int]) -> None:
    gpus = [gpu(index, size * GIB) for index, size in enumerate(sizes)]
    units = cut(share, *gpus)
    smallest = {each.uuid: each for each in gpus}
    for plan in daemons(share, LEAVE, units):
        assert 1 <= plan.percent <= 100
        for uuid, mebibytes in plan.memory:
            unit = next(each for each in units if each.uuid == uuid)
            assert mebibytes * 2**20 <= min(unit.memory * plan.size, smallest[uuid].memory)
            assert plan.percent <= unit.percent * plan.size


def test_what_mps_cannot_share_is_left_out_and_said() -> None:
    mig = MigDevice(uuid="MIG-1", index=0, profile="1g.10gb", memory=10 * GIB, gpu_instance=1, compute_instance=0)
    share = Share(by=By.MPS, replicas=2)
    partitioned = sharing.whole(gpu(0), mig)
    assert "MIG is enabled" in why_not(partitioned)
    assert daemons(share, LEAVE, sharing.shared([partitioned], share)) == []
    many = Share(by=By.MPS, replicas=50)
    assert [why_not(unit) for unit in cut(many, gpu(0))].count("") == 48
    assert "too small" in why_not(cut(Share(by=By.MPS, replicas=40), gpu(0, GIB // 1024))[0])


@pytest.mark.parametrize(("capability", "clients"), [((6, 1), 16), ((7, 0), 48), ((9, 0), 48), ((0, 0), 48)])
def test_how_many_clients_a_server_takes(capability: tuple[int, int], clients: int) -> None:
    assert most_clients(capability) == clients


def test_a_pipe_that_no_socket_fits_into_is_refused() -> None:
    with pytest.raises(PathTooLong):
        Place(Path("/run/plugwright/mps"), "nvidia.com/" + "x" * 63)
    with pytest.raises(ConfigError, match="absolute"):
        MpsOptions(root=Path("mps"))


@given(written=states)
def test_a_state_is_read_as_it_was_written(written: ResourceState, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("state") / "state.json"
    state.write(path, written)
    assert state.read(path) == written


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"version": 2}', '{"version": 1, "daemons": [{}]}'])
def test_a_file_that_is_no_state_is_refused_in_one_line(content: str, tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    path.write_text(content)
    with pytest.raises(PluginError, match=r"state\.json"):
        state.read(path)


PLAN = DaemonPlan(size=1, percent=25, memory=(("GPU-0", 1024),))


def known(plan: DaemonPlan = PLAN, condition: Condition = Condition.READY, reason: str = "") -> ResourceState:
    daemon = DaemonState(plan=plan, condition=condition, reason=reason)
    return ResourceState(resource="a/b", daemons=(daemon,), beat=100.0, lasting=10.0)


@pytest.mark.parametrize(
    ("found", "gpu_uuid", "now", "said"),
    [
        (known(), "GPU-0", 110.0, ""),
        (known(), "GPU-0", 110.1, "nobody has looked after the MPS daemon for 10 s"),
        (None, "GPU-0", 0.0, "no MPS daemon: `plugwright mps run` has not started one here"),
        (known(), "GPU-1", 100.0, "no MPS daemon for containers with 1 of this GPU"),
        (known(condition=Condition.DOWN, reason="killed"), "GPU-0", 100.0, "MPS daemon down: killed"),
        (known(condition=Condition.STOPPED), "GPU-0", 100.0, "MPS daemon stopped"),
        (known(DaemonPlan(size=1, percent=50, memory=PLAN.memory)), "GPU-0", 100.0, "limits of another configuration"),
        (known(DaemonPlan(size=2, percent=25, memory=PLAN.memory)), "GPU-0", 100.0, "no MPS daemon for containers"),
    ],
)
def test_why_a_share_cannot_be_used(found: ResourceState | None, gpu_uuid: str, now: float, said: str) -> None:
    reason = why_unusable(found, [PLAN], gpu_uuid, now)
    assert said in reason
    assert bool(said) == bool(reason)


@pytest.mark.parametrize(
    ("said", "mebibytes", "same"),
    [("20G", 20480, True), ("20G", 20000, True), ("20G", 19456, False), ("512M", 512, True), ("79G", 512, False),
     ("1024MB", 1024, True), ("", 512, True), ("not set", 512, True)],
)  # fmt: skip
def test_a_drivers_way_of_writing_a_size_is_understood(said: str, mebibytes: int, same: bool) -> None:
    assert same_memory(said, mebibytes) is same


@pytest.mark.parametrize(("said", "same"), [("25.0", True), ("25", True), ("100.0", False), ("", True), ("?", True)])
def test_a_drivers_way_of_writing_a_percentage_is_understood(said: str, same: bool) -> None:
    assert same_percent(said, 25) is same
