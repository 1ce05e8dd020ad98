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
from plugwright.system.concurrency import Latest, first
from plugwright.testing import harness

__all__ = ["PluginProcess", "plugin_process"]

_STOP_LIMIT = 10.0  # seconds between SIGTERM and SIGKILL
_SHOWN = 100  # of a command in a message


class PluginProcess(asyncio.SubprocessProtocol):
    """A running plugin; `output` is what it wrote so far, both streams together."""

    def __init__(self, command: Sequence[str]) -> None:
        self.command = tuple(command)
        self.pid = 0
        self._transport: asyncio.SubprocessTransport | None = None
        self._written = bytearray()
        self._news = Latest(0)
        self._closed = False

    @property
    def output(self) -> str:
        return self._written.decode(errors="replace")

    @property
    def returncode(self) -> int | None:
        """None while it runs; negative for a signal."""
        return self._transport.get_returncode() if self._transport else None

    async def until(self, text: str) -> None:
        """Waits until `text` is in the output; raises `PluginError` if the plugin ends without."""
        await self._news.until(lambda _: self._closed or text in self.output)
        if text not in self.output:
            raise PluginError(f"{self} ended with {self.ending} and never wrote {text!r}")

    async def ends(self) -> int:
        """Waits for its end; returns its `returncode`."""
        await self._news.until(lambda _: self._closed)
        return self.returncode or 0

    async def stop(self, number: signal.Signals = signal.SIGTERM, limit: float = _STOP_LIMIT) -> int:
        """Sends a signal to it and to what it has started, and waits for its end; after `limit` seconds SIGKILL."""
        self._send(number)
        try:
            async with asyncio.timeout(limit):
                return await self.ends()
        except TimeoutError:
            self._send(signal.SIGKILL)
            return await self.ends()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.SubprocessTransport)
        self.pid, self._transport = transport.get_pid(), transport

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        self._written += data
        self._tell()

    def process_exited(self) -> None:
        # What it has started may hold the pipe open for ever, and nobody else would end it.
        self._send(signal.SIGKILL)

    def connection_lost(self, exc: Exception | None) -> None:
        assert self._transport is not None
        self._transport.close()
        self._closed = True
        self._tell()

    def __str__(self) -> str:
        return f"`{shlex.join(self.command):.{_SHOWN}}`"

    @property
    def ending(self) -> str:
        """How it ended, with its last line."""
        lines = self.output.split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "no output")
        return f"status {self.returncode} ({last})"

    def _send(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def _tell(self) -> None:
        self._news.publish(self._news.value + 1)


@asynccontextmanager
async def plugin_process(
    kubelet: Kubelet, command: Sequence[str | Path], *resources: str, env: Mapping[str, str] | None = None
) -> AsyncIterator[PluginProcess]:
    """Runs `command` while inside; yields once the kubelet has a list of each resource, or of any if none is named.

    `{dir}` in an argument or a value of `env` is the device-plugins directory, `{root}` the kubelet's, `{socket}` its
    registration socket. Raises `PluginError` where the plugin ends, or no list comes within the kubelet's patience.
    """
    __tracebackhide__ = True
    filled = [_filled(str(argument), kubelet.paths) for argument in command]
    async with aclosing(kubelet.events(new=True)) as events:
        process = await _start(filled, _environment(kubelet.paths, env or {}))
        try:
            seen: set[str] = set()
            with suppress(TimeoutError):
                async with asyncio.timeout(kubelet.settings.timeout):
                    await first(harness.until_listed(events, resources, seen), _ended(process))
            _check(process, resources, seen, kubelet.settings.timeout)
            yield process
        finally:
            await process.stop()
            sys.stderr.write(process.output)  # pytest shows it with a test that fails


def _check(process: PluginProcess, resources: Sequence[str], seen: set[str], patience: float) -> None:
    __tracebackhide__ = True
    if seen and seen.issuperset(resources):
        return
    missing = ", ".join(sorted({*resources} - seen)) or "any resource"
    if process.returncode is not None:
        raise PluginError(f"{process} ended before it listed {missing}, with {process.ending}")
    raise PluginError(f"{process} did not list {missing} within {patience:g} s; it wrote {process.output[-_SHOWN:]!r}")


async def _ended(process: PluginProcess) -> None:
    await process.ends()


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
            start_new_session=True,  # a process group of its own, to end what it starts together with it
        )
    except OSError as error:
        raise ConfigError(f"cannot start `{shlex.join(command):.{_SHOWN}}`: {error.strerror}") from None
    return process


def _environment(paths: KubeletPaths, given: Mapping[str, str]) -> dict[str, str]:
    """That of the test, where plugins of our SDK find the kubelet by themselves."""
    ours = {"PLUGWRIGHT_KUBELET_DIR": str(paths.root), "PLUGWRIGHT_DEVICE_PLUGINS_DIR": str(paths.device_plugins)}
    return {**os.environ, **ours, **{name: _filled(value, paths) for name, value in given.items()}}


def _filled(text: str, paths: KubeletPaths) -> str:
    places = {"{dir}": paths.device_plugins, "{root}": paths.root, "{socket}": paths.kubelet_socket}
    for name, path in places.items():
        text = text.replace(name, str(path))
    return text
