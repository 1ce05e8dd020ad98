"""Defects of registration."""

import asyncio
import os
from contextlib import AsyncExitStack
from pathlib import Path
from socket import socket

from tests.conformance.driver import SmallDriver
from tests.conformance.driver_mutants.driver_mutant import breaks

from plugwright.errors import PeerRefused
from plugwright.protocol import dra, dra_health, transport
from plugwright.protocol.registration import PluginInfo
from plugwright.system import sockets

LONG = 1.5  # seconds; the kubelet waits for one
LATE = 5.0  # seconds, in which a claim may come


@breaks("DRG-01", slow=True)
class ForgetsRegistration(SmallDriver):
    async def serve(self, stack: AsyncExitStack) -> None:
        await stack.enter_async_context(transport.serve(self.socket_path(), self.methods(), listening_on=self.listen))


@breaks("DRG-02")
class NameInCapitals(SmallDriver):
    name = "Part.Example.com"


@breaks("DRG-03")
class AnnouncesFirst(SmallDriver):
    async def serve(self, stack: AsyncExitStack) -> None:
        path = self.registration_path()
        await stack.enter_async_context(transport.serve(path, self.registration_methods(), listening_on=self.listen))
        await asyncio.sleep(LATE)
        await stack.enter_async_context(transport.serve(self.socket_path(), self.methods(), listening_on=self.listen))


@breaks("DRG-04")
class OldVersionFirst(SmallDriver):
    services = tuple(reversed(dra.VERSIONS))


@breaks("DRG-05")
class ServesOneVersion(SmallDriver):
    def methods(self) -> list[transport.Bound]:
        return [*dra.methods(self, ["v1.DRAPlugin"]), *dra_health.methods(self)]


@breaks("DRG-05")
class ServesOldVersion(SmallDriver):
    def methods(self) -> list[transport.Bound]:
        return [*dra.methods(self, ["v1beta1.DRAPlugin"]), *dra_health.methods(self)]


@breaks("DRG-06", slow=True)
class SlowGetInfo(SmallDriver):
    async def announce(self) -> PluginInfo:
        await asyncio.sleep(LONG)
        return await super().announce()


@breaks("DRG-07", slow=True)
class RefusesStatus(SmallDriver):
    async def notify(self, registered: bool, error: str) -> None:
        raise PeerRefused("UNIMPLEMENTED", "no such method")


@breaks("DRG-08")
class OpenSockets(SmallDriver):
    def listen(self, path: Path) -> socket:
        listening = super().listen(path)
        path.chmod(0o666)  # whatever the umask is
        return listening


@breaks("DRG-09")
class LongPath(SmallDriver):
    def socket_path(self) -> Path:
        room = sockets.PATH_LIMIT - len(str(self.directory)) - len("/.sock")
        return self.directory / f"{'d' * min(room, 75)}.sock"


@breaks("DRG-10")
class RegistersOnce(SmallDriver):
    announced = 0

    async def announce(self) -> PluginInfo:
        self.announced += 1
        if self.announced > 2:  # the kubelet's, and the verifier's
            raise PeerRefused("UNAVAILABLE", "registered already")
        return await super().announce()


@breaks("DRG-11")
class DiesOfClosedConnection(SmallDriver):
    peers = 0

    def begin(self) -> None:
        super().begin()
        self.connected.subscribe(self.count_peers)

    def count_peers(self) -> None:
        if self.connected.value < self.peers:
            os._exit(3)
        self.peers = self.connected.value
