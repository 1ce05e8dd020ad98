"""Devices of claims are kept back from the device plugin API, whatever is left of the claim's files."""

import json
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.sdk.holdings.test_ledger import paths

from plugwright import Device, Settings
from plugwright.protocol import pod_resources
from plugwright.protocol.paths import KubeletPaths
from plugwright.protocol.pod_resources import (
    AllocatableDevice,
    ClaimDevice,
    ContainerResources,
    DynamicResource,
    PodResources,
)
from plugwright.sdk.driver_names import device_name, driver_name
from plugwright.sdk.holdings import sources
from plugwright.sdk.holdings.book import Book
from plugwright.sdk.holdings.holding import HoldingSource
from plugwright.sdk.holdings.ledger import Ledger
from plugwright.sdk.holdings.overlaps import Name, Offer
from plugwright.sdk.holdings.records import ClaimRecord, Memory, ServedResource
from plugwright.sdk.serve_settings import ServeMode

__all__ = ["paths"]

RESOURCE = "example.com/gpu"
DRIVER = driver_name(RESOURCE)
UID = "0d3c0d3c-0000-4000-8000-000000000001"
IDS = ("GPU-0", "GPU-1")
PLUGIN = ServedResource(ServeMode.DEVICE_PLUGIN, DRIVER)


def _prepared_claims(paths: KubeletPaths, cdi: Path) -> None:
    devices = [{"name": device_name(key), "id": key, "pool": "node", "request": "r"} for key in IDS]
    claim = {"uid": UID, "namespace": "default", "name": "common", "state": "done", "devices": devices}
    content = json.dumps({"claims": [claim]}).encode()
    directory = paths.plugins / DRIVER
    directory.mkdir(parents=True)
    header = json.dumps({"format": 1, "crc32": zlib.crc32(content)}).encode()
    (directory / "checkpoint.json").write_bytes(header + b"\n" + content + b"\n")


def _cdi(paths: KubeletPaths, cdi: Path) -> None:
    edits = {"containerEdits": {"env": ["A=b"]}}
    devices = [{"name": f"{UID}-{device_name(key)}", **edits} for key in IDS]
    spec = {"cdiVersion": "0.5.0", "kind": f"{DRIVER}/claim", "devices": devices}
    (cdi / f"{DRIVER}-claim_plugwright-dra.{UID}.json").write_text(json.dumps(spec))


def _manager_state(paths: KubeletPaths, cdi: Path) -> None:
    devices = [{"PoolName": "node", "DeviceName": device_name(key), "ShareID": None} for key in IDS]
    info = {"ClaimUID": UID, "ClaimName": "common", "Namespace": "default", "PodUIDs": {}}
    data = json.dumps({"ClaimInfoStateList": [{**info, "DriverState": {DRIVER: {"Devices": devices}}}]})
    state = {"Data": data, "Checksum": zlib.crc32(data.encode())}
    (paths.root / "dra_manager_state").write_text(json.dumps(state))


class Kubelet:
    """Lists a pod that uses a claim of both devices, or no pod."""

    def __init__(self, *, has_pod: bool) -> None:
        self._has_pod = has_pod

    async def pods(self) -> list[PodResources]:
        if not self._has_pod:
            return []
        claim = DynamicResource(
            "default", "common", tuple(ClaimDevice(DRIVER, "node", device_name(key)) for key in IDS)
        )
        return [PodResources("a", "default", (ContainerResources("main", claims=(claim,)),))]

    async def allocatable(self) -> list[AllocatableDevice]:
        return []

    async def pod(self, name: str, namespace: str) -> PodResources:
        raise NotImplementedError

    async def alpha_pods(self) -> list[PodResources]:
        return []


@pytest.mark.parametrize(
    ("write", "source"),
    [
        (_prepared_claims, HoldingSource.PREPARED_CLAIMS),
        (_cdi, HoldingSource.CDI),
        (_manager_state, HoldingSource.DRA_MANAGER_STATE),
        (None, HoldingSource.POD_RESOURCES),
    ],
    ids=["prepared claims", "cdi", "dra_manager_state", "pod-resources"],
)
@pytest.mark.parametrize("named", [False, True], ids=["by id", "by hardware in another resource"])
async def test_every_device_of_a_claim_is_kept_back(
    paths: KubeletPaths,
    tmp_path: Path,
    write: Callable[[KubeletPaths, Path], None] | None,
    source: HoldingSource,
    named: bool,
) -> None:
    """Also with a resource that the claim's driver never served, if the hardware is the same."""
    if write is not None:
        write(paths, tmp_path)
    ledger = Ledger(Settings(kubelet_dir=paths.root))
    resource = "example.com/renamed" if named else RESOURCE
    served = ServedResource(ServeMode.DEVICE_PLUGIN, driver_name(resource))
    devices = {key: Device(key, physical=(key,) if named else ()) for key in (*IDS, "GPU-2")}
    async with pod_resources.serve(Kubelet(has_pod=write is None), paths.pod_resources_socket):
        await ledger.start({resource: served}, [str(tmp_path)])
        ledger.offer(resource, devices, served)
        closed = ledger.closed(resource, devices)
        await ledger.read()
    assert sorted(closed) == list(IDS)
    assert all("ResourceClaim" in reason.reason for reason in closed.values())
    holdings = [holding for holding in ledger.latest.value.holdings if holding.key.api is ServeMode.DRA]
    assert {holding.source for holding in holdings} == {source}
    assert {holding.driver for holding in holdings} == {DRIVER}


async def test_the_cdi_spec_of_a_claim_tells_its_hardware_when_nothing_else_is_left(
    paths: KubeletPaths, tmp_path: Path
) -> None:
    """Neither the ids nor the resource are those of the claim."""
    edits = {"deviceNodes": [{"path": "/dev/b"}, {"path": "/dev/x", "hostPath": "/dev/c"}], "env": ["GPU=a,b"]}
    devices = [{"name": f"{UID}-slot-0", "containerEdits": edits}, {"name": f"{UID}-d", "containerEdits": ["odd"]}]
    spec = {"cdiVersion": "0.5.0", "kind": f"{DRIVER}/claim", "devices": devices}
    (tmp_path / f"{DRIVER}-claim_plugwright-dra.{UID}.json").write_text(json.dumps(spec))
    ledger, resource = Ledger(Settings(kubelet_dir=paths.root)), "example.com/renamed"
    served = ServedResource(ServeMode.DEVICE_PLUGIN, driver_name(resource))
    offered = {name: Device(name, physical=(name,)) for name in ("a", "/dev/b", "/dev/c", "/dev/x", "d", "e")}
    async with pod_resources.serve(Kubelet(has_pod=False), paths.pod_resources_socket):
        await ledger.start({resource: served}, [str(tmp_path)])
        ledger.offer(resource, offered, served)
        assert sorted(ledger.closed(resource, offered)) == ["/dev/b", "/dev/c", "a", "d"]


@pytest.mark.parametrize(
    ("write", "name", "source"),
    [
        (_prepared_claims, f"plugins/{DRIVER}/checkpoint.json", HoldingSource.PREPARED_CLAIMS),
        (_manager_state, "dra_manager_state", HoldingSource.DRA_MANAGER_STATE),
    ],
    ids=["prepared claims", "dra_manager_state"],
)
def test_claims_of_a_file_with_a_wrong_checksum_are_unknown(
    paths: KubeletPaths, tmp_path: Path, write: Callable[[KubeletPaths, Path], None], name: str, source: HoldingSource
) -> None:
    write(paths, tmp_path)
    damaged = paths.root / name
    damaged.write_bytes(damaged.read_bytes().replace(b"common", b"summon"))
    read = sources.read_claim_files(paths, [], {DRIVER})
    assert read.claims == ()
    assert not read.are_complete
    assert "its checksum is wrong" in read.problems[source]


async def test_devices_are_open_when_the_claim_has_been_unprepared(paths: KubeletPaths, tmp_path: Path) -> None:
    _prepared_claims(paths, tmp_path)
    ledger, devices = Ledger(Settings(kubelet_dir=paths.root)), {key: Device(key) for key in IDS}
    async with pod_resources.serve(Kubelet(has_pod=False), paths.pod_resources_socket):
        await ledger.start({RESOURCE: PLUGIN}, [str(tmp_path)])
        ledger.offer(RESOURCE, devices, PLUGIN)
        assert sorted(ledger.closed(RESOURCE, devices)) == list(IDS)
        (paths.plugins / DRIVER / "checkpoint.json").unlink()
        await ledger.read()
        assert ledger.closed(RESOURCE, devices) == {}


async def test_a_resource_that_left_claims_waits_until_they_are_accounted_for(
    paths: KubeletPaths, tmp_path: Path
) -> None:
    """An upgrade from `serve: dra`, with everything lost but the memory of how the devices were offered."""
    settings = Settings(kubelet_dir=paths.root, state_dir=tmp_path / "state")
    devices = {key: Device(key) for key in IDS}
    dra = ServedResource(ServeMode.DRA, DRIVER, is_arbitrated=True)
    before = Ledger(settings)
    async with pod_resources.serve(Kubelet(has_pod=False), paths.pod_resources_socket):
        await before.start({RESOURCE: dra}, [])
    before.offer(RESOURCE, devices, dra)
    before.closed(RESOURCE, devices)
    assert before.offers is not None
    await before.memory.write(before.offers)
    after = Ledger(settings)
    await after.start({RESOURCE: PLUGIN}, [])
    after.offer(RESOURCE, devices, PLUGIN)
    assert {closed.waits for closed in after.closed(RESOURCE, devices).values()} == {True}
    async with pod_resources.serve(Kubelet(has_pod=True), paths.pod_resources_socket):
        await after.read()
        closed = after.closed(RESOURCE, devices)
        assert {reason.reason for reason in closed.values()} == {"held by ResourceClaim default/common"}


def test_a_claim_is_known_by_its_hardware_when_its_device_is_offered_in_another_way() -> None:
    """After the files of the claim are lost, pod-resources have only the name of the device in the slice."""
    book, served = Book(), ServedResource(ServeMode.DEVICE_PLUGIN, DRIVER)
    shares = {f"GPU-0::{n}": Device(f"GPU-0::{n}", physical=("GPU-0",), sharing="x") for n in (0, 1)}
    book.offer(RESOURCE, shares, served)
    book.take_checkpoint({}, 1.0)
    book.take_pods({})
    book.take_claims([ClaimRecord(DRIVER, device_name("GPU-0"), uid=UID)], are_complete=False)
    reasons = {closed.reason for closed in book.closed(RESOURCE, shares).values()}
    assert reasons == {f"held by ResourceClaim with uid {UID} ({RESOURCE}) until it ends"}


def test_a_restart_without_the_files_of_claims_still_tells_other_releases_what_they_hold() -> None:
    """Until all claims are accounted for."""
    name = (RESOURCE, "GPU-0")
    other = Memory(offers=(Offer(("example.com/other", "a"), ("GPU-0",)),))
    book = Book(Memory(claimed=(name,)))
    book.take_neighbours({"default_other": other})
    book.take_claims([], are_complete=False)
    book.settle()
    assert claimed(book) == [name]
    book.take_checkpoint({}, 1.0)
    book.take_pods({})
    book.settle()
    assert claimed(book) == []


def claimed(book: Book) -> list[Name]:
    assert book.memory is not None
    return list(book.memory.claimed)
