"""Container logs of an emulated node: a file for every run of a container as a process, in the format of the CRI.

A file of size `largest` is renamed and one such file is kept, so a container never fills the disk. Readers following a
log wait for its writer's next line; each has its own file handle and no task. An unstarted container writes nothing:
its log is `options_text`, its settings from its devices.
"""

import asyncio
import os
import shutil
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import aclosing, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import BinaryIO

from plugwright.apiserver import clock
from plugwright.apiserver.clock import Clock
from plugwright.apiserver.errors import bad_request
from plugwright.apiserver.log_options import LogOptions
from plugwright.apiserver.store import Object
from plugwright.kubelet.pod_table import RunContainerOptions
from plugwright.system.latest import Signal

__all__ = [
    "ContainerLogWriter",
    "ContainerLogs",
    "LogName",
    "attempt_to_read",
    "lines_of_text",
    "options_text",
]

_LARGEST = 10 * 2**20  # the size at which a kubelet rotates a log
_SLICE = 2**16


@dataclass(frozen=True, slots=True)
class LogName:
    """One run of a container."""

    uid: str
    container: str
    attempt: int


class ContainerLogs:
    def __init__(self, root: Path, largest: int = _LARGEST, now: Clock = clock.now) -> None:
        self._root, self._largest, self._now = root, largest, now
        self._written: dict[LogName, Signal] = {}  # of logs in progress

    @contextmanager
    def writing(self, name: LogName) -> Iterator["ContainerLogWriter"]:
        """Keeps this log and the previous log; removes older logs."""
        self._path(LogName(name.uid, name.container, name.attempt - 2)).unlink(missing_ok=True)
        _rotated(self._path(LogName(name.uid, name.container, name.attempt - 2))).unlink(missing_ok=True)
        written = self._written[name] = Signal()
        writer = ContainerLogWriter(self._path(name), self._largest, written, self._now)
        try:
            yield writer
        finally:
            writer.close()
            del self._written[name]
            written.notify()

    def read(self, name: LogName, options: LogOptions) -> AsyncIterator[bytes]:
        """The log from its start, or from its last lines; if followed, until the container ends."""
        return _limited(self._lines(name, options), options.limit)

    def text(self, name: LogName) -> str:
        with _LogReader(self._path(name), None) as reader:
            lines = [line for part in reader.read() for line in _shown(part, LogOptions())]
        return b"".join(lines).decode("utf-8", "replace")

    async def _lines(self, name: LogName, options: LogOptions) -> AsyncGenerator[bytes, None]:
        with _LogReader(self._path(name), options.tail) as reader:
            written = self._written.get(name) if options.follow else None
            seen = -1
            while written is not None and self._written.get(name) is written:
                seen = await written.wait(seen)
                for lines in reader.read():
                    yield b"".join(_shown(lines, options))
            for lines in reader.read():
                yield b"".join(_shown(lines, options))

    def remove(self, uid: str) -> None:
        shutil.rmtree(self._root / uid, ignore_errors=True)

    def _path(self, name: LogName) -> Path:
        return self._root / name.uid / name.container / f"{name.attempt}.log"


class ContainerLogWriter:
    """Writes the lines of one turn of the event loop together, because some containers write a million per second."""

    def __init__(self, path: Path, largest: int, written: Signal, now: Clock) -> None:
        self._path, self._largest, self._written, self._now = path, largest, written, now
        self._lines: list[str] = []
        self._size = 0
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._file = path.open("ab", buffering=0)

    def write(self, text: str, *, is_partial: bool = False) -> None:
        """Appends a line, or part of a line."""
        if not self._lines:
            asyncio.get_running_loop().call_soon(self._flush)
        self._lines.append(f"{'P' if is_partial else 'F'} {text}\n")

    def tail(self, lines: int, size: int) -> str:
        """The end of the log, for a container without another message."""
        self._flush()
        with _LogReader(self._path, lines) as reader:
            texts = [text for part in reader.read() for text in _shown(part, LogOptions())]
        return b"".join(texts)[-size:].decode("utf-8", "replace")

    def close(self) -> None:
        self._flush()
        self._file.close()

    def _flush(self) -> None:
        if not self._lines:
            return
        head = f"{clock.micro_time(self._now())} stdout "
        content = "".join(f"{head}{line}" for line in self._lines).encode("utf-8", "replace")
        self._lines = []
        if self._size and self._size + len(content) > self._largest:
            self._file.close()
            self._path.replace(_rotated(self._path))
            self._file, self._size = self._path.open("ab", buffering=0), 0
        with suppress(OSError):  # a full disk loses lines, not the container
            self._file.write(content)
        self._size += len(content)
        self._written.notify()


class _LogReader:
    """Reads whole lines of a log and, if it exists, of the file rotated before it."""

    def __init__(self, path: Path, tail: int | None) -> None:
        self._path, self._tail = path, tail
        self._files: list[BinaryIO] = []

    def __enter__(self) -> "_LogReader":
        for path in (_rotated(self._path), self._path):
            with suppress(FileNotFoundError):
                self._files.append(path.open("rb"))
        if self._tail is not None:
            missing = self._tail
            for file in reversed(self._files):
                missing -= _seek_to_last_lines(file, missing)
        return self

    def __exit__(self, *error: object) -> None:
        for file in self._files:
            file.close()

    def read(self) -> Iterator[list[bytes]]:
        """The lines since the last call, in parts."""
        self._open_newest()
        while self._files:
            while lines := self._files[0].readlines(_SLICE):
                yield lines
            if len(self._files) == 1:
                return
            self._files.pop(0).close()

    def _open_newest(self) -> None:
        """Opens the newest file, because the log's name belongs to another file after a rotation."""
        with suppress(FileNotFoundError):
            newest = self._path.stat().st_ino
            if not self._files or os.fstat(self._files[-1].fileno()).st_ino != newest:
                self._files.append(self._path.open("rb"))


def _rotated(path: Path) -> Path:
    return path.with_suffix(".log.1")


def _seek_to_last_lines(file: BinaryIO, count: int) -> int:
    """Moves to the start of the last `count` lines, or of the file; returns the number of these lines."""
    position, found = file.seek(0, os.SEEK_END), -1  # the end of the last line starts no further line
    while position > 0 and count > 0:
        start = max(0, position - _SLICE)
        file.seek(start)
        block = file.read(position - start)
        for index in range(len(block) - 1, -1, -1):
            if block[index] != ord("\n"):
                continue
            found += 1
            if found == count:
                file.seek(start + index + 1)
                return count
        position = start
    if count <= 0:
        return 0
    file.seek(0)
    return found + 1


def _shown(lines: Iterable[bytes], options: LogOptions) -> Iterator[bytes]:
    since = clock.micro_time(options.since).encode() if options.since else b""
    is_begun = False
    for line in lines:
        stamp, _, rest = line.partition(b" stdout ")
        if len(rest) < len("F \n") or stamp < since:  # a line cut short by a full disk has no rest
            continue
        is_partial, text = rest.startswith(b"P"), rest[2:]
        yield (stamp + b" " if options.timestamps and not is_begun else b"") + (text[:-1] if is_partial else text)
        is_begun = is_partial


async def _limited(parts: AsyncGenerator[bytes, None], limit: int | None) -> AsyncIterator[bytes]:
    count = 0
    async with aclosing(parts):
        async for part in parts:
            if part:
                yield part if limit is None else part[: limit - count]
            count += len(part)
            if limit is not None and count >= limit:
                return


def lines_of_text(
    text: str, stamp: datetime, options: LogOptions, ended: Callable[[], Awaitable[None]]
) -> AsyncIterator[bytes]:
    """The log of an unstarted container: the same text from its start to its end."""

    async def parts() -> AsyncGenerator[bytes, None]:
        lines = [f"{clock.micro_time(stamp)} stdout F {line}\n".encode() for line in text.splitlines()]
        last = lines if options.tail is None else lines[len(lines) - min(options.tail, len(lines)) :]
        yield b"".join(_shown(last, options))
        if options.follow:
            await ended()

    return _limited(parts(), options.limit)


def attempt_to_read(pod: Object, container: str, *, previous: bool) -> int:
    """The run whose log is requested, by the pod's status; raises the kubelet's error."""
    name, status = pod["metadata"]["name"], pod.get("status") or {}
    statuses: list[Object] = [*(status.get("containerStatuses") or ()), *(status.get("initContainerStatuses") or ())]
    shown = next((entry for entry in statuses if entry["name"] == container), None)
    if shown is None:
        if status.get("phase") == "Failed":
            raise bad_request(f'container "{container}" in pod "{name}" is not available')
        raise bad_request(f'container "{container}" in pod "{name}" is waiting to start: ContainerCreating')
    state, has_last = shown["state"], bool((shown.get("lastState") or {}).get("terminated"))
    is_waiting, count = "waiting" in state, int(shown["restartCount"])
    if previous and not has_last:
        raise bad_request(f'previous terminated container "{container}" in pod "{name}" not found')
    if is_waiting and not has_last:
        reason = state["waiting"].get("reason") or ""
        raise bad_request(f'container "{container}" in pod "{name}" is waiting to start: {reason}')
    return count - 1 if previous and not is_waiting else count


def options_text(options: RunContainerOptions) -> str:
    """One variable, mount, device node, annotation or CDI name per line."""
    return "".join(f"{line}\n" for line in _option_lines(options))


def _option_lines(options: RunContainerOptions) -> Iterator[str]:
    for name, value in sorted(options.env.items()):
        yield f"env {name}={value}"
    for mount in options.mounts:
        yield f"mount {mount.host_path} at {mount.container_path} ({'ro' if mount.read_only else 'rw'})"
    for node in options.nodes:
        yield f"device {node.host_path} as {node.container_path} ({node.permissions})"
    for name, value in sorted(options.annotations.items()):
        yield f"annotation {name}={value}"
    for name in options.cdi:
        yield f"cdi {name}"
