"""The embedded API server behind TLS on loopback; the one home of uvicorn."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

import uvicorn

from plugwright.cluster.tls import Certificates
from plugwright.errors import ConfigError

__all__ = ["Application", "listen", "serving"]

_HOST = "127.0.0.1"  # never another address: a client with the token may run processes here
_SHUTDOWN_LIMIT = 2  # seconds for requests that are answered when it ends
_ABORT_INTERVAL = 0.05  # seconds

Application = Callable[..., Awaitable[None]]


class _ApiServer(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leaves signals to the program: they end the whole cluster, not its server alone."""
        yield


def listen(port: int) -> socket.socket:
    """Port 0 takes any that is free."""
    # With the protocol named: only then asyncio turns off Nagle's delay, which costs small answers 40 ms.
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((_HOST, port))
    except OSError as error:
        listening.close()
        raise ConfigError(
            f"cannot listen on {_HOST}:{port}: {error.strerror}; --port 0 takes any that is free"
        ) from error
    return listening


@asynccontextmanager
async def serving(
    application: Application, listening: socket.socket, certificates: Certificates
) -> AsyncIterator[None]:
    """Answers while inside; leaving ends every watch."""
    config = uvicorn.Config(
        application,
        http="h11",
        ws="none",
        lifespan="off",
        log_config=None,  # `cli.logs` sets format and level
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=_SHUTDOWN_LIMIT,
        ssl_keyfile=str(certificates.key),
        ssl_certfile=str(certificates.certificate),
    )
    config.load()
    server = _ApiServer(config)
    async with asyncio.TaskGroup() as tasks:
        answering = tasks.create_task(server.serve([listening]))
        try:
            yield
        finally:
            server.should_exit = True
            while not answering.done():  # a client whose watch ends may come back before the socket is closed
                for connection in list(server.server_state.connections):
                    connection.transport.abort()  # a watch would last as long as its client likes
                await asyncio.wait((answering,), timeout=_ABORT_INTERVAL)
