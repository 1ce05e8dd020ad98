"""What several daemons of one process share: they have one event loop, one thread that watches it, and one logger."""

from plugwright.sdk.log_level import LogLevel
from plugwright.sdk.plugin_calls import StallDetector

__all__ = ["SharedParts"]


class SharedParts:
    """Its creator closes it."""

    __slots__ = ("log_level", "stalls")

    def __init__(self, loop_step: float) -> None:
        self.stalls, self.log_level = StallDetector(loop_step), LogLevel()

    def close(self) -> None:
        self.log_level.close()
        self.stalls.close()
