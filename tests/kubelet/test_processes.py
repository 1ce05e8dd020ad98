"""Containers as local processes: their options, their order, and nothing left behind."""

import asyncio
import json
import os
import select
import shutil
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from plugwright.errors import ContainerConfigError
from plugwright.kubelet import ContainerKind, ContainerSpec, Pod, PodSpec, sandbox
from plugwright.kubelet.events import StateChange
from plugwright.kubelet.expansion import expand_references
from plugwright.kubelet.pod_table import RunContainerOptions
from plugwright.kubelet.processes import ContainerProcess, Output, run
from plugwright.protocol.messages import DeviceSpec, MountSpec

LIMIT = 60.0  # seconds; only a test that fails waits for so long
NOTHING = RunContainerOptions(env={}, mounts=(), nodes=(), annotations={}, cdi=())
NOBODY = 65534


class Reports:
    """The events and lines that the runtime has reported so far."""

    def __init__(self) -> None:
        self.all: list[StateChange | Output] = []
        self._news = asyncio.Event()

    def __call__(self, event: StateChange | Output) -> None:
        self.all.append(event)
        self._news.set()

    @property
    def lines(self) -> list[str]:
        return [event.text for event in self.all if isinstance(event, Output)]

    def states(self, kind: str) -> list[str]:
        return [event.text for event in self.all if isinstance(event, StateChange) and event.kind == kind]

    async def line(self, number: int = 0) -> str:
        async with asyncio.timeout(LIMIT):
            while len(self.lines) <= number:
                self._news.clear()
                await self._news.wait()
        return self.lines[number]


def shell(name: str, script: str, kind: ContainerKind = ContainerKind.MAIN) -> ContainerSpec:
    return ContainerSpec(name, kind=kind, command=("sh", "-c", script))


def started(*containers: ContainerSpec, granted: RunContainerOptions = NOTHING) -> Pod:
    """A pod whose containers the kubelet has started."""
    pod = Pod(PodSpec("pod", containers))
    for container in pod.containers.values():
        container.granted = granted
    return pod


async def ended(pod: Pod) -> tuple[Mapping[str, int], Reports]:
    reports = Reports()
    async with asyncio.timeout(LIMIT):
        return await run(pod, reports), reports


@asynccontextmanager
async def running(pod: Pod, grace: float = LIMIT) -> AsyncIterator[Reports]:
    """While inside; then it is cancelled, as when the pod is removed."""
    reports = Reports()
    life = asyncio.create_task(run(pod, reports, grace))
    try:
        yield reports
    finally:
        life.cancel()
        async with asyncio.timeout(LIMIT):
            await asyncio.wait([life])
        assert life.cancelled()


async def test_the_command_finds_the_granted_environment_and_little_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "of the author's own shell")
    granted = RunContainerOptions({"TAPES": "st0"}, (), (), {}, ())
    pod = started(ContainerSpec("main", command=("sh", "-c", "echo $0; env", "got $(TAPES)")), granted=granted)
    codes, reports = await ended(pod)
    names = {line.partition("=")[0] for line in reports.lines[1:]}
    assert codes == {"main": 0}
    assert reports.lines[0] == "got st0"
    assert {"TAPES=st0", "HOSTNAME=pod"} <= set(reports.lines)
    assert names <= {"HOME", "HOSTNAME", "LANG", "PATH", "PWD", "TAPES", "TZ", "USER", "SHLVL", "_", "OLDPWD"}


async def test_what_the_dynamic_linker_says_of_a_granted_preload_is_output() -> None:
    granted = RunContainerOptions({"LD_PRELOAD": "/gone/limiter.so"}, (), (), {}, ())
    codes, reports = await ended(started(shell("main", "echo here"), granted=granted))
    assert codes == {"main": 0}
    assert "/gone/limiter.so" in reports.lines[0]
    assert reports.lines[-1] == "here"


@pytest.mark.parametrize(
    ("text", "becomes"),
    [
        ("$(A)", "1"),
        ("$(A)$(B)-", "12-"),
        ("$(C)", "$(C)"),
        ("$$(A)", "$(A)"),
        ("$A ${A} $(sh -c A)", "$A ${A} $(sh -c A)"),
    ],
)
def test_a_reference_is_expanded_as_kubernetes_does(text: str, becomes: str) -> None:
    assert expand_references(text, {"A": "1", "B": "2"}) == becomes


async def test_an_init_container_ends_before_the_next_begins() -> None:
    first = shell("first", "sleep 0.2; echo first", ContainerKind.INIT)
    _, reports = await ended(
        started(first, shell("second", "echo second", ContainerKind.INIT), shell("main", "echo main"))
    )
    assert reports.lines == ["first", "second", "main"]


async def test_nothing_starts_after_an_init_container_that_failed() -> None:
    sidecar = shell("beside", "echo beside; sleep 1000", ContainerKind.SIDECAR)
    failing = shell("failing", "exit 3", ContainerKind.INIT)
    codes, reports = await ended(started(sidecar, failing, shell("main", "echo main")))
    assert codes == {"failing": 3}
    assert "main" not in reports.lines


async def test_a_sidecar_ends_with_the_containers_it_is_for() -> None:
    sidecar = shell("beside", "sleep 1000", ContainerKind.SIDECAR)
    codes, _ = await ended(started(sidecar, shell("one", "exit 1"), shell("two", "exit 0")))
    assert codes == {"one": 1, "two": 0}


async def test_a_container_without_a_command_is_not_started() -> None:
    codes, reports = await ended(started(ContainerSpec("main")))
    assert codes == {}
    assert len(reports.states("not started")) == 1


async def test_a_container_that_waits_is_not_started() -> None:
    pod = started(shell("main", "echo never"))
    pod.containers["main"].granted = None
    assert (await ended(pod))[0] == {}


async def test_command_that_does_not_exist_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")  # in a directory that we may not search, permission would be denied
    codes, reports = await ended(started(ContainerSpec("main", command=("no-such-program",))))
    assert codes == {"main": 127}
    assert reports.lines == ["no-such-program: No such file or directory"]


async def test_environment_that_no_process_can_have_is_reported() -> None:
    codes, reports = await ended(
        started(shell("main", "echo"), granted=RunContainerOptions({"A": "\0"}, (), (), {}, ()))
    )
    assert codes == {"main": 127}
    assert reports.states("ended") == ["cannot be started: embedded null byte"]


async def test_a_line_without_an_end_is_passed_on() -> None:
    codes, reports = await ended(started(shell("main", "head -c 300000 /dev/zero | tr '\\0' x; printf '\\nlast'")))
    assert codes == {"main": 0}
    assert sum(map(len, reports.lines[:-1])) == 300_000
    assert reports.lines[-1] == "last"


async def test_a_removed_pod_takes_all_its_processes_with_it() -> None:
    async with running(started(shell("main", "sleep 1000 & echo $!; wait"))) as reports:
        child = int(await reports.line())
    assert reports.states("ended") == []  # it was not its own doing
    assert await dies(child)


async def test_a_process_that_ended_takes_its_children_with_it() -> None:
    codes, reports = await ended(started(shell("main", "sleep 1000 & echo $!")))
    assert codes == {"main": 0}
    assert await dies(int(reports.lines[0]))


async def test_process_gets_sigterm_before_sigkill() -> None:
    async with running(
        started(shell("main", "trap 'echo asked; exit' TERM; echo ready; while :; do sleep 0.01; done"))
    ) as reports:
        await reports.line()
    assert reports.lines == ["ready", "asked"]


async def test_process_that_ignores_sigterm_is_killed() -> None:
    async with running(
        started(shell("main", "trap '' TERM; echo $$$$; while :; do sleep 1; done")), grace=0.05
    ) as reports:
        stubborn = int(await reports.line())
    assert await dies(stubborn)


async def test_process_that_left_the_group_does_not_delay_the_end(tmp_path: Path) -> None:
    """It holds the pipe; a container would have taken it along, a process group cannot."""
    held = tmp_path / "held"
    os.mkfifo(held)
    codes, reports = await ended(started(shell("main", f"setsid sh -c 'echo out; cat {held}' & exec sleep 0.2")))
    held.open("w").close()
    assert codes == {"main": 0}
    assert reports.lines == ["out"]


async def test_mounts_and_device_nodes_are_where_the_plugin_wants_them(tmp_path: Path) -> None:
    (tmp_path / "facts").write_text("a tape drive")
    granted = RunContainerOptions(
        env={},
        mounts=(
            MountSpec(str(tmp_path / "facts"), "/run/plugwright-test/deep/facts", True),
            MountSpec(str(tmp_path), "/plugwright-test", False),
        ),
        nodes=(DeviceSpec("/dev/zero", "/dev/plugwright-test", "rw"),),
        annotations={},
        cdi=("example.com/tape=st0",),
    )
    script = (
        "cd /run/plugwright-test/deep; cat facts; echo; (echo no > facts) 2>/dev/null || echo kept; cd - > /dev/null; "
        "echo yes > /plugwright-test/written; head -c 2 /dev/plugwright-test | od -An -c; test -d /tmp && pwd"
    )
    codes, reports = await ended(started(shell("main", script), granted=granted))
    skip_without_namespaces(reports.states("limited"))
    assert codes == {"main": 0}
    assert reports.lines == ["a tape drive", "kept", "  \\0  \\0", str(Path.cwd())]
    assert reports.states("limited") == ["CDI devices are not applied: example.com/tape=st0"]
    assert (tmp_path / "written").read_text() == "yes\n"
    assert not any(map(os.path.lexists, ["/run/plugwright-test", "/plugwright-test", "/dev/plugwright-test"]))


async def test_path_that_cannot_be_mounted_is_reported_and_the_command_runs(tmp_path: Path) -> None:
    mounts = (MountSpec("/no/such/file", "/x", False), MountSpec(str(tmp_path), "relative", False))
    codes, reports = await ended(
        started(shell("main", "echo here"), granted=RunContainerOptions({}, mounts, (), {}, ()))
    )
    skip_without_namespaces(reports.states("limited"))
    assert codes == {"main": 0}
    assert reports.lines == ["here"]
    assert reports.states("limited") == [
        "/no/such/file does not exist on this machine",
        "path in the container must be absolute, got 'relative'",
    ]


async def test_a_user_without_rights_gets_the_same_view(tmp_path: Path) -> None:
    python = shutil.which("python3", path="/usr/bin:/usr/local/bin")
    if os.getuid() or not python:
        pytest.skip("needs root, and a python3 for everybody")
    program = tmp_path / "enclosure.py"
    program.write_text(Path(sandbox.__file__).read_text())
    open_to_all(program)
    places = json.dumps([("/dev/zero", "/dev/plugwright-test", False, sandbox.WANTED)])
    notes, *lines = await output(
        python, program, places, "", "sh", "-c", "id -u; head -c 1 /dev/plugwright-test | od -An -c", user=NOBODY
    )
    skip_without_namespaces(json.loads(notes))
    assert (json.loads(notes), lines) == ([], [str(NOBODY), "  \\0"])


async def test_command_runs_without_a_mount_namespace_too() -> None:
    if not shutil.which("unshare") or await output("unshare", "-Ur", "echo", "yes") != ["yes"]:
        pytest.skip("needs user namespaces, to take the right to mount away in one")
    places = json.dumps([("/dev/zero", "/dev/plugwright-test", False, sandbox.WANTED)])
    enclosed = [sys.executable, sandbox.__file__, places, "", "echo", "here"]
    forbid = 'echo 0 > /proc/sys/user/max_mnt_namespaces && exec "$@"'
    notes, *lines = await output("unshare", "-Ur", "sh", "-c", forbid, "sh", *enclosed)
    assert lines == ["here"]
    text = "no mounts and device nodes: a mount namespace is not permitted here (No space left on device)"
    assert json.loads(notes) == [[text, sandbox.WANTED]]


async def test_command_does_not_run_without_a_path_that_is_required(tmp_path: Path) -> None:
    paths = [(str(tmp_path / "gone"), "/plugwright-test", False, sandbox.REQUIRED)]
    process = ContainerProcess("default/p/main", "p", Reports(), paths=paths)
    with pytest.raises(ContainerConfigError, match="gone does not exist on this machine"):
        await process.run(["sh", "-c", f"touch {tmp_path}/ran"], NOTHING)
    assert not (tmp_path / "ran").exists()


async def test_command_begins_in_its_directory(tmp_path: Path) -> None:
    reports = Reports()
    assert await ContainerProcess("default/p/main", "p", reports, directory=str(tmp_path)).run(["pwd"], NOTHING) == 0
    assert reports.lines == [str(tmp_path)]


async def test_a_process_that_is_stopped_has_its_grace_period() -> None:
    reports = Reports()
    process = ContainerProcess("default/p/main", "p", reports)
    script = "trap 'echo bye; exit 3' TERM; echo ready; sleep 1000 & wait"
    run = asyncio.create_task(process.run(["sh", "-c", script], NOTHING))
    await reports.line()
    process.stop.publish(LIMIT)
    assert await run == 3
    assert reports.lines == ["ready", "bye"]


async def output(*command: object, user: int | None = None) -> list[str]:
    process = await asyncio.create_subprocess_exec(
        *map(str, command), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL, user=user, cwd="/"
    )
    async with asyncio.timeout(LIMIT):
        out, _ = await process.communicate()
    return out.decode().splitlines()


def skip_without_namespaces(notes: list[str]) -> None:
    if any("not permitted here" in note for note in notes):
        pytest.skip("; ".join(notes))


def open_to_all(path: Path) -> None:
    for directory in [path, *path.parents]:
        if directory.stat().st_uid == os.getuid() and directory != Path("/"):
            directory.chmod(directory.stat().st_mode | 0o055)


async def dies(pid: int) -> bool:
    """Whether the process ends; SIGKILL needs a moment."""
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool((await asyncio.to_thread(select.select, [process], [], [], LIMIT))[0])
    finally:
        os.close(process)
