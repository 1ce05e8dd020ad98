"""A driver of `serve: both` beside an API server in trouble: claims wait, and devices of pods stay Healthy."""

import asyncio
import json
import logging
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest
from starlette.types import Scope
from tests.apiserver.serving import TOKEN
from tests.dra.test_driver import LIMIT, TAPE, Tapes, until_failed
from tests.kube.recording import kubeconfig
from tests.kube.serving import ServedApi, served_api
from tests.kubelet.dra.stored_claims import StoredClaims

from plugwright import Device, ServeSettings, Settings
from plugwright.apiserver.kinds import RESOURCE_SLICES
from plugwright.dra.device_placement import DevicePlacement
from plugwright.dra.driver import Driver
from plugwright.kubelet import Kubelet
from plugwright.sdk import daemon_status, run
from plugwright.sdk.daemon import Daemon
from plugwright.sdk.resource_runtime import DriverFactory
from plugwright.sdk.serve_settings import ServeMode, Split
from plugwright.serve import resource_driver, serving

Trouble = Callable[[Scope], tuple[int, bytes] | None]
SLICES = "/apis/resource.k8s.io/v1/resourceslices"
GONE = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}
CONFLICT = {"kind": "Status", "code": 409, "reason": "Conflict", "message": "changed meanwhile"}
NAMELESS = {"metadata": {"name": "a", "uid": "b", "resourceVersion": "1"}, "spec": {"pool": {}}}
numbers = count()


class Lab:
    def __init__(self, served: ServedApi, kubelet: Kubelet, daemon: Daemon, tapes: Tapes) -> None:
        self.served, self.kubelet, self.daemon, self.tapes = served, kubelet, daemon, tapes
        self.lost: list[str] = []  # reasons for which the device of pods was not Healthy
        self._inventory = daemon.resources[TAPE].inventory  # changes also while the daemon stops
        self._inventory.latest.subscribe(self._look)

    @property
    def unready(self) -> str:
        return "; ".join(daemon_status.unready(self.daemon))

    async def until(self, fact: Callable[[], bool]) -> None:
        async with asyncio.timeout(LIMIT):
            await self.daemon.changed.until(fact)

    async def relist(self) -> None:
        """Ends the connections, so that the driver lists its slices again."""
        await self.served.stop()
        await self.served.start()

    def change(self) -> None:
        """Publishes other devices, which takes a write."""
        self.tapes.lists.publish((*self.tapes.lists.value, Device(f"st{len(self.tapes.lists.value)}")))

    def _look(self) -> None:
        snapshot = self._inventory.latest.value
        device = snapshot.listed("st0") if snapshot is not None else None
        if device is None or not device.healthy:
            self.lost.append(device.reason if device is not None else "not listed")


@asynccontextmanager
async def lab(root: Path, directory: Path, drivers: DriverFactory = resource_driver) -> AsyncIterator[Lab]:
    """Two devices: one for pods, one for claims."""
    async with served_api(directory) as served:
        cluster = {"server": served.url, "certificate-authority": str(directory / "ca.crt")}
        path = kubeconfig(directory, cluster, {"tokenFile": str(directory / "token")})
        settings = Settings(kubelet_dir=root, node_name="node", kubeconfig=path)
        tapes = Tapes(Device("st0"), Device("st1"))
        tapes.serve = ServeSettings(api=ServeMode.BOTH, split=Split(dra=1), cdi=str(directory / "cdi"), host_root=None)
        async with (
            Kubelet(root, resource_api=StoredClaims()) as kubelet,
            run.serving(tapes, settings=settings, drivers=drivers) as daemon,
        ):
            await kubelet.allocatable(TAPE, count=1)
            async with asyncio.timeout(LIMIT):
                await daemon.changed.until(lambda: not daemon_status.unready(daemon))
            yield Lab(served, kubelet, daemon, tapes)


def answering(
    status: int, content: object, *, watch: bool | None = None, method: str = "GET", path: str = ""
) -> Trouble:
    """The same answer to these requests: of lists alone, of watches alone, or of both if `watch` is None."""
    text = content if isinstance(content, bytes) else json.dumps(content).encode() + b"\n"

    def answer(scope: Scope) -> tuple[int, bytes] | None:
        is_watch = b"watch=true" in scope["query_string"]
        is_meant = scope["method"] == method and (watch is None or watch is is_watch)
        return (status, text) if is_meant and str(scope["path"]).startswith(path or SLICES) else None

    return answer


def endless(scope: Scope) -> tuple[int, bytes] | None:
    """Pages without end, each with another token."""
    if scope["path"] != SLICES or "watch" in parse_qs(scope["query_string"].decode()):
        return None
    return 200, json.dumps({"items": [], "metadata": {"continue": str(next(numbers))}}).encode()


def warnings(caplog: pytest.LogCaptureFixture, reason: str) -> list[str]:
    found = [record for record in caplog.records if record.levelno >= logging.WARNING]
    return [record.message for record in found if reason in str(record.__dict__.get("reason"))]


@pytest.mark.parametrize(
    ("trouble", "reason"),
    [
        (answering(200, {"items": [{}]}, watch=False), "must be an object with a name"),
        (answering(200, {"items": [{"metadata": {"name": "x"}}]}, watch=False), "must be a ResourceSlice"),
        (answering(200, {"items": [NAMELESS]}, watch=False), "must be a ResourceSlice"),
        (answering(200, [1, 2], watch=False), "must be a JSON object"),
        (answering(200, b"<html>Welcome to the proxy</html>"), "must be JSON"),
        (answering(410, GONE, watch=False), "too old"),
        (answering(200, {"items": [NAMELESS] * 2001}, watch=False), "must list at most 2000 objects, got 2001"),
        (endless, "the pages of /apis/resource.k8s.io/v1/resourceslices must end"),
        (answering(200, {}, watch=True), "slices cannot be watched: a watch must yield changes"),
        (answering(200, {"type": "ADDED", "object": NAMELESS}, watch=True), "must be a ResourceSlice"),
        (answering(200, {"type": "ERROR", "object": GONE}, watch=True), "slices cannot be watched: "),
        (answering(410, GONE, watch=True), "slices cannot be watched: "),
    ],
)
async def test_answers_of_the_wrong_shape_cost_claims_alone(
    root: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, trouble: Trouble, reason: str
) -> None:
    async with lab(root, tmp_path) as found:
        caplog.clear()
        found.served.trouble = trouble
        await found.relist()
        await found.until(lambda: reason in found.unready)
        assert f"{TAPE}: DRA driver" in found.unready
        seen = len(found.served.requests)
        async with asyncio.timeout(LIMIT):
            while len(found.served.requests) < seen + 2:  # tried again
                await asyncio.sleep(0.01)
        found.served.trouble = lambda _: None
        found.change()
        await found.until(lambda: not found.unready)
        assert found.lost == []
        assert len(warnings(caplog, reason.removeprefix("slices cannot be watched: "))) == 1


@pytest.mark.parametrize(
    ("trouble", "reason"),
    [
        (answering(409, CONFLICT, method="PUT"), "changed meanwhile"),
        (answering(410, GONE, method="PUT"), "too old"),
        (answering(200, {"metadata": {}}, method="PUT"), "must be the object"),
        (answering(200, b"<html>", method="PUT"), "must be JSON"),
    ],
)
async def test_writes_that_never_succeed_cost_claims_alone(
    root: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, trouble: Trouble, reason: str
) -> None:
    async with lab(root, tmp_path) as found:
        caplog.clear()
        [one] = found.served.store.objects(RESOURCE_SLICES.qualified)
        found.served.trouble = trouble
        found.tapes.lists.publish((Device("st0"), Device("st1", attributes={"speed": 7})))
        await found.until(lambda: reason in found.unready)
        found.served.trouble = lambda _: None
        await found.until(lambda: not found.unready)
        [after] = found.served.store.objects(RESOURCE_SLICES.qualified)
        assert "speed" in json.dumps(after)
        assert "speed" not in json.dumps(one)
        assert found.lost == []
        assert warnings(caplog, reason) == ["slices not published, trying again"]


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda token: token.write_bytes(b"\xff\xfe\x00"), "must be one line of ASCII"),
        (os.mkfifo, "cannot read the token"),
    ],
    ids=["garbage", "pipe"],
)
async def test_a_token_that_cannot_be_used_costs_claims_alone(
    root: Path, tmp_path: Path, make: Callable[[Path], object], reason: str
) -> None:
    async with lab(root, tmp_path) as found:
        token = tmp_path / "token"
        token.unlink()
        make(token)
        await found.relist()
        await found.until(lambda: reason in found.unready)
        token.unlink()
        token.write_text(TOKEN)
        await found.until(lambda: not found.unready)
        assert found.lost == []


async def test_bookmarks_are_no_trouble(root: Path, tmp_path: Path) -> None:
    async with lab(root, tmp_path) as found:
        found.served.trouble = answering(200, {"type": "BOOKMARK", "object": {}}, watch=True)
        seen = len(found.served.requests)
        await found.relist()
        async with asyncio.timeout(LIMIT):
            while found.served.requests[seen:].count(f"GET {SLICES}") < 6:
                await asyncio.sleep(0.01)
        assert (found.unready, found.lost) == ("", [])


class Faulty:
    """A placement that raises what no part of a driver expects, as long as `fails` is set."""

    fails = False

    def __init__(self, inner: DevicePlacement) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        if name == "confirm" and Faulty.fails:
            raise RuntimeError("a fault of the driver")
        return getattr(self._inner, name)


async def test_a_driver_that_fails_says_so_and_recovers(root: Path, tmp_path: Path) -> None:
    async with lab(root, tmp_path, lambda runtime: Driver(runtime, wrap=Faulty)) as found:
        Faulty.fails = True
        found.change()
        await found.until(lambda: "DRA driver failed driver failed: RuntimeError: a fault of the" in found.unready)
        Faulty.fails = False
        await found.until(lambda: "DRA driver" not in found.unready)


async def test_a_kubeconfig_that_cannot_be_read_is_said(root: Path, tmp_path: Path) -> None:
    fifo = tmp_path / "kubeconfig"
    os.mkfifo(fifo)
    settings = Settings(kubelet_dir=root, node_name="n1", kubeconfig=fifo)
    try:
        async with serving(Tapes(Device("st0")), settings=settings, serve="dra") as daemon:
            assert "reading the access to the API server did not end within 10 s" in await until_failed(daemon)
    finally:
        with suppress(OSError):
            os.close(os.open(fifo, os.O_WRONLY | os.O_NONBLOCK))  # the thread that reads it ends
