"""A session with a DRA driver: an emulated kubelet, an API server with one node, and the program.

The program finds them by placeholders, or by the variables common to drivers. Rules allocate claims to devices that the
driver has published; no scheduler is involved.
"""

import base64
import uuid
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import yaml

from plugwright import quantity
from plugwright.conformance import program
from plugwright.conformance.dra import pools
from plugwright.conformance.dra.observed_node import Document, ObservedNode
from plugwright.conformance.namespace import Mount
from plugwright.conformance.program import Program, Surroundings, Target
from plugwright.conformance.session import Session, TimeLimits, visible_parent
from plugwright.errors import PluginNotRunning, PlugwrightError
from plugwright.kubelet import Kubelet, KubeletSettings
from plugwright.kubelet.events import Call, StateChange
from plugwright.kubelet.settings import Timing
from plugwright.protocol import dra, registration
from plugwright.protocol.dra import DRA_PLUGIN, DRAPluginClient
from plugwright.system import directories
from plugwright.system.concurrency import first

__all__ = ["NODE", "DriverSession", "PublishedDevice", "RegisteredDriver", "driver_session"]

NODE = "verified-node"
_SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


@dataclass(frozen=True, slots=True)
class PublishedDevice:
    """A device in the relevant slices: those of the highest generation of its pool."""

    pool: str
    name: str
    content: Document = field(compare=False, repr=False)

    @property
    def is_shared(self) -> bool:
        return bool(self.content.get("allowMultipleAllocations"))

    @property
    def consumption(self) -> dict[str, str]:
        """The allocation for a claim without requested capacity: the default of each capacity, or all of it."""
        capacity = self.content.get("capacity") or {}
        policies = {name: entry.get("requestPolicy") or {} for name, entry in capacity.items()}
        return {name: str(policies[name].get("default") or entry["value"]) for name, entry in capacity.items()}

    def has_room_for(self, claims: int) -> bool:
        """Whether this many claims with the default fit into the capacity."""
        capacity = self.content.get("capacity") or {}
        return all(
            quantity.parse(amount) * claims <= quantity.parse(str(capacity[name]["value"]))
            for name, amount in self.consumption.items()
        )


@dataclass(frozen=True, slots=True)
class RegisteredDriver:
    """A driver as announced by its registration socket."""

    name: str
    socket: Path
    endpoint: Path
    services: tuple[str, ...]

    @property
    def version(self) -> str:
        """The service that a kubelet calls: the first known one (11.4)."""
        return next((service for service in self.services if service in dra.VERSIONS), dra.VERSIONS[0])

    @asynccontextmanager
    async def connect(self, version: str = "") -> AsyncIterator[DRAPluginClient]:
        """A separate connection besides the kubelet's."""
        async with dra.connect(self.endpoint, version or self.version) as client:
            yield client


class DriverSession(Session):
    def __init__(
        self, target: Target, limits: TimeLimits, kubelet: Kubelet, api: ObservedNode, kubeconfig: Path
    ) -> None:
        super().__init__(target, limits, kubelet)
        self.api = api
        self.parameters: Mapping[str, object] | None = None  # the driver's own, for each claim
        self._kubeconfig = kubeconfig
        self._pod = str(uuid.uuid4())

    def directory(self, driver: str) -> Path:
        """The directory of a driver's files."""
        return self.paths.plugins / driver

    @property
    def _placeholders(self) -> Mapping[str, str]:
        return {
            "{dir}": str(self.paths.plugins),
            "{registry}": str(self.paths.plugins_registry),
            "{cdi}": str(self.cdi),
            "{kubeconfig}": str(self._kubeconfig),
            "{node}": NODE,
        }

    @property
    def _variables(self) -> Mapping[str, str]:
        """Variables by which most drivers get the same information."""
        return {
            "KUBECONFIG": str(self._kubeconfig),
            "NODE_NAME": NODE,
            "POD_UID": self._pod,
            "CDI_ROOT": str(self.cdi),
            "KUBELET_PLUGINS_DIRECTORY_PATH": str(self.paths.plugins),
            "KUBELET_REGISTRAR_DIRECTORY_PATH": str(self.paths.plugins_registry),
            **(self._in_cluster if self.target.is_private else {}),
        }

    @property
    def _in_cluster(self) -> Mapping[str, str]:
        """The variables of a pod; they also hide the cluster in which this command runs from the driver."""
        server = urlsplit(yaml.safe_load(self._kubeconfig.read_text())["clusters"][0]["cluster"]["server"])
        return {
            "KUBERNETES_SERVICE_HOST": str(server.hostname),
            "KUBERNETES_SERVICE_PORT": str(server.port),
            "KUBERNETES_SERVICE_PORT_HTTPS": str(server.port),
        }

    @property
    def _own_mounts(self) -> tuple[Mount, ...]:
        return (*super()._own_mounts, Mount(self._service_account, _SERVICE_ACCOUNT))

    @property
    def _service_account(self) -> Path:
        return self.paths.root / "serviceaccount"

    def make_directories(self) -> None:
        super().make_directories()
        self.cdi.mkdir(exist_ok=True)
        self.paths.plugins.mkdir(exist_ok=True)
        if self.target.is_private:
            self._write_service_account()

    def _write_service_account(self) -> None:
        """The files from which a driver in a pod reads its configuration."""
        directory = self._service_account
        document = yaml.safe_load(self._kubeconfig.read_text())
        (directory / "token").write_text(document["users"][0]["user"]["token"])
        authority = document["clusters"][0]["cluster"]["certificate-authority-data"]
        (directory / "ca.crt").write_bytes(base64.b64decode(authority))
        (directory / "namespace").write_text("default")

    def change_pod(self) -> None:
        """Makes the next start happen in another pod."""
        self._pod = str(uuid.uuid4())

    async def start_program(self) -> Program:
        """Starts the program in the same pod as before; if one is running, in another pod."""
        if any(before.running for before in self.programs):
            self.change_pod()
        surroundings = Surroundings(self._placeholders, self._variables, self.mounts)
        started = await program.start(self.target, self.paths, surroundings)
        self.programs.append(started)
        return started

    async def until_registered(self, resources: Collection[str] = (), *, mark: int = 0, limit: float = 0.0) -> None:
        """Waits until each of the drivers, or any, is registered after `mark` and has published."""
        limit = limit or self.limits.register
        named = ", ".join(sorted(resources)) or "any driver"

        def is_registered() -> bool:
            names = self.registered(mark)
            return bool(names) and names.issuperset(resources)

        def is_published() -> bool:
            return {document["spec"]["driver"] for document in self.api.slices} >= self.registered(mark)

        async def published() -> None:
            await self.kubelet.until(is_registered, limit, f"no registration of {named}")
            if not await self.api.until(is_published, limit):
                raise PluginNotRunning(f"no ResourceSlice of {named} within {limit:g} s{self._refused()}")

        waits = [published(), *([self.program.ends()] if self.programs else [])]
        try:
            await first(*waits)
        except PlugwrightError as error:
            raise PluginNotRunning(f"{error}: {self._reason(mark)}") from None
        if not is_registered() or not is_published():
            raise PluginNotRunning(f"no registration of {named}: {self._reason(mark)}")

    def _reason(self, mark: int) -> str:
        ended = self.ending
        calls = [event for event in self.kubelet.recorded[mark:] if isinstance(event, Call)]
        if not calls:
            return f"no process listens on a socket in plugins_registry; {ended}"
        failed = [f"{call.method} was answered {call.outcome!r}" for call in calls if call.outcome != "OK"]
        failed += [text for call in calls if call.method == "NotifyRegistrationStatus" for text in call.asked]
        return "; ".join([*failed[-1:], ended])

    def _refused(self) -> str:
        refused = [request for request in self.api.requests if request.writes_slice and request.code >= 400]
        return f"; {refused[-1]}" if refused else ""

    async def settle(self) -> None:
        """Waits for complete pools, and until no further slice arrives for a moment."""
        await self.api.until(lambda: all(map(self.has_whole_pools, self.registered())), self.limits.prompt)
        known = -1
        while known != len(self.api.slices):
            known = len(self.api.slices)
            await self.api.until(lambda: len(self.api.slices) != known, self.limits.settle)  # noqa: B023

    def registered(self, mark: int = 0) -> set[str]:
        """The drivers whose registration succeeded; names with a slash belong to device plugins."""
        events = [event for event in self.kubelet.recorded[mark:] if isinstance(event, StateChange)]
        return {event.about for event in events if event.kind == "registered" and "/" not in event.about}

    async def drivers(self) -> list[RegisteredDriver]:
        """Every driver with a socket in plugins_registry that responds."""
        found = []
        for path in sorted(self.paths.plugins_registry.rglob("*")):
            if not path.is_socket() or path.name.startswith("."):
                continue
            with suppress(PlugwrightError, TimeoutError):
                async with registration.connect_watched(path) as client:
                    info = await client.announce(self.limits.call)
                if info.kind == DRA_PLUGIN:
                    endpoint = self.on_host(Path(info.endpoint or path))
                    found.append(RegisteredDriver(info.name, path, endpoint, info.versions))
        return found

    def slices(self, driver: str) -> list[Document]:
        return [document for document in self.api.slices if document["spec"]["driver"] == driver]

    def pools(self, driver: str) -> dict[str, list[Document]]:
        """The specs of the slices of each of its pools."""
        return pools.specs_by_pool(self.slices(driver))

    def has_whole_pools(self, driver: str) -> bool:
        return not any(pools.incompleteness(specs) for specs in self.pools(driver).values())

    def devices(self, driver: str) -> list[PublishedDevice]:
        """The devices that a scheduler would allocate: without taints, each once."""
        found = [
            PublishedDevice(pool, device["name"], device)
            for pool, specs in self.pools(driver).items()
            for spec in pools.newest(specs)
            for device in spec.get("devices") or ()
            if not device.get("taints")
        ]
        return list(dict.fromkeys(found))


@asynccontextmanager
async def driver_session(
    target: Target, version: str, limits: TimeLimits, directory: Path | None = None
) -> AsyncIterator[DriverSession]:
    """A kubelet and an API server without a program yet; leaving ends everything that was started."""
    api = ObservedNode(NODE)
    async with AsyncExitStack() as stack:
        root = directory or stack.enter_context(directories.short_directory(visible_parent(target))) / "k"
        made: list[DriverSession] = []

        def on_host(path: Path) -> Path:
            return made[0].on_host(path)

        timing = Timing(dial=min(10.0, limits.start), reconcile=0.05, retry=0.1, max_retry=1.0)
        settings = KubeletSettings(version=version, timing=timing, timeout=limits.start, on_host=on_host)
        kubelet = await stack.enter_async_context(Kubelet(root, settings, resource_api=api))
        kubeconfig = await stack.enter_async_context(api.served(kubelet.paths.root))
        opened = DriverSession(target, limits, kubelet, api, kubeconfig)
        made.append(opened)
        opened.make_directories()
        stack.push_async_callback(opened.end)
        yield opened
