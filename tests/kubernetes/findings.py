"""What was measured while testing: shown at the end of the session, whether the tests were good or not."""

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tests.kubernetes.pods import Refusal

__all__ = ["Findings"]


@dataclass(slots=True)
class Findings:
    version: str = ""
    logs: str = ""  # where they are kept, if something failed
    bring_up: float = 0.0
    requests: list[float] = field(default_factory=list)  # seconds from a kubelet's start until it is asked
    registrations: list[float] = field(default_factory=list)  # and until it has answered yes
    arrived: int = 0  # pods that came while a kubelet restarted
    refusals: Counter[str] = field(default_factory=Counter)  # by fact of the reference
    notes: list[str] = field(default_factory=list)  # whole lines

    def count(self, refusal: Refusal) -> None:
        self.refusals[refusal.fact or refusal.message] += 1

    def lines(self) -> Iterator[str]:
        if self.bring_up:
            yield f"Kubernetes {self.version}: up in {self.bring_up:.1f} s"
        if self.logs:
            yield f"logs of the cluster are kept in {self.logs}"
        if self.registrations:
            yield (
                f"kubelet listens → asked to register again: p50 {_milliseconds(self.requests, 50)}, "
                f"max {_milliseconds(self.requests, 100)}"
            )
            yield (
                f"kubelet listens → registered again: {len(self.registrations)} restarts, "
                f"p50 {_milliseconds(self.registrations, 50)}, p99 {_milliseconds(self.registrations, 99)}, "
                f"max {_milliseconds(self.registrations, 100)} "
                f"(load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores)"
            )
            told = ", ".join(f"{count} by fact {fact}" for fact, count in sorted(self.refusals.items()))
            yield f"pods that arrived meanwhile: {self.arrived}, refused: {told or 'none'}"
        yield from self.notes


def _milliseconds(seconds: Sequence[float], percent: int) -> str:
    ordered = sorted(seconds)
    position = max(0, -(-len(ordered) * percent // 100) - 1)
    return f"{ordered[position] * 1000:.1f} ms"
