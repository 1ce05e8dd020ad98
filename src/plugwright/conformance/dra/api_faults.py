"""Faults of an API server: slow answers, refusals, and watches that end."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress

from plugwright.kube.answers import Document
from plugwright.system.latest import Latest

__all__ = ["ApiFaults"]

_TEXTS = {410: "Expired", 429: "TooManyRequests", 500: "InternalError"}
Send = Callable[[Document], Awaitable[None]]
Served = Callable[..., Awaitable[None]]  # an ASGI application


class ApiFaults:
    """The present faults of the API server."""

    def __init__(self) -> None:
        self._delay = 0.0
        self._delayed = asyncio.Event()
        self._refusal = 0
        self._watch_end = asyncio.Event()
        self._watch_error = True  # whether an error is the last event of a watch that ends
        self._watches = Latest(0)  # that are open
        self._open: set[asyncio.Task[None]] = set()  # their requests

    @contextmanager
    def slow(self, seconds: float) -> Iterator[asyncio.Event]:
        """Delays every response while inside; a waiting request sets the event."""
        self._delay, self._delayed = seconds, asyncio.Event()
        try:
            yield self._delayed
        finally:
            self._delay = 0.0

    @contextmanager
    def refusing(self, code: int) -> Iterator[None]:
        """Answers every request with this code while inside; open watches stay open."""
        self._refusal = code
        try:
            yield
        finally:
            self._refusal = 0

    async def end_watches(self, limit: float, *, expired: bool) -> None:
        """Ends every open watch, one that is `expired` with an error of code 410; waits so long for the first."""
        self._watch_error = expired
        with suppress(TimeoutError):
            async with asyncio.timeout(limit):
                await self._watches.until(bool)
        self._watch_end.set()
        self._watch_end = asyncio.Event()
        if self._open:
            await asyncio.wait(set(self._open), timeout=limit)

    async def answer(self, application: Served, scope: Document, receive: object, send: Send) -> None:
        if self._delay:
            self._delayed.set()
            await asyncio.sleep(self._delay)
        if self._refusal:
            await _refuse(self._refusal, send)
        elif b"watch=" in scope["query_string"]:
            watch = asyncio.ensure_future(self._watch(application, scope, receive, send))
            self._open.add(watch)
            watch.add_done_callback(self._open.discard)
            await watch
        else:
            await application(scope, receive, send)

    async def _watch(self, application: Served, scope: Document, receive: object, send: Send) -> None:
        started = asyncio.Event()

        async def sent(message: Document) -> None:
            await send(message)
            started.set()

        async def ended(event: asyncio.Event) -> None:
            await started.wait()
            self._watches.publish(self._watches.value + 1)
            try:
                await event.wait()
            finally:
                self._watches.publish(self._watches.value - 1)

        watching = asyncio.ensure_future(application(scope, receive, sent))
        ending = asyncio.ensure_future(ended(self._watch_end))
        try:
            await asyncio.wait({watching, ending}, return_when=asyncio.FIRST_COMPLETED)
            if watching.done():
                await watching
            else:
                watching.cancel()
                with suppress(asyncio.CancelledError):
                    await watching
                error = json.dumps({"type": "ERROR", "object": _status(410)}).encode() + b"\n"
                body = error if self._watch_error else b""
                with suppress(RuntimeError):  # the client was faster
                    await send({"type": "http.response.body", "body": body, "more_body": False})
        finally:
            for task in (watching, ending):
                task.cancel()


def _status(code: int) -> Document:
    return {
        "apiVersion": "v1",
        "kind": "Status",
        "status": "Failure",
        "code": code,
        "reason": _TEXTS[code],
        "message": f"{_TEXTS[code]}, says plugwright verify",
    }


async def _refuse(code: int, send: Send) -> None:
    headers = [(b"content-type", b"application/json"), *([(b"retry-after", b"1")] if code == 429 else [])]
    await send({"type": "http.response.start", "status": code, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps(_status(code)).encode()})
