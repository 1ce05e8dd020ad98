"""Defects of the end, and of what a program uses."""

import asyncio
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

from tests.conformance.mutants.mutant import breaks
from tests.conformance.plugin import MOMENT, SmallPlugin
from tests.proto import deviceplugin_v1beta1_pb2 as pb

from plugwright.errors import PeerRefused
from plugwright.system import sockets

Response = pb.ContainerAllocateResponse


@breaks("END-01")
class IgnoresSigterm(SmallPlugin):
    def on_signal(self) -> None:
        print("later", flush=True)


@breaks("END-02")
class OtherExitCode(SmallPlugin):
    def exit_code(self) -> int:
        return 3


@breaks("END-03")
class LeavesSocket(SmallPlugin):
    def on_signal(self) -> None:
        os._exit(0)


@breaks("END-04")
class LeavesChild(SmallPlugin):
    async def run(self) -> int:
        subprocess.Popen(["sleep", "600"])
        return await super().run()


@breaks("END-05", slow=True)
class DiesOfLeftSocket(SmallPlugin):
    def socket_name(self) -> str:
        return "part.sock"


@breaks("END-06")
class CleansDirectory(SmallPlugin):
    async def run(self) -> int:
        for path in self.directory.glob("[!.]*"):  # a kubelet writes its checkpoint to a hidden file first
            if path.name not in ("kubelet.sock", "kubelet_internal_checkpoint"):
                path.unlink(missing_ok=True)
        return await super().run()


@breaks("END-07")
class RemovesSuccessorsSocket(SmallPlugin):
    """It serves on one socket for as long as it lives, and registers that again when its stream is lost."""

    def socket_name(self) -> str:
        return "fixed.sock"

    def listen(self, path: Path) -> socket.socket:
        path.unlink(missing_ok=True)
        return super().listen(path)

    async def announced(self, name: str) -> None:
        while True:
            lost = self.lost.value
            try:
                await self.register(name)
                await self.streams.until(bool)
                print("connected", flush=True)
                await self.until_lost(lost)
            except PeerRefused as error:
                print(error, flush=True)
                await asyncio.sleep(MOMENT)  # before another attempt

    def on_signal(self) -> None:
        (self.directory / self.socket_name()).unlink(missing_ok=True)
        super().on_signal()


@breaks("END-08", slow=True)
class RegistersOnlyFirstTime(SmallPlugin):
    async def announced(self, name: str) -> None:
        mark = self.directory / "registered-before"
        if mark.exists():
            await asyncio.Event().wait()
        mark.touch()
        await super().announced(name)


@breaks("END-09")
class WaitsForKubeletToEnd(SmallPlugin):
    def on_signal(self) -> None:
        if sockets.is_listening(self.directory / "kubelet.sock"):
            super().on_signal()


@breaks("RES-01")
class LeaksDescriptors(SmallPlugin):
    async def announced(self, name: str) -> None:
        os.pipe()
        await super().announced(name)


@breaks("RES-02")
class LeaksThreads(SmallPlugin):
    async def announced(self, name: str) -> None:
        threading.Thread(target=threading.Event().wait, daemon=True).start()
        await super().announced(name)


@breaks("RES-03")
class LeaksMemory(SmallPlugin):
    async def announced(self, name: str) -> None:
        kept.append(os.urandom(1 << 20))
        await super().announced(name)


kept: list[bytes] = []


@breaks("RES-04")
class WakesUpOften(SmallPlugin):
    async def run(self) -> int:
        threading.Thread(target=self.look, daemon=True).start()
        return await super().run()

    def look(self) -> None:
        while True:
            time.sleep(0.002)


@breaks("RES-05")
class BusyLoop(SmallPlugin):
    async def run(self) -> int:
        threading.Thread(target=self.spin, daemon=True).start()
        return await super().run()

    def spin(self) -> None:
        sys.setswitchinterval(0.0005)
        while True:
            pass
