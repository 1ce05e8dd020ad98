"""How the parts of the embedded cluster reach its objects: they read the store and write as a client would."""

from dataclasses import dataclass

from plugwright.cluster import clock
from plugwright.cluster.api.writing import Writer
from plugwright.cluster.clock import Clock
from plugwright.cluster.store import Store

__all__ = ["Access"]


@dataclass(frozen=True, slots=True)
class Access:
    store: Store
    writer: Writer
    now: Clock = clock.now

    def stamp(self) -> str:
        return clock.stamp(self.now())
