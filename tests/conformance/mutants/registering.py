"""Defects of registration."""

import asyncio
import os
import socket
import subprocess
from collections.abc import AsyncGenerator
from pathlib import Path

from tests.conformance.mutants.mutant import breaks
from tests.conformance.plugin import SmallPlugin
from tests.proto import deviceplugin_v1beta1_pb2 as pb

from plugwright.errors import PeerRefused, PlugwrightError
from plugwright.model import Options, PreferenceRequest
from plugwright.protocol import transport
from plugwright.protocol.registration import PluginInfo
from plugwright.system import sockets

Response = pb.ContainerAllocateResponse


@breaks("REG-01", slow=True)
class NeverRegisters(SmallPlugin):
    async def announced(self, name: str) -> None:
        await asyncio.Event().wait()


@breaks("REG-01")
class DiesAtOnce(SmallPlugin):
    async def run(self) -> int:
        print("cannot open the device", flush=True)
        return 7


@breaks("REG-02")
class GoesToBackground(SmallPlugin):
    async def run(self) -> int:
        subprocess.Popen(["sleep", "600"], start_new_session=True)
        return 0


@breaks("REG-03")
class NameWithoutDomain(SmallPlugin):
    resource = "part"


@breaks("REG-04")
class OldVersion(SmallPlugin):
    version = "v1alpha"


@breaks("REG-05")
class ServesAfterRegister(SmallPlugin):
    async def serve_once(self) -> None:
        identity = await self.changes.appears("kubelet.sock")
        self.registrations += 1
        name = self.socket_name()
        registering = asyncio.create_task(self.register(name))
        await asyncio.sleep(1)  # the defect
        async with transport.serve(self.socket_directory / name, self.methods()):
            await registering
            await self.changes.changes_from("kubelet.sock", identity)


@breaks("REG-05", slow=True)
class RegistersFirst(SmallPlugin):
    async def serve_once(self) -> None:
        await self.changes.appears("kubelet.sock")
        self.registrations += 1
        await self.register(self.socket_name())


@breaks("REG-06", slow=True)
class AbsoluteEndpoint(SmallPlugin):
    def endpoint(self, name: str) -> str:
        return str(self.directory / name)


@breaks("REG-07")
class LongSocketName(SmallPlugin):
    def socket_name(self) -> str:
        return f"{os.getpid()}-{self.registrations}.sock".rjust(76, "x")  # fits into the short path of the test alone


@breaks("REG-08")
class OpenSocket(SmallPlugin):
    socket_mode = None

    def listen(self, path: Path) -> socket.socket:
        os.umask(0)
        return super().listen(path)


@breaks("REG-09")
class WithoutOptions(SmallPlugin):
    def methods(self) -> list[transport.Bound]:
        return [method for method in super().methods() if "GetDevicePluginOptions" not in method.path]


@breaks("REG-10")
class OtherOptions(SmallPlugin):
    options = Options()

    async def pre_start(self, request: pb.PreStartContainerRequest) -> pb.PreStartContainerResponse:
        raise PeerRefused("INTERNAL", "called, though only Register announces it")

    def choose(self, request: PreferenceRequest) -> list[str]:
        raise PeerRefused("INTERNAL", "called, though only Register announces it")


@breaks("REG-11")
class EndsWithoutKubelet(SmallPlugin):
    async def run(self) -> int:
        return await super().run() if sockets.is_listening(self.directory / "kubelet.sock") else 0


@breaks("REG-12", slow=True)
class GivesUpWhenRefused(SmallPlugin):
    async def refused(self) -> None:
        await asyncio.Event().wait()


@breaks("REG-13")
class RegistersInHotLoop(SmallPlugin):
    async def serve(self) -> None:
        while True:
            try:
                await self.serve_once()
            except PlugwrightError:
                continue

    async def announced(self, name: str) -> None:
        while True:
            try:
                return await self.register(name)
            except PeerRefused:
                continue


@breaks("REG-14")
class IgnoresRestart(SmallPlugin):
    async def serve_once(self) -> None:
        if self.registrations:
            await asyncio.Event().wait()
        await super().serve_once()


@breaks("REG-15")
class ComesBackLate(SmallPlugin):
    async def serve_once(self) -> None:
        if self.registrations:
            await asyncio.sleep(2)
        await super().serve_once()


@breaks("REG-16")
class ComesBackThreeTimes(SmallPlugin):
    async def serve_once(self) -> None:
        if self.registrations >= 4:
            await asyncio.Event().wait()
        await super().serve_once()


@breaks("REG-17")
class IgnoresItsSocket(SmallPlugin):
    async def until_removed(self, name: str) -> None:
        await asyncio.Event().wait()


@breaks("REG-17")
class RepeatsListWithoutItsSocket(IgnoresItsSocket):
    """Its health checks send the list again over the stream that is still open."""

    async def list_and_watch(self) -> AsyncGenerator[bytes, None]:
        while True:
            yield pb.ListAndWatchResponse(devices=self.devices()).SerializeToString()
            await asyncio.sleep(0.5)


class RegistersTwice(SmallPlugin):
    async def announced(self, name: str) -> None:
        await self.register(name)
        try:
            await self.register(name)
        except PeerRefused as error:
            print(error, flush=True)


breaks("REG-18")(RegistersTwice)


@breaks("REG-19", "1.37")
class RegistersConnectedSocket(RegistersTwice):
    pass


@breaks("REG-20")
class RenamesItself(SmallPlugin):
    async def register(self, name: str) -> None:
        if self.registrations > 1:
            own, self.resource = self.resource, f"example.com/part-{self.registrations}"
            try:
                await super().register(name)
            finally:
                self.resource = own
        await super().register(name)


@breaks("REG-21")
class IgnoresLostStream(SmallPlugin):
    async def until_lost(self, lost: int) -> None:
        await asyncio.Event().wait()


@breaks("REG-22", slow=True)
class HeedsDeprecation(SmallPlugin):
    async def announced(self, name: str) -> None:
        if (self.directory / "DEPRECATION").exists():
            await asyncio.Event().wait()
        await super().announced(name)


class WatchedPlugin(SmallPlugin):
    watched = True


@breaks("REG-23")
class AnnouncesOtherType(WatchedPlugin):
    async def announce(self) -> PluginInfo:
        return PluginInfo(self.resource, "CSIPlugin")


@breaks("REG-23")
class AnnouncesOtherVersion(WatchedPlugin):
    async def announce(self) -> PluginInfo:
        return PluginInfo(self.resource, versions=("v1",))


@breaks("REG-24")
class RefusesStatus(WatchedPlugin):
    async def notify(self, registered: bool, error: str) -> None:
        raise PeerRefused("INTERNAL", "no, thank you")


@breaks("REG-25")
class EndsWithTheKubelet(SmallPlugin):
    async def until_lost(self, lost: int) -> None:
        await super().until_lost(lost)
        if not sockets.is_listening(self.directory / "kubelet.sock"):
            os._exit(0)
