"""The embedded API server behind TLS, as a pod finds it: files of a service account, and an address."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import uvicorn
from starlette.types import Receive, Scope, Send
from tests.cluster.api.serving import TOKEN, populated, server

from plugwright.cluster import tls
from plugwright.cluster.api.app import application
from plugwright.cluster.store import Store
from plugwright.kube.api_client import ApiClient
from plugwright.kube.api_server import ApiServer

__all__ = ["ServedApi", "served_api"]


class ServedApi:
    """An API server of a node named `node`, which can be stopped and started again at the same port.

    `requests` are those that it has got, as `POST /path`.
    """

    def __init__(self, directory: Path) -> None:
        self.store = populated(Store())
        self.requests: list[str] = []
        self.directory = directory
        self._application = application(server(self.store))
        self._certificates = tls.make(directory)
        (directory / "token").write_text(TOKEN)
        self._port = 0
        self._running: tuple[uvicorn.Server, asyncio.Task[None], socket.socket] | None = None

    @property
    def environment(self) -> dict[str, str]:
        return {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(self._port)}

    def client(self, limit: float = 10.0) -> ApiClient:
        found = ApiServer.in_cluster(self.environment, self.directory)
        assert found is not None
        return ApiClient(found, limit)

    def written(self) -> list[str]:
        """The requests that change something."""
        return [request for request in self.requests if not request.startswith("GET")]

    async def start(self) -> None:
        config = uvicorn.Config(
            self._recorded,
            interface="asgi3",
            log_level="critical",
            lifespan="off",
            access_log=False,
            ssl_certfile=str(self._certificates.certificate),
            ssl_keyfile=str(self._certificates.key),
        )
        running = uvicorn.Server(config)
        running.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
        config.load()
        listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(("127.0.0.1", self._port))
        listening.listen()
        self._port = listening.getsockname()[1]
        self._running = running, asyncio.create_task(running.serve([listening])), listening

    async def stop(self) -> None:
        """Ends all connections too."""
        if self._running is None:
            return
        running, task, listening = self._running
        self._running = None
        running.should_exit = running.force_exit = True
        for connection in tuple(running.server_state.connections):
            connection.transport.abort()
        for watch in tuple(running.server_state.tasks):
            watch.cancel()
        await task
        listening.close()

    async def _recorded(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.requests.append(f"{scope['method']} {scope['path']}")
        await self._application(scope, receive, send)


@asynccontextmanager
async def served_api(directory: Path) -> AsyncIterator[ServedApi]:
    served = ServedApi(directory)
    await served.start()
    try:
        yield served
    finally:
        await served.stop()
