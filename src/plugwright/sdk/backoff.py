"""How long to wait before the next try: twice as long each time, never in step with the neighbours."""

import random
from dataclasses import dataclass, field

__all__ = ["Backoff"]


@dataclass(slots=True)
class Backoff:
    first: float
    longest: float
    jitter: float = 0.2
    _next: float = field(init=False)

    def __post_init__(self) -> None:
        self._next = self.first

    def reset(self) -> None:
        self._next = self.first

    def delay(self) -> float:
        now, self._next = self._next, min(self._next * 2, self.longest)
        return now * (1 + random.uniform(-self.jitter, self.jitter))  # noqa: S311  not a secret
