"""ASGI applications over TLS: the embedded API server and the kubelet API of joined nodes; the page, without TLS.

The only module that imports uvicorn.
"""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from plugwright.apiserver.tls import Certificates
from plugwright.apiserver.websocket import WebSocketConnection
from plugwright.errors import ConfigError

__all__ = ["Application", "RestartableServer", "listen", "serving"]

_HOST = "127.0.0.1"  # no other address for an API server: a client with the token can run processes here
# Seconds. Clients must close idle connections first (Go after 90 s): helm fails if its next POST meets our end.
_LONGEST_IDLE = 180
_SHUTDOWN_LIMIT = 2  # seconds for open requests at the end
_ABORT_INTERVAL = 0.05  # seconds

Application = Callable[..., Awaitable[None]]


class _ApiServer(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leaves signals to the program: they end the whole cluster, not only its server."""
        yield


class _Connection(H11Protocol):
    def _unsupported_upgrade_warning(self) -> None:
        """Logs nothing: the application responds to a client that requests SPDY, as older kubectl do."""


class _CertifiedConnection(_Connection):
    """Adds the client's certificate to the state of its requests, as `peercert`; empty without one."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.app_state = {**self.app_state, "peercert": transport.get_extra_info("peercert")}


def listen(port: int, host: str = _HOST) -> socket.socket:
    """Listens on a port; port 0 selects any free one."""
    # With a named protocol, because asyncio only then turns off Nagle's delay, which costs small responses 40 ms.
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
    except OSError as error:
        listening.close()
        hint = "; --port 0 takes any that is free" if port else ""
        raise ConfigError(f"cannot listen on {host}:{port}: {error.strerror}{hint}") from error
    return listening


class RestartableServer:
    """Serves on one loopback port; while stopped, connections to it are refused."""

    def __init__(self, application: Application, certificates: Certificates) -> None:
        self._application, self._certificates = application, certificates
        self._stack = AsyncExitStack()
        self.port = 0

    async def start(self) -> None:
        listening = self._stack.enter_context(listen(self.port))
        listening.listen()  # a client that connects immediately waits, and is not refused
        self.port = listening.getsockname()[1]
        await self._stack.enter_async_context(serving(self._application, [listening], self._certificates))

    async def stop(self) -> None:
        await self._stack.aclose()


@asynccontextmanager
async def serving(
    application: Application,
    listening: list[socket.socket],
    certificates: Certificates | None,
    clients: Path | None = None,
) -> AsyncIterator[None]:
    """Serves while inside, without TLS if there are no certificates; leaving ends every watch.

    Certificates of clients must be signed by the file `clients`.
    """
    config = uvicorn.Config(
        application,
        http=_CertifiedConnection if clients else _Connection,
        ws=WebSocketConnection,
        lifespan="off",
        log_config=None,  # the program sets format and level
        access_log=False,
        server_header=False,
        timeout_keep_alive=_LONGEST_IDLE,
        timeout_graceful_shutdown=_SHUTDOWN_LIMIT,
        ssl_keyfile=str(certificates.key) if certificates else None,
        ssl_certfile=str(certificates.certificate) if certificates else None,
        ssl_cert_reqs=ssl.CERT_OPTIONAL if clients else ssl.CERT_NONE,
        ssl_ca_certs=str(clients) if clients else None,
    )
    config.load()
    server = _ApiServer(config)
    async with asyncio.TaskGroup() as tasks:
        answering = tasks.create_task(server.serve(listening))
        try:
            yield
        finally:
            server.should_exit = True
            while not answering.done():  # a client whose watch ends can return before the socket is closed
                for connection in list(server.server_state.connections):
                    connection.transport.abort()  # a watch would last as long as its client wants
                await asyncio.wait((answering,), timeout=_ABORT_INTERVAL)
