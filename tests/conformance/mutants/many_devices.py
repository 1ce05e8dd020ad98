"""Defects with several devices, many pods, and the end of a program that pods still need."""

import asyncio
import os
import subprocess
import threading
from pathlib import Path

from tests.conformance.mutants.mutant import breaks
from tests.conformance.plugin import IDS, SmallPlugin
from tests.proto import deviceplugin_v1beta1_pb2 as pb

from plugwright.errors import PeerRefused
from plugwright.system import sockets

Response = pb.ContainerAllocateResponse
MANY = tuple(f"part-{number}" for number in range(40))


@breaks("ALO-01")
class RefusesDeviceThirtyThree(SmallPlugin):
    def devices(self) -> list[pb.Device]:
        return [*super().devices(), *(self.device(device_id, True) for device_id in MANY[len(IDS) :])]

    def check(self, ids: list[str]) -> None:  # type: ignore[override]
        if MANY[33] in ids:
            raise PeerRefused("INTERNAL", f"open /dev/{MANY[33]}: no such file or directory")
        super().check(ids)


@breaks("ANS-01")
class LacksNodeOfDeviceThirtyThree(RefusesDeviceThirtyThree):
    def check(self, ids: list[str]) -> None:  # type: ignore[override]
        SmallPlugin.check(self, ids)

    def node(self, device_id: str) -> pb.DeviceSpec:
        node = super().node(device_id)
        return pb.DeviceSpec(host_path="/dev/no-such-part") if device_id == MANY[33] else node


@breaks("ALO-14")
class FirstDeviceAlone(SmallPlugin):
    def answer(self, ids: list[str]) -> Response:
        self.check(ids)
        return super().answer(sorted(ids)[:1])


@breaks("ALO-14")
class LastNodeAlone(SmallPlugin):
    def answer(self, ids: list[str]) -> Response:
        response = super().answer(ids)
        return Response(envs=response.envs, devices=response.devices[-1:], mounts=response.mounts)


@breaks("ALO-14")
class LastVariableWins(SmallPlugin):
    def answer(self, ids: list[str]) -> Response:
        response = super().answer(ids)
        response.envs["PARTS"] = max(ids)
        return response


@breaks("ALO-14")
class ThreeDevicesAtMost(SmallPlugin):
    def answer(self, ids: list[str]) -> Response:
        response = super().answer(ids)
        return Response(envs=response.envs, devices=response.devices[:3], mounts=response.mounts)


@breaks("ALO-15")
class KeepsAfterFailure(SmallPlugin):
    """It takes the devices one after the other, and gives none back when one of them is missing."""

    taken: set[str]

    def answer(self, ids: list[str]) -> Response:
        self.taken = getattr(self, "taken", set())
        for device_id in ids:
            if device_id in self.taken:
                raise PeerRefused("RESOURCE_EXHAUSTED", f"{device_id} is in use")
            self.check([*ids[: ids.index(device_id)], device_id])
            self.taken.add(device_id)
        self.taken -= set(ids)  # all of them are there: the kubelet counts them
        return super().answer(ids)


@breaks("ALO-16")
class AllocatesBehindLock(SmallPlugin):
    lock: asyncio.Lock

    async def allocate(self, request: pb.AllocateRequest) -> pb.AllocateResponse:
        self.lock = getattr(self, "lock", asyncio.Lock())
        async with self.lock:
            await asyncio.sleep(4)
            return await super().allocate(request)


@breaks("ALO-16")
class StartsBehindLock(SmallPlugin):
    lock: asyncio.Lock

    async def pre_start(self, request: pb.PreStartContainerRequest) -> pb.PreStartContainerResponse:
        self.lock = getattr(self, "lock", asyncio.Lock())
        async with self.lock:
            await asyncio.sleep(3)
            return await super().pre_start(request)


@breaks("REG-25")
class GivesUpAfterSeconds(SmallPlugin):
    """It looks for a kubelet for three seconds, and stays without one afterwards."""

    async def serve_once(self) -> None:
        try:
            async with asyncio.timeout(3):
                await self.changes.appears("kubelet.sock")
        except TimeoutError:
            print("no kubelet after 3 s", flush=True)
            await asyncio.Event().wait()
        await super().serve_once()


@breaks("REG-25")
class EndsAfterRefusals(SmallPlugin):
    """Ends when three attempts in a row have failed, as on a socket of a killed kubelet."""

    failures = 0

    async def refused(self) -> None:
        self.failures += 1
        if self.failures >= 3 and not sockets.is_listening(self.directory / "kubelet.sock"):
            os._exit(1)


@breaks("RES-07")
class AllocateLeaksDescriptors(SmallPlugin):
    def node(self, device_id: str) -> pb.DeviceSpec:
        os.open("/dev/null", os.O_RDONLY)
        return super().node(device_id)


@breaks("RES-07")
class PreStartLeaksSockets(SmallPlugin):
    async def pre_start(self, request: pb.PreStartContainerRequest) -> pb.PreStartContainerResponse:
        os.pipe()
        return await super().pre_start(request)


@breaks("RES-08")
class AllocateLeaksThreads(SmallPlugin):
    async def allocate(self, request: pb.AllocateRequest) -> pb.AllocateResponse:
        threading.Thread(target=threading.Event().wait, daemon=True).start()
        return await super().allocate(request)


@breaks("RES-09")
class AllocateLeaksMemory(SmallPlugin):
    async def allocate(self, request: pb.AllocateRequest) -> pb.AllocateResponse:
        kept.append(os.urandom(16 << 10))
        return await super().allocate(request)


kept: list[bytes] = []


@breaks("END-10")
class RemovesFilesAtEnd(SmallPlugin):
    def on_signal(self) -> None:
        self.settings_file().unlink()
        super().on_signal()


@breaks("END-10")
class CleansAtStart(SmallPlugin):
    """Makes its files under a name of its own, and removes those of earlier starts."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        for path in root.glob("parts-*.conf"):
            path.unlink()

    def settings_file(self) -> Path:
        path = self.root / f"parts-{os.getpid()}.conf"
        path.touch()
        return path


@breaks("END-11")
class EmptiesListAtEnd(SmallPlugin):
    ends = False

    def devices(self) -> list[pb.Device]:
        return [] if self.ends else super().devices()

    def on_signal(self) -> None:
        self.ends = True
        self.changes.changed.notify()
        asyncio.get_running_loop().call_later(0.3, super().on_signal)


@breaks("REG-25")
class FailsAfterAbsence(SmallPlugin):
    """Its devices stay Unhealthy once the kubelet was away for some seconds."""

    late = False

    async def serve_once(self) -> None:
        began = asyncio.get_running_loop().time()
        await self.changes.appears("kubelet.sock")
        self.late = self.late or asyncio.get_running_loop().time() - began > 2
        await super().serve_once()

    def failed(self) -> set[str]:
        return set(IDS[1:]) if self.late else super().failed()


@breaks("ALO-14")
class SecondDeviceReadOnly(SmallPlugin):
    def answer(self, ids: list[str]) -> pb.ContainerAllocateResponse:
        response = super().answer(ids)
        for node in response.devices[1:]:
            node.permissions = "r"
        return response


@breaks("RES-08")
class LeavesZombies(SmallPlugin):
    def answer(self, ids: list[str]) -> pb.ContainerAllocateResponse:
        subprocess.Popen(["true"]).returncode = 0  # nothing waits for it
        return super().answer(ids)
