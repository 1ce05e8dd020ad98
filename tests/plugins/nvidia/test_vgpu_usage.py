"""What containers with vgpu shares use: the limiter's count, beside the driver's count of their processes."""

import asyncio
import logging
import os
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec
import pytest
from tests.plugins.nvidia.mps.node import gpu
from tests.plugins.nvidia.test_vgpu_limiter import CONTEXT, LIMIT, UUIDS, Container, built, container

from plugwright.errors import DriverGone
from plugwright.plugins.nvidia import sharing
from plugwright.plugins.nvidia.config import NvidiaShare, NvidiaVgpu, SharingStrategy
from plugwright.plugins.nvidia.driver import GpuProcess, GpuUse
from plugwright.plugins.nvidia.sharing import GpuUnit
from plugwright.plugins.nvidia.simulation import SimulatedDriver
from plugwright.plugins.nvidia.vgpu import VgpuSharing
from plugwright.plugins.nvidia.vgpu_usage import ContainerCount, GpuCount, read_limits, read_usage
from plugwright.plugins.nvidia.vgpu_watch import CountedContainer, ShareWatch
from plugwright.sdk.share_usage import ShareUsage

__all__ = ["built", "container"]  # fixtures

MIB = 2**20
MOUNT = "/usr/local/plugwright/vgpu/usage"
POD = "0e2bd2ee-5b1f-4c3a-9a40-3f2b5c2d1e0f"
UUID = UUIDS[0]


def counts(container: Container) -> list[GpuCount]:
    count = read_usage(container.root / "vgpu/usage", 2)
    assert count is not None
    return list(count.gpus)


def test_the_limiters_count_is_read_while_programs_run(container: Container) -> None:
    limits = read_limits(container.root / "vgpu/limits")
    assert limits == {UUIDS[0]: LIMIT * MIB, UUIDS[1]: 2 * LIMIT * MIB}
    assert counts(container) == [GpuCount(), GpuCount()]
    with container.program() as first, container.program() as second:
        _, number = first.ready()("allocate", "plain", 500)
        second.ready(1)
        assert first("allocate", "plain", 5000)[0] == 2
        assert first("free", number) == 0
        used = [count.used // MIB for count in counts(container)]
        assert used == [CONTEXT, CONTEXT]
        [here, there] = counts(container)
        assert here.peak is not None
        assert here.peak // MIB == CONTEXT + 500
        assert (here.refusals, there.refusals) == (1, 0)
        first.kill()
        [here, _] = counts(container)
        assert (here.used, here.refusals) == (0, 1)


def test_memory_whose_owner_has_ended_is_in_the_count(container: Container) -> None:
    with container.program() as consumer:
        consumer.ready()
        with container.program() as producer:
            code, handle = producer.ready()("ipc_export", 400)
            assert code == 0
            assert consumer("ipc_open", handle) == 0
        until(lambda: consumer("memory")[0] == LIMIT - CONTEXT - 400)
        assert counts(container)[0].used // MIB == CONTEXT + 400


def until(holds: Callable[[], bool]) -> None:
    """The test's time limit ends it."""
    while not holds():
        os.sched_yield()


@pytest.mark.parametrize("content", [b"x" * 8, b"1vwp" + b"\xff" * 100, b"\xff" * 400_000, b"\0" * 400_000])
def test_a_usage_file_that_a_tenant_has_overwritten_is_not_known(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "usage").write_bytes(content)
    assert read_usage(tmp_path / "usage", 2) is None


def test_numbers_that_a_tenant_has_made_up_are_bounded(container: Container) -> None:
    with container.program() as program:
        program.ready()
        with (container.root / "vgpu/usage").open("r+b") as file:
            file.seek(4)
            file.write(b"\xff" * 330_000)
        for count in counts(container):
            assert 0 <= count.used < 2**63


def test_a_usage_file_that_is_no_file_is_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert read_usage(tmp_path / "pipe", 1) is None
    (tmp_path / "link").symlink_to("/dev/zero")
    with pytest.raises(OSError, match="link"):
        read_usage(tmp_path / "link", 1)


def test_the_file_of_an_earlier_limiter_has_no_high_water_mark(container: Container) -> None:
    with container.program() as program:
        program.ready()
        os.truncate(container.root / "vgpu/usage", 336_016)
        assert counts(container)[0] == GpuCount(CONTEXT * MIB, None, None)


class Machine:
    """A driver's answers, and a directory in place of /proc."""

    def __init__(self, proc: Path) -> None:
        self.proc = proc
        self.uses: dict[str, GpuUse | None] = {}
        self.gone = False

    def use(self, uuid: str) -> GpuUse | None:
        if self.gone:
            raise DriverGone("unloaded")
        return self.uses.get(uuid, GpuUse(0))

    def process(self, pid: int, name: str, mount_point: str = MOUNT) -> None:
        directory = self.proc / str(pid)
        directory.mkdir(exist_ok=True)
        root = f"/lib/plugwright/vgpu/usage/{name}"
        lines = (
            "22 1 0:5 / /proc rw - proc proc rw",
            f"36 22 98:0 {root} {mount_point} rw master:1 - ext4 /dev/sda rw",
        )
        (directory / "mountinfo").write_text("\n".join(lines) + "\n")
        (directory / "cgroup").write_text(f"0::/kubepods/pod{POD.replace('-', '_')}.slice/cri-x.scope\n")

    def using(self, *processes: tuple[int, int | None], used: int | None = None) -> None:
        """Processes with MiB each."""
        known = tuple(GpuProcess(pid, None if size is None else size * MIB) for pid, size in processes)
        total = sum(process.memory or 0 for process in known) if used is None else used * MIB
        self.uses[UUID] = GpuUse(total, known)


@pytest.fixture
def node(tmp_path: Path) -> Machine:
    (tmp_path / "proc").mkdir()
    return Machine(tmp_path / "proc")


def counted(used: int = 300, limit: int = 4096, processes: int = 1) -> CountedContainer:
    return CountedContainer({UUID: limit * MIB}, ContainerCount(processes, (GpuCount(used * MIB, used * MIB, 0),)))


def looked(watch: ShareWatch, node: Machine, **containers: CountedContainer) -> dict[str, ShareUsage]:
    watch.look(lambda _: containers, node, [UUID])
    return {name: watch.usage(name)[0] for name in containers}


def test_the_driver_count_of_a_share_is_that_of_its_containers_processes(node: Machine) -> None:
    for pid, name in ((10, "a"), (11, "a"), (12, "b")):
        node.process(pid, name)
    node.using((10, 1000), (11, 500), (12, 700), (13, 9000))
    watch = ShareWatch(MOUNT, node.proc, clock=lambda: 7.0)
    found = looked(watch, node, a=counted(), b=counted())
    assert [found[name].driver for name in "ab"] == [1500 * MIB, 700 * MIB]
    assert not any(usage.incident for usage in found.values())
    assert (found["a"].at, found["a"].used, found["a"].processes) == (7.0, 300 * MIB, 1)
    assert watch.usage("c") == ()


def test_a_share_that_exceeds_its_limit_is_an_incident(node: Machine, caplog: pytest.LogCaptureFixture) -> None:
    node.process(10, "a")
    watch = ShareWatch(MOUNT, node.proc)
    node.using((10, 4096 + 32))
    assert looked(watch, node, a=counted())["a"].incidents == 0
    node.using((10, 6670))
    for _ in range(2):  # one incident for as long as it lasts
        usage = looked(watch, node, a=counted())["a"]
    assert (usage.exceeded, usage.incidents) == (True, 1)
    assert usage.incident == f"exceeds its share now: at most 6670 of 4096 MiB of {UUID}"
    node.using((10, 3000))
    usage = looked(watch, node, a=counted())["a"]
    assert (usage.exceeded, usage.incidents, usage.driver_peak) == (False, 1, 6670 * MIB)
    assert usage.incident.startswith("has exceeded its share: at most 6670")
    node.using((10, 6000))
    assert looked(watch, node, a=counted())["a"].incidents == 2
    records = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert len(records) == 2
    assert vars(records[0])["pod_uids"] == [POD]
    watch.forget("a")
    assert looked(watch, node, a=counted())["a"].incidents == 1


def test_memory_that_two_processes_have_open_counts_once(node: Machine) -> None:
    node.process(10, "a")
    node.process(11, "a")
    node.using((10, 3500), (11, 3500), used=4000)
    assert not looked(ShareWatch(MOUNT, node.proc), node, a=counted())["a"].exceeded


@pytest.mark.parametrize("memory", [None, 9000])
def test_what_the_driver_does_not_tell_is_not_known(node: Machine, memory: int | None) -> None:
    watch = ShareWatch(MOUNT, node.proc)
    if memory is None:
        node.process(10, "a")
    node.using((10, memory))  # else: a process of another PID namespace
    assert looked(watch, node, a=counted())["a"].driver is None
    assert looked(watch, node, a=counted(used=0, processes=0))["a"].driver is None
    node.gone = True
    assert looked(watch, node, a=counted())["a"].driver is None


def test_a_gpu_without_processes_is_not_used(node: Machine) -> None:
    watch = ShareWatch(MOUNT, node.proc)
    assert looked(watch, node, a=counted(used=0, processes=0))["a"].driver == 0
    assert looked(watch, node, a=counted(used=300))["a"].driver is None  # it may just have ended


@pytest.mark.parametrize(("name", "mount_point"), [("a//deleted", MOUNT), ("a", "/mnt/usage")])
def test_the_process_of_an_earlier_or_another_container_is_not_the_shares(
    node: Machine, name: str, mount_point: str
) -> None:
    node.process(10, name, mount_point)
    node.using((10, 9000))
    assert not looked(ShareWatch(MOUNT, node.proc), node, a=counted())["a"].exceeded


ENCLOSE = """
mount --make-rprivate / && mount -t tmpfs none /usr/local && mkdir -p "$(dirname "$2")" && touch "$2" &&
mount --bind "$1" "$2" && echo ready && exec cat
"""


def test_a_process_is_found_by_the_file_that_is_mounted_in_it(node: Machine, tmp_path: Path) -> None:
    usage = tmp_path / "0123456789abcdef01234567"
    usage.touch()
    command = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"])]
    with subprocess.Popen(
        [*command, "sh", "-c", ENCLOSE, "enclose", str(usage), MOUNT], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout
        if process.stdout.readline() != b"ready\n":
            pytest.skip("mount namespaces cannot be made here")
        node.using((process.pid, 5000), (os.getpid(), 100))
        watch = ShareWatch(MOUNT)
        assert looked(watch, node, **{usage.name: counted()})[usage.name].driver == 5000 * MIB
        usage.unlink()  # its name is another container's by now
        assert looked(watch, node, **{usage.name: counted()})[usage.name].driver is None
        process.kill()


async def test_a_container_that_only_evades_the_limiter_is_found(
    backend: tuple[VgpuSharing, list[GpuUnit]], node: Machine
) -> None:
    sharing_, units = backend
    mounts = {mount.container_path: mount for mount in sharing_.extras(units[:1]).mounts}
    node.process(10, Path(mounts[MOUNT].host_path).name)
    node.using((10, units[0].memory // MIB + 100))
    async with asyncio.TaskGroup() as group:
        task = group.create_task(sharing_.follow(lambda: None, node))
        while not sharing_.usage([units[0].key]):
            await asyncio.sleep(0)
        task.cancel()
    [measured] = sharing_.usage([units[0].key])
    assert (measured.used, measured.exceeded, measured.incidents) == (0, True, 1)


@pytest.fixture
def backend(node: Machine, tmp_path: Path) -> tuple[VgpuSharing, list[GpuUnit]]:
    vgpu = NvidiaVgpu(builtin=str(tmp_path / "artefact"), root=str(tmp_path / "vgpu"))
    (tmp_path / "artefact").mkdir()
    for soname in ("libcuda.so.1", "libnvidia-ml.so.1"):
        (tmp_path / "artefact" / soname).write_text(soname)
    share = NvidiaShare(by=SharingStrategy.VGPU, replicas=4, vgpu=vgpu)
    backend = VgpuSharing("nvidia.com/vgpu", share, node.proc, pause=0.001)
    return backend, backend.units([sharing.whole_device(msgspec.structs.replace(gpu(0), uuid=UUID))])


async def test_a_container_is_measured_from_its_first_count_until_its_share_is_another_ones(
    backend: tuple[VgpuSharing, list[GpuUnit]], node: Machine
) -> None:
    sharing_, units = backend
    pair = [unit.key for unit in units[:2]]
    usage = Path({mount.container_path: mount for mount in sharing_.extras(units[:2]).mounts}[MOUNT].host_path)
    node.process(10, usage.name)
    node.using((10, 700))
    task = asyncio.create_task(sharing_.follow(lambda: None, node))
    try:
        usage.write_bytes(b"it has been opened")
        while not sharing_.usage(pair):
            await asyncio.sleep(0)
        [measured] = sharing_.usage(pair)
        assert (measured.of, measured.limit, measured.driver) == (
            UUID,
            sum(unit.memory for unit in units[:2]),
            700 * MIB,
        )
        assert measured.used is None  # the file is not the limiter's
        assert sharing_.usage(pair[:1]) == ()
        sharing_.release(pair)
        while sharing_.usage(pair):
            await asyncio.sleep(0)
    finally:
        task.cancel()


def test_a_simulated_machine_has_the_processes_that_a_command_gives_it() -> None:
    driver = SimulatedDriver("t4")
    uuid = driver.read().gpus[0].uuid
    arguments: Mapping[str, str] = {"id": "0", "pid": "7", "mib": "300"}
    assert driver.inject("process", arguments) == f"process 7 uses 300 MiB of {uuid}"
    assert driver.use(uuid) == GpuUse(300 * MIB, (GpuProcess(7, 300 * MIB),))
    driver.inject("process", {**arguments, "mib": "0"})
    assert driver.use(uuid) == GpuUse(0)
