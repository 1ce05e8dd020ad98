"""Logs a problem when it begins and when its reason changes, not each time it is found again."""

import logging
from collections.abc import Collection, Hashable, Mapping

__all__ = ["LogOnce"]


class LogOnce:
    """Remembers, for each key, the last logged reason; repetitions are logged at DEBUG.

    Reasons are compared, so pass changing details in `extra`. With more than `keys` keys, the least recently logged key
    is forgotten.
    """

    __slots__ = ("_keys", "_logger", "_reasons")

    def __init__(self, logger: logging.Logger, *, keys: int = 10_000) -> None:
        self._logger, self._keys = logger, keys
        self._reasons: dict[Hashable, str] = {}

    def is_news(self, reason: str, key: Hashable = "") -> bool:
        """Whether the key had no reason, or a different reason; for callers writing the line themselves."""
        before = self._reasons.pop(key, None)
        self._reasons[key] = reason
        if len(self._reasons) > self._keys:
            del self._reasons[next(iter(self._reasons))]
        return before != reason

    def info(self, message: str, reason: str, *, key: Hashable = "", extra: Mapping[str, object] | None = None) -> None:
        self._log(logging.INFO, message, extra, self.is_news(reason, key))

    def warning(
        self, message: str, reason: str, *, key: Hashable = "", extra: Mapping[str, object] | None = None
    ) -> None:
        self._log(logging.WARNING, message, extra, self.is_news(reason, key))

    def error(
        self, message: str, reason: str, *, key: Hashable = "", extra: Mapping[str, object] | None = None
    ) -> None:
        self._log(logging.ERROR, message, extra, self.is_news(reason, key))

    def recovered(self, key: Hashable = "") -> bool:
        """The problem is over, and its next occurrence is logged; returns whether there was a problem."""
        return self._reasons.pop(key, None) is not None

    def keep_only(self, keys: Collection[Hashable]) -> None:
        """All problems but those of `keys` are over."""
        self._reasons = {key: reason for key, reason in self._reasons.items() if key in keys}

    def _log(self, level: int, message: str, extra: Mapping[str, object] | None, is_news: bool) -> None:
        # The record names the caller of info(), warning() or error() as its source.
        self._logger.log(level if is_news else logging.DEBUG, message, extra=extra, stacklevel=3)
