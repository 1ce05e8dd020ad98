"""What happens to the process as a whole: it is stopped, nobody reads its log, its clock jumps."""

import asyncio
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from chaos.daemon import Launch
from chaos.experiment import NOT_ASKED, Cell, Experiment, Fault, Plan, Row
from chaos.node import STEADY
from chaos.rig import Rig, emulated_rig

from plugwright.errors import PlugwrightError

__all__ = ["EXPERIMENTS", "FAULTS"]

_LIBRARY = "libfaketime.so.1"
_JUMPS = ("-86400", "+315360000", "+0")  # seconds: a day back, ten years on
_NOTICED = 1.2  # seconds until the library has read the new time
_FILLS_A_PIPE = 1000  # lines of Allocate calls
_STOP_LIMIT = 1.0


@asynccontextmanager
async def _stopped(rig: Rig) -> AsyncIterator[None]:
    rig.daemon.send(signal.SIGSTOP)
    try:
        yield
    finally:
        rig.daemon.send(signal.SIGCONT)


@asynccontextmanager
async def _unread_log(rig: Rig) -> AsyncIterator[None]:
    log = rig.daemon.log
    assert log is not None
    log.block()
    try:
        rig.notes.append(f"{await _fill_pipe(rig)} unread log lines")
        yield
    finally:
        log.unblock()


async def _fill_pipe(rig: Rig) -> int:
    """Each Allocate is a line of the log; how many were answered."""
    answered = 0
    with suppress(TimeoutError, PlugwrightError):
        for _ in range(_FILLS_A_PIPE):
            async with asyncio.timeout(2):
                await rig.kubelet.allocate(STEADY, [rig.free])
            answered += 1
    if answered < _FILLS_A_PIPE:
        rig.broken.append(f"Allocate number {answered + 1} hung")
    return answered


@asynccontextmanager
async def _clock(rig: Rig) -> AsyncIterator[None]:
    """A day back, then ten years on. Only the wall clock: nothing sets the monotonic one."""
    shift = rig.node.root / "clock"
    try:
        shift.write_text(_JUMPS[0])
        await asyncio.sleep(_NOTICED)
        await _restart_kubelet(rig)
        shift.write_text(_JUMPS[1])
        await asyncio.sleep(_NOTICED)
        yield
    finally:
        shift.write_text(_JUMPS[2])


async def _restart_kubelet(rig: Rig) -> None:
    """Registering looks at the age of sockets; in it, Allocate finds no plugin for a moment."""
    await rig.kubelet.stop()
    await rig.kubelet.start()
    taken, complaint = await rig.recovery(5)
    rig.broken += [f"a day back: {complaint} after {taken:.0f} s"] if complaint else []


async def _sigterm_while_log_is_unread(_: Plan) -> Row:
    async with emulated_rig() as rig:
        log = rig.daemon.log
        assert log is not None
        log.block()
        answered = await _fill_pipe(rig)
        began = time.monotonic()
        rig.daemon.send(signal.SIGTERM)
        ended = await rig.daemon.ended(8)
        taken = time.monotonic() - began
        code = rig.daemon.code
        log.unblock()
    served = Cell(f"{answered} of {_FILLS_A_PIPE}", answered == _FILLS_A_PIPE)
    stopped = Cell(
        f"ended after {taken:.1f} s with {code}" if ended else "not within 8 s", ended and taken < _STOP_LIMIT
    )
    return Row("log-sigterm", _TITLE_SIGTERM, served, NOT_ASKED, stopped, NOT_ASKED)


def _needs_faketime() -> str:
    return "" if _faketime() else "needs libfaketime (apt-get install libfaketime)"


def _faketime() -> str:
    found = [str(path) for path in Path("/usr/lib").glob(f"*/faketime/{_LIBRARY}")]
    return found[0] if found else ""


def _with_clock() -> Launch:
    """`{root}` is the rig's directory. File times stay true, as they are the kernel's."""
    variables = {
        "LD_PRELOAD": _faketime(),
        "FAKETIME_TIMESTAMP_FILE": "{root}/clock",
        "FAKETIME_CACHE_DURATION": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "NO_FAKE_STAT": "1",
    }
    return Launch(environment=variables if _faketime() else {})


_TITLE_SIGTERM = "SIGTERM while the log is not read"
FAULTS = (
    Fault("stop", "stopped for a minute (SIGSTOP)", _stopped, 60, 3, serves=False, truthful=False),
    Fault("log", "the log is not read (its pipe is full)", _unread_log),
    Fault("clock", "the clock is set back a day, then on ten years", _clock, serves=False, missing=_needs_faketime,
          launch=_with_clock(), in_soak=False, on_real_kubelet=False),
)  # fmt: skip
EXPERIMENTS = (Experiment("log-sigterm", _TITLE_SIGTERM, _sigterm_while_log_is_unread),)
