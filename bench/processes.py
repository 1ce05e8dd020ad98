"""Child processes of the benchmark, and what /proc says about them.

`started` is the only way a process begins here, so each one is ended however the benchmark ends.
What the processes are asked to do is `scenarios`' work.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

__all__ = [
    "Memory",
    "ProcessFailed",
    "cpu_seconds",
    "memory",
    "most_rss",
    "started",
    "switches",
    "switches_between",
    "tail",
    "threads",
]

GRACE_SECONDS = 5.0
_TICKS = os.sysconf("SC_CLK_TCK")


class ProcessFailed(Exception):
    """A program under measurement, or the client, did not do its part."""

    def __init__(self, what: str, log: str = "") -> None:
        super().__init__(f"{what}\n{log}" if log else what)


@dataclass(frozen=True, slots=True)
class Memory:
    """KiB; `pss` and `uss` are None where smaps_rollup may not be read."""

    rss: int
    pss: int | None
    uss: int | None


@contextmanager
def started(
    argv: Sequence[str], log: Path, *, env: Mapping[str, str] | None = None, piped: bool = False
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program until the block is left; its stderr, and unless `piped` its stdout, go to `log`."""
    with log.open("wb") as out:
        try:
            process = subprocess.Popen(
                argv,
                stdin=subprocess.PIPE if piped else subprocess.DEVNULL,
                stdout=subprocess.PIPE if piped else out,
                stderr=out,
                env=None if env is None else dict(env),
                # Ctrl-C reaches only the benchmark, which then ends its children in order.
                start_new_session=True,
            )
        except OSError as error:
            raise ProcessFailed(f"cannot start {argv[0]}: {error.strerror}") from error
    try:
        yield process
    finally:
        _end(process, argv[0])


def _end(process: subprocess.Popen[bytes], name: str) -> None:
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with suppress(BrokenPipeError):
                pipe.close()
    if process.poll() is None:
        process.terminate()
    try:
        process.wait(GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        print(f"note: {name} did not end within {GRACE_SECONDS:.0f} s of SIGTERM and was killed", file=sys.stderr)
    # Also what the program may have started itself: the group is its own session, nobody else's.
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def tail(log: Path, lines: int = 20) -> str:
    with suppress(FileNotFoundError):
        return "\n".join(f"  | {line}" for line in log.read_text(errors="replace").splitlines()[-lines:])
    return ""


def memory(session: int) -> Memory:
    """The sum over the processes of a session: a wrapper's own memory alone would flatter what it wraps."""
    found = [_memory_of(pid) for pid in _members(session)]
    pss, uss = [one.pss for one in found if one.pss is not None], [one.uss for one in found if one.uss is not None]
    readable = len(pss) == len(found)
    return Memory(sum(one.rss for one in found), sum(pss) if readable else None, sum(uss) if readable else None)


def cpu_seconds(pid: int) -> float:
    """User and system time that one process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def most_rss(pid: int) -> float:
    """Of one process, in MiB."""
    return _fields(Path(f"/proc/{pid}/status"))["VmHWM"] / 1024


def threads(session: int) -> int:
    return sum(_fields(Path(f"/proc/{pid}/status"))["Threads"] for pid in _members(session))


def switches(session: int) -> dict[int, int]:
    """Context switches so far, voluntary and not, of each thread of each process of a session."""
    counts: dict[int, int] = {}
    for task in (task for pid in _members(session) for task in Path(f"/proc/{pid}/task").iterdir()):
        with suppress(FileNotFoundError, ProcessLookupError):  # a thread may end meanwhile
            fields = _fields(task / "status")
            counts[int(task.name)] = fields["voluntary_ctxt_switches"] + fields["nonvoluntary_ctxt_switches"]
    return counts


def switches_between(before: Mapping[int, int], after: Mapping[int, int]) -> int:
    return sum(count - before.get(thread, 0) for thread, count in after.items())


def _members(session: int) -> list[int]:
    """The live processes of a session; each program started here leads one."""
    members = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(FileNotFoundError, ProcessLookupError):
                # The name in parentheses may hold spaces; then come: state, parent, group, session.
                state, _, _, leader = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
                if int(leader) == session and state != "Z":
                    members.append(int(entry.name))
    if not members:
        raise ProcessFailed("the program ended while it was measured")
    return members


def _memory_of(pid: int) -> Memory:
    rss = _fields(Path(f"/proc/{pid}/status"))["VmRSS"]
    try:
        rollup = _fields(Path(f"/proc/{pid}/smaps_rollup"))
    except OSError:
        return Memory(rss, None, None)
    return Memory(rss, rollup["Pss"], rollup["Private_Clean"] + rollup["Private_Dirty"])


def _fields(path: Path) -> dict[str, int]:
    """The lines `Name: number [kB]` of a file in /proc."""
    found: dict[str, int] = {}
    for line in path.read_text().splitlines():
        name, _, value = line.partition(":")
        first = value.split(maxsplit=1)[:1]
        if first and first[0].isdecimal():
            found[name] = int(first[0])
    return found
