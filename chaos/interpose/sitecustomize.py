"""Ends the daemon's process at its Nth change of a file: Python loads this module by its name, from PYTHONPATH.

Every creation, write, sync, renaming and removal below CHAOS_ROOT is a step; a write is two, the second after half of
it. CHAOS_KILL_AT is the step that is not survived (0: none). CHAOS_STEPS is a file that lists the steps.
"""

import os
import signal
import stat
import sys
import threading
from collections.abc import Callable
from typing import Any

__all__: list[str] = []

_ROOT, _KILL_AT = os.environ.get("CHAOS_ROOT", ""), int(os.environ.get("CHAOS_KILL_AT", "0"))
_STEPS = os.environ.get("CHAOS_STEPS", "")
_EVENTS = (
    "open",
    "socket.bind",
    "os.rename",
    "os.remove",
    "os.mkdir",
    "os.rmdir",
    "os.link",
    "os.symlink",
    "os.chmod",
    "os.truncate",
)
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT


def _install() -> None:
    count, lock = 0, threading.Lock()
    write, fsync = os.write, os.fsync
    listing = os.open(_STEPS, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600) if _STEPS else -1

    def step(name: str) -> None:
        nonlocal count
        with lock:
            count += 1
            if listing >= 0:
                write(listing, f"{name}\n".encode())
            if count == _KILL_AT:
                os.kill(os.getpid(), signal.SIGKILL)

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if path := _changed(event, arguments):
            step(f"{event} {path}")

    def write_in_halves(descriptor: int, data: Any) -> int:
        if not _is_file(descriptor):
            return write(descriptor, data)
        step("write")
        half = write(descriptor, bytes(data)[: max(1, len(data) // 2)])
        step("half written")
        return half

    def counted_fsync(descriptor: Any) -> None:
        step("fsync")
        fsync(descriptor)

    sys.addaudithook(hook)
    _replace("write", write_in_halves)
    _replace("fsync", counted_fsync)


def _changed(event: str, arguments: tuple[Any, ...]) -> str:
    """What an audit event changes, empty if it changes nothing of ours."""
    if event == "open" and not arguments[2] & _WRITES:
        return ""
    if event in _EVENTS:
        path = arguments[1 if event == "socket.bind" else 0]
        return str(path) if _is_ours(path) else ""
    return ""


def _replace(name: str, function: Callable[..., object]) -> None:
    setattr(os, name, function)


def _is_ours(path: object) -> bool:
    return isinstance(path, str | os.PathLike) and os.fspath(path).startswith(_ROOT)


def _is_file(descriptor: int) -> bool:
    return stat.S_ISREG(os.fstat(descriptor).st_mode)


if _ROOT:
    _install()
