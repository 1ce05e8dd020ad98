"""Prometheus' text format, and the process metrics of all Prometheus clients.

Our own code, because a client library loads TLS and an HTTP server, which cost a daemon seven MiB.
"""

import os
import resource
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from plugwright.system.histogram import Histogram

__all__ = ["CONTENT_TYPE", "MetricFamily", "process_metrics", "rendered", "single"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})


class _Sample(NamedTuple):
    name: str
    labels: Mapping[str, str]
    value: float


class MetricFamily:
    """The samples of one metric: a counter if its name ends in `_total`, a histogram if one is added, else a gauge."""

    def __init__(self, name: str, text: str, labels: Sequence[str] = ()) -> None:
        self.name, self.text = name, text
        self.kind = "counter" if name.endswith("_total") else "gauge"
        self.samples: list[_Sample] = []
        self._labels = tuple(labels)

    def add(self, labels: Sequence[str], value: float) -> None:
        self.samples.append(_Sample(self.name, dict(zip(self._labels, labels, strict=True)), value))

    def add_histogram(self, labels: Sequence[str], histogram: Histogram) -> None:
        self.kind = "histogram"
        named = dict(zip(self._labels, labels, strict=True))
        total = 0
        for bound, count in zip([*map(str, histogram.buckets), "+Inf"], list(histogram.counts), strict=True):
            total += count
            self.samples.append(_Sample(f"{self.name}_bucket", {**named, "le": bound}, total))
        self.samples.append(_Sample(f"{self.name}_count", named, total))
        self.samples.append(_Sample(f"{self.name}_sum", named, histogram.total))


def single(name: str, text: str, value: float) -> MetricFamily:
    """A metric with one sample, without its own labels."""
    family = MetricFamily(name, text)
    family.add((), value)
    return family


def rendered(families: Iterable[MetricFamily], common: Mapping[str, str]) -> bytes:
    """The page; every sample also has the labels in `common`."""
    return "".join(line for family in families for line in _lines(family, common)).encode(errors="backslashreplace")


def _lines(family: MetricFamily, common: Mapping[str, str]) -> Iterator[str]:
    yield f"# HELP {family.name} {family.text}\n# TYPE {family.name} {family.kind}\n"
    for name, labels, value in family.samples:
        pairs = sorted({**labels, **common}.items())
        shown = ",".join(f'{key}="{text.translate(_ESCAPES)}"' for key, text in pairs)
        yield f"{name}{{{shown}}} {float(value)}\n" if shown else f"{name} {float(value)}\n"


def process_metrics(proc: Path = Path("/proc")) -> Iterator[MetricFamily]:
    """Metrics of this process; omits unreadable values."""
    with suppress(OSError, ValueError, IndexError):
        fields = (proc / "self/stat").read_text().rpartition(")")[2].split()
        ticks, page = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
        boot = next(line for line in (proc / "stat").read_text().splitlines() if line.startswith("btime "))
        cpu = (int(fields[11]) + int(fields[12])) / ticks
        yield single("process_cpu_seconds_total", "CPU time of the daemon in seconds", cpu)
        yield single("process_virtual_memory_bytes", "Virtual memory of the daemon", int(fields[20]))
        yield single("process_resident_memory_bytes", "Resident memory of the daemon", int(fields[21]) * page)
        start = int(boot.split()[1]) + int(fields[19]) / ticks
        yield single("process_start_time_seconds", "Start of the daemon in seconds since the epoch", start)
    with suppress(OSError):
        yield single("process_open_fds", "Open file descriptors of the daemon", len(os.listdir(proc / "self/fd")))  # noqa: PTH208
    yield single("process_max_fds", "Limit of open file descriptors", resource.getrlimit(resource.RLIMIT_NOFILE)[0])
