"""A node of one driver for the tests of claims: the claims of its API server, its devices, and its directories."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from msgspec import structs

from plugwright.dra.resource_claims.allocated_claims import AllocatedClaims
from plugwright.dra.resource_claims.claim_files import ClaimFiles
from plugwright.dra.resource_claims.claim_setup import ClaimSetup, PreparationSettings
from plugwright.dra.resource_claims.claims import AllocatedClaim
from plugwright.dra.resource_claims.device_metadata import DeviceMetadata
from plugwright.dra.resource_claims.preparation import Preparation
from plugwright.dra.resource_claims.prepared_claims import PreparedClaims
from plugwright.errors import MalformedMessage, PeerGone, PeerRefused
from plugwright.model import Allocation, Device
from plugwright.protocol import dra, transport
from plugwright.protocol.dra import Claim, DRAPluginClient
from plugwright.sdk import cdi

DRIVER, POOL = "tape.example.com", "node-1"
QUICK = PreparationSettings(limit=2.0, first_retry=0.01, longest_retry=0.05, lookup=60)
PATIENT = structs.replace(QUICK, limit=30.0)


def uid_of(name: str) -> str:
    return f"{name}-0000-0000"


def claim(name: str = "one", uid: str = "", namespace: str = "default") -> Claim:
    return Claim(namespace, name, uid or uid_of(name))


def result(device: str = "st0", request: str = "tape", **more: object) -> dict[str, object]:
    return {"driver": DRIVER, "pool": POOL, "device": device, "request": request, **more}


def config(parameters: object, *requests: str, source: str = "FromClaim", driver: str = DRIVER) -> dict[str, object]:
    return {"source": source, "requests": list(requests), "opaque": {"driver": driver, "parameters": parameters}}


def document(
    name: str = "one",
    *results: Mapping[str, object],
    configs: Sequence[Mapping[str, object]] = (),
    uid: str = "",
    annotations: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """A ResourceClaim as an API server has it; without results it has the device st0."""
    devices = {"results": list(results or [result()]), "config": list(configs)}
    metadata = {
        "namespace": "default",
        "name": name,
        "uid": uid or uid_of(name),
        "annotations": dict(annotations or {}),
    }
    return {"metadata": metadata, "status": {"allocation": {"devices": devices}}}


@dataclass
class Documents:
    """The ResourceClaims of an API server, which may be away."""

    documents: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    away: bool = False
    unreadable: str = ""  # the name of a claim
    asked: int = 0

    def put(self, *documents: dict[str, Any]) -> None:
        for made in documents:
            self.documents[made["metadata"]["namespace"], made["metadata"]["name"]] = made

    def remove(self, name: str) -> None:
        del self.documents["default", name]

    async def get(self, path: str) -> Mapping[str, object]:
        *_, namespace, _, name = path.split("/")
        return await self.claim(namespace, name)

    async def claim(self, namespace: str, name: str) -> Mapping[str, object]:
        self.asked += 1
        if self.away:
            raise PeerGone("connection refused")
        if name == self.unreadable:
            raise MalformedMessage("nested too deep")
        try:
            return self.documents[namespace, name]
        except KeyError:
            raise PeerRefused("NotFound", f'resourceclaims "{name}" not found') from None


@dataclass
class Drives:
    """A plugin with its devices; what it is asked for is kept."""

    root: Path
    devices: dict[str, Device] = field(default_factory=dict)
    refusals: dict[str, str] = field(default_factory=dict)
    allocation: Callable[[Sequence[Device]], Allocation] | None = None
    check: Callable[[Mapping[str, object]], None] = lambda parameters: None
    arrived: Callable[[str], Awaitable[None]] | None = None
    allocated: list[list[str]] = field(default_factory=list)
    given: list[Device] = field(default_factory=list)
    released: list[Device] = field(default_factory=list)
    release_error: Exception | None = None
    effect: str = "NoSchedule"  # of the taint of a device that failed

    @classmethod
    def on(cls, root: Path, count: int = 4) -> "Drives":
        (root / "host" / "dev").mkdir(parents=True, exist_ok=True)
        drives = cls(root)
        for number in range(count):
            drives.add(Device(f"st{number}"))
        return drives

    def add(self, device: Device, name: str = "") -> None:
        self.devices[name or device.id] = device
        (self.root / "host" / "dev" / device.id).touch()

    def device(self, name: str) -> Device | None:
        return self.devices.get(name)

    def refusal(self, device: Device) -> str:
        return self.refusals.get(device.id, "")

    def failure_taints(self, device: Device) -> list[Mapping[str, str]]:
        return [{"key": "plugwright.dev/unhealthy", "value": device.code, "effect": self.effect}]

    async def arriving(self, names: Collection[str]) -> None:
        for name in names:
            if self.arrived is not None:
                await self.arrived(name)

    async def allocate(self, devices: Sequence[Device]) -> Allocation:
        self.allocated.append([device.id for device in devices])
        self.given += devices
        if self.allocation is not None:
            return self.allocation(devices)
        return Allocation(
            env={"TAPES": ",".join(device.id for device in devices)}, nodes=[f"/dev/{device.id}" for device in devices]
        )

    async def release(self, devices: Sequence[Device]) -> None:
        self.released += [device for device in devices if not device.admin_access]
        if self.release_error is not None:
            raise self.release_error

    async def check_parameters(self, parameters: Mapping[str, object]) -> None:
        self.check(parameters)


@dataclass
class ClaimNode:
    """One boot of one process: `reboot` and `restart` make the next."""

    root: Path
    api: Documents
    drives: Drives
    boot_id: str = "boot-1"
    settings: PreparationSettings = QUICK
    tells_containers: bool = True
    report: Callable[[AllocatedClaim, str], None] | None = None
    reports: list[tuple[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.cdi = cdi.SpecDirectory(self.root / "cdi")
        self.files = ClaimFiles(
            DRIVER, self.cdi, DeviceMetadata(self.plugin_dir, DRIVER) if self.tells_containers else None
        )
        self.prepared = PreparedClaims(self.checkpoint, self.boot_id, self.files.find)
        setup = ClaimSetup(self.drives, self.prepared, self.files, self.root / "host")
        report = self.report or (lambda claim, reason: self.reports.append((claim.name, reason)))
        self.preparation = Preparation(AllocatedClaims(self.api, DRIVER, POOL), setup, report, self.settings)

    @classmethod
    def on(cls, root: Path, **more: Any) -> "ClaimNode":
        return cls(root, Documents(), Drives.on(root), **more)

    @property
    def plugin_dir(self) -> Path:
        return self.root / "plugins" / DRIVER

    @property
    def checkpoint(self) -> Path:
        return self.plugin_dir / "checkpoint.json"

    def restart(self, **changes: Any) -> "ClaimNode":
        """The same directories, API server and plugin, with nothing kept in memory."""
        return replace(self, **changes)

    def reboot(self, boot_id: str) -> "ClaimNode":
        for path in self.cdi.path.glob("*"):
            path.unlink()
        return self.restart(boot_id=boot_id)

    def cdi_files(self) -> list[Path]:
        return sorted(self.cdi.path.glob("*"))

    def leftovers(self) -> list[Path]:
        """Every file and claim directory of claims."""
        metadata = self.plugin_dir / "dra-device-metadata"
        return [*self.cdi_files(), *(sorted(metadata.iterdir()) if metadata.is_dir() else ())]

    async def prepare(self, *claims: Claim) -> Any:
        """The answer for the one claim, or those for all."""
        answers = await self.preparation.prepare(claims)
        return answers[claims[0].uid] if len(claims) == 1 else answers

    async def unprepare(self, *claims: Claim) -> Any:
        answers = await self.preparation.unprepare(claims)
        return answers[claims[0].uid] if len(claims) == 1 else answers

    @asynccontextmanager
    async def serving(self, version: str = dra.VERSIONS[0]) -> AsyncIterator[DRAPluginClient]:
        """Served on a socket, with a client as a kubelet has it."""
        self.plugin_dir.mkdir(parents=True, exist_ok=True)
        socket = self.plugin_dir / "dra.sock"
        async with transport.serve(socket, dra.methods(self.preparation)), dra.connect(socket, version) as client:
            yield client

    async def until(self, accept: Callable[[], bool]) -> None:
        async with asyncio.timeout(30):
            while not accept():
                await asyncio.sleep(0.005)


def edits(node: ClaimNode, cdi_device: str) -> cdi.ContainerEdits:
    """What a runtime does for a CDI name, as the files say now."""
    kind, name = cdi.split_name(cdi_device)
    specs = [cdi.read(path) for path in node.cdi_files() if path.suffix == ".json"]
    return next(device.edits for spec in specs if spec.kind == kind for device in spec.devices if device.name == name)
