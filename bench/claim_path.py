"""`python -m bench.claim_path`: the functions that one prepared claim runs through, and the time that it takes.

A driver of the SDK with `serve: dra` stands beside the emulated kubelet and an API server in memory, in one process.
Counted are the distinct functions of plugwright that run from the admission of a pod with a claim until the pod is
admitted and the claim's status is written: on the driver's side and on the kubelet's, in every thread. Not counted are
the API server, the allocator and the test kit around both, Python itself and other packages; a comprehension or a
lambda counts for the function around it. The time is that of NodePrepareResources as a kubelet waits for it, over the
socket, without the tracer.
"""

import argparse
import asyncio
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import plugwright
from plugwright import Allocation, Device, Plugin
from plugwright.protocol import dra
from plugwright.protocol.dra import Claim
from plugwright.testing import claim_requesting, pod_requesting, running
from plugwright.testing.harness import PluginKubelet

__all__ = ["main"]

_ROOT = str(Path(plugwright.__file__).parent) + "/"
_AROUND = tuple(f"{_ROOT}{package}/" for package in ("allocator", "apiserver", "testing"))
_TAPE = "example.com/tape"
_INNER = ("<lambda>", "<genexpr>", "<listcomp>", "<dictcomp>", "<setcomp>")


class _Tapes(Plugin):
    resource = _TAPE

    async def discover(self) -> AsyncIterator[Sequence[Device]]:
        yield [Device(f"st{number}") for number in range(4)]

    async def allocate(self, devices: Sequence[Device]) -> Allocation:
        return Allocation(env={"TAPES": ",".join(device.id for device in devices)})


@dataclass
class _Trace:
    """Threads that wait for their next call are traced too, so the profiler is set before any begins."""

    calls: Counter[CodeType] = field(default_factory=Counter)
    counts: bool = False

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        file = frame.f_code.co_filename
        if self.counts and event == "call" and file.startswith(_ROOT) and not file.startswith(_AROUND):
            self.calls[frame.f_code] += 1

    @contextmanager
    def set(self) -> Iterator[None]:
        threading.setprofile(self)
        sys.setprofile(self)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    def functions(self) -> Counter[tuple[str, str]]:
        """The calls of each function, by the file below `plugwright` and its qualified name."""
        found: Counter[tuple[str, str]] = Counter()
        for code, count in self.calls.items():
            name = code.co_qualname
            while name.rpartition(".")[2] in _INNER:
                name = name.rpartition(".<locals>.")[0] if ".<locals>." in name else name.rpartition(".")[0]
            if name and not name.startswith("<module>"):
                found[code.co_filename.removeprefix(_ROOT), name] += count
        return found


async def _traced(directory: Path) -> Counter[tuple[str, str]]:
    trace = _Trace()
    with trace.set():
        async with running(_Tapes(), directory, serve="dra") as kubelet:
            await _admitted(kubelet, "warm")  # what is made once is made
            trace.counts = True
            await _admitted(kubelet, "counted")
            trace.counts = False
    return trace.functions()


async def _admitted(kubelet: PluginKubelet, name: str) -> None:
    """One pod with one claim for one device, and the status of the claim written."""
    await kubelet.admit(pod_requesting({}, name=name, claims=[claim_requesting({_TAPE: 1}, name=name)]))
    assert await kubelet.api.until(lambda: "devices" in _claim(kubelet, name)["status"], timeout=30)


def _claim(kubelet: PluginKubelet, name: str) -> dict[str, Any]:
    claim = kubelet.api.stored_claim("default", name)
    assert claim is not None
    return claim


async def _timed(directory: Path, rounds: int) -> list[float]:
    """Seconds of each call of NodePrepareResources, on a connection of its own."""
    seconds = []
    async with running(_Tapes(), directory, serve="dra") as kubelet:
        await _admitted(kubelet, "one")
        claim = Claim("default", "one", _claim(kubelet, "one")["metadata"]["uid"])
        socket = kubelet.paths.plugins / "tape.example.com" / "dra.sock"
        async with dra.connect(socket) as client:
            for _ in range(rounds):
                await client.unprepare([claim])
                begun = time.perf_counter()
                answer = await client.prepare([claim])
                seconds.append(time.perf_counter() - begun)
                assert not isinstance(answer[claim.uid], str), answer
    return seconds


def _table(functions: Counter[tuple[str, str]], seconds: Sequence[float]) -> str:
    in_dra = [key for key in functions if key[0].startswith("dra/")]
    files, dra_files = {file for file, _ in functions}, {file for file, _ in in_dra}
    quartiles = [f"{value * 1e3:.2f} ms" for value in statistics.quantiles(seconds, n=4)]
    rows = {
        "calls": sum(functions.values()),
        "distinct functions": len(functions),
        "of them in dra/": len(in_dra),
        "files": len(files),
        "of them in dra/ ": len(dra_files),
        f"NodePrepareResources, {len(seconds)} calls, quartiles": ", ".join(quartiles),
    }
    lines = ["| one prepared claim, `serve: dra` | |", "| --- | --- |"]
    return "\n".join([*lines, *(f"| {name.strip()} | {value} |" for name, value in rows.items())])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.claim_path", description=__doc__.partition("\n")[0])
    parser.add_argument("--functions", action="store_true", help="also list the functions with their calls")
    parser.add_argument("--rounds", type=int, default=200, help="calls that are timed")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="b-") as first, tempfile.TemporaryDirectory(prefix="b-") as second:
        functions = asyncio.run(_traced(Path(first)))
        seconds = asyncio.run(_timed(Path(second), options.rounds))
    if options.functions:
        print("\n".join(f"{count:5} {file}: {name}" for (file, name), count in sorted(functions.items())))
    print(_table(functions, seconds))
    return 0


if __name__ == "__main__":
    sys.exit(main())
