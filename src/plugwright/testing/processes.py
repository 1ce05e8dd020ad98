"""A plugin in any language, run as a process against an emulated kubelet."""

import asyncio
import os
import shlex
import signal
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from pathlib import Path

from plugwright.errors import ConfigError, PluginError
from plugwright.kubelet import Kubelet
from plugwright.protocol.paths import KubeletPaths
from plugwright.system.concurrency import first
from plugwright.system.latest import Signal
from plugwright.testing import harness

__all__ = ["PluginProcess", "plugin_process"]

_STOP_LIMIT = 10.0  # seconds between SIGTERM and SIGKILL
_SHOWN = 100  # characters of a command or of output in a message


class PluginProcess(asyncio.SubprocessProtocol):
    """A plugin's process; `output` is its output so far on both streams."""

    def __init__(self, command: Sequence[str]) -> None:
        self.command = tuple(command)
        self.pid = 0
        self._transport: asyncio.SubprocessTransport | None = None
        self._written = bytearray()
        self._changed = Signal()
        self._closed = False

    @property
    def output(self) -> str:
        return self._written.decode(errors="replace")

    @property
    def returncode(self) -> int | None:
        """None while it runs; negative after a signal."""
        return self._transport.get_returncode() if self._transport else None

    async def until(self, text: str) -> None:
        """Waits until `text` is in the output; raises `PluginError` if the process ends before."""
        await self._changed.until(lambda: self._closed or text in self.output)
        if text not in self.output:
            raise PluginError(f"{self} ended with {self.ending} and never wrote {text!r}")

    async def ends(self) -> int:
        """Waits until the process ends; returns its `returncode`."""
        await self._changed.until(lambda: self._closed)
        return self.returncode or 0

    async def stop(self, number: signal.Signals = signal.SIGTERM, limit: float = _STOP_LIMIT) -> int:
        """Sends a signal to the process group and waits for the end; after `limit` seconds sends SIGKILL."""
        self._send(number)
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(limit):
                    await self.ends()
        finally:  # up to Python 3.11.2 a timeout in a task that is being cancelled raises CancelledError
            if not self._closed:
                self._send(signal.SIGKILL)
            await self.ends()
        return self.returncode or 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.SubprocessTransport)
        self.pid, self._transport = transport.get_pid(), transport

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        self._written += data
        self._changed.notify()

    def process_exited(self) -> None:
        # Its children can hold the pipe open indefinitely, and nothing else would end them.
        self._send(signal.SIGKILL)

    def connection_lost(self, exc: Exception | None) -> None:
        assert self._transport is not None
        self._transport.close()
        self._closed = True
        self._changed.notify()

    def __str__(self) -> str:
        return f"`{shlex.join(self.command):.{_SHOWN}}`"

    @property
    def ending(self) -> str:
        """The exit status and the last line of output."""
        lines = self.output.split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "no output")
        return f"status {self.returncode} ({last})"

    def _send(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.pid, number)


@asynccontextmanager
async def plugin_process(
    kubelet: Kubelet, command: Sequence[str | Path], *resources: str, env: Mapping[str, str] | None = None
) -> AsyncIterator[PluginProcess]:
    """Runs `command` while inside; yields once the kubelet has a list of each resource, or of any if none is given.

    `{dir}` in an argument or a value of `env` is the device-plugins directory, `{root}` the kubelet's, `{socket}` its
    registration socket. Raises `PluginError` if the plugin ends or no list arrives within the kubelet's `timeout`.
    """
    __tracebackhide__ = True
    arguments = [_fill_in(str(argument), kubelet.paths) for argument in command]
    async with aclosing(kubelet.events(new=True)) as events:
        process = await _start(arguments, _environment(kubelet.paths, env or {}))
        try:
            listed: set[str] = set()
            with suppress(TimeoutError):
                async with asyncio.timeout(kubelet.settings.timeout):
                    await first(harness.until_listed(events, resources, listed), process.ends())
            _check_listed(process, resources, listed, kubelet.settings.timeout)
            yield process
        finally:
            await process.stop()
            sys.stderr.write(process.output)  # pytest shows it with a failing test


def _check_listed(process: PluginProcess, resources: Sequence[str], listed: set[str], timeout: float) -> None:
    __tracebackhide__ = True
    if listed and listed.issuperset(resources):
        return
    missing = ", ".join(sorted({*resources} - listed)) or "any resource"
    if process.returncode is not None:
        raise PluginError(f"{process} ended before it listed {missing}, with {process.ending}")
    raise PluginError(f"{process} did not list {missing} within {timeout:g} s; it wrote {process.output[-_SHOWN:]!r}")


async def _start(command: Sequence[str], environment: Mapping[str, str]) -> PluginProcess:
    __tracebackhide__ = True
    loop = asyncio.get_running_loop()
    try:
        _, process = await loop.subprocess_exec(
            lambda: PluginProcess(command),
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.STDOUT,
            env=environment,
            start_new_session=True,  # a separate process group, so that its children end with it
        )
    except OSError as error:
        raise ConfigError(f"cannot start `{shlex.join(command):.{_SHOWN}}`: {error.strerror}") from None
    return process


def _environment(paths: KubeletPaths, variables: Mapping[str, str]) -> dict[str, str]:
    """The test's environment, with the variables by which plugins of the SDK find the kubelet."""
    ours = {"PLUGWRIGHT_KUBELET_DIR": str(paths.root), "PLUGWRIGHT_DEVICE_PLUGINS_DIR": str(paths.device_plugins)}
    return {**os.environ, **ours, **{name: _fill_in(value, paths) for name, value in variables.items()}}


def _fill_in(text: str, paths: KubeletPaths) -> str:
    placeholders = {"{dir}": paths.device_plugins, "{root}": paths.root, "{socket}": paths.kubelet_socket}
    for name, path in placeholders.items():
        text = text.replace(name, str(path))
    return text
