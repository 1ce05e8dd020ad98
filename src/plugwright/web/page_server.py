"""The page's HTTP server: views, their changes as server-sent events, and commands to simulated devices."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from html import escape
from pathlib import Path

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from plugwright.apiserver.server import listen, serving
from plugwright.web.access_guard import SECURITY_HEADERS, AccessGuard
from plugwright.web.fleet_page import FleetPage
from plugwright.web.live_fleet import FleetSource, LiveFleet
from plugwright.web.markup import Html, text
from plugwright.web.rendering import PageView, Rendering, changed_pieces

__all__ = ["serving_page"]

_VIEWS: Mapping[str, Callable[[Mapping[str, str]], PageView]] = {"/": FleetPage}
_NAVIGATION = {"/": "Fleet"}
_FILES = {
    "page.css": "text/css; charset=utf-8",
    "page.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}
_READ_LIMIT = 5.0  # seconds that the first view waits for the API server
_MOST_STREAMS = 64
_KEEP_ALIVE = 15.0  # seconds between two signs of life of a stream without changes
_PAUSE = 0.2  # seconds: a browser gets at most five changes a second
_MOST_UNSEEN = 50


@asynccontextmanager
async def serving_page(source: FleetSource, port: int, *, at_once: bool) -> AsyncIterator[str]:
    """The page's address, with its token, while inside. The cluster is read `at_once`, or from the first visit on."""
    async with AsyncExitStack() as stack:
        listening = stack.enter_context(listen(port))
        listening.listen()  # a client that connects at once waits in line, and is not refused
        guard = AccessGuard.new()
        server = await stack.enter_async_context(_PageServer(source, guard))
        if at_once:
            await server.start()
        await stack.enter_async_context(serving(server, [listening], None))
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/?token={guard.visit}"


class _PageServer:
    """An ASGI application; inside `async with` it may read the cluster."""

    def __init__(self, source: FleetSource, guard: AccessGuard) -> None:
        self._guard, self._source = guard, source
        self._fleet: LiveFleet | None = None
        self._stack = AsyncExitStack()
        self._streams = 0
        directory = Path(__file__).parent
        self._files = {name: (directory / name).read_bytes() for name in _FILES}
        routes = [Route(path, self._view) for path in _VIEWS]
        routes += [Route("/events{path:path}", self._events)]
        routes += [Route(f"/{name}", self._file) for name in _FILES]
        self._application = Starlette(routes=routes)

    async def __aenter__(self) -> "_PageServer":
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stack.aclose()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                extra = [(name.lower().encode(), value.encode()) for name, value in SECURITY_HEADERS.items()]
                message = {**message, "headers": [*message.get("headers", ()), *extra]}
            await send(message)

        if scope["type"] != "http":
            await PlainTextResponse("no such protocol here\n", 404)(scope, receive, send)
            return
        refused = self._guard.refusal(Request(scope, receive))
        await (refused or self._application)(scope, receive, send_with_headers)

    async def start(self) -> LiveFleet:
        if self._fleet is None:
            self._fleet = LiveFleet(self._source)
            await self._stack.enter_async_context(self._fleet.following())
        return self._fleet

    async def _read(self) -> LiveFleet:
        fleet = await self.start()
        with suppress(TimeoutError):
            async with asyncio.timeout(_READ_LIMIT):
                await fleet.until_read()
        return fleet

    async def _file(self, request: Request) -> Response:
        name = request.url.path.lstrip("/")
        return Response(self._files[name], media_type=_FILES[name])

    async def _view(self, request: Request) -> Response:
        fleet = await self._read()
        view = _VIEWS[request.url.path](request.query_params)
        return HTMLResponse(self._document(request.url.path, view, _rendered(view, fleet), fleet))

    async def _events(self, request: Request) -> Response:
        make = _VIEWS.get(request.path_params["path"])
        if make is None:
            return PlainTextResponse("no such view\n", 404)
        if self._streams >= _MOST_STREAMS:
            return PlainTextResponse("too many pages are open\n", 503)
        shown = request.query_params.get("version", "")
        stream = self._changes(make(request.query_params), await self._read(), shown)
        return StreamingResponse(stream, media_type="text/event-stream")

    async def _changes(self, view: PageView, fleet: LiveFleet, shown: str) -> AsyncIterator[str]:
        self._streams += 1
        try:
            seen = fleet.changed.count
            before = _rendered(view, fleet)
            yield _event({} if shown == str(seen) else {"main": before.main})
            while True:
                count = await fleet.changed.wait(seen, _KEEP_ALIVE)
                if count == seen:
                    yield ": still here\n\n"
                    continue
                await asyncio.sleep(_PAUSE)
                seen = fleet.changed.count
                now = _rendered(view, fleet)
                if pieces := changed_pieces(before, now):
                    yield _event(pieces)
                before = now
        finally:
            self._streams -= 1

    def _document(self, path: str, view: PageView, rendering: Rendering, fleet: LiveFleet) -> Html:
        links = "".join(
            f'<a href="{target}"{" aria-current=page" if target == path else ""}>{name}</a>'
            for target, name in _NAVIGATION.items()
        )
        return (
            '<!doctype html><html lang="en"><head><meta charset="utf-8">'
            f"<title>{escape(view.title)} · plugwright</title>"
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            '<link rel="stylesheet" href="/page.css"><link rel="icon" href="/icon.svg">'
            f'<script src="/page.js" defer></script></head><body data-version="{fleet.changed.count}">'
            '<a class="skip" href="#main">Skip to content</a>'
            f'<header><nav aria-label="Views">{links}</nav><p id="live" role="status"></p></header>'
            f'<main id="main" tabindex="-1">{rendering.main}</main></body></html>'
        )


def _rendered(view: PageView, fleet: LiveFleet) -> Rendering:
    """The view, and below it what it could not take into account."""
    rendering, unseen = view.render(fleet), fleet.unseen
    entries = "".join(f"<li>{text(entry)}</li>" for entry in unseen[:_MOST_UNSEEN])
    more = f"<li>{len(unseen) - _MOST_UNSEEN} more</li>" if len(unseen) > _MOST_UNSEEN else ""
    listed = f"<h2>Not seen</h2><ul>{entries}{more}</ul>" if unseen else ""
    piece = f'<section id="unseen" aria-label="Not seen">{listed}</section>'
    pieces = {**rendering.pieces, "unseen": piece} if rendering.pieces else {}
    return Rendering(rendering.main + piece, pieces)


def _event(pieces: Mapping[str, Html]) -> str:
    return f"data: {json.dumps(pieces)}\n\n"
