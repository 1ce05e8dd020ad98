"""Files in a container that describe the devices of its claim and their attributes (KEP 5304).

There is one file for each request of a claim, mounted by the claim's CDI device: a container reads
`/var/run/kubernetes.io/dra-device-attributes/resourceclaims/CLAIM/REQUEST/DRIVER-metadata.json`, or, if the claim was
generated for its pod, the same below `resourceclaimtemplates` with the claim's name in the pod. A file contains the
same object once for each version of its API, newest first. It is changed in place, because containers have it mounted.
"""

import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from plugwright.dra.resource_claims.claims import AllocatedClaim, AllocatedDevice, is_uid
from plugwright.dra.resource_claims.prepared_claims import ClaimedDevice, PreparedClaim
from plugwright.dra.resource_slices import slice_devices
from plugwright.model import Device
from plugwright.sdk import cdi
from plugwright.system import files
from plugwright.system.cpython import sha256

__all__ = ["DeviceMetadata"]

_GROUP = "metadata.resource.k8s.io"
_VERSIONS = ("v1beta1", "v1alpha1")
_SUBDIRECTORY = "dra-device-metadata"
_IN_CONTAINER = "/var/run/kubernetes.io/dra-device-attributes"
_FILE = "metadata.json"
_NAME_LIMIT = 255  # bytes of a file name
_DIGITS = 16


class DeviceMetadata(msgspec.Struct, frozen=True):
    """The files of one driver, in `directory`, which has the same path on the host."""

    directory: Path
    driver: str

    def write(self, claim: AllocatedClaim, request: str, devices: Mapping[str, Device]) -> cdi.Mount:
        """Writes the file of one request; `devices` are by their names. Returns the container's mount."""
        path = self._directory(claim.namespace, claim.name) / request / _FILE
        results = [result for result in claim.results if result.request == request]
        old = _first_object(path)
        metadata = {"name": claim.name, "namespace": claim.namespace, "uid": claim.uid}
        content: dict[str, object] = {
            "metadata": metadata,
            **({"podClaimName": claim.pod_claim_name} if claim.pod_claim_name else {}),
            "requests": self._requests(results, devices),
        }
        if old is None or _without_generation(old) != content:
            generation = _generation(old) + 1 if old is not None else 1
            content["metadata"] = {**metadata, "generation": generation}
            objects = ({"kind": "DeviceMetadata", "apiVersion": f"{_GROUP}/{each}", **content} for each in _VERSIONS)
            lines = (json.dumps(document, separators=(",", ":")).encode() + b"\n" for document in objects)
            _write_in_place(path, b"".join(lines))
        name = f"resourceclaims/{claim.name}"
        if claim.pod_claim_name:
            name = f"resourceclaimtemplates/{claim.pod_claim_name}"
        inside = f"{_IN_CONTAINER}/{name}/{request}/{self.driver}-{_FILE}"
        return cdi.Mount(str(path), inside, options=("ro", "nosuid", "nodev", "bind"))

    def remove(self, claim: PreparedClaim) -> None:
        """Removes the claim's files, but not those of a later claim with the same name."""
        directory = self._directory(claim.namespace, claim.name)
        if claim.name and any(_uid(document) == claim.uid for document in _documents(directory)):
            shutil.rmtree(directory)

    def find(self) -> Iterator[PreparedClaim]:
        """The claims with files, each with its devices by name; the files do not contain shares."""
        for directory in sorted(_subdirectories(self.directory / _SUBDIRECTORY)):
            documents = [document for document in _documents(directory) if is_uid(_uid(document))]
            devices = tuple(device for document in documents for device in _devices(document))
            if documents:
                metadata = documents[0]["metadata"]
                yield PreparedClaim(
                    _uid(documents[0]), str(metadata.get("namespace")), str(metadata.get("name")), devices=devices
                )

    def _requests(self, results: Sequence[AllocatedDevice], devices: Mapping[str, Device]) -> list[dict[str, object]]:
        described: dict[str, list[dict[str, object]]] = {}
        for result in results:
            device: dict[str, object] = {"driver": self.driver, "pool": result.pool, "name": result.device}
            if attributes := slice_devices.attributes(devices.get(result.device) or Device(result.device)):
                device["attributes"] = attributes
            described.setdefault(result.reference or result.request, []).append(device)
        return [{"name": reference, "devices": found} for reference, found in described.items()]

    def _directory(self, namespace: str, name: str) -> Path:
        """Named as upstream's; a name too long for file systems is shortened, and stays unique by its hash."""
        directory = f"{namespace}_{name}"
        if len(directory) > _NAME_LIMIT:
            digest = sha256(directory.encode())[:_DIGITS]
            directory = f"{directory[: _NAME_LIMIT - _DIGITS - 1]}-{digest}"
        return self.directory / _SUBDIRECTORY / directory


def _write_in_place(path: Path, content: bytes) -> None:
    """Creates a new file atomically; an existing one keeps its inode."""
    if not path.exists():
        files.write_atomically(path, content)
        return
    with path.open("r+b") as file:
        file.write(content)
        file.truncate()
        file.flush()
        os.fsync(file.fileno())


def _first_object(path: Path) -> dict[str, Any] | None:
    try:
        document = json.loads(path.read_bytes().partition(b"\n")[0])
    except (OSError, ValueError):
        return None
    return document if isinstance(document, dict) and isinstance(document.get("metadata"), dict) else None


def _without_generation(document: Mapping[str, Any]) -> dict[str, object]:
    metadata = {key: value for key, value in document["metadata"].items() if key != "generation"}
    return {key: document[key] for key in document if key not in ("kind", "apiVersion")} | {"metadata": metadata}


def _generation(document: Mapping[str, Any]) -> int:
    generation = document["metadata"].get("generation")
    return generation if isinstance(generation, int) else 0


def _uid(document: Mapping[str, Any]) -> str:
    uid = document["metadata"].get("uid")
    return uid if isinstance(uid, str) else ""


def _documents(directory: Path) -> list[dict[str, Any]]:
    paths = sorted(subdirectory / _FILE for subdirectory in _subdirectories(directory))
    return [document for path in paths if (document := _first_object(path)) is not None]


def _devices(document: Mapping[str, Any]) -> Iterator[ClaimedDevice]:
    with suppress(KeyError, TypeError, AttributeError):  # a modified file
        for request in document["requests"]:
            for device in request["devices"]:
                name = str(device["name"])
                yield ClaimedDevice(name, name, str(device["pool"]), str(request["name"]).partition("/")[0])


def _subdirectories(directory: Path) -> Iterable[Path]:
    try:
        return [path for path in directory.iterdir() if path.is_dir() and not path.is_symlink()]
    except OSError:
        return []
