"""Code relying on undocumented behaviour of CPython.

`tests/system/test_cpython.py` tests each function on every supported version. The daemon loads this module before
asyncio, to hide ssl from asyncio; therefore this module must not import asyncio.
"""

import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context
from functools import cache, partial
from importlib import import_module
from types import ModuleType
from typing import TypeVar

__all__ = ["allow_ssl", "leave_out_ssl", "leave_out_typing_extensions", "sha256", "start_before_3_12", "start_thread"]

T = TypeVar("T")


def start_before_3_12(asyncio: ModuleType, loop: object, make_task: Callable[[], T]) -> T:
    """Runs a new task until it has to wait, as eager tasks do from Python 3.12 on: 15 % of an Allocate call's time.

    A new task schedules its first step for the next turn of the loop. This function runs the step immediately.
    """
    steps: list[Callable[[], object]] = []

    def call_soon(step: Callable[[], object], *, context: Context) -> None:
        steps.append(partial(context.run, step))

    try:
        vars(loop)["call_soon"] = call_soon
    except TypeError:  # a loop that is not written in Python
        return make_task()
    try:
        task = make_task()
    finally:
        del vars(loop)["call_soon"]
    outer = asyncio.current_task(loop)
    if outer is not None:
        asyncio._leave_task(loop, outer)
    try:
        steps[0]()
    finally:
        if outer is not None:
            asyncio._enter_task(loop, outer)
    return task


def start_thread(name: str, work: Callable[[], None]) -> threading.Thread:
    """Starts a daemon thread without waiting for it to run; RuntimeError if the system allows no more threads.

    Thread.start() waits for a signal of the thread. A thread without memory, or started while the interpreter exits,
    never sends it, and the caller, usually the event loop, would wait indefinitely.
    """
    thread = threading.Thread(target=work, name=name, daemon=True)
    vars(thread)["_started"] = _Unawaited()
    thread.start()
    return thread


class _Unawaited(threading.Event):
    def wait(self, timeout: float | None = None) -> bool:
        return super().wait(0 if timeout is None else timeout)


def leave_out_ssl() -> None:
    """Makes `import ssl` fail. asyncio does without it, and a daemon with unix sockets alone saves 4 MiB."""
    sys.modules.setdefault("ssl", None)  # type: ignore[arg-type]  # None makes an import fail


def allow_ssl() -> None:
    """Takes leave_out_ssl() back; to be called before loading the first module with ssl."""
    if sys.modules.get("ssl", sys) is None:
        for name in ("ssl", "http.client", "urllib.request"):  # the last two can be loaded without it
            sys.modules.pop(name, None)


def leave_out_typing_extensions() -> None:
    """Loads msgspec without typing_extensions, which it prefers to `typing`: saves 0.3 MiB and 10 ms of the start.

    Later, other modules can load typing_extensions.
    """
    if not sys.modules.keys().isdisjoint({"msgspec", "typing_extensions"}):
        return
    sys.modules["typing_extensions"] = None  # type: ignore[assignment]
    try:
        import_module("msgspec")
    finally:
        del sys.modules["typing_extensions"]


def sha256(content: bytes) -> str:
    """The digest printed by `sha256sum`, without hashlib, which loads OpenSSL: 4 MiB."""
    return str(_sha256_module().sha256(content).hexdigest())


@cache
def _sha256_module() -> ModuleType:
    """Searched for once: to look for a missing module takes longer than a digest."""
    for name in ("_sha2", "_sha256", "hashlib"):
        with suppress(ImportError):
            return import_module(name)
    raise AssertionError("no SHA-256 in this Python")
