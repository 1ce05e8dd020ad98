"""Our wire beside other people's gRPC, both ways: grpcio, and Go's library as the oldest and newest kubelets have it.

Go's two programs are built by `make test-wire`; grpclib speaks through h2, our oracle in `test_http2`.
"""

import asyncio
import os
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from plugwright.protocol.grpc import GrpcError, Status
from plugwright.protocol.grpc_client import GrpcClientConnection
from plugwright.protocol.grpc_server import GrpcServerConnection, Handler

GO = Path(os.environ.get("PLUGWRIGHT_INTEROP", "/nowhere"))
PEERS = {
    "grpcio": [sys.executable, str(Path(__file__).parent / "interop" / "grpcio_peer.py")],
    "Go of kubelet 1.26": [str(GO / "old")],
    "Go of kubelet 1.37": [str(GO / "new")],
}
TEXT = "naïve: 100 %\n"
SEEN = f"""\
echo 0 true
echo 1 true
echo 1000 true
echo 65535 true
echo 1048576 true
echo 9437184 true
many 0
unknown Unimplemented
refused InvalidArgument {TEXT}
deadline DeadlineExceeded
stream 3 true
"""


async def echo(message: bytes) -> bytes:
    return message


async def never(_: bytes) -> bytes:
    await asyncio.Event().wait()
    raise AssertionError


async def refuse(_: bytes) -> bytes:
    raise GrpcError(Status.INVALID_ARGUMENT, TEXT)


async def repeat(message: bytes) -> AsyncGenerator[bytes, None]:
    for _ in range(3):
        yield message


HANDLERS = {
    "/test/Echo": Handler(unary=echo),
    "/test/Never": Handler(unary=never),
    "/test/Refuse": Handler(unary=refuse),
    "/test/Repeat": Handler(streaming=repeat),
}


@pytest.fixture(params=PEERS)
def peer(request: pytest.FixtureRequest) -> list[str]:
    command = PEERS[request.param]
    if not Path(command[0]).exists():
        pytest.skip("needs Go's program: make test-wire")
    return command


async def test_their_client_beside_our_server(peer: list[str], root: Path) -> None:
    connections: list[GrpcServerConnection] = []

    def accept() -> GrpcServerConnection:
        connections.append(GrpcServerConnection(HANDLERS, lambda _: None))
        return connections[-1]

    server = await asyncio.get_running_loop().create_unix_server(accept, root / "s")
    program = await asyncio.create_subprocess_exec(*peer, "client", root / "s", stdout=asyncio.subprocess.PIPE)
    output, _ = await program.communicate()
    server.close()
    for connection in connections:
        connection.abort("test ended")
    assert output.decode() == SEEN


@asynccontextmanager
async def their_server(peer: list[str], path: Path) -> AsyncIterator[GrpcClientConnection]:
    program = await asyncio.create_subprocess_exec(*peer, "server", path, stdout=asyncio.subprocess.PIPE)
    try:
        assert program.stdout is not None
        assert await program.stdout.readline() == b"listening\n"
        loop = asyncio.get_running_loop()
        _, client = await loop.create_unix_connection(lambda: GrpcClientConnection(None), str(path))
        try:
            yield client
        finally:
            client.abort("done")
    finally:
        program.kill()
        await program.wait()


async def test_our_client_beside_their_server(peer: list[str], root: Path) -> None:
    async with their_server(peer, root / "s") as client:
        for size in (0, 1, 1_000, 65_535, 1 << 20, 9 << 20):
            assert await client.unary("/test/Echo", b"\7" * size, None) == b"\7" * size
        calls = (client.unary("/test/Echo", b"%d" % number, None) for number in range(500))
        assert await asyncio.gather(*calls) == [b"%d" % number for number in range(500)]
        with pytest.raises(GrpcError) as refused:
            await client.unary("/test/Refuse", b"x", None)
        assert (refused.value.status, refused.value.message) == (Status.INVALID_ARGUMENT, TEXT)
        with pytest.raises((GrpcError, TimeoutError)):
            async with asyncio.timeout(0.05):
                await client.unary("/test/Never", b"x", 0.05)
        replies = [reply async for reply in client.stream("/test/Repeat", b"\t" * (4 << 20))]
        assert [len(reply) for reply in replies] == [4 << 20] * 3
