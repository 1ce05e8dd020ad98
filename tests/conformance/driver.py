"""A small DRA driver without the SDK and without plugwright's own, which keeps every rule.

With `--mutant NAME` it has one defect; the defects are in `driver_mutants`, each a few lines that change this driver.
"""

import argparse
import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))  # it is run as a program of its own

from plugwright.errors import PeerGone, PeerRefused, PlugwrightError
from plugwright.kube.api_client import ApiClient
from plugwright.protocol import dra, dra_health, registration, transport
from plugwright.protocol.dra import Claim, PreparedDevice
from plugwright.protocol.dra_health import HealthStatus, ReportedHealth
from plugwright.protocol.registration import PluginInfo
from plugwright.system import sockets
from plugwright.system.concurrency import first
from plugwright.system.inotify import Directory
from plugwright.system.latest import Latest

SLICES = "/apis/resource.k8s.io/v1/resourceslices"
LEASE = 4  # seconds
HOST_NODES = {"part-1": "/dev/zero", "part-2": "/dev/full"}  # of the others it is /dev/null
MODES: tuple[dict[str, str], ...] = ({}, {"mode": "fast"}, {"mode": "slow"})
Document = dict[str, Any]


class Refused(Exception):
    """A claim that is not prepared; the text is for the pod's owner."""


class SmallDriver:
    """What a kubelet and an API server see; every method may be replaced by a mutant's."""

    name = "part.example.com"
    services: tuple[str, ...] = (*dra.VERSIONS, *dra_health.VERSIONS)
    socket_mode = 0o600
    takes_parameters = False

    def __init__(self, root: Path, cdi: Path, node: str) -> None:
        self.root, self.cdi, self.node = root, cdi, node
        self.directory = root / "plugins" / self.name
        self.registry = root / "plugins_registry"
        self.api = ApiClient.find()
        self.lock = asyncio.Lock()
        self.stopped = Latest(False)
        self.connected = Latest(0)  # peers of the service
        self.health = Directory(root)  # files `fail-ID` make devices fail

    # the slices

    def devices(self) -> list[Document]:
        plain: list[Document] = [
            {"name": f"part-{number}", "attributes": {"model": {"string": "A"}, "firmware": {"version": "1.2.3"}}}
            for number in range(3)
        ]
        consumed = [{"counterSet": "card", "counters": {"memory": {"value": "20Gi"}}}]
        halves: list[Document] = [{"name": f"half-{number}", "consumesCounters": consumed} for number in range(2)]
        policy = {"default": "10Gi", "validRange": {"min": "1Gi"}}
        capacity = {"memory": {"value": "40Gi", "requestPolicy": policy}}
        shared: Document = {"name": "shared", "allowMultipleAllocations": True, "capacity": capacity}
        return [{**device, **self.taints(device["name"])} for device in (*plain, *halves, shared)]

    def failed(self) -> set[str]:
        return {path.name.removeprefix("fail-") for path in self.root.glob("fail-*")}

    def taints(self, device: str) -> Document:
        if device not in self.failed():
            return {}
        return {"taints": [{"key": f"{self.name}/failed", "effect": "NoSchedule"}]}

    def counter_sets(self) -> list[Document]:
        return [{"name": "card", "counters": {"memory": {"value": "40Gi"}}}]

    def place(self) -> Document:
        return {"nodeName": self.node}

    def contents(self) -> list[Document]:
        """What each slice has."""
        return [{"devices": self.devices()}, {"sharedCounters": self.counter_sets()}]

    def pool(self, number: int) -> Document:
        return {"name": self.node, "generation": 1, "resourceSliceCount": len(self.contents())}

    def specs(self) -> list[Document]:
        return [
            {"driver": self.name, "pool": self.pool(number), **self.place(), **content}
            for number, content in enumerate(self.contents())
        ]

    def slice_name(self, number: int) -> str:
        return f"{number}-{self.name.lower()}-{self.node}"

    async def owners(self) -> list[Document]:
        node = await self.api.get(f"/api/v1/nodes/{self.node}")
        owner = {"apiVersion": "v1", "kind": "Node", "name": self.node, "uid": node["metadata"]["uid"]}
        return [{**owner, "controller": True}]

    def selector(self) -> dict[str, str]:
        return {"fieldSelector": f"spec.driver={self.name},spec.nodeName={self.node}"}

    async def sync(self, existing: Mapping[str, Document]) -> None:
        for number, spec in enumerate(self.specs()):
            name = self.slice_name(number)
            if name not in existing:
                await self.create(name, spec)
            elif self.is_other(existing[name]["spec"], spec):
                await self.repair(existing[name], spec)

    def is_other(self, stored: Document, wanted: Document) -> bool:
        return bool(stored != wanted)

    async def create(self, name: str, spec: Document) -> None:
        metadata = {"name": name, "ownerReferences": await self.owners()}
        body = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": metadata, "spec": spec}
        await self.api.create(SLICES, body)

    async def repair(self, stored: Document, spec: Document) -> None:
        await self.api.update(f"{SLICES}/{stored['metadata']['name']}", {**stored, "spec": spec})

    async def publish_once(self) -> None:
        found, version = await self.api.list(SLICES, **self.selector())
        failed = self.failed()
        await self.sync({document["metadata"]["name"]: document for document in found})
        await first(self.until_changed(version), self.health.changed.until(lambda: self.failed() != failed))

    async def until_changed(self, version: str) -> None:
        """Returns when another client has changed a slice."""
        async with aclosing(self.api.watch(SLICES, version, **self.selector())) as changes:
            async for kind, document in changes:
                if self.concerns(kind, document):
                    return

    def concerns(self, kind: str, document: Document) -> bool:
        """Whether a change asks for another look."""
        return True

    async def publish(self) -> None:
        while True:
            try:
                await self.publish_once()
            except (PeerGone, PeerRefused) as error:
                print(error, flush=True)
                await asyncio.sleep(0.5)  # before another attempt

    # the checkpoint

    @property
    def checkpoint(self) -> Path:
        return self.directory / "checkpoint.json"

    def load(self) -> dict[str, list[Document]]:
        """The devices of each prepared claim, by its uid; those of a damaged file are forgotten."""
        try:
            return dict(json.loads(self.checkpoint.read_text()))
        except FileNotFoundError:
            return {}
        except ValueError:
            print("the checkpoint is damaged", flush=True)
            return {}

    def save(self, claims: Mapping[str, Sequence[Document]]) -> None:
        new = self.checkpoint.with_suffix(".new")
        new.write_text(json.dumps(claims))
        new.replace(self.checkpoint)

    # the claims

    async def prepare(self, claims: Sequence[Claim]) -> Mapping[str, Sequence[PreparedDevice] | str]:
        async with self.lock:
            return {claim.uid: await self.answer(claim) for claim in claims}

    async def answer(self, claim: Claim) -> Sequence[PreparedDevice] | str:
        try:
            return await self.prepare_claim(claim)
        except (Refused, PlugwrightError) as error:
            return f"claim {claim.namespace}/{claim.name}: {error}"

    async def read(self, claim: Claim) -> Document:
        path = f"/apis/resource.k8s.io/v1/namespaces/{claim.namespace}/resourceclaims/{claim.name}"
        return await self.api.get(path)

    def check_claim(self, claim: Claim, document: Document) -> None:
        if document["metadata"]["uid"] != claim.uid:
            raise Refused("it was replaced by another of the same name")

    def results(self, document: Document) -> list[Document]:
        allocation = (document.get("status") or {}).get("allocation")
        if not allocation:
            raise Refused("it is not allocated")
        return [result for result in allocation["devices"]["results"] if result["driver"] == self.name]

    def check_config(self, document: Document) -> None:
        for config in document["status"]["allocation"]["devices"].get("config") or ():
            if config["opaque"]["driver"] == self.name:
                self.check_parameters(config["opaque"]["parameters"])

    def check_parameters(self, parameters: Document) -> None:
        if not self.takes_parameters:
            raise Refused("this driver takes no parameters")
        if parameters not in ({"apiVersion": f"{self.name}/v1", "kind": "PartConfig", **mode} for mode in MODES):
            raise Refused(f"unknown parameters: {sorted(parameters)}")

    def check_known(self, result: Document) -> None:
        if result["device"] not in {device["name"] for device in self.devices()}:
            raise Refused(f"there is no device {result['device']}")

    def check_free(self, uid: str, result: Document, claims: Mapping[str, Sequence[Document]]) -> None:
        if result.get("adminAccess") or result.get("shareID"):
            return
        for other, held in claims.items():
            names = [device["device"] for device in held if not device.get("adminAccess")]
            if other != uid and result["device"] in names:
                raise Refused(f"device {result['device']} is in use by another claim")

    async def prepare_claim(self, claim: Claim) -> Sequence[PreparedDevice]:
        claims = self.load()
        if claim.uid not in claims:
            document = await self.read(claim)
            self.check_claim(claim, document)
            results = self.results(document)
            self.check_config(document)
            for result in results:
                self.check_known(result)
                self.check_free(claim.uid, result, claims)
            self.write_spec(claim, results)
            self.save({**claims, claim.uid: results})
            return [self.prepared(claim, result) for result in results]
        return self.prepared_before(claim, claims[claim.uid])

    def prepared_before(self, claim: Claim, results: Sequence[Document]) -> Sequence[PreparedDevice]:
        self.write_spec(claim, results)
        return [self.prepared(claim, result) for result in results]

    def prepared(self, claim: Claim, result: Document) -> PreparedDevice:
        request = self.request_name(result["request"])
        names = (self.cdi_name(claim, result),)
        return PreparedDevice(result["pool"], result["device"], (request,), names, result.get("shareID", ""))

    def request_name(self, name: str) -> str:
        return name.partition("/")[0]

    async def unprepare(self, claims: Sequence[Claim]) -> Mapping[str, str]:
        print(f"to unprepare: {len(claims)}", flush=True)
        async with self.lock:
            return {claim.uid: await self.give_back(claim) for claim in claims}

    async def give_back(self, claim: Claim) -> str:
        claims = self.load()
        self.remove_spec(claim)
        claims.pop(claim.uid, None)
        self.save(claims)
        return ""

    # the specs of containers

    def cdi_name(self, claim: Claim, result: Document) -> str:
        return f"{self.name}/claim={self.cdi_device(claim, result)}"

    def cdi_device(self, claim: Claim, result: Document) -> str:
        return f"{claim.uid}-{result['device']}"

    def spec_path(self, claim: Claim) -> Path:
        return self.cdi / f"{self.name}-{claim.uid}.json"

    def edits(self, result: Document) -> Document:
        return {
            "deviceNodes": [
                {"path": f"/dev/{result['device']}", "hostPath": HOST_NODES.get(result["device"], "/dev/null")}
            ]
        }

    def write_spec(self, claim: Claim, results: Sequence[Document]) -> None:
        devices = [{"name": self.cdi_device(claim, one), "containerEdits": self.edits(one)} for one in results]
        spec = {"cdiVersion": "0.6.0", "kind": f"{self.name}/claim", "devices": devices}
        new = self.spec_path(claim).with_suffix(".new")
        new.write_text(json.dumps(spec))
        new.replace(self.spec_path(claim))

    def remove_spec(self, claim: Claim) -> None:
        self.spec_path(claim).unlink(missing_ok=True)

    # health

    def reported(self) -> list[ReportedHealth]:
        return [
            ReportedHealth(self.node, one["name"], self.health_of(one["name"]), timeout=LEASE) for one in self.devices()
        ]

    def health_of(self, device: str) -> HealthStatus:
        return HealthStatus.UNHEALTHY if device in self.failed() else HealthStatus.HEALTHY

    async def watch(self) -> AsyncGenerator[Sequence[ReportedHealth], None]:
        while True:
            yield self.reported()
            await asyncio.sleep(LEASE / 4)  # the lease ends otherwise

    # registration

    def socket_path(self) -> Path:
        return self.directory / "dra.sock"

    def registration_path(self) -> Path:
        return self.registry / f"{self.name}-reg.sock"

    async def announce(self) -> PluginInfo:
        return PluginInfo(self.name, dra.DRA_PLUGIN, str(self.socket_path()), self.services)

    async def notify(self, registered: bool, error: str) -> None:
        print("registered" if registered else error, flush=True)

    def listen(self, path: Path) -> socket.socket:
        path.unlink(missing_ok=True)
        return sockets.listen(path, mode=self.socket_mode)

    def methods(self) -> list[transport.Bound]:
        return [*dra.methods(self), *dra_health.methods(self)]

    def registration_methods(self) -> list[transport.Bound]:
        return registration.announcement_methods(self)

    async def serve(self, stack: AsyncExitStack) -> None:
        """First the service, then what announces it."""
        service = transport.serve(
            self.socket_path(), self.methods(), listening_on=self.listen, connected=self.connected
        )
        await stack.enter_async_context(service)
        await stack.enter_async_context(
            transport.serve(self.registration_path(), self.registration_methods(), listening_on=self.listen)
        )

    # the process

    def on_signal(self) -> None:
        self.stopped.publish(True)

    async def ending(self) -> None:
        """Before the sockets go."""

    def begin(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        self.registry.mkdir(parents=True, exist_ok=True)
        self.cdi.mkdir(parents=True, exist_ok=True)

    async def run(self) -> int:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self.on_signal)
        self.begin()
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self.health.watching())
            await self.serve(stack)
            publishing = asyncio.create_task(self.publish())
            await self.stopped.until(bool)
            publishing.cancel()
            with suppress(asyncio.CancelledError):
                await publishing
            await self.ending()
        return 0


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--mutant", default="")
    parser.add_argument("--name", default="")
    parser.add_argument("--takes-parameters", action="store_true", help="take PartConfig as parameters of claims")
    arguments = parser.parse_args()
    kind: type[SmallDriver] = SmallDriver
    if arguments.mutant:
        kind = import_module("tests.conformance.driver_mutants").MUTANTS[arguments.mutant].driver

    kind.takes_parameters = kind.takes_parameters or arguments.takes_parameters
    if arguments.name:
        kind.name = arguments.name

    async def run() -> int:
        return await kind(arguments.root, Path(os.environ["CDI_ROOT"]), os.environ["NODE_NAME"]).run()

    sys.exit(asyncio.run(run()))


if __name__ == "__main__":
    main()
