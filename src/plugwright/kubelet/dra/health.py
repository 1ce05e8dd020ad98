"""What drivers say of their devices' health, until it is too old to be believed (11.24 to 11.26)."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from plugwright.protocol.dra_health import LEASE, HealthStatus, ReportedHealth

__all__ = ["ClaimHealth"]

_MESSAGE_LIMIT = 1024


@dataclass(frozen=True, slots=True)
class _Said:
    health: ReportedHealth
    at: float


class ClaimHealth:
    """The newest health of each device, by the kubelet's own clock: a driver's time stamps are not read."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._said: dict[tuple[str, str, str], _Said] = {}

    def health_received(self, driver: str, devices: Iterable[ReportedHealth]) -> None:
        now = self._clock()
        for device in devices:
            self._said[driver, device.pool, device.name] = _Said(device, now)

    def health_lost(self, driver: str) -> None:
        for key in [key for key in self._said if key[0] == driver]:
            del self._said[key]

    def of(self, driver: str, pool: str, name: str) -> tuple[HealthStatus, str]:
        """The health and its message; unknown where the driver has not repeated it in time."""
        said = self._said.get((driver, pool, name))
        if said is None or self._clock() - said.at > (said.health.timeout if said.health.timeout > 0 else LEASE):
            return HealthStatus.UNKNOWN, ""
        return said.health.health, _cut(said.health.message)


def _cut(message: str) -> str:
    encoded = message.encode()
    if len(encoded) <= _MESSAGE_LIMIT:
        return message
    return encoded[: _MESSAGE_LIMIT - 3].decode(errors="ignore") + "..."
