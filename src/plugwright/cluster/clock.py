"""Times as the Kubernetes API writes them."""

from collections.abc import Callable
from datetime import UTC, datetime

__all__ = ["Clock", "micro_time", "now", "parse", "timestamp"]

Clock = Callable[[], datetime]


def now() -> datetime:
    return datetime.now(UTC)


def timestamp(moment: datetime) -> str:
    """As `metav1.Time`: whole seconds."""
    return moment.isoformat(timespec="seconds")[: len("2000-01-01T00:00:00")] + "Z"


def micro_time(moment: datetime) -> str:
    """As `metav1.MicroTime`, in leases and events.k8s.io's fields."""
    return moment.isoformat(timespec="microseconds")[: len("2000-01-01T00:00:00.000000")] + "Z"


def parse(text: str) -> datetime:
    return datetime.fromisoformat(text)
