"""The page's HTTP server: views, their changes as server-sent events, and commands to simulated devices."""

import asyncio
import json
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from html import escape
from pathlib import Path
from urllib.parse import parse_qsl, urlencode

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import (
    HTMLResponse,
    JSONResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from plugwright.apiserver.server import listen, serving
from plugwright.errors import PlugwrightError
from plugwright.system.concurrency import cancel
from plugwright.text import clean
from plugwright.web.access_guard import SECURITY_HEADERS, AccessGuard
from plugwright.web.claims_page import ClaimsPage
from plugwright.web.device_page import DevicePage
from plugwright.web.fleet_page import FleetFilter, FleetPage
from plugwright.web.live_fleet import FleetSource, LiveFleet
from plugwright.web.markup import Html, text
from plugwright.web.node_page import NodePage
from plugwright.web.pod_answers import PodAnswers
from plugwright.web.rendering import PageView, Rendering, changed_pieces
from plugwright.web.simulation_buttons import TOKEN, send_command
from plugwright.web.waiting_page import WaitingPage

__all__ = ["serving_page"]

_NAVIGATION = {"/": "Fleet", "/waiting": "Waiting pods", "/claims": "Claims"}
_VIEWS: Mapping[str, Callable[[Mapping[str, str]], PageView]] = {
    "/node": NodePage,
    "/device": DevicePage,
    "/claims": ClaimsPage,
}
_PATHS = ("/", "/waiting", *_VIEWS)
_LONGEST_FORM = 8192  # bytes
_FILES = {
    "page.css": "text/css; charset=utf-8",
    "page.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}
_READ_LIMIT = 5.0  # seconds that the first view waits for the API server
_MOST_STREAMS = 64
_MOST_KEPT = 4  # views of the fleet
_KEEP_ALIVE = 15.0  # seconds between two keep-alive messages of a stream without changes
_PAUSE = 0.2  # seconds: a browser gets at most five changes per second
_MOST_UNSEEN = 50


@asynccontextmanager
async def serving_page(source: FleetSource, port: int, *, at_once: bool) -> AsyncIterator[str]:
    """The page's address with its token, while inside. Reads the cluster `at_once`, or from the first visit on."""
    async with AsyncExitStack() as stack:
        listening = stack.enter_context(listen(port))
        listening.listen()  # a client that connects immediately waits, and is not rejected
        guard = AccessGuard.new()
        server = await stack.enter_async_context(_PageServer(source, guard))
        if at_once:
            await server.start()
        await stack.enter_async_context(serving(server, [listening], None))
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/?token={guard.visit}"


class _PageServer:
    """An ASGI application; inside `async with` it can read the cluster."""

    def __init__(self, source: FleetSource, guard: AccessGuard) -> None:
        self._guard, self._source = guard, source
        self._fleet: LiveFleet | None = None
        self._answers: PodAnswers | None = None
        self._stack = AsyncExitStack()
        self._streams = 0
        self._fleet_pages: OrderedDict[FleetFilter, FleetPage] = OrderedDict()
        directory = Path(__file__).parent
        self._files = {name: (directory / name).read_bytes() for name in _FILES}
        routes = [Route(path, self._view) for path in _PATHS]
        routes += [Route("/events{path:path}", self._events), Route("/command", self._command, methods=["POST"])]
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
            self._answers = PodAnswers(self._fleet)
            self._stack.push_async_callback(cancel, asyncio.create_task(self._answers.run()))
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
        view = await self._made(request.url.path, request, fleet)
        return HTMLResponse(self._document(request.url.path, view, _rendered(view, fleet), fleet))

    async def _made(self, path: str, request: Request, fleet: LiveFleet) -> PageView:
        if path == "/waiting":
            assert self._answers is not None
            return WaitingPage(self._answers)
        if path == "/":
            return self._fleet_page(request)
        view = _VIEWS[path](request.query_params)
        if isinstance(view, DevicePage):
            await view.prepare(fleet)
        return view

    def _fleet_page(self, request: Request) -> FleetPage:
        """The page for all viewers of the same devices: it keeps the cells of unchanged nodes."""
        page = FleetPage(request.query_params)
        kept = self._fleet_pages.pop(page.filter, page)
        self._fleet_pages[kept.filter] = kept
        while len(self._fleet_pages) > _MOST_KEPT:
            self._fleet_pages.popitem(last=False)
        return kept

    async def _events(self, request: Request) -> Response:
        path = request.path_params["path"]
        if path not in _PATHS:
            return PlainTextResponse("no such view\n", 404)
        if self._streams >= _MOST_STREAMS:
            return PlainTextResponse("too many pages are open\n", 503)
        fleet, shown = await self._read(), request.query_params.get("version", "")
        stream = self._changes(await self._made(path, request, fleet), fleet, shown)
        return StreamingResponse(stream, media_type="text/event-stream")

    async def _command(self, request: Request) -> Response:
        """Handles a button: returns JSON for the script, or the page for browsers without scripts."""
        if (
            not request.headers.get("content-length", "").isdecimal()
            or int(request.headers["content-length"]) > _LONGEST_FORM
        ):
            return PlainTextResponse("a form must have at most 8192 bytes\n", 413)
        form = dict(parse_qsl((await request.body()).decode("utf-8", "replace"), keep_blank_values=True))
        if not self._guard.may_change(form.get("token", "")):
            return PlainTextResponse("this page is out of date: load it again\n", 403)
        is_script = "application/json" in request.headers.get("accept", "")
        try:
            done = await send_command(await self._read(), form)
        except PlugwrightError as error:
            message = clean(error)
            return JSONResponse({"error": message}, 409) if is_script else PlainTextResponse(f"{message}\n", 409)
        if is_script:
            return JSONResponse({"done": clean(done)})
        query = {key: form.get(key, "") for key in ("node", "resource", "id")}
        path = f"/device?{urlencode(query)}" if form.get("id") else f"/node?{urlencode({'name': query['node']})}"
        return RedirectResponse(path, 303)

    async def _changes(self, view: PageView, fleet: LiveFleet, shown: str) -> AsyncIterator[str]:
        self._streams += 1
        try:
            seen = fleet.changed.count
            before = _rendered(view, fleet)
            yield self._event({} if shown == str(seen) else {"main": before.main})
            while True:
                count = await fleet.changed.wait(seen, _KEEP_ALIVE)
                if count == seen:
                    yield ": still here\n\n"
                    continue
                await asyncio.sleep(_PAUSE)
                seen = fleet.changed.count
                now = _rendered(view, fleet)
                if pieces := changed_pieces(before, now):
                    yield self._event(pieces)
                before = now
        finally:
            self._streams -= 1

    def _event(self, pieces: Mapping[str, Html]) -> str:
        made = {name: self._with_token(piece) for name, piece in pieces.items()}
        return f"data: {json.dumps(made)}\n\n"

    def _with_token(self, piece: Html) -> Html:
        return piece.replace(f'value="{TOKEN}"', f'value="{self._guard.change}"')

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
            '<header><a class="name" href="/">plugwright</a>'
            f'<nav aria-label="Views">{links}</nav><p id="live" role="status"></p>'
            f'<p class="server">{text(self._source.access.url)}</p></header>'
            f'<main id="main" tabindex="-1">{self._with_token(rendering.main)}</main></body></html>'
        )


def _rendered(view: PageView, fleet: LiveFleet) -> Rendering:
    """The view, above it why it may be out of date, and below it what it could not take into account."""
    rendering, unseen = view.render(fleet), fleet.unseen
    problems = "".join(f"<p>Not up to date: {text(problem)}</p>" for problem in fleet.problems)
    outdated = f'<div id="outdated" role="status">{problems}</div>'
    entries = "".join(f"<li>{text(entry)}</li>" for entry in unseen[:_MOST_UNSEEN])
    more = f"<li>{len(unseen) - _MOST_UNSEEN} more</li>" if len(unseen) > _MOST_UNSEEN else ""
    listed = f"<h2>Not seen</h2><ul>{entries}{more}</ul>" if unseen else ""
    piece = f'<section id="unseen" aria-label="Not seen">{listed}</section>'
    pieces = {**rendering.pieces, "outdated": outdated, "unseen": piece} if rendering.pieces else {}
    return Rendering(outdated + rendering.main + piece, pieces)
