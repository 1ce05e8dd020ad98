"""h2spec's 145 cases against our server, on loopback since it speaks TCP alone. `make test-wire` builds it."""

import asyncio
import os
import re

import pytest

from plugwright.protocol.grpc_server import GrpcServerConnection, Handler

PROGRAM = os.environ.get("PLUGWRIGHT_H2SPEC", "")


async def echo(message: bytes) -> bytes:
    return message


@pytest.mark.skipif(not PROGRAM, reason="needs h2spec: make test-wire")
@pytest.mark.timeout(600)
async def test_the_standards_cases_all_pass() -> None:
    connections: list[GrpcServerConnection] = []

    def accept() -> GrpcServerConnection:
        connections.append(GrpcServerConnection({"/echo": Handler(unary=echo)}, lambda _: None))
        return connections[-1]

    server = await asyncio.get_running_loop().create_server(accept, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    h2spec = await asyncio.create_subprocess_exec(
        PROGRAM, "--host", "127.0.0.1", "--port", str(port), "--timeout", "20", stdout=asyncio.subprocess.PIPE
    )
    output, _ = await h2spec.communicate()
    server.close()
    for connection in connections:
        connection.abort("test ended")
    summary = re.search(r"(\d+) tests, (\d+) passed, (\d+) skipped, (\d+) failed", output.decode())
    assert summary is not None, output.decode()
    print(summary.group(0))
    assert [int(count) for count in summary.groups()] == [145, 145, 0, 0], output.decode()
