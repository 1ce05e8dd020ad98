"""Defects that a restart, a reboot or damage shows, and those of the end."""

import os
from collections.abc import Sequence
from pathlib import Path
from socket import socket

from tests.conformance.driver import Document, SmallDriver
from tests.conformance.driver_mutants.driver_mutant import breaks

from plugwright.protocol.dra import Claim, PreparedDevice
from plugwright.system import sockets


@breaks("DST-01")
class ForgetsClaims(SmallDriver):
    def begin(self) -> None:
        super().begin()
        self.save({})


@breaks("DST-02")
class CleansSpecs(SmallDriver):
    def begin(self) -> None:
        super().begin()
        for path in self.cdi.glob(f"{self.name}-*"):
            path.unlink()


@breaks("DST-03")
class TrustsCheckpoint(SmallDriver):
    def prepared_before(self, claim: Claim, results: Sequence[Document]) -> Sequence[PreparedDevice]:
        return [self.prepared(claim, result) for result in results]


@breaks("DST-04", slow=True)
class DiesOfDamage(SmallDriver):
    def begin(self) -> None:
        super().begin()
        if self.checkpoint.exists() and self.checkpoint.read_bytes():
            assert self.checkpoint.read_text().endswith("}")


@breaks("DST-05", slow=True)
class DiesOfEmptyFile(SmallDriver):
    def begin(self) -> None:
        super().begin()
        assert not self.checkpoint.exists() or self.checkpoint.read_bytes()


@breaks("DST-06")
class RemovesSuccessorsSockets(SmallDriver):
    async def ending(self) -> None:
        self.socket_path().unlink(missing_ok=True)
        self.registration_path().unlink(missing_ok=True)


@breaks("DRE-01")
class IgnoresSigterm(SmallDriver):
    def on_signal(self) -> None:
        print("later", flush=True)


@breaks("DRE-02")
class LeavesSockets(SmallDriver):
    def on_signal(self) -> None:
        os._exit(0)


@breaks("DRE-03", slow=True)
class DiesOfLeftSocket(SmallDriver):
    def listen(self, path: Path) -> socket:
        return sockets.listen(path, mode=self.socket_mode)


@breaks("DRE-04")
class CleansDirectories(SmallDriver):
    def begin(self) -> None:
        super().begin()
        for path in self.registry.iterdir():
            path.unlink()
