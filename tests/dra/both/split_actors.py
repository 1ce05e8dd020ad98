"""What surrounds the split in its tests: an API server's claims and slices, and a driver that prepares claims."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from plugwright import Allocation, Device, Limits, Plugin, Settings, Timeouts
from plugwright.dra.both.holders import ClaimHolders, HolderSources, PodHolders
from plugwright.dra.both.move_settings import MoveSettings
from plugwright.dra.both.operators import OperatedSplit
from plugwright.dra.both.split_file import SplitFile
from plugwright.errors import MessageTooLarge, PeerGone, PeerRefused
from plugwright.kubelet import Kubelet
from plugwright.sdk.driver_names import device_name
from plugwright.sdk.resource_runtime import ResourceRuntime
from plugwright.sdk.run import serving
from plugwright.sdk.serve_settings import DriverState, ServeMode, ServeSettings, Split
from plugwright.system.latest import Latest

__all__ = [
    "DRIVER",
    "NODE",
    "QUICK",
    "TAPE",
    "Cluster",
    "Prepared",
    "SplitDriver",
    "Tapes",
    "both",
    "claim_document",
    "served",
    "split_of",
    "until",
]

TAPE, DRIVER, NODE = "example.com/tape", "tape.example.com", "n1"
QUICK = MoveSettings(
    in_flight=0.05,
    interval=0.1,
    longest=0.2,
    asked=5.0,
    arrival=5.0,
    readmission=0.5,
    stored=0.5,
    look=0.02,
    comparison=0.02,
    bound=0.02,
    unwanted=0.1,
)
_TIMEOUTS = Timeouts(holders=0.1, burst=0.005, lost_stream=0.02, departed=0.5)


class Tapes(Plugin):
    """Lists the given devices, and others when they are published."""

    resource = TAPE

    def __init__(self, *devices: Device, serve: ServeSettings | None = None) -> None:
        self.lists = Latest(devices)
        self.serve = serve or both()
        self.allocating = Latest(True)
        self.calls = Latest(0)

    async def discover(self) -> AsyncIterator[Sequence[Device]]:
        async for devices in self.lists.changes():
            yield devices

    async def allocate(self, devices: Sequence[Device]) -> Allocation:
        self.calls.publish(self.calls.value + 1)
        await self.allocating.until(bool)
        return Allocation(env={"TAPES": ",".join(device.id for device in devices)})


def both(**split: object) -> ServeSettings:
    return ServeSettings(api=ServeMode.BOTH, split=Split(**{"dra": 0, **split}))  # type: ignore[arg-type]


@dataclass
class Cluster:
    """`claims`: the devices of each allocated claim; `slices`: the published devices, and whether with the taint."""

    claims: dict[str, tuple[str, ...]] = field(default_factory=dict)
    slices: Latest[Mapping[str, bool]] = field(default_factory=lambda: Latest({}))
    away: bool = False
    lists: int = 0
    page: int = 2
    expire: int = 0  # so many continuations are refused as expired
    refusal: str = ""  # of every list
    largest: int = 1000  # claims that an answer may have
    allocatable: int = 0  # of the Node
    kind: str = "ResourceClaimList"  # of the answers

    async def get(self, path: str) -> dict[str, object]:
        await asyncio.sleep(0)
        if self.away:
            raise PeerGone("cannot reach the API server")
        if path == f"/api/v1/nodes/{NODE}":
            return {"status": {"allocatable": {TAPE: str(self.allocatable)}}}
        query = parse_qs(urlsplit(path).query)
        begin = int(query.get("continue", ["0"])[0])
        self.lists += begin == 0
        if self.refusal:
            raise PeerRefused(self.refusal, "not allowed")
        if int(query["limit"][0]) > self.largest:
            raise MessageTooLarge("an answer must have at most 3145728 bytes")
        if begin and self.expire:
            self.expire -= 1
            raise PeerRefused("Expired", "the continue token is too old")
        names = sorted(self.claims)
        more = str(begin + self.page) if begin + self.page < len(names) else ""
        items = [claim_document(name, self.claims[name]) for name in names[begin : begin + self.page]]
        return {"kind": self.kind, "items": items, "metadata": {"continue": more}}


def claim_document(name: str, devices: Sequence[str], admin: bool = False) -> dict[str, object]:
    results = [
        {"driver": DRIVER, "pool": NODE, "device": device_name(key), "request": "tape"}
        | ({"adminAccess": True} if admin else {})
        for key in devices
    ]
    namespace, _, short = name.rpartition("/")
    metadata = {"namespace": namespace or "default", "name": short}
    return {"metadata": metadata, "status": {"allocation": {"devices": {"results": results}}} if results else {}}


class Prepared:
    """The prepared claims of this node, as on a disk that outlives the daemon."""

    def __init__(self) -> None:
        self.claims: dict[str, tuple[str, ...]] = {}
        self.latest = Latest(0)

    async def read(self) -> object:
        return self.claims

    def held(self) -> dict[str, list[str]]:
        held: dict[str, list[str]] = {}
        for claim, devices in self.claims.items():
            for device in devices:
                held.setdefault(device_name(device), []).append(claim)
        return held

    def add(self, claim: str, devices: Sequence[str]) -> None:
        self.claims[claim] = tuple(devices)
        self.latest.publish(self.latest.value + 1)

    def remove(self, claim: str) -> None:
        self.claims.pop(claim, None)
        self.latest.publish(self.latest.value + 1)


class SplitDriver:
    """Publishes into the cluster's slices what the split gives to claims, and prepares claims as a driver does."""

    def __init__(
        self, runtime: ResourceRuntime, path: Path, cluster: Cluster, prepared: Prepared, settings: MoveSettings
    ) -> None:
        self.name, self.state = DRIVER, Latest(DriverState("registered", ready=True))
        self.cluster, self.prepared, self.runtime = cluster, prepared, runtime
        sources = HolderSources(PodHolders(runtime, settings.stored), ClaimHolders(cluster, DRIVER, NODE), prepared)
        self.split = OperatedSplit(runtime, SplitFile(path, path.parent / "boot"), sources, settings)
        runtime.inventory.withhold({}, offered=())

    async def finish(self) -> None:
        """No claim is prepared over a socket here."""

    def fail(self, reason: str) -> None:
        raise AssertionError(reason)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self.split.run())
            group.create_task(self._publish())

    async def prepare(self, claim: str, device_id: str) -> str:
        """Why the claim cannot be prepared, empty if it was."""
        await self.split.arriving([device_name(device_id)])
        refusal = self.split.refusal(device_id)
        holders = self.prepared.held().get(device_name(device_id), [])
        if holders and holders != [claim]:
            return f"held by {holders[0]}"
        if not refusal:
            self.prepared.add(claim, [device_id])
        return refusal

    def status(self) -> Mapping[str, object]:
        return {"node": NODE, **self.split.status()}

    async def command(self, name: str, arguments: Mapping[str, str]) -> str:
        return await self.split.command(name, arguments)

    async def _publish(self) -> None:
        async for _ in self.split.changed.notifications():
            while self.cluster.away:
                await asyncio.sleep(0.01)
            present = self.runtime.inventory.latest.value
            listed = present.devices if present is not None else {}
            taints = self.split.taints()
            slices = {key: key in taints for key in sorted(self.split.in_slices(listed) or ()) if key in listed}
            self.cluster.slices.publish(slices)
            await asyncio.sleep(0)
            self.split.confirm(slices)


@asynccontextmanager
async def served(
    plugin: Plugin,
    kubelet: Kubelet,
    cluster: Cluster,
    prepared: Prepared,
    settings: MoveSettings = QUICK,
    path: Path | None = None,
) -> AsyncIterator[SplitDriver]:
    """The plugin beside the kubelet, with a driver around the split, until its devices have a placement."""
    made: list[SplitDriver] = []
    path = path or kubelet.paths.root.parent / "state" / "split.json"

    def driver(runtime: ResourceRuntime) -> SplitDriver:
        made.append(SplitDriver(runtime, path, cluster, prepared, settings))
        return made[-1]

    daemon_settings = Settings(
        kubelet_dir=kubelet.paths.root,
        device_plugins_dir=kubelet.paths.device_plugins,
        timeouts=_TIMEOUTS,
        limits=Limits(allocate=2),
    )
    async with serving(plugin, settings=daemon_settings, drivers=driver):
        await until(made[0], lambda split: bool(split.placements.value))
        yield made[0]


async def until(driver: SplitDriver, accept: Callable[[OperatedSplit], bool], seconds: float = 60.0) -> None:
    async with asyncio.timeout(seconds):
        await driver.split.placements.until(lambda _: accept(driver.split))


def split_of(driver: SplitDriver) -> dict[str, str]:
    """The state of each device."""
    return {key: placement.state.value for key, placement in sorted(driver.split.placements.value.items())}
