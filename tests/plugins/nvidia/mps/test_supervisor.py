"""The supervisor starts daemons with their limits, probes and restarts them, and writes their states."""

import asyncio
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.plugins.nvidia.mps.node import MpsNode, becomes, gpu

from plugwright.errors import ConfigError, PluginError
from plugwright.plugins.nvidia.config import ComputeModePolicy, MpsClients
from plugwright.plugins.nvidia.driver import ComputeMode
from plugwright.plugins.nvidia.mps import state
from plugwright.plugins.nvidia.mps.daemon import without_cuda
from plugwright.plugins.nvidia.mps.plan import DaemonPlan
from plugwright.plugins.nvidia.mps.state import Condition, ResourceState
from plugwright.plugins.nvidia.mps.supervisor import Supervisor

FIRST, SECOND = gpu(0).uuid, gpu(1).uuid
QUARTER = DaemonPlan(gpu=FIRST, size=1, percent=25, mebibytes=20481)
HALF = DaemonPlan(gpu=FIRST, size=2, percent=50, mebibytes=40960)
OTHER = DaemonPlan(gpu=SECOND, size=1, percent=25, mebibytes=10240)


@pytest.fixture
def node(root: Path) -> MpsNode:
    return MpsNode(root)


async def test_each_gpu_and_size_has_a_daemon_with_its_limits(node: MpsNode) -> None:
    async with node.supervised([QUARTER, HALF, OTHER]) as supervisor:
        await becomes(supervisor, Condition.READY)
        for plan, percent, memory in ((QUARTER, "25.0", "20G"), (HALF, "50.0", "40G"), (OTHER, "25.0", "10G")):
            control = node.control(plan)
            assert await control.send("get_default_active_thread_percentage") == percent
            assert await control.send("get_default_device_pinned_mem_limit 0") == memory


async def test_the_end_of_one_gpus_daemon_leaves_the_others_alone(node: MpsNode) -> None:
    async with node.supervised([QUARTER, OTHER]) as supervisor:
        await becomes(supervisor, Condition.READY)
        node.fault(QUARTER, "refuse").touch()
        node.kill(QUARTER)
        async with asyncio.timeout(60):
            down = await supervisor.state.until(lambda now: now.daemons[0].condition is Condition.DOWN)
        assert down.daemons[1].condition is Condition.READY
        assert down.daemons[1].restarts == 0


def test_cuda_variables_are_removed_from_the_environment() -> None:
    ours = {"PATH": "/bin", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "100", "NVIDIA_VISIBLE_DEVICES": "all"}
    assert without_cuda(ours) == {"PATH": "/bin"}


async def test_a_daemon_starts_with_its_gpu_and_limits(node: MpsNode) -> None:
    async with node.supervised([QUARTER]) as supervisor:
        await becomes(supervisor, Condition.READY)
        seen = (node.paths.log(*QUARTER.key) / "environment").read_text().splitlines()
    cuda = [line for line in seen if line.startswith("CUDA_")]
    assert cuda == [
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=25",
        f"CUDA_MPS_LOG_DIRECTORY={node.paths.log(*QUARTER.key)}",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=20481M",
        f"CUDA_MPS_PIPE_DIRECTORY={node.paths.pipe(*QUARTER.key)}",
        f"CUDA_VISIBLE_DEVICES={FIRST}",
    ]


async def test_the_state_file_has_the_supervisors_state(node: MpsNode) -> None:
    async with node.supervised([QUARTER]) as supervisor:
        await becomes(supervisor, Condition.READY)
        assert state.read(node.paths.state) == supervisor.state.value
    written = state.read(node.paths.state)
    assert written is not None
    assert [daemon.condition for daemon in written.daemons] == [Condition.STOPPED]


async def test_every_probe_renews_the_state(node: MpsNode) -> None:
    async with node.supervised([QUARTER]) as supervisor:
        first = await becomes(supervisor, Condition.READY)
        async with asyncio.timeout(60):
            later = await supervisor.state.until(lambda current: current.beat > first.beat)
        assert later.daemons == first.daemons


async def test_a_daemon_that_is_killed_is_started_again_with_its_limits(node: MpsNode) -> None:
    async with node.supervised([QUARTER]) as supervisor:
        await becomes(supervisor, Condition.READY)
        node.kill(QUARTER)
        down = await becomes(supervisor, Condition.DOWN, "ended with signal 9")
        assert down.daemons[0].restarts == 1
        await becomes(supervisor, Condition.READY)
        assert await node.control(QUARTER).send("get_default_active_thread_percentage") == "25.0"


async def test_servers_do_not_outlive_their_daemon(node: MpsNode) -> None:
    async with node.supervised([QUARTER]) as supervisor:
        await becomes(supervisor, Condition.READY)
        await node.control(QUARTER).send("start_server -uid 0")
        async with asyncio.timeout(60):
            known = await supervisor.state.until(lambda current: bool(current.daemons[0].servers))
        (server,) = known.daemons[0].servers
        node.kill(QUARTER)
        await becomes(supervisor, Condition.DOWN)
        await becomes(supervisor, Condition.READY)
    assert not _runs(server)


async def test_a_daemon_that_hangs_is_down_at_once_and_restarted_later(node: MpsNode) -> None:
    settings = replace(node.settings, timeout=0.5, patience=2, grace=0.5)
    async with node.supervised([QUARTER], settings) as supervisor:
        ready = await becomes(supervisor, Condition.READY)
        node.fault(QUARTER, "hang").touch()
        hanging = await becomes(supervisor, Condition.DOWN, "no answer to")
        assert _restarts(hanging) == _restarts(ready)
        await becomes(supervisor, Condition.DOWN, ", 2 times")
        node.fault(QUARTER, "hang").unlink()
        assert _restarts(await becomes(supervisor, Condition.READY)) > _restarts(ready)


async def test_a_daemon_that_answers_again_is_not_restarted(node: MpsNode) -> None:
    settings = replace(node.settings, timeout=0.5, patience=1000)
    async with node.supervised([QUARTER], settings) as supervisor:
        ready = await becomes(supervisor, Condition.READY)
        node.fault(QUARTER, "hang").touch()
        await becomes(supervisor, Condition.DOWN)
        node.fault(QUARTER, "hang").unlink()
        assert _restarts(await becomes(supervisor, Condition.READY)) == _restarts(ready)


async def test_a_daemon_that_does_not_start_is_down_with_its_output(node: MpsNode) -> None:
    node.fault(QUARTER, "refuse").parent.mkdir(parents=True)
    node.fault(QUARTER, "refuse").touch()
    async with node.supervised([QUARTER]) as supervisor:
        await becomes(supervisor, Condition.DOWN, "status 1: An instance of this daemon is already running")
        node.fault(QUARTER, "refuse").unlink()
        await becomes(supervisor, Condition.READY)


async def test_a_missing_program_is_the_reason(node: MpsNode) -> None:
    settings = replace(node.settings, program=str(node.root / "missing"))
    async with node.supervised([QUARTER], settings) as supervisor:
        await becomes(supervisor, Condition.DOWN, "missing: No such file or directory")


async def test_a_server_in_fault_is_reported_and_not_restarted(node: MpsNode) -> None:
    async with node.supervised([QUARTER]) as supervisor:
        await becomes(supervisor, Condition.READY)
        await node.control(QUARTER).send("start_server -uid 0")
        node.fault(QUARTER, "fault").touch()
        await becomes(supervisor, Condition.FAULT, "is in FAULT: a client's fault")
        node.fault(QUARTER, "fault").unlink()
        assert (await becomes(supervisor, Condition.READY)).daemons[0].restarts == 0


@pytest.mark.parametrize(
    "command",
    [
        "set_default_active_thread_percentage 100",
        "set_default_device_pinned_mem_limit 0 79000M",
        "set_active_thread_percentage SERVER 100",
        "set_device_pinned_mem_limit SERVER 0 79000M",
    ],
)
async def test_a_limit_changed_from_outside_is_set_again_in_the_daemon_and_in_its_servers(
    node: MpsNode, command: str
) -> None:
    control = node.control(QUARTER)
    async with node.supervised([QUARTER]) as supervisor:
        await becomes(supervisor, Condition.READY)
        await control.send("start_server -uid 0")
        servers = await control.servers()
        await control.send(command.replace("SERVER", str(servers[0])))
        async with asyncio.timeout(60):
            await supervisor.state.until(lambda current: current.daemons[0].corrections == 1)
        assert await control.limit_drift(QUARTER, servers) == ""


async def test_a_change_that_the_driver_rounds_away_lasts_until_the_next_probe(node: MpsNode) -> None:
    """20481 MiB and 21503 are both 20G in its answers."""
    control = node.control(QUARTER)
    async with node.supervised([QUARTER]) as supervisor:
        await becomes(supervisor, Condition.READY)
        await control.send("start_server -uid 0")
        (server,) = await control.servers()
        await control.send(f"set_device_pinned_mem_limit {server} 0 21503M")
        beat = supervisor.state.value.beat
        async with asyncio.timeout(60):
            later = await supervisor.state.until(lambda current: current.beat > beat + 0.2)
        assert await control.send(f"exact_memory {server}") == "20481M"
        assert later.daemons[0].corrections == 0


async def test_all_users_can_reach_a_daemon_for_all_users(node: MpsNode) -> None:
    settings = replace(node.settings, clients=MpsClients.ALL_USERS)
    async with node.supervised([QUARTER], settings) as supervisor:
        await becomes(supervisor, Condition.READY)
        assert (node.paths.pipe(*QUARTER.key) / "arguments").read_text() == "-f -M"
        assert node.paths.pipe(*QUARTER.key).stat().st_mode & 0o7777 == 0o1777


async def test_all_users_can_write_to_the_shared_memory_directory(node: MpsNode) -> None:
    shm = node.root / "shm"
    shm.mkdir(mode=0o755)
    async with node.supervised([QUARTER], replace(node.settings, shm=shm)) as supervisor:
        await becomes(supervisor, Condition.READY)
    assert shm.stat().st_mode & 0o7777 == 0o1777


async def test_a_second_supervisor_of_a_resource_is_refused(node: MpsNode) -> None:
    async with node.supervised([QUARTER]) as supervisor:
        await becomes(supervisor, Condition.READY)
        with pytest.raises(ConfigError, match="another process supervises the MPS daemons of"):
            await Supervisor(node.paths, [QUARTER], node.settings).run()
        await becomes(supervisor, Condition.READY)


@pytest.mark.parametrize("hangs", [False, True])
async def test_the_daemon_of_an_earlier_supervisor_is_ended_first(node: MpsNode, hangs: bool) -> None:
    control = node.control(QUARTER)
    control.pipe.mkdir(parents=True)
    control.log.mkdir(parents=True)
    left = await asyncio.create_subprocess_exec(control.program, "-f", env=control.environment, start_new_session=True)
    await _wait_for_socket(node)
    if hangs:
        node.fault(QUARTER, "hang").touch()
    async with node.supervised([QUARTER], replace(node.settings, timeout=1.0 if hangs else 60.0)) as supervisor:
        async with asyncio.timeout(60):
            assert await left.wait() == (-9 if hangs else 0)
        node.fault(QUARTER, "hang").unlink(missing_ok=True)
        await becomes(supervisor, Condition.READY)


async def test_another_process_with_the_pid_of_a_daemon_is_not_ended(node: MpsNode) -> None:
    node.paths.pipe(*QUARTER.key).mkdir(parents=True)
    other = await asyncio.create_subprocess_exec("sleep", "600", start_new_session=True)
    (node.paths.pipe(*QUARTER.key) / "nvidia-cuda-mps-control.pid").write_text(str(other.pid))
    async with node.supervised([QUARTER]) as supervisor:
        await becomes(supervisor, Condition.READY)
    assert other.returncode is None
    other.kill()
    await other.wait()


async def test_running_servers_get_the_limits(node: MpsNode) -> None:
    async with node.supervised([QUARTER], replace(node.settings, interval=3600.0)) as supervisor:
        await becomes(supervisor, Condition.READY)
        control = node.control(QUARTER)
        await control.send("start_server -uid 0")
        (server,) = await control.servers()
        await control.send(f"set_active_thread_percentage {server} 99")
        await control.set_limits(QUARTER)
        assert await control.send(f"get_active_thread_percentage {server}") == "25.0"
        assert await control.send(f"exact_memory {server}") == "20481M"


async def test_a_daemon_of_a_killed_supervisor_that_is_no_longer_planned_is_ended(node: MpsNode) -> None:
    control = node.control(OTHER)
    control.pipe.mkdir(parents=True)
    left = await asyncio.create_subprocess_exec(control.program, "-f", env=control.environment, start_new_session=True)
    await _wait_for_socket(node, OTHER)
    async with node.supervised([QUARTER]) as supervisor:
        await becomes(supervisor, Condition.READY)
        async with asyncio.timeout(60):
            assert await left.wait() == 0


async def test_compute_modes_are_not_changed_by_default(node: MpsNode) -> None:
    async with node.supervised([QUARTER]) as supervisor:
        await becomes(supervisor, Condition.READY)
    assert node.modes_set == []


async def test_compute_modes_are_restored(node: MpsNode) -> None:
    modes = {FIRST: ComputeMode.DEFAULT, SECOND: ComputeMode.EXCLUSIVE_PROCESS}
    async with node.supervised([QUARTER], exclusive=modes) as supervisor:
        await becomes(supervisor, Condition.READY)
        assert node.modes_set == [f"-i {FIRST} -c EXCLUSIVE_PROCESS"]
    assert node.modes_set[1:] == [f"-i {FIRST} -c DEFAULT"]


@pytest.mark.parametrize("mode", list(ComputeModePolicy))
async def test_compute_modes_of_a_crashed_supervisor_are_restored(node: MpsNode, mode: ComputeModePolicy) -> None:
    crashed = ResourceState(resource=node.paths.resource, modes={FIRST: ComputeMode.DEFAULT.value})
    state.write(node.paths.state, crashed)
    exclusive = {FIRST: ComputeMode.EXCLUSIVE_PROCESS} if mode is ComputeModePolicy.EXCLUSIVE else None
    async with node.supervised([QUARTER], exclusive=exclusive) as supervisor:
        await becomes(supervisor, Condition.READY)
    assert node.modes_set == [f"-i {FIRST} -c DEFAULT"]
    written = state.read(node.paths.state)
    assert written is not None
    assert written.modes == {}


async def test_no_daemon_starts_if_the_compute_mode_cannot_be_set(node: MpsNode) -> None:
    (node.root / "no-smi").touch()
    supervisor = Supervisor(node.paths, [QUARTER], node.settings)
    with pytest.raises(PluginError, match=f"cannot set the compute mode of {FIRST}"):
        await supervisor.run(ComputeModePolicy.EXCLUSIVE, {FIRST: ComputeMode.DEFAULT})
    (daemon,) = supervisor.state.value.daemons
    assert (daemon.condition, daemon.restarts) == (Condition.STOPPED, 0)
    assert "cannot set the compute mode" in daemon.reason


async def _wait_for_socket(node: MpsNode, plan: DaemonPlan = QUARTER) -> None:
    async with asyncio.timeout(60):
        while not (node.paths.pipe(*plan.key) / "control").exists():
            await asyncio.sleep(0.01)


def _restarts(known: ResourceState) -> int:
    return sum(daemon.restarts for daemon in known.daemons)


def _runs(process: int) -> bool:
    try:
        status = Path(f"/proc/{process}/status").read_text()
    except FileNotFoundError:
        return False
    return "State:\tZ" not in status
