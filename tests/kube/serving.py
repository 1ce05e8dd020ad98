"""The embedded API server behind TLS, as a pod finds it: files of a service account, and an address."""

import asyncio
import json
import socket
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import uvicorn
from starlette.types import Message, Receive, Scope, Send
from tests.apiserver.serving import TOKEN, populated, server

from plugwright.apiserver import tls
from plugwright.apiserver.app import application
from plugwright.apiserver.store import Object, Store
from plugwright.kube.access import ClusterAccess
from plugwright.kube.api_client import ApiClient

__all__ = ["ServedApi", "requests_ended", "served_api"]


class ServedApi:
    """An API server of a node named `node`, which can be stopped and started again at the same port.

    `requests` are those that it has got, as `POST /path`; `rewrite` changes what is written before it is stored, as an
    API server does that drops the fields of a feature. `trouble` answers in place of the server, if it has an answer.
    """

    def __init__(self, directory: Path, store: Store) -> None:
        self.store = populated(store)
        self.requests: list[str] = []
        self.rewrite: Callable[[Object], object] | None = None
        self.trouble: Callable[[Scope], tuple[int, bytes] | None] = lambda _: None
        self.directory = directory
        self._application = application(server(self.store))
        self._certificates = tls.make(directory)
        (directory / "token").write_text(TOKEN)
        self._port = self.inner_port = 0
        self._relay: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._relaying: set[asyncio.Task[Any]] = set()

    @property
    def environment(self) -> dict[str, str]:
        return {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(self._port)}

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self._port}"

    def client(self, limit: float = 10.0) -> ApiClient:
        found = ClusterAccess.in_cluster(self.environment, self.directory)
        assert found is not None
        return ApiClient(found, limit)

    def config(self) -> uvicorn.Config:
        config = uvicorn.Config(
            self._recorded,
            interface="asgi3",
            log_level="critical",
            lifespan="off",
            access_log=False,
            ssl_certfile=str(self._certificates.certificate),
            ssl_keyfile=str(self._certificates.key),
        )
        config.load()
        return config

    def written(self) -> list[str]:
        """The requests that change something."""
        return [request for request in self.requests if not request.startswith("GET")]

    async def start(self) -> None:
        self._relay = await asyncio.start_server(self._connected, "127.0.0.1", self._port)
        self._port = self._relay.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Ends all connections too."""
        if self._relay is None:
            return
        self._relay.close()
        self._relay = None
        for writer in self._writers:
            writer.transport.abort()
        await asyncio.gather(*self._relaying)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._relaying.add(task)
        inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", self.inner_port)
        writers = {writer, inner_writer}
        self._writers |= writers
        await asyncio.gather(_relay(reader, inner_writer), _relay(inner_reader, writer))
        self._writers -= writers
        self._relaying.discard(task)

    async def _recorded(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.requests.append(f"{scope['method']} {scope['path']}")
        if (instead := self.trouble(scope)) is not None:
            status, content = instead
            await send({"type": "http.response.start", "status": status, "headers": []})
            await send({"type": "http.response.body", "body": content})
            return
        if self.rewrite is not None and scope["method"] in ("POST", "PUT"):
            receive = await _rewritten(receive, self.rewrite)
        await self._application(scope, receive, send)


async def _rewritten(receive: Receive, rewrite: Callable[[Object], object]) -> Receive:
    content, more = b"", True
    while more:
        message = await receive()
        content, more = content + message.get("body", b""), message.get("more_body", False)
    document = json.loads(content)
    rewrite(document)
    bodies = [{"type": "http.request", "body": json.dumps(document).encode(), "more_body": False}]

    async def replay() -> Message:
        return bodies.pop() if bodies else await receive()

    return replay


async def _relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while content := await reader.read(65536):
            writer.write(content)
            await writer.drain()
    writer.close()


async def requests_ended() -> None:
    """Returns when no thread of a client waits for an answer."""
    async with asyncio.timeout(60):
        while any("the API server" in thread.name for thread in threading.enumerate()):
            await asyncio.sleep(0.01)


@asynccontextmanager
async def served_api(directory: Path, store: Store | None = None) -> AsyncIterator[ServedApi]:
    served = ServedApi(directory, store or Store())
    listening = socket.create_server(("127.0.0.1", 0))
    served.inner_port = listening.getsockname()[1]
    running = uvicorn.Server(served.config())
    running.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
    task = asyncio.create_task(running.serve([listening]))
    await served.start()
    try:
        yield served
    finally:
        await served.stop()
        await requests_ended()
        running.should_exit = running.force_exit = True
        await task
        listening.close()
