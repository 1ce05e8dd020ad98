"""What a process may run out of: descriptors, threads, memory, inotify instances, disk."""

import os
import resource
import subprocess
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from chaos.daemon import Launch
from chaos.experiment import Cell, Experiment, Fault, Plan, Row, lost_cell
from chaos.node import FACTS, STEADY
from chaos.rig import Rig, emulated_rig

from plugwright.errors import PlugwrightError

__all__ = ["EXPERIMENTS", "FAULTS"]

_STANDARD_STREAMS = 3
_SPARE_BYTES = 1 << 20
_INSTANCES = "/proc/sys/user/max_inotify_instances"
_WITHOUT_INOTIFY = ("unshare", "--user", "--map-root-user", "sh", "-c", f'echo 0 > {_INSTANCES}; exec "$@"', "sh")
_LOOK_LIMIT = 4.0  # seconds: without inotify the directory is looked at every second
_INOTIFY_LIMIT = 40.0
_READ_AGAIN = 15.0  # seconds: GPUs that could not be read are read again after 5, then after 10


@asynccontextmanager
async def _descriptors(rig: Rig) -> AsyncIterator[None]:
    with _limited(rig.daemon.pid, resource.RLIMIT_NOFILE, _STANDARD_STREAMS):
        yield


@asynccontextmanager
async def _memory(rig: Rig) -> AsyncIterator[None]:
    """No page more than it has, nearly: a new thread's stack or a long message does not fit."""
    pid = rig.daemon.pid
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[0])
    with _limited(pid, resource.RLIMIT_AS, pages * resource.getpagesize() + _SPARE_BYTES):
        with suppress(PlugwrightError, TimeoutError, OSError):
            await rig.kubelet.allocate(FACTS, ["x" * 2_000_000])
        yield


@asynccontextmanager
async def _threads(rig: Rig) -> AsyncIterator[None]:
    if os.getuid():
        with _limited(rig.daemon.pid, resource.RLIMIT_NPROC, 1):
            yield
    else:  # the limit of a user's processes does not bind root
        with _pids_group(rig.daemon.pid):
            yield


@asynccontextmanager
async def _full_disk(rig: Rig) -> AsyncIterator[None]:
    """A file system without a free block over the state directory: cordons and device files are kept there."""
    saved = [(path, path.read_bytes()) for path in rig.node.state.glob("*.json")]
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "chaos", rig.node.state], check=True)
    try:
        for path, content in saved:
            path.write_bytes(content)
        with suppress(OSError), rig.node.state.joinpath("full").open("wb", buffering=0) as filler:
            while filler.write(b"x" * 4096):
                pass
        await _cordons_are_refused(rig)
        yield
    finally:
        subprocess.run(["umount", "--lazy", rig.node.state], check=True)


async def _cordons_are_refused(rig: Rig) -> None:
    """An answer 'cordoned' that is not on disk would be a lie after the next restart."""
    for request in ({"do": "cordon", "id": rig.free, "reason": "x"}, {"do": "uncordon", "id": rig.cordoned}):
        try:
            answer = await rig.daemon.ask({"resource": STEADY, **request})
        except PlugwrightError:
            continue
        except OSError as error:
            answer = error
        rig.broken.append(f"{request['do']} on a full disk was answered: {answer}")


async def _without_inotify(plan: Plan) -> Row:
    """From the first moment on; later there are instances again."""
    async with emulated_rig(Launch(within=_WITHOUT_INOTIFY)) as rig:
        before = await rig.baseline()
        async with rig.serving() as serving:
            truth = await rig.truth(_LOOK_LIMIT)
        await rig.kubelet.stop()
        await rig.kubelet.start()
        taken, complaint = await rig.recovery(_LOOK_LIMIT)
        subprocess.run(
            ["nsenter", "--user", "--preserve-credentials", "--target", str(rig.daemon.pid), "sh", "-c",
             f"echo 100 > {_INSTANCES}"], check=True,
        )  # fmt: skip
        late = await _seconds_until_watching(rig, plan)
        await rig.recovery(_LOOK_LIMIT)
        rig.broken += ["no inotify although there are instances again"] if late is None else []
        rig.notes += [] if late is None else [f"inotify again after {late:.0f} s"]
        watching = Counter({"anon_inode": 1, "anon_inode:inotify": 1})
        allowed = replace(before.footprint, descriptors=before.footprint.descriptors + watching)
        lost = await lost_cell(rig, replace(before, footprint=allowed))
    served = Cell(f"{serving.answered} of {serving.answered}", not serving.failures)
    truthful = Cell(f"{truth:.1f} s" if truth is not None else "no", truth is not None and truth <= 2)
    recovered = Cell(complaint or f"{taken:.1f} s: a kubelet restart is seen without inotify", not complaint)
    return Row("inotify", _TITLE_INOTIFY, served, truthful, recovered, lost)


async def _seconds_until_watching(rig: Rig, plan: Plan) -> float | None:
    """A kubelet restart gives it a reason to look; how long it may take to have an inotify instance again."""
    began = time.monotonic()
    await rig.kubelet.stop()
    await rig.kubelet.start()

    async def watches() -> bool:
        return bool(rig.daemon.footprint().descriptors["anon_inode:inotify"])

    try:
        await rig.until("it has an inotify instance", watches, 5 if plan.quick else _INOTIFY_LIMIT)
    except TimeoutError:
        return None
    return time.monotonic() - began


@contextmanager
def _limited(pid: int, kind: int, soft: int) -> Iterator[None]:
    before = resource.prlimit(pid, kind)
    resource.prlimit(pid, kind, (soft, before[1]))
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            resource.prlimit(pid, kind, before)


@contextmanager
def _pids_group(pid: int) -> Iterator[None]:
    """A control group that has no room for another thread or process."""
    hierarchy = _pids_hierarchy()
    assert hierarchy is not None
    group = hierarchy / f"plugwright-chaos-{os.getpid()}"
    home = hierarchy / _group_of(pid).lstrip("/")
    group.mkdir()
    try:
        group.joinpath("cgroup.procs").write_text(str(pid))
        group.joinpath("pids.max").write_text("1")
        yield
    finally:
        group.joinpath("pids.max").write_text("max")
        with suppress(OSError):  # it may have ended
            home.joinpath("cgroup.procs").write_text(str(pid))
        group.rmdir()


def _pids_hierarchy() -> Path | None:
    first, second = Path("/sys/fs/cgroup/pids"), Path("/sys/fs/cgroup")
    if first.joinpath("cgroup.procs").exists():
        return first
    with suppress(OSError):
        if "pids" in second.joinpath("cgroup.subtree_control").read_text().split():
            return second
    return None


def _group_of(pid: int) -> str:
    lines = [line.split(":", 2) for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines()]
    groups = {kinds: name for _, kinds, name in lines}
    return groups.get("pids", groups.get("", "/"))


def _needs_root() -> str:
    return "needs root" if os.getuid() else ""


def _needs_pids() -> str:
    return "needs a control group with the pids controller" if not os.getuid() and _pids_hierarchy() is None else ""


def _needs_user_namespace() -> str:
    done = subprocess.run([*_WITHOUT_INOTIFY, "true"], capture_output=True, check=False)
    return "needs user namespaces" if done.returncode else ""


_TITLE_INOTIFY = "inotify instances exhausted when the daemon starts"
FAULTS = (
    Fault("descriptors", "file descriptors exhausted", _descriptors),
    Fault("threads", "threads and processes exhausted", _threads, missing=_needs_pids, recovers=_READ_AGAIN),
    Fault("memory", "memory exhausted (address space at its limit)", _memory, recovers=_READ_AGAIN),
    Fault("disk", "disk full under the state directory", _full_disk, missing=_needs_root, on_real_kubelet=False),
)
EXPERIMENTS = (Experiment("inotify", _TITLE_INOTIFY, _without_inotify, _needs_user_namespace),)
