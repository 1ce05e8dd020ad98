"""A page over an embedded cluster with real daemons, and a visitor that speaks HTTP over a real socket."""

import asyncio
import json
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from html import unescape
from pathlib import Path
from urllib.parse import urlencode, urlsplit

import msgspec
from tests.cluster.embedding import Lab, embedded, served

from plugwright.apiserver.server import listen
from plugwright.fleet.daemons import LocalDaemon
from plugwright.kube.access import ClusterAccess
from plugwright.kube.credentials import Credentials
from plugwright.sdk.control import serve_control_socket
from plugwright.web.live_fleet import FleetSource
from plugwright.web.page_server import serving_page

__all__ = ["Answer", "Visit", "page_of", "page_without_cluster"]


class Answer(msgspec.Struct, frozen=True):
    status: int
    headers: Mapping[str, str]
    body: str

    @property
    def words(self) -> str:
        """The text of the page, without markup."""
        return " ".join(unescape(re.sub(r"<[^>]*>", " ", self.body)).split())


class Visit:
    """Requests to a page as a browser would send them; `headers` replaces what it would send."""

    def __init__(self, address: str) -> None:
        self.address = address
        parts = urlsplit(address)
        self.host, self.port = f"127.0.0.1:{parts.port}", parts.port or 0
        self.cookie = ""

    async def open(self) -> Answer:
        """Follows the address that was printed."""
        parts = urlsplit(self.address)
        answer = await self.request("GET", f"{parts.path}?{parts.query}")
        self.cookie = answer.headers["set-cookie"].partition(";")[0]
        return await self.get(answer.headers["location"])

    async def get(self, target: str, **headers: str) -> Answer:
        return await self.request("GET", target, **headers)

    async def post(self, target: str, form: Mapping[str, str], **headers: str) -> Answer:
        given = {"Origin": f"http://{self.host}", "Content-Type": "application/x-www-form-urlencoded", **headers}
        return await self.request("POST", target, urlencode(form), **given)

    async def request(self, method: str, target: str, body: str = "", **headers: str) -> Answer:
        reader, writer = await self._sent(method, target, body, headers)
        try:
            content = await reader.read()
        finally:
            writer.close()
            await writer.wait_closed()
        head, _, rest = content.partition(b"\r\n\r\n")
        status, *lines = head.decode().split("\r\n")
        found = dict(map(_header, lines))
        text = rest if "chunked" not in found.get("transfer-encoding", "") else b"".join(rest.split(b"\r\n")[1::2])
        return Answer(int(status.split()[1]), found, text.decode())

    async def changes(self, target: str) -> AsyncGenerator[dict[str, str], None]:
        """The pieces that the page's stream of events sends."""
        reader, writer = await self._sent("GET", f"/events{target}", "", {})
        try:
            async for line in reader:
                if line.startswith(b"data: "):
                    yield json.loads(line.removeprefix(b"data: "))
        finally:
            writer.close()
            await writer.wait_closed()

    async def until(self, target: str, fact: Callable[[Answer], bool]) -> Answer:
        """The first version of a page for which `fact` holds."""
        async for _ in self.changes(target):
            answer = await self.get(target)
            if fact(answer):
                return answer
        raise AssertionError("the stream of events has ended")

    async def _sent(
        self, method: str, target: str, body: str, headers: Mapping[str, str]
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        given = {
            "Host": self.host,
            "Cookie": self.cookie,
            "Connection": "close",
            "Content-Length": str(len(body)),
            **headers,
        }
        lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in given.items() if value)]
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=2**24)
        writer.write("\r\n".join([*lines, "", body]).encode())
        return reader, writer


def _header(line: str) -> tuple[str, str]:
    name, _, value = line.partition(": ")
    return name.lower(), value


@asynccontextmanager
async def page_without_cluster() -> AsyncIterator[Visit]:
    """A page whose API server does not answer, opened."""
    with listen(0) as unused:
        access = ClusterAccess(f"http://127.0.0.1:{unused.getsockname()[1]}", Credentials())
        async with serving_page(FleetSource(access=access, find=list), 0, at_once=False) as address:
            visit = Visit(address)
            await visit.open()
            yield visit


@asynccontextmanager
async def page_of(directory: Path, **options: object) -> AsyncIterator[tuple[Lab, Visit]]:
    """An embedded cluster and its page while inside, opened."""
    async with AsyncExitStack() as stack:
        lab = await stack.enter_async_context(embedded(**options))  # type: ignore[arg-type]
        kubeconfig = await stack.enter_async_context(served(lab, directory))
        daemons = []
        for node in lab.cluster.nodes:
            path = directory / f"{node}.sock"
            daemon = lab.cluster.daemon(node)
            await stack.enter_async_context(serve_control_socket(daemon, path, answers_blocked=False))
            daemons.append(LocalDaemon(path, node))
        access = ClusterAccess.of_kubeconfig(kubeconfig)
        assert access is not None
        source = FleetSource(access=access, find=lambda: daemons)
        visit = Visit(await stack.enter_async_context(serving_page(source, 0, at_once=True)))
        await visit.open()
        yield lab, visit
