"""The claims of this node's pods, and their file, which outlives the kubelet: `dra_manager_state`.

A claim from the file counts as not prepared: it is prepared again for its first pod (11.17).
"""

import json
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from plugwright.errors import KubeletError
from plugwright.kubelet.dra.resource_api import ResourceClaim
from plugwright.protocol.dra import Claim, PreparedDevice
from plugwright.protocol.pod_resources import ClaimDevice, DynamicResource
from plugwright.system import files

__all__ = ["ClaimInfo", "ClaimInfos"]

FILE = "dra_manager_state"
_TYPE = {"kind": "DRACheckpoint", "apiVersion": "checkpoint.dra.kubelet.k8s.io/v1"}


@dataclass(slots=True)
class ClaimInfo:
    """A claim with its pods, and the devices prepared for it by each driver."""

    claim: Claim
    drivers: dict[str, tuple[PreparedDevice, ...]]
    pods: set[str] = field(default_factory=set)  # their uids
    prepared: bool = False
    unpreparing: bool = False

    @classmethod
    def of(cls, claim: ResourceClaim) -> "ClaimInfo":
        return cls(Claim(claim.namespace, claim.name, claim.uid), dict.fromkeys(claim.drivers or (), ()))

    def devices(self, request: str = "") -> Iterator[tuple[str, PreparedDevice]]:
        """The driver and device of a request; of all without one. A device without requests is of all (11.20)."""
        for driver, devices in sorted(self.drivers.items()):
            for device in devices:
                if not request or not device.requests or request in device.requests:
                    yield driver, device

    def dynamic_resource(self) -> DynamicResource:
        """The claim in the pod-resources API, with all its devices, whatever a container asks of it (11.27)."""
        return DynamicResource(self.claim.namespace, self.claim.name, tuple(self._claim_devices()))

    def _claim_devices(self) -> Iterator[ClaimDevice]:
        for driver, devices in sorted(self.drivers.items()):
            names: tuple[str, ...] = ()
            for device in devices:
                # The list of CDI names is not begun again for each device of a driver (11.28).
                names += device.cdi_devices
                yield ClaimDevice(driver, device.pool, device.name, names, device.share_id)


class ClaimInfos:
    """Every claim in use, by namespace and name."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / FILE
        self._infos: dict[tuple[str, str], ClaimInfo] = {}

    def __iter__(self) -> Iterator[ClaimInfo]:
        return iter(list(self._infos.values()))

    def get(self, namespace: str, name: str) -> ClaimInfo | None:
        return self._infos.get((namespace, name))

    def add(self, info: ClaimInfo) -> None:
        self._infos[info.claim.namespace, info.claim.name] = info

    def remove(self, info: ClaimInfo) -> None:
        self._infos.pop((info.claim.namespace, info.claim.name), None)

    def used_by(self, pod_uid: str) -> list[ClaimInfo]:
        return [info for info in self if pod_uid in info.pods]

    def load(self) -> None:
        """Reads the file of an earlier kubelet; a damaged file ends the start, as in a real kubelet (11.18)."""
        try:
            text = self._path.read_bytes()
        except FileNotFoundError:
            self.save()
            return
        try:
            entries = _decode(text)
        except (ValueError, KeyError, TypeError) as error:
            raise KubeletError(f"{self._path} is damaged, drain the node and remove it: {error}") from error
        for info in entries:
            self.add(info)

    def save(self) -> None:
        files.write_atomically(self._path, _encode(self._infos.values()), mode=0o600, sync_name=False)


def _encode(infos: Iterable[ClaimInfo]) -> bytes:
    data = json.dumps({**_TYPE, "ClaimInfoStateList": [_entry(info) for info in infos]}, separators=(",", ":"))
    return json.dumps({"Data": data, "Checksum": zlib.crc32(data.encode())}, separators=(",", ":")).encode()


def _entry(info: ClaimInfo) -> dict[str, object]:
    return {
        "ClaimUID": info.claim.uid,
        "ClaimName": info.claim.name,
        "Namespace": info.claim.namespace,
        "PodUIDs": {uid: {} for uid in sorted(info.pods)},
        "DriverState": {driver: {"Devices": _devices(devices)} for driver, devices in sorted(info.drivers.items())},
    }


def _devices(devices: Sequence[PreparedDevice]) -> list[dict[str, object]] | None:
    return [
        {
            "PoolName": device.pool,
            "DeviceName": device.name,
            "ShareID": device.share_id or None,
            "RequestNames": list(device.requests) or None,
            "CDIDeviceIDs": list(device.cdi_devices) or None,
        }
        for device in devices
    ] or None


def _decode(text: bytes) -> list[ClaimInfo]:
    document = json.loads(text)
    data = document["Data"]
    if zlib.crc32(data.encode()) != document["Checksum"]:
        raise ValueError("checkpoint is corrupted")
    return [_info(entry) for entry in json.loads(data)["ClaimInfoStateList"] or ()]


def _info(entry: dict[str, Any]) -> ClaimInfo:
    drivers = {
        driver: tuple(
            PreparedDevice(
                device["PoolName"],
                device["DeviceName"],
                tuple(device["RequestNames"] or ()),
                tuple(device["CDIDeviceIDs"] or ()),
                device.get("ShareID") or "",
            )
            for device in state["Devices"] or ()
        )
        for driver, state in (entry["DriverState"] or {}).items()
    }
    return ClaimInfo(Claim(entry["Namespace"], entry["ClaimName"], entry["ClaimUID"]), drivers, set(entry["PodUIDs"]))
