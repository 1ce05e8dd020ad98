"""The files by which a container knows its devices."""

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from plugwright.attributes import Version
from plugwright.dra.resource_claims.claims import AllocatedClaim, AllocatedDevice
from plugwright.dra.resource_claims.device_metadata import DeviceMetadata
from plugwright.dra.resource_claims.prepared_claims import ClaimedDevice, PreparedClaim
from plugwright.model import Device

CLAIM = AllocatedClaim(
    "default",
    "one",
    "u-1",
    (
        AllocatedDevice("tape", "node-1", "st0", reference="tape/big"),
        AllocatedDevice("tape", "node-1", "st1", reference="tape/big"),
        AllocatedDevice("spare", "node-1", "st2", reference="spare"),
    ),
)
STORED = PreparedClaim("u-1", "default", "one")
DEVICES = {
    "st0": Device("st0", attributes={"model": "LTO-9", "slots": 4, "firmware": Version("1.2.3"), "worm": True}),
    "st1": Device("st1", attributes={"own": object()}, numa=[1]),
    "st2": Device("st2"),
}


@pytest.fixture
def metadata(tmp_path: Path) -> DeviceMetadata:
    return DeviceMetadata(tmp_path, "tape.example.com")


def read(path: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def test_a_request_has_its_devices_with_their_attributes_in_each_version(metadata: DeviceMetadata) -> None:
    mount = metadata.write(CLAIM, "tape", DEVICES)
    assert mount.host_path == f"{metadata.directory}/dra-device-metadata/default_one/tape/metadata.json"
    assert mount.container_path == (
        "/var/run/kubernetes.io/dra-device-attributes/resourceclaims/one/tape/tape.example.com-metadata.json"
    )
    assert set(mount.options) >= {"ro", "bind"}
    newest, oldest = read(mount.host_path)
    named = {"driver": "tape.example.com", "pool": "node-1"}
    attributes = {
        "firmware": {"version": "1.2.3"},
        "id": {"string": "st0"},
        "model": {"string": "LTO-9"},
        "slots": {"int": 4},
        "worm": {"bool": True},
    }
    near = {"id": {"string": "st1"}, "resource.kubernetes.io/numaNode": {"int": 1}}
    devices = [{**named, "name": "st0", "attributes": attributes}, {**named, "name": "st1", "attributes": near}]
    assert newest == {
        "kind": "DeviceMetadata",
        "apiVersion": "metadata.resource.k8s.io/v1beta1",
        "metadata": {"name": "one", "namespace": "default", "uid": "u-1", "generation": 1},
        "requests": [{"name": "tape/big", "devices": devices}],
    }
    assert oldest == {**newest, "apiVersion": "metadata.resource.k8s.io/v1alpha1"}


def test_a_claim_of_a_template_is_found_by_its_name_in_the_pod(metadata: DeviceMetadata) -> None:
    mount = metadata.write(replace(CLAIM, pod_claim_name="drive"), "spare", DEVICES)
    assert "/resourceclaimtemplates/drive/spare/" in mount.container_path
    assert read(mount.host_path)[0]["podClaimName"] == "drive"


def test_a_file_changes_in_place_with_the_next_generation(metadata: DeviceMetadata) -> None:
    path = Path(metadata.write(CLAIM, "spare", DEVICES).host_path)
    before = path.stat()
    metadata.write(CLAIM, "spare", DEVICES)
    assert path.stat().st_mtime_ns == before.st_mtime_ns
    metadata.write(CLAIM, "spare", {**DEVICES, "st2": Device("st2", attributes={"model": "LTO-10"})})
    metadata.write(CLAIM, "spare", DEVICES)
    assert path.stat().st_ino == before.st_ino
    assert [made["metadata"] for made in read(str(path))] == [
        {"name": "one", "namespace": "default", "uid": "u-1", "generation": 3}
    ] * 2


def test_a_damaged_file_is_written_again(metadata: DeviceMetadata) -> None:
    path = metadata.write(CLAIM, "spare", DEVICES).host_path
    Path(path).write_text("{")
    metadata.write(CLAIM, "spare", DEVICES)
    assert len(read(path)) == 2


def test_a_claims_files_are_removed_and_not_those_of_the_next_with_its_name(metadata: DeviceMetadata) -> None:
    path = Path(metadata.write(CLAIM, "spare", DEVICES).host_path)
    metadata.remove(replace(STORED, uid="u-0"))
    metadata.remove(PreparedClaim("u-1", "", ""))
    assert path.exists()
    metadata.remove(STORED)
    metadata.remove(STORED)
    assert list((metadata.directory / "dra-device-metadata").iterdir()) == []


def test_claims_are_found_by_their_files(metadata: DeviceMetadata) -> None:
    assert list(metadata.find()) == []
    for request in ("tape", "spare"):
        metadata.write(CLAIM, request, DEVICES)
    for name in ("default_two/a/metadata.json", "default_three/b/metadata.json", "four", "default_five/c/d/e"):
        path = metadata.directory / "dra-device-metadata" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text('{"metadata": {"uid": "../x"}}' if "three" in name else "damaged")
    (found,) = metadata.find()
    devices = [("st2", "spare"), ("st0", "tape"), ("st1", "tape")]
    assert found == replace(
        STORED, devices=tuple(ClaimedDevice(name, name, "node-1", request) for name, request in devices)
    )
