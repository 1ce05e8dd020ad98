"""The listening socket of `plugwright up`'s API server."""

import asyncio
import socket

import pytest

from plugwright.apiserver.server import listen
from plugwright.errors import ConfigError


async def test_small_responses_are_sent_without_delay() -> None:
    """With Nagle's delay every one would wait 40 ms for the client's acknowledgement of the last."""
    no_delay: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted = writer.get_extra_info("socket")
        no_delay.set_result(accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        writer.close()
        await writer.wait_closed()

    listening = listen(0)
    async with await asyncio.start_server(serve, sock=listening):
        _, writer = await asyncio.open_connection(*listening.getsockname())
        assert await no_delay
        writer.close()
        await writer.wait_closed()


def test_the_server_listens_on_loopback_alone() -> None:
    with listen(0) as listening:
        assert listening.getsockname()[0] == "127.0.0.1"


def test_a_port_that_is_taken_is_refused_by_name() -> None:
    with listen(0) as first:
        first.listen()
        port = first.getsockname()[1]
        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{port}"):
            listen(port)
