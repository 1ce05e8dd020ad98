"""`python -m bench.call_profile`: the processor time of one Allocate in the daemon, by stage.

The daemon's own objects, from the bytes that a connection receives to those it writes, without the socket: what is left
out is the kernel's and the client's. The times are those of the calls; how they are divided comes from a profiler, to
which small functions look larger than they are.
"""

import argparse
import asyncio
import cProfile
import logging
import os
import pstats
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from plugwright.plugins.mock import Mock, MockOptions
from plugwright.protocol import device_plugin, frames, grpc, messages
from plugwright.protocol.frames import END_HEADERS, END_STREAM, FrameKind
from plugwright.protocol.grpc_server import GrpcServerConnection
from plugwright.protocol.hpack import encode
from plugwright.sdk import logs
from plugwright.sdk.run import serving
from plugwright.sdk.settings import Settings

__all__ = ["main"]

_CALLS, _QUICK, _ROUNDS = 400, 100, 20
_HEADERS = encode(
    [
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", b"/v1beta1.DevicePlugin/Allocate"),
        (b":authority", b"localhost"),
        (b"content-type", b"application/grpc"),
        (b"te", b"trailers"),
    ]
)
# The first that a file's path contains.
_STAGES = {
    "protocol/http2": "HTTP/2: frames, headers, windows",
    "protocol/frames": "HTTP/2: frames, headers, windows",
    "protocol/hpack": "HTTP/2: frames, headers, windows",
    "protocol/messages": "messages from and to bytes",
    "protocol/wire_format": "messages from and to bytes",
    "protocol/": "gRPC: calls, replies",
    "sdk/plugin_calls": "the plugin's method: called, timed, limited",
    "system/concurrency": "the plugin's method: called, timed, limited",
    "plugins/": "the plugin's method itself, and the values it makes",
    "model.py": "the plugin's method itself, and the values it makes",
    "sdk/logs": "the log line, after the answer",
    "logging/": "the log line, after the answer",
    "plugwright/text": "the log line, after the answer",
    "sdk/": "the service: devices looked up, the call counted",
    "system/histogram": "the service: devices looked up, the call counted",
    "asyncio/": "the event loop",
}


class _Written(asyncio.Transport):
    """A connection whose peer reads everything at once."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def write(self, _: bytes | bytearray | memoryview) -> None:
        self.count += 1

    def get_write_buffer_size(self) -> int:
        return 0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.call_profile", description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer calls")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="bench-") as directory:
        print(asyncio.run(_profiled(Path(directory), _QUICK if options.quick else _CALLS)))
    return 0


async def _profiled(directory: Path, calls: int) -> str:
    with Path(os.devnull).open("wb") as unread:
        handler = logs.LogWriter(unread.fileno())
        handler.setFormatter(logs.HumanFormatter())
        logging.basicConfig(handlers=[handler], level=logging.INFO, force=True)
        plugin = Mock("mock/gpu", MockOptions(count=10))
        async with serving(plugin, settings=Settings(kubelet_dir=directory, device_plugins_dir=directory)) as daemon:
            runtime = daemon.resource("mock/gpu")
            snapshot = await runtime.inventory.latest.until(lambda latest: latest is not None)
            assert snapshot is not None
            bound = {method.path: method.handler() for method in device_plugin.methods(runtime.service)}
            kubelet = _Kubelet(GrpcServerConnection(bound, lambda _: None), next(iter(snapshot.devices)))
            rounds = [await kubelet.calls(calls) for _ in range(_ROUNDS)]
            profiler = cProfile.Profile()
            profiler.enable()
            await kubelet.calls(calls)
            profiler.disable()
        handler.flush()
    answered, rest = (min(times) / calls * 1e6 for times in zip(*rounds, strict=True))
    return _table(answered, rest, _shares(pstats.Stats(profiler)))


class _Kubelet:
    """Calls Allocate for one device, one call after the other."""

    def __init__(self, connection: GrpcServerConnection, device_id: str) -> None:
        self._connection, self._stream = connection, 1
        self._message = grpc.prefixed(messages.encode_allocate_request([[device_id]]))
        self._transport = _Written()
        connection.connection_made(self._transport)
        connection.data_received(frames.PREFACE + frames.settings({}) + frames.window_update(0, 2**30))

    async def calls(self, count: int) -> tuple[float, float]:
        """Seconds of processor time until the answers were written, and for what followed them."""
        answered = rest = 0.0
        for _ in range(count):
            before, began = self._transport.count, time.thread_time()
            head = frames.frame(FrameKind.HEADERS, END_HEADERS, self._stream, _HEADERS)
            self._connection.data_received(head + frames.frame(FrameKind.DATA, END_STREAM, self._stream, self._message))
            written = time.thread_time()
            assert self._transport.count == before + 1, "answered in the turn it came in, in one write"
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            answered, rest = answered + written - began, rest + time.thread_time() - written
            self._stream += 2
        return answered, rest


def _shares(stats: pstats.Stats) -> dict[str, float]:
    """The part of each stage; a function in C counts for the file that calls it."""
    seconds: dict[str, float] = dict.fromkeys(_STAGES.values(), 0.0)
    for (file, _, _), (_, _, own, _, callers) in stats.stats.items():  # type: ignore[attr-defined]
        origins = {file: own} if file != "~" else {caller[0]: times[2] for caller, times in callers.items()}
        for origin, part in origins.items():
            stage = next((stage for piece, stage in _STAGES.items() if piece in origin), None)
            if stage is not None:
                seconds[stage] += part
    whole = sum(seconds.values())
    return {stage: part / whole for stage, part in seconds.items()}


def _table(answered: float, rest: float, shares: dict[str, float]) -> str:
    lines = ["| one Allocate in the daemon | processor time |", "| --- | --- |"]
    lines += [f"| {stage} | {share * (answered + rest):.0f} µs |" for stage, share in shares.items()]
    lines.append(f"| **until the answer is written** | **{answered:.0f} µs** |")
    lines.append(f"| **what follows it** | **{rest:.0f} µs** |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
