"""How the parts of the embedded cluster reach its objects: they read the store and write as a client would."""

from dataclasses import dataclass

from plugwright.cluster import clock
from plugwright.cluster.api.writing import Writer
from plugwright.cluster.clock import Clock
from plugwright.cluster.store import Store

__all__ = ["MALFORMED", "Access"]

# What reading an object raises that is not built as its kind is: clients can store such ones, and nobody may fall over
# them but the object itself.
MALFORMED = (ArithmeticError, AttributeError, KeyError, TypeError, ValueError)


@dataclass(frozen=True, slots=True)
class Access:
    store: Store
    writer: Writer
    now: Clock = clock.now

    def stamp(self) -> str:
        return clock.stamp(self.now())
