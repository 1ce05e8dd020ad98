"""The time as Kubernetes writes it."""

from collections.abc import Callable
from datetime import UTC, datetime

__all__ = ["Clock", "micro", "now", "read", "stamp"]

Clock = Callable[[], datetime]


def now() -> datetime:
    return datetime.now(UTC)


def stamp(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def micro(moment: datetime) -> str:
    """As in leases and newer events."""
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def read(text: str) -> datetime:
    return datetime.fromisoformat(text)
