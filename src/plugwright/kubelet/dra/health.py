"""What drivers say of their devices' health, until it is too old to be believed (11.24 to 11.26).

Which pods use a device is the DRA manager's knowledge: it gets the devices whose health has changed.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from plugwright.protocol.dra_health import LEASE, HealthStatus, ReportedHealth

__all__ = ["ClaimDeviceHealth", "ClaimHealth"]

_MESSAGE_LIMIT = 1024


@dataclass(frozen=True, slots=True)
class ClaimDeviceHealth:
    """A device of a claim in the status of a container; `resource` is the claim as the container names it."""

    resource: str
    resource_id: str
    health: str  # Healthy, Unhealthy or Unknown
    message: str = ""


@dataclass(frozen=True, slots=True)
class _Said:
    health: HealthStatus
    message: str
    timeout: int
    at: float


class ClaimHealth:
    """The newest health of each device, by the kubelet's own clock: a driver's time stamps are not read.

    `changed` is called with the driver and the pools and names of its devices that have another health than before.
    """

    def __init__(self, clock: Callable[[], float], changed: Callable[[str, set[tuple[str, str]]], None]) -> None:
        self._clock = clock
        self._changed = changed
        self._said: dict[str, dict[tuple[str, str], _Said]] = {}  # by driver, pool and name

    def health_received(self, driver: str, devices: Iterable[ReportedHealth]) -> None:
        """Devices that a message leaves out keep their health until it is too old, which the next message finds."""
        known, now = self._said.setdefault(driver, {}), self._clock()
        said = {
            (device.pool, device.name): _Said(device.health, _cut(device.message), _timeout(device), now)
            for device in devices
        }
        for key, before in known.items():
            if key not in said and before.health is not HealthStatus.UNKNOWN and now - before.at > before.timeout:
                said[key] = _Said(HealthStatus.UNKNOWN, "", before.timeout, now)
        changed = {key for key, after in said.items() if key not in known or replace(known[key], at=now) != after}
        known.update(said)
        if changed:
            self._changed(driver, changed)

    def health_lost(self, driver: str) -> None:
        """Statuses of pods are not written for it: they follow when the pods are looked at next (11.26)."""
        self._said.pop(driver, None)

    def of(self, driver: str, pool: str, name: str) -> tuple[HealthStatus, str]:
        """The health and its message; unknown where the driver has not repeated it in time."""
        said = self._said.get(driver, {}).get((pool, name))
        if said is None or self._clock() - said.at > said.timeout:
            return HealthStatus.UNKNOWN, ""
        return said.health, said.message


def _timeout(device: ReportedHealth) -> int:
    return device.timeout if device.timeout > 0 else LEASE


def _cut(message: str) -> str:
    encoded = message.encode()
    if len(encoded) <= _MESSAGE_LIMIT:
        return message
    return encoded[: _MESSAGE_LIMIT - 3].decode(errors="ignore") + "..."
