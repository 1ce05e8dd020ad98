"""Hostile and wrong answers: each is an error of its call, within the limits for time and memory."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from inspect import signature
from typing import Any, cast
from urllib.parse import parse_qs, urlsplit

import pytest
from tests.kube.serving import requests_ended

from plugwright.errors import MalformedMessage, MessageTooLarge, PeerGone, PeerRefused, PeerSilent
from plugwright.kube.access import ClusterAccess
from plugwright.kube.answers import LARGE, AnswerLimits, object_name
from plugwright.kube.api_client import ApiClient
from plugwright.kube.credentials import Credentials
from plugwright.system.concurrency import cancel

NODES, NODE = "/api/v1/nodes", "/api/v1/nodes/n1"
OK, CHUNKED = "HTTP/1.1 200 OK\r\n", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
BUFFERS = 24 * 2**20  # bytes that may be on their way in the buffers of two sockets

Send = Callable[[bytes], Awaitable[None]]
Answer = Callable[[Send], Awaitable[None]]
TargetAnswer = Callable[[Send, str], Awaitable[None]]  # by the request's target


class Server:
    """Sends `answer` after each request, and counts the bytes."""

    def __init__(self, answer: Answer | TargetAnswer) -> None:
        self.sent = self.requests = 0
        self.answering: set[asyncio.Task[None]] = set()
        self._answer = cast("TargetAnswer", answer) if len(signature(answer).parameters) == 2 else _always(answer)

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async def send(content: bytes) -> None:
            writer.write(content)
            await writer.drain()
            await asyncio.sleep(0)  # a drain that need not wait keeps the loop to itself
            self.sent += len(content)

        task = asyncio.current_task()
        assert task is not None
        self.answering.add(task)
        try:
            with suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
                while True:
                    head = (await reader.readuntil(b"\r\n\r\n")).decode()
                    self.requests += 1
                    await self._answer(send, head.split()[1])
        finally:
            writer.transport.abort()


@asynccontextmanager
async def serving(
    answer: Answer | TargetAnswer, limit: float = 30.0, sizes: AnswerLimits = LARGE
) -> AsyncIterator[tuple[ApiClient, Server]]:
    served = Server(answer)
    server = await asyncio.start_server(served.connected, "127.0.0.1")
    access = ClusterAccess(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", Credentials())
    client = ApiClient(access, limit, sizes=sizes)
    try:
        yield client, served
    finally:
        client.close()
        server.close()
        await cancel(*served.answering)
        await requests_ended()


def body(content: object, *headers: str) -> Answer:
    """An answer with this text, or with this document as JSON."""
    text = content if isinstance(content, str) else json.dumps(content)
    lines = "".join(f"{header}\r\n" for header in headers)

    async def answer(send: Send) -> None:
        await send(f"{OK}{lines}Content-Length: {len(text)}\r\n\r\n{text}".encode())

    return answer


def _always(answer: Answer | TargetAnswer) -> TargetAnswer:
    return lambda send, _: cast("Answer", answer)(send)


def endless(head: str, part: bytes) -> Answer:
    async def answer(send: Send) -> None:
        await send(head.encode())
        while True:
            await send(part)

    return answer


async def first_change(client: ApiClient) -> tuple[str, dict[str, Any]]:
    async with aclosing(client.watch(NODES, "1")) as changes:
        return await anext(changes)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ([], "must be a JSON object, got a list"),
        ("null", "must be a JSON object, got None"),
        ("", "must be JSON, got b''"),
        ("<html><body>Welcome to the proxy</body></html>", "must be JSON, got b'<html>"),
        ({}, "must be the object 'n1', got an object with no members"),
        ({"kind": "NodeList", "items": []}, "must be the object 'n1', got an object of kind 'NodeList'"),
        ({"kind": "Node", "metadata": {"name": "n2"}}, "must be the object 'n1'"),
        ({"metadata": []}, "must be the object 'n1', got an object with metadata"),
    ],
)
async def test_an_object_of_the_wrong_shape_is_an_error(content: object, text: str) -> None:
    async with serving(body(content)) as (client, _):
        for request in (client.get(NODE), client.update(NODE, {}), client.patch(f"{NODE}/status", {}, "merge-patch")):
            with pytest.raises(MalformedMessage, match=text):
                await request
        with pytest.raises(MalformedMessage, match=text):
            await client.create(NODES, {"metadata": {"name": "n1"}})


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ({}, "must be a list with items, got an object with no members"),
        ({"kind": "Node", "metadata": {"name": "n1"}}, "must be a list with items, got an object of kind 'Node'"),
        ({"items": {"a": 1}}, "must be a list with items"),
        ({"items": [], "metadata": "x"}, "must be a list with items"),
        ({"items": [[]]}, "each item of a list must be an object with a name, got a list"),
        ({"items": [{"metadata": {}}]}, "each item of a list must be an object with a name"),
        ([{"metadata": {"name": "n1"}}], "must be a JSON object, got a list"),
        ({"items": [], "metadata": {"continue": "again"}}, "pages of /api/v1/nodes must end, got the same page twice"),
    ],
)
async def test_a_list_of_the_wrong_shape_is_an_error(content: object, text: str) -> None:
    async with serving(body(content)) as (client, server):
        with pytest.raises(MalformedMessage, match=text):
            await client.list(NODES)
        assert server.requests <= 2


async def test_a_list_without_items_is_empty() -> None:
    async with serving(body({"items": None, "metadata": {"resourceVersion": "7"}})) as (client, _):
        assert await client.list(NODES) == ([], "7")


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ({}, "a watch must yield changes of objects, got an object with no members"),
        ([], "a watch must yield changes of objects, got a list"),
        ({"type": "OTHER", "object": {}}, "a watch must yield changes of objects"),
        ({"type": "ADDED", "object": []}, "a watch must yield changes of objects"),
        ({"type": "ADDED", "object": {}}, "a watch must yield objects with a name"),
        ("<html>", "must be JSON, got b'<html>"),
    ],
)
async def test_a_change_of_the_wrong_shape_is_an_error(line: object, text: str) -> None:
    content = (line if isinstance(line, str) else json.dumps(line)) + "\n"
    async with serving(body(content)) as (client, _):
        with pytest.raises(MalformedMessage, match=text):
            await first_change(client)


async def test_an_error_in_a_watch_without_a_code_means_that_the_server_is_in_trouble() -> None:
    async with serving(body('{"type": "ERROR", "object": {"code": "x"}}\n')) as (client, _):
        with pytest.raises(PeerGone, match="cannot answer now"):
            await first_change(client)


async def test_a_bookmark_is_no_change() -> None:
    changes = ({"type": "BOOKMARK", "object": {}}, {"type": "ADDED", "object": {"metadata": {"name": "n1"}}})
    async with serving(body("".join(json.dumps(change) + "\n" for change in changes))) as (client, _):
        assert (await first_change(client))[0] == "ADDED"


@pytest.mark.parametrize("head", [f"{OK}\r\n", CHUNKED])
async def test_a_body_without_end_is_read_up_to_the_limit(head: str) -> None:
    part = b"x" * 2**16
    piece = part if head != CHUNKED else b"10000\r\n" + part + b"\r\n"
    async with serving(endless(head, piece)) as (client, server):
        with pytest.raises(MalformedMessage, match=f"at most {LARGE.answer} bytes, got 67[0-9]+ or more"):
            await client.get(NODE)
        assert server.sent < LARGE.answer + BUFFERS


async def test_a_body_that_says_it_is_too_large_is_not_read() -> None:
    async with serving(endless(f"{OK}Content-Length: 99999999999\r\n\r\n", b"x" * 2**16)) as (client, server):
        with pytest.raises(MalformedMessage, match=f"at most {LARGE.answer} bytes, got 99999999999 or more"):
            await client.list(NODES)
        assert server.sent < BUFFERS


async def test_a_body_that_is_cut_is_gone() -> None:
    async def answer(send: Send) -> None:
        await send(f'{OK}Content-Length: 100\r\n\r\n{{"metadata":'.encode())
        raise ConnectionError

    async with serving(answer) as (client, _):
        with pytest.raises(PeerGone, match="cannot reach"):
            await client.get(NODE)


@pytest.mark.parametrize("head", [f"{OK}\r\n", CHUNKED])
async def test_a_change_without_end_is_read_up_to_the_limit(head: str) -> None:
    part = b"x" * 2**16
    piece = part if head != CHUNKED else b"10000\r\n" + part + b"\r\n"
    async with serving(endless(head, piece)) as (client, server):
        with pytest.raises(MalformedMessage, match=f"at most {LARGE.change} bytes, got 167[0-9]+ or more"):
            await first_change(client)
        assert server.sent < LARGE.change + BUFFERS


FEW = AnswerLimits(answer=4000, change=4000, values=100, objects=10_000)


async def test_an_answer_of_too_many_values_is_not_decoded() -> None:
    async with serving(body({"items": [[]] * 200}), sizes=FEW) as (client, _):
        with pytest.raises(MessageTooLarge, match="at most 100 values, got 401"):
            await client.get(NODE)
    change = {"type": "ADDED", "object": {"metadata": {"name": "n1"}, "spec": [[]] * 200}}
    async with serving(body(json.dumps(change) + "\n"), sizes=FEW) as (client, _):
        with pytest.raises(MessageTooLarge, match="at most 100 values"):
            await first_change(client)


@pytest.mark.parametrize("size", [1, 300], ids=["values", "bytes"])
async def test_a_page_that_is_too_large_is_requested_with_fewer_objects(size: int) -> None:
    """500 objects, then 62, and then 7 at a time, which are small enough."""
    names = [f"n{number}" for number in range(30)]
    asked = []

    async def answer(send: Send, target: str) -> None:
        query = parse_qs(urlsplit(target).query)
        count, begin = int(query["limit"][0]), int(query.get("continue", ["0"])[0])
        asked.append((count, begin))
        items = [{"metadata": {"name": name, "text": "x" * size}, "more": [0] * 5} for name in names[begin:][:count]]
        more = {"continue": str(begin + count)} if begin + count < len(names) else {}
        await body({"items": items, "metadata": more})(send)

    async with serving(answer, sizes=FEW) as (client, _):
        found, _ = await client.list(NODES)
    assert [each["metadata"]["name"] for each in found] == names
    assert asked == [(500, 0), (62, 0), (7, 0), (7, 7), (7, 14), (7, 21), (7, 28)]


async def test_a_list_whose_single_objects_are_too_large_is_refused() -> None:
    async with serving(body({"items": [], "x": "x" * 5000}), sizes=FEW) as (client, server):
        with pytest.raises(MessageTooLarge, match=r"at most 4000 bytes, got 50[0-9]+ or more"):
            await client.list(NODES)
        assert server.requests == 4  # 500, 62, 7 and 1 at a time


async def test_a_compressed_answer_is_refused() -> None:
    async with serving(body("x" * 99, "Content-Encoding: gzip")) as (client, _):
        for request in (client.get(NODE), first_change(client)):
            with pytest.raises(MalformedMessage, match="must not be compressed, got Content-Encoding 'gzip'"):
                await request


async def test_a_redirect_is_not_followed() -> None:
    async def answer(send: Send) -> None:
        await send(b"HTTP/1.1 302 Found\r\nLocation: /login\r\nContent-Length: 0\r\n\r\n")

    async with serving(answer) as (client, server):
        for request in (client.get(NODE), first_change(client)):
            with pytest.raises(MalformedMessage, match=r"got a redirect \(302\): is the address right"):
                await request
        assert server.requests == 2


async def test_a_refusal_without_end_is_read_no_further_than_its_beginning() -> None:
    async with serving(endless("HTTP/1.1 409 Conflict\r\n\r\n", b"x" * 2**16)) as (client, server):
        for request in (client.get(NODE), first_change(client)):
            with pytest.raises(PeerRefused, match=r"^x{200} "):
                await request
        assert server.sent < BUFFERS * 2


async def test_a_refusal_longer_than_its_beginning_does_not_spoil_the_next_answer() -> None:
    text = "x" * 200_000
    answers = [
        f"HTTP/1.1 409 Conflict\r\nContent-Length: {len(text)}\r\n\r\n{text}",
        f'{OK}Content-Length: 26\r\n\r\n{{"metadata":{{"name":"n1"}}}}',
    ]

    async def answer(send: Send) -> None:
        await send(answers.pop(0).encode())

    async with serving(answer) as (client, _):
        with pytest.raises(PeerRefused):
            await client.get(NODE)
        assert (await client.get(NODE))["metadata"]["name"] == "n1"


@pytest.mark.parametrize("part", [b"HTTP/1.1 100 Continue\r\n\r\n", b"X-A: b\r\n"])
async def test_a_head_without_end_is_an_error(part: bytes) -> None:
    async with serving(endless("" if b"100" in part else OK, part), limit=0.5) as (client, _):
        with pytest.raises(PeerGone):
            await client.get(NODE)


async def test_an_answer_that_trickles_takes_no_longer_than_the_limit() -> None:
    async def answer(send: Send) -> None:
        await send(f"{OK}Content-Length: 1000\r\n\r\n".encode())
        while True:
            await send(b" ")
            await asyncio.sleep(0.05)

    async with serving(answer, limit=0.5) as (client, _):
        with pytest.raises(PeerSilent, match=r"did not answer within 0\.5 s"):
            await client.get(NODE)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/api/v1/nodes", ""),
        ("/api/v1/nodes/n%2F1?x=1", "n/1"),
        ("/api/v1/nodes/n1/status", "n1"),
        ("/api/v1/namespaces/default", "default"),
        ("/api/v1/namespaces/default/pods", ""),
        ("/api/v1/namespaces/default/pods/p/status", "p"),
        ("/apis/resource.k8s.io/v1/resourceslices", ""),
        ("/apis/resource.k8s.io/v1/resourceslices/s", "s"),
        ("/apis/resource.k8s.io/v1/namespaces/a/resourceclaims/c", "c"),
        ("/version", ""),
        ("/api", ""),
        ("/apis/resource.k8s.io/v1", ""),
    ],
)
def test_a_path_names_an_object_or_not(path: str, name: str) -> None:
    assert object_name(path) == name
