"""Temporary changes of the level of the daemon's own log lines at run time."""

import asyncio
import logging
import time

from plugwright.errors import ConfigError

__all__ = ["LEVELS", "LogLevel"]

logger = logging.getLogger(__name__)

LEVELS = ("debug", "info", "warning", "error")
_LONGEST = 30 * 86_400.0  # seconds; a permanent level belongs in the daemon's flags


class LogLevel:
    """Changes the level for a limited time. `close` ends a change early."""

    def __init__(self) -> None:
        self._logger = logging.getLogger("plugwright")
        self._usual: int | None = None  # the configured level, while another one is in force
        self._ends = 0.0  # by time.monotonic
        self._timer: asyncio.TimerHandle | None = None

    def change(self, level: str, seconds: float, by: str) -> None:
        if level not in LEVELS:
            raise ConfigError(f"a log level must be one of {', '.join(LEVELS)}, got {level!r}")
        if not 0 < seconds <= _LONGEST:
            raise ConfigError(f"a log level changes for up to {_LONGEST / 86_400:g} days, got {seconds:.0f} s")
        usual = self._logger.level if self._usual is None else self._usual
        self._stop_timer()
        facts: dict[str, object] = {"level": level, "by": by}
        if level != _name(usual):
            self._usual, self._ends = usual, time.monotonic() + seconds
            self._timer = asyncio.get_running_loop().call_later(seconds, self.close)
            facts["seconds"] = round(seconds)
        self._set(logging.getLevelNamesMapping()[level.upper()], "log level changed", facts)

    def close(self) -> None:
        usual = self._usual
        self._stop_timer()
        if usual is not None:
            self._set(usual, "log level restored", {"level": _name(usual)})

    def describe(self) -> str:
        """The level in words: `debug, and info again in 540 s`"""
        level = _name(self._logger.level)
        if self._usual is None:
            return level
        return f"{level}, and {_name(self._usual)} again in {max(0.0, self._ends - time.monotonic()):.0f} s"

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._usual = None, None

    def _set(self, number: int, message: str, facts: dict[str, object]) -> None:
        """Sets the level and logs a line, which neither of the two levels hides."""
        self._logger.setLevel(min(self._logger.getEffectiveLevel(), number or logging.INFO, logging.INFO))
        logger.info(message, extra=facts)
        self._logger.setLevel(number)


def _name(number: int) -> str:
    """Name of a level; a logger without a level of its own uses the program's."""
    return logging.getLevelName(number or logging.getLogger().getEffectiveLevel()).lower()
