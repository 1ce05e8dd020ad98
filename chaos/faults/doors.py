"""Hostile peers at the daemon's doors: the probe port, the device-plugin sockets, the control socket."""

import asyncio
import os
import random
import struct
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus
from pathlib import Path

from chaos.experiment import Fault
from chaos.node import FACTS
from chaos.rig import Rig
from hpack import Encoder

from plugwright.system.concurrency import cancel

__all__ = ["FAULTS"]

_CONNECTIONS = 48  # at the probe port; the server has a handful of places
_MEMORY_LIMIT = 128  # MiB, the chart's limit: beyond it the kernel ends the daemon
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RST, _SETTINGS, _PING, _WINDOW_UPDATE, _CONTINUATION = 0, 1, 3, 4, 6, 8, 9
_END_STREAM, _END_HEADERS = 1, 4
_FLOOD = 2000
_BODY = 8 << 20

Attack = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def _http(rig: Rig) -> AsyncIterator[None]:
    """Slow requests, endless headers and garbage, from more connections than are served at a time."""

    def connect() -> Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        return asyncio.open_connection("127.0.0.1", rig.daemon.port)

    attacks = [_slow_request, _endless_headers, _endless_line, _garbage, _silence]
    tasks = [asyncio.create_task(_repeat(connect, attacks[number % 5])) for number in range(_CONNECTIONS)]
    probing = asyncio.create_task(_probe(rig))
    try:
        yield
    finally:
        await cancel(*tasks, probing)
        _check_memory(rig)


async def _probe(rig: Rig) -> None:
    """What a kubelet does, with a time limit of its own: every probe must be answered."""
    answers: Counter[bool] = Counter()
    try:
        while True:
            answers[await rig.daemon.get("/healthz") == HTTPStatus.OK] += 1
            await asyncio.sleep(0.2)
    finally:
        if answers[False]:
            rig.broken.append(f"{answers[False]} of {answers.total()} probes unanswered")
        else:
            rig.notes.append(f"{answers[True]} probes answered")


def _check_memory(rig: Rig) -> None:
    peak = rig.daemon.peak_mib()
    rig.broken += [f"{peak:.0f} MiB at the peak, the chart allows {_MEMORY_LIMIT}"] if peak > _MEMORY_LIMIT else []
    rig.notes.append(f"{peak:.0f} MiB at the peak")


async def _repeat(
    connect: Callable[[], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]], attack: Attack
) -> None:
    while True:
        with suppress(OSError):
            reader, writer = await connect()
            try:
                await attack(reader, writer)
            except (OSError, asyncio.IncompleteReadError):
                pass
            finally:
                writer.transport.abort()
        await asyncio.sleep(0.05)


async def _slow_request(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    for byte in b"GET /healthz HTTP/1.1\r\nHost: node\r\nX-Slow: " + b"x" * 1000:
        await _send(writer, bytes([byte]))
        await asyncio.sleep(0.5)


async def _endless_headers(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await _send(writer, b"GET /metrics HTTP/1.1\r\n")
    for number in range(98):
        await _send(writer, b"X-%d: " % number + b"y" * 60_000 + b"\r\n")
        await asyncio.sleep(0.02)


async def _endless_line(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    for _number in range(100):
        await _send(writer, b"G" * 60_000)
        await asyncio.sleep(0.02)


async def _garbage(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await _send(writer, os.urandom(3000))
    await asyncio.sleep(0.2)


async def _silence(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(20):
            await reader.read()


async def _send(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(data)
    await writer.drain()


@asynccontextmanager
async def _http2(rig: Rig) -> AsyncIterator[None]:
    """On the socket of one resource; the others must not notice."""
    status = await rig.daemon.status()
    assert status is not None
    endpoint = next(found["endpoint"] for found in status["resources"] if found["name"] == FACTS)
    path = rig.node.paths.device_plugins / endpoint

    def connect() -> Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        return asyncio.open_unix_connection(path)

    attacks = [_garbage, _frames, _reset_flood, _ping_flood, _settings_flood, _continuation_flood, _no_window, _no_end]
    tasks = [asyncio.create_task(_repeat(connect, attack)) for attack in attacks]
    try:
        yield
    finally:
        await cancel(*tasks)
        _check_memory(rig)


def _frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


_BEGIN = _PREFACE + _frame(_SETTINGS, 0, 0)


def _request(method: str = "Allocate") -> bytes:
    headers = {":method": "POST", ":scheme": "http", ":path": f"/v1beta1.DevicePlugin/{method}", ":authority": "x"}
    headers |= {"content-type": "application/grpc", "te": "trailers"}
    return bytes(Encoder().encode(list(headers.items())))


async def _frames(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Frames of any kind, with any flags and content, after a good beginning."""
    await _send(writer, _BEGIN)
    for _number in range(200):
        stream = random.choice((0, 1, 3, 2**31 - 1))
        await _send(
            writer, _frame(random.randrange(12), random.randrange(256), stream, os.urandom(random.randrange(64)))
        )
        await asyncio.sleep(0.005)


async def _reset_flood(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await _send(writer, _BEGIN)
    for number in range(_FLOOD):
        stream = 2 * number + 1
        begun = _frame(_HEADERS, _END_HEADERS, stream, _request("ListAndWatch"))
        await _send(writer, begun + _frame(_RST, 0, stream, struct.pack(">I", 8)))
        await asyncio.sleep(0.002)


async def _ping_flood(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await _send(writer, _BEGIN)
    for _number in range(_FLOOD):
        await _send(writer, _frame(_PING, 0, 0, b"chaos..."))
        await asyncio.sleep(0.002)


async def _settings_flood(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await _send(writer, _BEGIN)
    for number in range(_FLOOD):
        await _send(writer, _frame(_SETTINGS, 0, 0, struct.pack(">HI", 1 + number % 6, number % 2)))
        await asyncio.sleep(0.002)


async def _continuation_flood(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await _send(writer, _BEGIN + _frame(_HEADERS, 0, 1, _request()))
    for _number in range(_FLOOD):
        await _send(writer, _frame(_CONTINUATION, 0, 1, b"\x40\x01a\x01b" * 100))
        await asyncio.sleep(0.002)


async def _no_window(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A list is asked for again and again, and never read."""
    await _send(writer, _PREFACE + _frame(_SETTINGS, 0, 0, struct.pack(">HI", 4, 0)))
    for number in range(100):
        stream = 2 * number + 1
        begun = _frame(_HEADERS, _END_HEADERS, stream, _request("ListAndWatch"))
        await _send(writer, begun + _frame(_DATA, _END_STREAM, stream, b"\0\0\0\0\0"))
        await asyncio.sleep(0.01)
    await _silence(reader, writer)


async def _no_end(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A message that is announced as long, and comes in pieces without an end, as far as the window goes."""
    await _send(writer, _BEGIN + _frame(_HEADERS, _END_HEADERS, 1, _request()))
    await _send(writer, _frame(_DATA, 0, 1, b"\0" + struct.pack(">I", _BODY)))
    for _number in range(_BODY // 16_000):
        await _send(writer, _frame(_DATA, 0, 1, b"z" * 16_000))
        await asyncio.sleep(0.002)


@asynccontextmanager
async def _control(rig: Rig) -> AsyncIterator[None]:
    lines: Sequence[bytes] = (
        b"\n", b"null\n", b"[" * 60_000 + b"\n", os.urandom(1000) + b"\n", b"x" * 200_000, b'{"do":7}\n',
        b'{"do":"cordon","resource":"mock/steady","id":"\\ud800","reason":"\\u0000"}\n', b'{"do":"watch"}\n' * 50,
    )  # fmt: skip

    async def attack(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for line in lines:
            await _send(writer, line)
        await asyncio.sleep(0.1)

    def connect() -> Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        return asyncio.open_unix_connection(Path(rig.node.control))

    tasks = [asyncio.create_task(_repeat(connect, attack)) for number in range(8)]
    try:
        yield
    finally:
        await cancel(*tasks)
        _check_memory(rig)


FAULTS = (
    Fault("http", "hostile HTTP at the probe port", _http, 20, 4, on_real_kubelet=False),
    Fault("http2", "hostile HTTP/2 on a device-plugin socket", _http2, 20, 4),
    Fault("control", "garbage on the control socket", _control, 10, 2),
)
