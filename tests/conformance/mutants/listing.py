"""Defects of the list, and of health."""

import asyncio
import os
from collections.abc import AsyncGenerator

from tests.conformance.mutants.mutant import breaks
from tests.conformance.plugin import IDS, SmallPlugin
from tests.proto import deviceplugin_v1beta1_pb2 as pb

from plugwright.system import sockets

Response = pb.ContainerAllocateResponse


@breaks("LST-01", slow=True)
class SendsNoList(SmallPlugin):
    async def list_and_watch(self) -> AsyncGenerator[bytes, None]:
        await asyncio.Event().wait()
        yield b""


@breaks("LST-02")
class ListTooLarge(SmallPlugin):
    def devices(self) -> list[pb.Device]:
        return [self.device(f"{number:060}", True) for number in range(60_000)]


@breaks("LST-03")
class EmptyId(SmallPlugin):
    def devices(self) -> list[pb.Device]:
        return [*super().devices(), self.device("", True)]


@breaks("LST-04")
class RepeatedId(SmallPlugin):
    def devices(self) -> list[pb.Device]:
        return [*super().devices(), self.device(IDS[0], True)]


@breaks("LST-05")
class LongId(SmallPlugin):
    def devices(self) -> list[pb.Device]:
        return [*super().devices(), self.device("x" * 64, True)]


@breaks("LST-06")
class OtherHealth(SmallPlugin):
    def devices(self) -> list[pb.Device]:
        return [*super().devices(), pb.Device(ID="odd", health="healthy")]


@breaks("LST-07")
class NegativeNumaNode(SmallPlugin):
    def device(self, device_id: str, healthy: bool) -> pb.Device:
        device = super().device(device_id, healthy)
        device.topology.nodes[0].ID = -1
        return device


@breaks("LST-08")
class EmptyTopology(SmallPlugin):
    def device(self, device_id: str, healthy: bool) -> pb.Device:
        device = super().device(device_id, healthy)
        del device.topology.nodes[:]
        return device


@breaks("LST-09")
class EndsStream(SmallPlugin):
    async def list_and_watch(self) -> AsyncGenerator[bytes, None]:
        yield pb.ListAndWatchResponse(devices=self.devices()).SerializeToString()

    async def until_lost(self, lost: int) -> None:
        await asyncio.Event().wait()


@breaks("LST-10")
class OneStream(SmallPlugin):
    async def list_and_watch(self) -> AsyncGenerator[bytes, None]:
        await self.streams.until(lambda count: count == 0)
        async for message in super().list_and_watch():
            yield message


@breaks("LST-11")
class StreamHeldByDead(SmallPlugin):
    opened = 0

    async def list_and_watch(self) -> AsyncGenerator[bytes, None]:
        self.opened += 1
        if self.opened > 2:  # nobody frees a place
            await asyncio.Event().wait()
        async for message in super().list_and_watch():
            yield message


@breaks("LST-12")
class ShrinksAfterRestart(SmallPlugin):
    def devices(self) -> list[pb.Device]:
        return super().devices()[self.registrations > 1 :]


@breaks("LST-13")
class RepeatsList(SmallPlugin):
    async def list_and_watch(self) -> AsyncGenerator[bytes, None]:
        while True:
            yield pb.ListAndWatchResponse(devices=self.devices()).SerializeToString()
            await asyncio.sleep(0.05)


@breaks("LST-14")
class RandomIds(SmallPlugin):
    def devices(self) -> list[pb.Device]:
        return [self.device(f"part-{os.getpid()}-{number}", True) for number in range(4)]


@breaks("HOT-01")
class IgnoresFailure(SmallPlugin):
    def failed(self) -> set[str]:
        return set()


@breaks("HOT-02")
class DropsFailed(SmallPlugin):
    def devices(self) -> list[pb.Device]:
        failed = self.failed()
        return [device for device in super().devices() if device.ID not in failed]


@breaks("HOT-03")
class NeverRecovers(SmallPlugin):
    ever: set[str]

    def failed(self) -> set[str]:
        self.ever = getattr(self, "ever", set()) | super().failed()
        return self.ever


@breaks("HOT-04")
class FailsTogether(SmallPlugin):
    def failed(self) -> set[str]:
        return set(IDS) if super().failed() else set()


@breaks("HOT-05")
class AllocatesFailed(SmallPlugin):
    def check(self, ids: list[str]) -> None:  # type: ignore[override]
        super().check([device_id for device_id in ids if device_id not in self.failed()])


class FirstStreamUpdated(SmallPlugin):
    """Only one stream, the oldest that was ever opened, reads the changes."""

    reading = 0

    async def list_and_watch(self) -> AsyncGenerator[bytes, None]:
        self.reading += 1
        if self.reading == 1:
            async for message in super().list_and_watch():
                yield message
            return
        yield pb.ListAndWatchResponse(devices=self.devices()).SerializeToString()
        await asyncio.Event().wait()


breaks("HOT-06")(FirstStreamUpdated)


@breaks("HOT-07")
class DeadStreamTakesUpdate(FirstStreamUpdated):
    pass


@breaks("HOT-08")
class LooksOnlyWhileServing(SmallPlugin):
    known: set[str]

    def failed(self) -> set[str]:
        """What it saw when a kubelet was there; the first list of a stream brings the old state."""
        if self.streams.value and sockets.is_listening(self.directory / "kubelet.sock") and not self.fresh:
            self.known = super().failed()
        return getattr(self, "known", set())

    fresh = False

    async def list_and_watch(self) -> AsyncGenerator[bytes, None]:
        self.fresh = self.registrations > 1
        async for message in super().list_and_watch():
            yield message
