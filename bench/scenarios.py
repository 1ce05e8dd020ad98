"""What is measured: one program, one client, one temporary kubelet directory per scenario.

Each scenario returns plain numbers by name; how often it runs is `run`'s work, what the numbers mean is `table`'s.
"""

import os
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench.client import Client, Events, number
from bench.empty_node import empty_node
from bench.processes import ProcessFailed, memory, started, switches, switches_between, threads

from plugwright.protocol.checkpoint import Checkpoint, PodDevicesEntry, encode
from plugwright.protocol.paths import KubeletPaths

__all__ = ["OURS", "Plan", "Program", "Sample", "allocate_times", "parse_program", "scenarios"]

Sample = dict[str, float]
Scenario = Callable[[Client], Sample]
BASE_COUNT = 10
SETTLE_SECONDS = 1.0
STEADY_SECONDS = 12.0  # after which a daemon no longer watches its own start
CHECKPOINT_ENTRIES = 2_100  # about 0.9 MB


@dataclass(frozen=True, slots=True)
class Program:
    """A plugin to measure; `{dir}`, `{kubelet-dir}`, `{config}` and `{count}` in it are filled in for each run."""

    name: str
    argv: tuple[str, ...]
    config: str = ""  # instead of mock devices; `{root}` in it is the temporary directory

    @property
    def scales(self) -> bool:
        """Whether it can be told how many devices to offer."""
        return self.is_configured or any("{count}" in word for word in self.argv)

    @property
    def is_configured(self) -> bool:
        """Whether it reads the configuration."""
        return any("{config}" in word for word in self.argv)

    def filled(self, root: Path, count: int) -> list[str]:
        values = {
            "{dir}": str(root / "device-plugins"),
            "{kubelet-dir}": str(root),
            "{config}": str(root / "config.yaml"),
            "{count}": str(count),
        }
        return [_fill(word, values) for word in self.argv]


OURS = Program("ours", (sys.executable, "-m", "plugwright", "run", "-c", "{config}", "--kubelet-dir", "{kubelet-dir}"))


@dataclass(frozen=True, slots=True)
class Plan:
    """How much of everything one repeat measures."""

    calls: int
    restarts: int
    restart_seconds: float
    idle_seconds: float
    lists: tuple[int, ...]
    resources: int  # of one daemon


@dataclass(frozen=True, slots=True)
class Session:
    """A registered plugin, and the client that speaks to it."""

    pid: int
    events: Events
    start_ms: float


def parse_program(name: str, command: str) -> Program:
    return Program(name, tuple(shlex.split(command)))


def scenarios(plan: Plan, program: Program) -> dict[str, Scenario]:
    """The scenarios of one repeat by name, in their order."""
    found: dict[str, Scenario] = {
        "serving": partial(_serving, plan, program),
        "idle": partial(_idling, plan, program),
        "restarts": partial(_restarts, plan, program),
    }
    if program.scales:
        found |= {f"{count:,} devices": partial(_listing, program, count) for count in plan.lists}
    if program.is_configured:
        found[f"{plan.resources} resources"] = partial(_many_resources, plan, program)
    return found


def allocate_times(program: Program, client: Client, calls: int) -> Sample:
    """Of one start of the program; `limiter` in its directory has files in place of the vGPU limiter's libraries."""
    with _session(program, client, BASE_COUNT, ["-calls", str(calls)]) as session:
        session.events.expect("list")
        allocate = session.events.expect("allocate")
        return {f"allocate_{rank}_us": number(allocate, rank) for rank in ("p50", "p90", "p99", "max")}


def _serving(plan: Plan, program: Program, client: Client) -> Sample:
    """Start, list, Allocate calls, then memory with the stream open."""
    with _session(program, client, BASE_COUNT, ["-calls", str(plan.calls)]) as session:
        sample = {"start_ms": session.start_ms}
        sample["list_first_us"] = number(session.events.expect("list"), "us")
        allocate = session.events.expect("allocate")
        sample |= {f"allocate_{rank}_us": number(allocate, rank) for rank in ("p50", "p90", "p99", "max")}
        session.events.expect("holding")
        _idle(session, SETTLE_SECONDS)
        sample |= _memory_of(session.pid, "serving")
        sample["threads"] = threads(session.pid)
    return sample


def _idling(plan: Plan, program: Program, client: Client) -> Sample:
    """The stream open and nothing allocated: after an allocation a daemon may have to ask who got it."""
    with _session(program, client, BASE_COUNT, []) as session:
        session.events.expect("list")
        session.events.expect("holding")
        _idle(session, STEADY_SECONDS)
        before = switches(session.pid)
        _idle(session, plan.idle_seconds)
        return {"idle_switches": switches_between(before, switches(session.pid))}


def _restarts(plan: Plan, program: Program, client: Client) -> Sample:
    flags = ["-restarts", str(plan.restarts), "-budget", f"{plan.restart_seconds}s"]
    with _session(program, client, BASE_COUNT, flags) as session:
        session.events.expect("list")
        event = session.events.expect("restarts")
        session.events.expect("holding")
        _idle(session, SETTLE_SECONDS)
        sample = {f"restart_{rank}_ms": number(event, rank) / 1000 for rank in ("p50", "p99", "max")}
        return sample | {"restart_count": number(event, "count")} | _memory_of(session.pid, "restarted")


def _listing(program: Program, count: int, client: Client) -> Sample:
    with _session(program, client, count, []) as session:
        event = session.events.expect("list")
        if event["devices"] != count:
            raise ProcessFailed(f"{program.name} listed {event['devices']} devices first, not {count}")
        session.events.expect("holding")
        _idle(session, SETTLE_SECONDS)
        return {
            f"list_{count}_ms": number(event, "us") / 1000,
            f"list_{count}_start_ms": session.start_ms,
            **_memory_of(session.pid, f"list_{count}"),
        }


def _many_resources(plan: Plan, program: Program, client: Client) -> Sample:
    """The start on a node that is full of pods: until the last of the resources is registered."""
    flags = ["-registrations", str(plan.resources)]
    with _session(program, client, BASE_COUNT, flags, resources=plan.resources) as session:
        return {"many_resources_start_ms": session.start_ms}


def _config(count: int, resources: int) -> str:
    entries = [f"  - name: mock/gpu-{number}\n    mock: {{count: {count}}}\n" for number in range(resources)]
    return "".join(["resources:\n", *entries])


def _checkpoint() -> bytes:
    """As a kubelet writes it on a node where other plugins' devices are allocated."""
    devices, answer = {-1: ("device-0", "device-1")}, b"x" * 180
    entries = tuple(
        PodDevicesEntry(f"00000000-0000-4000-8000-{number:012}", "main", "example.com/other", devices, answer)
        for number in range(CHECKPOINT_ENTRIES)
    )
    return encode(Checkpoint(entries, {"example.com/other": ("device-0", "device-1")}))


@contextmanager
def _session(
    program: Program, client: Client, count: int, flags: Sequence[str], *, resources: int = 1
) -> Iterator[Session]:
    """The client's socket is there before the program starts; both are gone when the block is left.

    With several `resources` there is a checkpoint too.
    """
    with tempfile.TemporaryDirectory(prefix="pwb-") as name:
        root = Path(name)
        plugins = root / "device-plugins"
        plugins.mkdir()
        (root / "config.yaml").write_text(program.config.replace("{root}", name) or _config(count, resources))
        (root / "limiter").mkdir()
        for library in ("libcuda.so.1", "libnvidia-ml.so.1"):
            (root / "limiter" / library).write_bytes(bytes(100_000))
        if resources > 1:
            KubeletPaths(root, plugins).checkpoint.write_bytes(_checkpoint())
        client_log, program_log = root / "client.log", root / "program.log"
        argv = [*client.argv, "-dir", str(plugins), "-hold", "600s", *flags]
        with (
            empty_node(KubeletPaths(root, plugins).pod_resources_socket),
            started(argv, client_log, piped=True) as kubelet,
        ):
            events = Events(kubelet, client_log)
            events.expect("listening")
            began = time.monotonic_ns()
            with started(program.filled(root, count), program_log, env=_environment(root)) as process:
                events.watch(program.name, process, program_log)
                registered = number(events.expect("registered"), "at_ns")
                yield Session(process.pid, events, (registered - began) / 1e6)


def _idle(session: Session, seconds: float) -> None:
    time.sleep(seconds)
    session.events.still_running()


def _environment(root: Path) -> dict[str, str]:
    return {
        **os.environ,
        "PLUGWRIGHT_CONTROL_SOCKET": str(root / "control.sock"),
        "PLUGWRIGHT_STATE_DIR": str(root / "state"),
    }


def _memory_of(pid: int, prefix: str) -> Sample:
    now = memory(pid)
    kinds = {"rss": now.rss, "pss": now.pss, "uss": now.uss}
    return {f"{prefix}_{kind}_mib": kib / 1024 for kind, kib in kinds.items() if kib is not None}


def _fill(word: str, values: dict[str, str]) -> str:
    for placeholder, value in values.items():
        word = word.replace(placeholder, value)
    return word
