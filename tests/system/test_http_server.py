"""The small HTTP server answers whoever asks properly, whatever anybody else does to it."""

import socket
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest
from msgspec.structs import replace

from plugwright.system.http_server import HttpAnswer, HttpLimits, HttpRequest, HttpServer

PATIENT = HttpLimits(request=600.0)
HURRIED = HttpLimits(request=0.1)
FEW = HttpLimits(request=600.0, connections=4, own_connections=2)
WAIT = 60  # seconds; only a test that fails waits for so long
NODE = "127.0.0.2"  # every address of 127.0.0.0/8 is this machine's: one of them plays the node

Address = tuple[str, int]


def page(request: HttpRequest) -> HttpAnswer:
    if request.path == "/error":
        raise ValueError("nonsense")
    if request.path != "/":
        return HttpAnswer("404 Not Found", b"no such page\n")
    return HttpAnswer("200 OK", f"hello {request.authorization}\n".encode())


def is_node(address: str) -> bool:
    return address == NODE


@contextmanager
def serving(limits: HttpLimits = PATIENT, slow: dict[str, Callable[[], HttpAnswer]] | None = None) -> Iterator[Address]:
    with HttpServer(page=page, slow=slow or {}, is_own=is_node, limits=limits).serving("127.0.0.1", 0) as address:
        yield address


def connect(address: Address, source: str = "127.0.0.1") -> socket.socket:
    return socket.create_connection(address, timeout=WAIT, source_address=(source, 0))


def rest(connection: socket.socket) -> bytes:
    """Everything until the server hangs up."""
    received = b""
    try:
        while chunk := connection.recv(65536):
            received += chunk
    except ConnectionError:
        pass
    return received


def exchange(address: Address, request: bytes, source: str = "127.0.0.1") -> tuple[str, str]:
    """The status line and the body of the answer."""
    with connect(address, source) as connection:
        connection.sendall(request)
        head, _, body = rest(connection).decode().partition("\r\n\r\n")
    return head.partition("\r\n")[0].removeprefix("HTTP/1.1 "), body


def get(address: Address, path: str = "/", source: str = "127.0.0.1") -> tuple[str, str]:
    return exchange(address, f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode(), source)


REQUESTS = {
    "a page": (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", ("200 OK", "hello \n")),
    "of HTTP/1.0": (b"GET / HTTP/1.0\r\n\r\n", ("200 OK", "hello \n")),
    "with lines that end in LF": (b"GET / HTTP/1.1\n\n", ("200 OK", "hello \n")),
    "with a query": (b"GET /?verbose HTTP/1.1\r\n\r\n", ("200 OK", "hello \n")),
    "with a token": (b"GET / HTTP/1.1\r\nauthorization: Bearer  x \r\nA: b\r\n\r\n", ("200 OK", "hello Bearer  x\n")),
    "no page": (b"GET /else HTTP/1.1\r\n\r\n", ("404 Not Found", "no such page\n")),
    "a page that fails": (
        b"GET /error HTTP/1.1\r\n\r\n",
        ("500 Internal Server Error", "the daemon's log has the error\n"),
    ),
    "HEAD": (b"HEAD / HTTP/1.1\r\n\r\n", ("200 OK", "")),
    "POST": (b"POST / HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc", ("405 Method Not Allowed", "only GET and HEAD\n")),
    "HTTP/0.9": (b"GET /\r\n\r\n", ("400 Bad Request", "not an HTTP request\n")),
    "HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", ("400 Bad Request", "not an HTTP request\n")),
    "TLS": (bytes.fromhex("16030100f8010000f40303"), ("400 Bad Request", "not an HTTP request\n")),
    "no HTTP": (b"\xff\xfe\x00" * 9, ("400 Bad Request", "not an HTTP request\n")),
    "a path of bytes": (b"GET /\xff\xfe HTTP/1.1\r\n\r\n", ("400 Bad Request", "not an HTTP request\n")),
    "a head that is too long": (
        b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 2000 + b"\r\n",
        ("431 Request Header Fields Too Large", "a request's head must have at most 8192 bytes\n"),
    ),
}


@pytest.mark.parametrize("request_", REQUESTS)
def test_a_request_gets_its_answer(request_: str) -> None:
    sent, answer = REQUESTS[request_]
    with serving() as address:
        assert exchange(address, sent) == answer
        assert get(address) == ("200 OK", "hello \n")


def test_an_answer_says_how_long_it_is_and_that_it_is_the_last() -> None:
    with serving() as address, connect(address) as connection:
        connection.sendall(b"HEAD / HTTP/1.1\r\n\r\n")
        lines = rest(connection).decode().split("\r\n")
    assert {"Content-Length: 7", "Connection: close", "Content-Type: text/plain; charset=utf-8"} <= set(lines)


def test_a_request_may_come_byte_by_byte_and_half_closed() -> None:
    with serving() as address, connect(address) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in b"GET / HTTP/1.1\r\nHost: x\r\n\r\n":
            connection.send(bytes([byte]))
        connection.shutdown(socket.SHUT_WR)
        assert rest(connection).endswith(b"\r\n\r\nhello \n")


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6 here")
def test_an_address_may_be_of_ipv6() -> None:
    with HttpServer(page=page).serving("::1", 0) as (host, port), socket.create_connection((host, port)) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert rest(connection).startswith(b"HTTP/1.1 200 OK\r\n")


@pytest.mark.parametrize("sent", [b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: x\r\n"])
def test_a_request_that_does_not_end_has_a_deadline(sent: bytes) -> None:
    with serving(HURRIED) as address, connect(address) as connection:
        connection.sendall(sent)
        assert rest(connection) == b""


def test_a_request_that_goes_on_slowly_has_the_same_deadline() -> None:
    """Each byte would begin anew if the limit were one of silence."""
    with serving(HURRIED) as address, connect(address) as connection:
        connection.settimeout(0.01)
        for _ in range(WAIT * 100):
            try:
                connection.sendall(b"G")
                if not connection.recv(1):
                    break
            except TimeoutError:
                continue
            except ConnectionError:
                break
        else:
            pytest.fail("still open")


def test_a_client_that_does_not_read_its_answer_has_a_deadline() -> None:
    size = 32 * 2**20  # more than the sockets of both sides hold

    def large(_: HttpRequest) -> HttpAnswer:
        return HttpAnswer("200 OK", bytes(size))

    with HttpServer(page=large).serving("127.0.0.1", 0) as address, connect(address) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\n\r\n")
        with connect(address) as another:  # the thread has not waited for the first
            another.sendall(b"GET / HTTP/1.1\r\n\r\n")
            assert another.recv(12) == b"HTTP/1.1 200"
            another.sendall(b"x")
            assert len(rest(another)) <= size + 100
        assert len(rest(connection)) < size


def test_clients_that_do_not_read_share_one_large_page() -> None:
    page = bytes(4 * 2**20)  # more than the sockets of both sides hold
    with serving(slow={"/large": lambda: HttpAnswer("200 OK", page)}) as address, ExitStack() as stack:
        clients = [stack.enter_context(connect(address)) for _ in range(8)]
        tracemalloc.start()
        stack.callback(tracemalloc.stop)
        for client in clients:
            client.sendall(b"GET /large HTTP/1.1\r\n\r\n")
        assert [client.recv(12) for client in clients] == [b"HTTP/1.1 200"] * len(clients)
        assert tracemalloc.get_traced_memory()[1] < len(page)
        assert rest(clients[0]).endswith(b"\r\n\r\n" + page)


def test_too_many_connections_cost_the_oldest_and_not_the_newest() -> None:
    with serving(FEW) as address, ExitStack() as stack:
        idle = [stack.enter_context(connect(address)) for _ in range(FEW.connections)]
        assert get(address) == ("200 OK", "hello \n")
        assert rest(idle[0]) == b""
        idle[-1].sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert rest(idle[-1]).endswith(b"hello \n")


def test_connections_of_the_node_are_not_crowded_out_by_others() -> None:
    with serving(FEW) as address, ExitStack() as stack:
        first, second = [stack.enter_context(connect(address, NODE)) for _ in range(FEW.own_connections)]
        for _ in range(10):
            for _ in range(FEW.connections):
                stack.enter_context(connect(address))
            assert get(address) == ("200 OK", "hello \n")
        for connection in (first, second):
            connection.sendall(b"GET / HTTP/1.1\r\n\r\n")
            assert rest(connection).endswith(b"hello \n")


def test_a_slow_loris_of_64_connections_keeps_nobody_waiting() -> None:
    with serving() as address, ExitStack() as stack:
        slow = [stack.enter_context(connect(address)) for _ in range(64)]
        for _ in range(10):
            for connection in slow:
                try:
                    connection.send(b"G")
                except ConnectionError:  # dropped as the oldest
                    slow.remove(connection)
                    slow.append(stack.enter_context(connect(address)))
            assert get(address) == ("200 OK", "hello \n")
            assert get(address, source=NODE) == ("200 OK", "hello \n")


def test_a_slow_page_is_made_once_for_all_who_wait_and_keeps_no_other_waiting() -> None:
    release, calls = threading.Event(), []

    def health() -> HttpAnswer:
        calls.append(1)
        release.wait(WAIT)
        return HttpAnswer("200 OK", b"well\n")

    with serving(slow={"/health": health}) as address, ExitStack() as stack:
        waiting = [stack.enter_context(connect(address)) for _ in range(3)]
        for connection in waiting:
            connection.sendall(b"GET /health HTTP/1.1\r\n\r\nmore")
        waiting[0].shutdown(socket.SHUT_WR)
        assert get(address) == ("200 OK", "hello \n")  # answered after the three were read
        release.set()
        assert [rest(connection).rpartition(b"\r\n")[2] for connection in waiting] == [b"well\n"] * 3
        assert len(calls) == 1
        assert get(address, "/health") == ("200 OK", "well\n")


def test_a_slow_page_that_does_not_come_in_time_ends_the_connection() -> None:
    release = threading.Event()

    def health() -> HttpAnswer:
        release.wait(WAIT)
        return HttpAnswer("200 OK", b"well\n")

    with serving(HURRIED, slow={"/health": health}) as address:
        try:
            assert get(address, "/health") == ("", "")
            assert get(address, "/health") == ("", "")
        finally:
            release.set()


def test_a_thread_that_cannot_be_started_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_thread(*_: object, **__: object) -> None:
        raise RuntimeError("can't start new thread")

    with serving(slow={"/health": lambda: HttpAnswer("200 OK", b"well\n")}) as address:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", no_thread)
            for _ in range(100):
                assert get(address, "/health") == ("200 OK", "well\n")
        assert get(address, "/health") == ("200 OK", "well\n")


def test_leaving_closes_the_port_and_every_connection() -> None:
    with ExitStack() as stack:
        with serving() as address:
            idle = [stack.enter_context(connect(address)) for _ in range(3)]
            assert get(address) == ("200 OK", "hello \n")
        assert [rest(connection) for connection in idle] == [b""] * 3
        with pytest.raises(ConnectionRefusedError):
            connect(address)


def test_a_head_of_exactly_the_limit_is_taken() -> None:
    limits = replace(PATIENT, head=64)
    head = b"GET / HTTP/1.1\r\nx: "
    with serving(limits) as address:
        assert exchange(address, head + b"y" * (64 - len(head)) + b"\r\n\r\n")[0] == "200 OK"
        assert exchange(address, head + b"y" * (65 - len(head)) + b"\r\n\r\n")[0].startswith("431")


def test_a_request_that_waits_for_its_answer_is_not_the_one_to_go() -> None:
    release = threading.Event()

    def health() -> HttpAnswer:
        release.wait(WAIT)
        return HttpAnswer("200 OK", b"well\n")

    with serving(FEW, slow={"/health": health}) as address, ExitStack() as stack:
        asking = stack.enter_context(connect(address))
        asking.sendall(b"GET /health HTTP/1.1\r\n\r\n")
        for _ in range(FEW.connections * 5):
            stack.enter_context(connect(address))
        assert get(address) == ("200 OK", "hello \n")
        release.set()
        assert rest(asking).endswith(b"well\n")
