"""A driver as a process of its own, with the emulated kubelet and an API server over TLS."""

import asyncio
import json
import re
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.cli.processes import Ended, Running, ended, python, running
from tests.cluster.embedding import Lab, embedded, served

from plugwright.apiserver.kinds import RESOURCE_CLAIMS, RESOURCE_SLICES
from plugwright.apiserver.registry import ResourcePath
from plugwright.sdk.cdi import resolution

DRIVER = "tape.example.com"
PROGRAM = """
import sys
from plugwright import Allocation, Device, Plugin, ServeSettings, run

class Tape(Plugin):
    resource = "example.com/tape"

    async def discover(self):
        yield [Device("null"), Device("zero")]

    async def allocate(self, devices):
        return Allocation(nodes=[f"/dev/{device.id}" for device in devices])

run(Tape(), serve=ServeSettings(api=sys.argv[1], cdi=sys.argv[2]))
"""
_CLAIM = {"devices": {"requests": [{"name": "tape", "exactly": {"deviceClassName": DRIVER}}]}}
_USE = {"name": "main", "image": "x", "resources": {"claims": [{"name": "drive"}]}}
_LIMIT_MIB = 45


@dataclass(frozen=True, slots=True)
class Node:
    """A node of the embedded cluster, as a daemon on it sees it."""

    lab: Lab
    kubeconfig: Path
    directory: Path

    @property
    def environment(self) -> Mapping[str, str]:
        return {
            "PLUGWRIGHT_KUBELET_DIR": str(self.lab.cluster.directory("node-1")),
            "PLUGWRIGHT_STATE_DIR": str(self.directory / "state"),
            "KUBECONFIG": str(self.kubeconfig),
            "NODE_NAME": "node-1",
        }

    @property
    def cdi(self) -> Path:
        return self.directory / "cdi"

    @property
    def config(self) -> Path:
        return self.directory / "plugwright.yaml"

    @property
    def control(self) -> Path:
        return self.directory / "control.sock"

    @asynccontextmanager
    async def driver(self, api: str = "dra") -> AsyncIterator[Running]:
        async with running(python("-c", PROGRAM, api, self.cdi), self.environment) as process:
            yield process

    @asynccontextmanager
    async def daemon(self) -> AsyncIterator[Running]:
        command = ["-m", "plugwright", "run", "-c", self.config, "--control-socket", self.control]
        async with running(python(*command), self.environment) as process:
            yield process

    async def ask(self, *arguments: object) -> Ended:
        return await ended(python("-m", "plugwright", *arguments, "--control-socket", self.control))

    def configure(self, serve: object) -> None:
        entry = {"name": "example.com/tape", "mock": {"count": 2}, "serve": serve}
        new = self.config.with_name("new")
        new.write_text(json.dumps({"host": {"cdi": str(self.cdi)}, "resources": [entry]}))
        new.replace(self.config)

    def published(self) -> list[str]:
        slices = self.lab.store.objects(RESOURCE_SLICES.qualified)
        return [device["name"] for one in slices for device in one["spec"].get("devices") or ()]

    async def until_published(self, *names: str) -> None:
        await self.lab.cluster.until(lambda: self.published() == list(names))

    def create_pod(self, name: str, device: str) -> None:
        """With a claim of the same name that the scheduler has allocated."""
        path = ResourcePath(RESOURCE_CLAIMS, "default", name)
        self.lab.writer.create(path, {"metadata": {"name": name}, "spec": _CLAIM}, "test")
        result = {"request": "tape", "driver": DRIVER, "pool": "node-1", "device": device}
        status = {"allocation": {"devices": {"results": [result]}}}
        path = ResourcePath(RESOURCE_CLAIMS, "default", name, "status")
        self.lab.writer.change(path, lambda claim: {**claim, "status": status}, "test")
        claims = [{"name": "drive", "resourceClaimName": name}]
        self.lab.create(name, resourceClaims=claims, containers=[_USE])

    def nodes(self, pod: str) -> list[str]:
        """The device nodes that a runtime gives to the pod's container."""
        names = re.findall("cdi (.*)", self.lab.cluster.log("default", pod, "main"))
        return [node.path for edits in resolution.edits_for(names, [self.cdi]) for node in edits.device_nodes]


@asynccontextmanager
async def node(directory: Path) -> AsyncIterator[Node]:
    async with embedded(plugins=lambda _: []) as lab, served(lab, directory) as kubeconfig:
        yield Node(lab, kubeconfig, directory)


async def test_a_pod_gets_the_device_of_its_claim_and_gives_it_back(tmp_path: Path) -> None:
    async with node(tmp_path) as here, here.driver() as driver:
        await here.until_published("null", "zero")
        await driver.err.until("registered")
        here.create_pod("p", "zero")
        await here.lab.phase("p")
        assert here.nodes("p") == ["/dev/zero"]
        here.lab.delete("p")
        await here.lab.gone("p")
        assert not list(here.cdi.iterdir())


async def test_a_driver_that_ends_leaves_its_slices_and_no_sockets(tmp_path: Path) -> None:
    async with node(tmp_path) as here:
        async with here.driver() as driver:
            await here.until_published("null", "zero")
            await driver.err.until("registered")
            driver.signal(signal.SIGTERM)
            assert await driver.ends() == 0
        assert here.published() == ["null", "zero"]
        root = here.lab.cluster.directory("node-1")
        assert not [path for path in root.rglob("*.sock") if DRIVER in str(path)]


async def test_a_killed_driver_goes_on_where_it_was(tmp_path: Path) -> None:
    async with node(tmp_path) as here:
        async with here.driver() as driver:
            await driver.err.until("registered")
            await here.until_published("null", "zero")
            here.create_pod("p", "null")
            await here.lab.phase("p")
            driver.signal(signal.SIGKILL)
            await driver.ends()
        async with here.driver() as driver:
            await driver.err.until("registered")
            assert here.nodes("p") == ["/dev/null"]
            here.lab.delete("p")
            await here.lab.gone("p")
            here.create_pod("q", "null")
            await here.lab.phase("q")


async def test_a_driver_outlives_a_restart_of_the_kubelet(tmp_path: Path) -> None:
    async with node(tmp_path) as here, here.driver() as driver:
        await driver.err.until("registered")
        await here.until_published("null", "zero")
        await here.lab.cluster.stop_node("node-1")
        await here.lab.cluster.start_node("node-1")
        await driver.err.until("registered", 2)
        await here.until_published("null", "zero")
        here.create_pod("p", "null")
        await here.lab.phase("p")


async def test_one_file_changes_a_resource_from_one_api_to_the_other_and_back(tmp_path: Path) -> None:
    async with node(tmp_path) as here:
        here.configure("device-plugin")
        async with here.daemon() as daemon:
            await here.lab.offered("example.com/tape", "2")
            here.configure("dra")
            await daemon.err.until("resource served through another API")
            await here.lab.cluster.until(lambda: len(here.published()) == 2)
            assert (await here.ask("status")).code == 0
            here.configure("device-plugin")
            await daemon.err.until("resource served through another API", 2)
            await here.lab.cluster.until(lambda: here.lab.counts("example.com/tape")[0] == "2")
            # Claims that the scheduler is about to write may still get them; so the way back takes half a minute.
            assert here.lab.counts("example.com/tape") == ("2", "0")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")
async def test_a_driver_needs_little_memory(tmp_path: Path) -> None:
    async with node(tmp_path) as here, here.driver() as driver:
        await driver.err.until("registered")
        await here.until_published("null", "zero")
        here.create_pod("p", "null")
        await here.lab.phase("p")
        await asyncio.sleep(1.5)  # what was loaded is given back a second after the start
        status = Path(f"/proc/{driver.pid}/status").read_text()
        resident = int(re.search(r"VmRSS:\s+(\d+) kB", status)[1]) / 1024  # type: ignore[index]
        print(f"resident: {resident:.1f} MiB")
        assert resident <= _LIMIT_MIB
