"""The health of devices as reported by drivers, until the report is too old (11.24 to 11.26).

It outlives the kubelet in a file, `dra_health_state` (11.26c); a kubelet starts without an unreadable file.

Which pods use a device is the DRA manager's knowledge: it gets the devices whose health has changed.
"""

import json
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from plugwright.protocol.dra_health import LEASE, HealthStatus, ReportedHealth
from plugwright.system import files

__all__ = ["ClaimDeviceHealth", "ClaimHealth"]

FILE = "dra_health_state"
_MESSAGE_LIMIT = 1024
_SECOND = 10**9  # in Go's durations


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

    `changed` is called with the driver and the pools and names of its devices with a changed health.
    With a `limit`, a driver's further devices are ignored, and those no longer named are forgotten (11.26d).
    """

    def __init__(
        self,
        clock: Callable[[], float],
        changed: Callable[[str, set[tuple[str, str]]], None],
        directory: Path,
        limit: int = 0,
    ) -> None:
        self._clock = clock
        self._changed = changed
        self._path, self._limit = directory / FILE, limit
        self._said: dict[str, dict[tuple[str, str], _Said]] = {}  # by driver, pool and name

    def load(self) -> None:
        """Reads the file of an earlier kubelet; with a damaged file, or none, nothing is known."""
        with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            drivers = json.loads(self._path.read_bytes())
            now = time.time() - self._clock()
            self._said = {driver: _decode(state["Devices"] or {}, now) for driver, state in drivers.items()}

    def _save(self) -> None:
        now = time.time() - self._clock()
        state = {driver: {"Devices": _encode(devices, now)} for driver, devices in sorted(self._said.items())}
        text = json.dumps(state, separators=(",", ":")).encode()
        with suppress(OSError):  # the kubelet logs it, and goes on
            files.write_atomically(self._path, text, mode=0o600, sync_name=False)

    def health_received(self, driver: str, devices: Iterable[ReportedHealth]) -> None:
        """Devices missing in a message keep their health until it is too old, which the next message finds."""
        known, now = self._said.setdefault(driver, {}), self._clock()
        said, new = dict[tuple[str, str], _Said](), 0
        for device in devices:
            key = device.pool, device.name
            new += key not in known and key not in said
            if key in known or not self._limit or len(known) + new <= self._limit:
                said[key] = _Said(device.health, _cut(device.message), _timeout(device), now)
        expired = [key for key, last in known.items() if key not in said and now - last.at > last.timeout]
        said |= {
            key: _Said(HealthStatus.UNKNOWN, "", known[key].timeout, now)
            for key in expired
            if known[key].health is not HealthStatus.UNKNOWN
        }
        changed = {key for key, after in said.items() if key not in known or replace(known[key], at=now) != after}
        known.update(said)
        for key in expired if self._limit else ():
            del known[key]
        if changed or (expired and self._limit):
            self._save()
        if changed:
            self._changed(driver, changed)

    def health_lost(self, driver: str) -> None:
        """Statuses of pods are not written for it: they follow when the pods are looked at next (11.26)."""
        self._said.pop(driver, None)
        self._save()

    def of(self, driver: str, pool: str, name: str) -> tuple[HealthStatus, str]:
        """The health and its message; unknown if the driver has not repeated it in time."""
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


def _encode(devices: Mapping[tuple[str, str], _Said], epoch: float) -> dict[str, object]:
    """As Go writes it; `epoch` is the time of day at which the kubelet's clock was zero."""
    return {
        f"{pool}/{name}": {
            "PoolName": pool,
            "DeviceName": name,
            "Health": said.health.name.capitalize(),
            "LastUpdated": datetime.fromtimestamp(epoch + said.at, UTC).isoformat().replace("+00:00", "Z"),
            "HealthCheckTimeout": said.timeout * _SECOND,
            "Message": said.message,
        }
        for (pool, name), said in sorted(devices.items())
    }


def _decode(devices: Mapping[str, Any], epoch: float) -> dict[tuple[str, str], _Said]:
    return {
        (entry["PoolName"], entry["DeviceName"]): _Said(
            HealthStatus[entry["Health"].upper()],
            entry["Message"],
            entry["HealthCheckTimeout"] // _SECOND or LEASE,
            datetime.fromisoformat(entry["LastUpdated"]).timestamp() - epoch,
        )
        for entry in devices.values()
    }
