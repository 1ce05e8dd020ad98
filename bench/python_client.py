"""Plays the kubelet where there is no Go: the same flags and the same JSON lines as the program in `client/`.

Its own time is part of what it measures, and it is slower than a kubelet: the table says which client was used.
"""

import argparse
import asyncio
import json
import math
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from plugwright.errors import PlugwrightError
from plugwright.model import Device
from plugwright.protocol import device_plugin, messages, registration
from plugwright.protocol.device_plugin import DevicePluginClient
from plugwright.protocol.registration import RegisterRequest

__all__ = ["main"]


class Kubelet:
    """One life of a kubelet."""

    def __init__(self, directory: Path, resource: str) -> None:
        self.created = time.monotonic_ns()
        self.arrivals: asyncio.Queue[tuple[RegisterRequest, int]] = asyncio.Queue()
        self._directory, self._resource = directory, resource

    async def register(self, request: RegisterRequest) -> None:
        arrived = time.monotonic_ns()
        if self._resource in ("", request.resource):
            async with device_plugin.connect(self._directory / request.endpoint) as plugin:
                await plugin.options(timeout=10)
            self.arrivals.put_nowait((request, arrived))


def main() -> int:
    options = _parser().parse_args()
    try:
        asyncio.run(_measure(options))
    except (PlugwrightError, OSError, TimeoutError) as error:
        _emit("error", message=str(error) or type(error).__name__)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-dir", type=Path, required=True)
    parser.add_argument("-resource", default="")
    for name, default in (("registrations", 1), ("calls", 0), ("warmup", 50), ("restarts", 0)):
        parser.add_argument(f"-{name}", type=int, default=default)
    for name, text in (("timeout", "30s"), ("downtime", "100ms"), ("budget", "0s"), ("hold", "0s")):
        parser.add_argument(f"-{name}", type=_seconds, default=_seconds(text))
    return parser


def _seconds(text: str) -> float:
    return float(text.removesuffix("ms")) / 1000 if text.endswith("ms") else float(text.removesuffix("s"))


async def _measure(options: argparse.Namespace) -> None:
    async with AsyncExitStack() as life:
        _, plugin, devices = await _registered(options, life, first=True)
        if options.calls:
            healthy = [device.id for device in devices if device.healthy]
            _emit("allocate", **_summary(await _time_allocate(options, plugin, healthy)))
        if not options.restarts:
            await _hold(options)
            return
    await _time_restarts(options)


async def _registered(
    options: argparse.Namespace, life: AsyncExitStack, first: bool = False
) -> tuple[float, DevicePluginClient, list[Device]]:
    """A kubelet that has a plugin and its first list; how long the registration took, in microseconds."""
    kubelet = await life.enter_async_context(_kubelet(options.dir, options.resource))
    if first:
        _emit("listening", at_ns=time.monotonic_ns())
    async with asyncio.timeout(options.timeout):
        for _ in range(options.registrations):
            request, arrived = await kubelet.arrivals.get()
        took = (arrived - kubelet.created) / 1000
        plugin = await life.enter_async_context(device_plugin.connect(options.dir / request.endpoint))
        if first:
            _emit("registered", us=took, at_ns=arrived, resource=request.resource, endpoint=request.endpoint)
        began = time.perf_counter()
        lists = plugin.list_and_watch()
        devices = [Device(device.id, device.health, numa=device.nodes or ()) for device in await anext(lists)]
        listed = (time.perf_counter() - began) * 1e6
    life.push_async_callback(lists.aclose)
    if first:
        size = len(messages.encode_devices(request.resource, devices))
        healthy = sum(device.healthy for device in devices)
        _emit("list", us=listed, devices=len(devices), healthy=healthy, bytes=size)
    return took, plugin, devices


@asynccontextmanager
async def _kubelet(directory: Path, resource: str) -> AsyncIterator[Kubelet]:
    for path in directory.iterdir():
        if path.is_socket():
            path.unlink(missing_ok=True)
    kubelet = Kubelet(directory, resource)
    async with registration.serve(kubelet, directory / "kubelet.sock"):
        yield kubelet


async def _time_allocate(options: argparse.Namespace, plugin: DevicePluginClient, ids: Sequence[str]) -> list[float]:
    times = []
    for number in range(options.warmup + options.calls):
        began = time.perf_counter()
        await plugin.allocate_encoded([ids[number % len(ids)]])
        times.append((time.perf_counter() - began) * 1e6)
    return times[options.warmup :]


async def _time_restarts(options: argparse.Namespace) -> None:
    times: list[float] = []
    began = time.monotonic()
    while len(times) < options.restarts and (not options.budget or time.monotonic() - began < options.budget):
        await asyncio.sleep(options.downtime)
        async with AsyncExitStack() as life:
            took, _, _ = await _registered(options, life)
            times.append(took)
    _emit("restarts", **_summary(times), all=times)
    async with AsyncExitStack() as life:
        await _registered(options, life)
        await _hold(options)


async def _hold(options: argparse.Namespace) -> None:
    if not options.hold:
        return
    _emit("holding")
    ended = asyncio.Event()
    asyncio.get_running_loop().add_reader(sys.stdin, ended.set)
    try:
        async with asyncio.timeout(options.hold):
            await ended.wait()
    except TimeoutError:
        pass


def _summary(times: Sequence[float]) -> dict[str, float]:
    ranked = sorted(times)

    def rank(share: float) -> float:
        return ranked[max(0, math.ceil(share * len(ranked)) - 1)]

    shares = {"p50": rank(0.5), "p90": rank(0.9), "p99": rank(0.99), "max": ranked[-1]}
    return {"count": len(ranked), "mean": sum(ranked) / len(ranked), **shares}


def _emit(event: str, **facts: object) -> None:
    print(json.dumps({"event": event, **facts}), flush=True)


if __name__ == "__main__":
    sys.exit(main())
