"""The files of a prepared claim besides the checkpoint: its CDI file and its metadata files.

Every method blocks. The CDI directory is empty after a reboot; the checkpoint then contains the spec to restore.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from plugwright.dra.resource_claims import claim_devices
from plugwright.dra.resource_claims.claim_devices import ClaimSpec
from plugwright.dra.resource_claims.claims import AllocatedClaim, is_uid
from plugwright.dra.resource_claims.device_metadata import DeviceMetadata
from plugwright.dra.resource_claims.prepared_claims import ClaimedDevice, PreparedClaim
from plugwright.errors import InvalidValue
from plugwright.model import Allocation, Device
from plugwright.sdk import cdi

__all__ = ["ClaimFiles"]


class ClaimFiles(msgspec.Struct, frozen=True):
    """`metadata` is None if containers get no files about their devices."""

    driver: str
    directory: cdi.SpecDirectory
    metadata: DeviceMetadata | None = None

    def write(
        self, claim: AllocatedClaim, allocations: Mapping[str, Allocation], devices: Mapping[str, Device]
    ) -> ClaimSpec:
        """Writes all files of a claim; `allocations` are by request, `devices` by their names."""
        mounts = {}
        if self.metadata is not None:
            mounts = {request: self.metadata.write(claim, request, devices) for request in allocations}
        made = claim_devices.spec_of(self.driver, claim, allocations, mounts)
        if made.spec is not None:
            self.directory.write(made.spec, part=claim.uid)
        else:
            self._path(claim.uid).unlink(missing_ok=True)
        return made

    def write_again(
        self, claim: PreparedClaim, allocated: AllocatedClaim | None = None, devices: Mapping[str, Device] | None = None
    ) -> None:
        """Restores possibly removed files of a prepared claim; its metadata only with `allocated`."""
        if self.metadata is not None and allocated is not None:
            for request in sorted({device.request for device in claim.devices}):
                self.metadata.write(allocated, request, devices or {})
        if claim.spec is not None:
            self.directory.write(cdi.from_plain(claim.spec), part=claim.uid)

    def remove(self, claim: PreparedClaim) -> None:
        """Removes all files of a claim, if there are any."""
        self._path(claim.uid).unlink(missing_ok=True)
        if self.metadata is not None:
            self.metadata.remove(claim)

    def find(self) -> list[PreparedClaim]:
        """The claims with files here, from their metadata, otherwise from their CDI files, whose names contain less."""
        found = {claim.uid: claim for claim in (self.metadata.find() if self.metadata is not None else ())}
        for claim in self._in_cdi_directory():
            found.setdefault(claim.uid, claim)
        return list(found.values())

    def _in_cdi_directory(self) -> Iterator[PreparedClaim]:
        for path in self.directory.files():
            with suppress(OSError, InvalidValue):
                spec = cdi.read(path)
                uid = path.name.removesuffix(".json").rpartition(".")[2]
                if spec.kind == claim_devices.cdi_kind(self.driver) and is_uid(uid):
                    yield PreparedClaim(uid, "", "", devices=tuple(_devices(uid, spec.devices)))

    def _path(self, uid: str) -> Path:
        return self.directory.file(claim_devices.cdi_kind(self.driver), uid)


def _devices(uid: str, devices: Iterable[cdi.Device]) -> Iterator[ClaimedDevice]:
    for device in devices:
        if device.name.startswith(f"{uid}-"):
            name = device.name.removeprefix(f"{uid}-")
            yield ClaimedDevice(name, name, "", "")
