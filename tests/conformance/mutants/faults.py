"""Defects that bad messages and connections bring out."""

import asyncio
import os
import socket
from collections.abc import AsyncGenerator
from pathlib import Path

from google.protobuf.message import Message
from tests import protobuf_methods
from tests.conformance.mutants.mutant import breaks
from tests.conformance.plugin import SmallPlugin
from tests.proto import deviceplugin_v1beta1_pb2 as pb
from tests.protobuf_methods import Method, unary

from plugwright.errors import PeerRefused
from plugwright.protocol import transport
from plugwright.protocol.grpc_server import GrpcServerConnection

Response = pb.ContainerAllocateResponse


class Fragile(SmallPlugin):
    """Ends when a call of it fails in the library."""

    def fatal(self, message: bytes) -> bool:
        raise NotImplementedError

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        decoded = protobuf_methods._decoded

        def dying(kind: type[Message], message: bytes) -> Message:
            if self.fatal(message):
                os._exit(70)
            return decoded(kind, message)

        protobuf_methods._decoded = dying  # type: ignore[assignment]


@breaks("FLT-01")
class DiesOfMalformed(Fragile):
    def fatal(self, message: bytes) -> bool:
        return message.startswith(b"\xff\xff")


@breaks("FLT-02")
class RefusesNewFields(SmallPlugin):
    async def allocate(self, request: pb.AllocateRequest) -> pb.AllocateResponse:
        known = pb.AllocateRequest(
            container_requests=[
                pb.ContainerAllocateRequest(devices_ids=container.devices_ids)
                for container in request.container_requests
            ]
        )
        if known.ByteSize() != request.ByteSize():
            raise PeerRefused("INVALID_ARGUMENT", "unknown fields")
        return await super().allocate(request)


@breaks("FLT-03")
class AnswersAnyMethod(SmallPlugin):
    def methods(self) -> list[transport.Bound]:
        async def reply(_: pb.Empty) -> pb.Empty:
            return pb.Empty()

        method = Method("/v1beta1.DevicePlugin/PlugwrightVerify", pb.Empty, pb.Empty)
        return [*super().methods(), unary(method, reply)]


@breaks("FLT-04")
class DiesOfLarge(Fragile):
    def fatal(self, message: bytes) -> bool:
        return len(message) > 4 * 1024 * 1024


@breaks("FLT-05")
class DiesOfEmpty(SmallPlugin):
    async def allocate(self, request: pb.AllocateRequest) -> pb.AllocateResponse:
        if not request.container_requests or not request.container_requests[0].devices_ids:
            os._exit(2)  # as a panic does
        return await super().allocate(request)


class Counting(SmallPlugin):
    """Sees every connection before it is served."""

    def accepted(self, connection: GrpcServerConnection, data: bytes) -> None:
        raise NotImplementedError

    def listen(self, path: Path) -> socket.socket:
        accepted = self.accepted

        class Seen(GrpcServerConnection):
            def data_received(self, data: bytes) -> None:
                accepted(self, data)
                super().data_received(data)

        transport.GrpcServerConnection = Seen  # type: ignore[attr-defined]
        return super().listen(path)


@breaks("FLT-06")
class DiesOfGarbage(Counting):
    def accepted(self, connection: GrpcServerConnection, data: bytes) -> None:
        if data.startswith(b"GET"):
            os._exit(70)


@breaks("FLT-07")
class DiesOfHostileFrames(Counting):
    def accepted(self, connection: GrpcServerConnection, data: bytes) -> None:
        if b"a kind of a later version" in data:
            os._exit(70)


@breaks("FLT-08")
class FewConnections(SmallPlugin):
    """Accepts no more when a number of connections is open, as a pool of threads does."""

    def listen(self, path: Path) -> socket.socket:
        opened = 0

        class Counted(GrpcServerConnection):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                nonlocal opened
                opened += 1
                super().connection_made(transport)

            def connection_lost(self, exc: Exception | None) -> None:
                nonlocal opened
                opened -= 1
                super().connection_lost(exc)

            def data_received(self, data: bytes) -> None:
                if opened < 20:
                    super().data_received(data)

        transport.GrpcServerConnection = Counted  # type: ignore[attr-defined]
        return super().listen(path)


@breaks("FLT-09")
class SendsUnderLock(SmallPlugin):
    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.lock = asyncio.Lock()

    async def list_and_watch(self) -> AsyncGenerator[bytes, None]:
        async for message in super().list_and_watch():
            async with self.lock:
                yield message


@breaks("FLT-10")
class LeaksStreams(SmallPlugin):
    opened = 0

    async def list_and_watch(self) -> AsyncGenerator[bytes, None]:
        self.opened += 1
        if self.opened > 20:
            raise PeerRefused("RESOURCE_EXHAUSTED", "too many streams")
        async for message in super().list_and_watch():
            yield message


@breaks("FLT-11")
class LeaksCutAllocate(SmallPlugin):
    taken: set[str]

    async def allocate(self, request: pb.AllocateRequest) -> pb.AllocateResponse:
        self.taken = getattr(self, "taken", set())
        ids = {device_id for container in request.container_requests for device_id in container.devices_ids}
        if self.taken & ids:
            raise PeerRefused("RESOURCE_EXHAUSTED", "in use")
        self.taken |= ids
        await asyncio.sleep(1)  # longer than a busy machine takes to cut the call
        response = await super().allocate(request)
        self.taken -= ids
        return response


@breaks("FLT-12")
class LeaksCutPreference(SmallPlugin):
    busy = False

    async def prefer(self, request: pb.PreferredAllocationRequest) -> pb.PreferredAllocationResponse:
        if self.busy:
            raise PeerRefused("UNAVAILABLE", "busy")
        self.busy = True
        await asyncio.sleep(1)  # longer than a busy machine takes to cut the call
        response = await super().prefer(request)
        self.busy = False
        return response


@breaks("FLT-13")
class GivesUpWhenCut(SmallPlugin):
    async def refused(self) -> None:
        await asyncio.Event().wait()
