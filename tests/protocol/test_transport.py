"""A socket serves whoever speaks gRPC, survives whoever does not, and ends when told."""

import asyncio
import os
import resource
import socket
import stat
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import ConnectionTerminated, DataReceived, ResponseReceived, StreamEnded, StreamReset, TrailersReceived
from tests.plugin_client import connect_plugin

from plugwright.errors import PeerGone, PeerRefused, PlugwrightError
from plugwright.model import Allocation, Device, Options, PreferenceRequest
from plugwright.protocol import device_plugin, messages, transport
from plugwright.protocol.grpc_server import REQUEST_LIMIT
from plugwright.protocol.transport import CONNECTIONS_LIMIT
from plugwright.system.sockets import SocketFile

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS = b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
ALLOCATE = "/v1beta1.DevicePlugin/Allocate"
HEADERS = {
    ":method": "POST",
    ":scheme": "http",
    ":path": ALLOCATE,
    ":authority": "localhost",
    "te": "trailers",
    "content-type": "application/grpc",
}


class Patient:
    """A plugin that gives a container its ids back, holds calls until told, and lists what it is told to."""

    def __init__(self, *lists: bytes) -> None:
        self.go_on = asyncio.Event()
        self.go_on.set()
        self.entered = asyncio.Event()
        self.left = asyncio.Event()
        self.listed = lists or (messages.encode_devices("a/b", [Device("st0")]),)

    async def options(self) -> Options:
        return Options(preference=True)

    async def list_and_watch(self) -> AsyncGenerator[bytes, None]:
        self.entered.set()
        try:
            for devices in self.listed:
                yield devices
            await asyncio.Event().wait()
        finally:
            self.left.set()

    async def prefer(self, requests: Sequence[PreferenceRequest]) -> list[list[str]]:
        return [list(request.available) for request in requests]

    async def allocate(self, containers: Sequence[Sequence[str]]) -> bytes:
        await self.pre_start([])
        return messages.encode_allocations(Allocation(env={"IDS": ",".join(ids)}) for ids in containers)

    async def pre_start(self, device_ids: Sequence[str]) -> None:
        self.entered.set()
        try:
            await self.go_on.wait()
        finally:
            self.left.set()


@asynccontextmanager
async def served(root: Path, service: Patient | None = None) -> AsyncIterator[SocketFile]:
    """Serves, and ends although a peer may never hang up."""
    async with asyncio.timeout(60), device_plugin.serve(service or Patient(), root / "s") as serving:
        yield serving
    assert not serving.path.exists()


async def still_answers(serving: SocketFile) -> bool:
    async with connect_plugin(serving.path) as client:
        return await client.allocate(["st0"]) == [Allocation(env={"IDS": "st0"})]


async def send(serving: SocketFile, data: bytes) -> bytes:
    """Sends bytes and says no more; returns what comes back until the connection ends."""
    reader, writer = await asyncio.open_unix_connection(serving.path)
    try:
        writer.write(data)
        writer.write_eof()
        return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


async def call(serving: SocketFile, body: bytes, **changed: str | None) -> dict[str, str]:
    """One call as any client could make it; returns the headers and trailers of the answer."""
    headers = {name: value for name, value in {**HEADERS, **changed}.items() if value is not None}
    peer = H2Connection(H2Configuration(header_encoding="utf-8", validate_outbound_headers=False))
    reader, writer = await asyncio.open_unix_connection(serving.path)
    answer: dict[str, str] = {}
    try:
        peer.initiate_connection()
        peer.send_headers(1, list(headers.items()), end_stream=not body)
        if body:
            peer.send_data(1, body, end_stream=True)
        writer.write(peer.data_to_send())
        while data := await reader.read(65536):
            for event in peer.receive_data(data):
                if isinstance(event, ResponseReceived | TrailersReceived):
                    answer.update({str(name): str(value) for name, value in event.headers})
                if isinstance(event, DataReceived):
                    answer["body"] = event.data.decode("latin-1")
                if isinstance(event, StreamEnded | StreamReset | ConnectionTerminated):
                    return answer
        return answer
    finally:
        writer.close()


def framed(message: bytes, flag: int = 0, length: int | None = None) -> bytes:
    return bytes([flag]) + (len(message) if length is None else length).to_bytes(4, "big") + message


async def test_a_call_as_the_kubelet_writes_it_is_answered(root: Path) -> None:
    async with served(root) as serving:
        answer = await call(serving, framed(b"\x0a\x05\x0a\x03st0"))
    assert (answer[":status"], answer["grpc-status"]) == ("200", "0")
    assert answer["body"] == framed(b"\x0a\x0c\x0a\x0a\x0a\x03IDS\x12\x03st0").decode("latin-1")


BAD_BODIES = {
    "no message": b"",
    "half a prefix": b"\x00\x00\x00",
    "a prefix without a message": framed(b"", length=5),
    "a length beyond the end": framed(b"\x0a\x05\x0a\x03st0", length=1000),
    "a length of 4 GiB": framed(b"\x0a\x05\x0a\x03st0", length=2**32 - 1),
    "a length that cuts the message": framed(b"\x0a\x05\x0a\x03st0", length=3),
    "half a message": framed(b"\x0a\x05\x0a\x03"),
    "a message of another kind": framed(b"\x08\x96\x01\x0b"),
    "bytes that are no UTF-8": framed(b"\x0a\x03\x0a\x01\xff"),
    "the compressed flag": framed(b"\x0a\x05\x0a\x03st0", flag=1),
    "a flag that nobody knows": framed(b"\x0a\x05\x0a\x03st0", flag=255),
}


async def test_a_body_that_is_no_message_is_an_invalid_argument(root: Path) -> None:
    service = Patient()
    async with served(root, service) as serving:
        codes = {what: (await call(serving, body)).get("grpc-status") for what, body in BAD_BODIES.items()}
        assert codes == dict.fromkeys(BAD_BODIES, "3") | {"a length of 4 GiB": "8"}
        assert not service.entered.is_set()
        assert await still_answers(serving)


BAD_HEADERS: dict[str, tuple[str, dict[str, str | None]]] = {
    "GET": ("405", {":method": "GET"}),
    "a content type of the web": ("415", {"content-type": "application/json"}),
    "no content type": ("415", {"content-type": None}),
    "a codec that we lack": ("415", {"content-type": "application/grpc+json"}),
    "no trailers": ("400", {"te": None}),
    "a method that is not there": ("200", {":path": "/v1beta1.DevicePlugin/Deallocate"}),
    "a path that is none": ("200", {":path": "*"}),
    "a deadline that is none": ("200", {"grpc-timeout": "soon"}),
    "a deadline that has passed": ("200", {"grpc-timeout": "0n"}),
}


async def test_headers_that_are_no_call_are_answered_and_reach_no_plugin(root: Path) -> None:
    service = Patient()
    async with served(root, service) as serving:
        for what, (status, changed) in BAD_HEADERS.items():
            answer = await call(serving, framed(b"\x0a\x05\x0a\x03st0"), **changed)
            assert (answer[":status"], answer.get("grpc-status")) != (status, "0"), what
            assert answer[":status"] == status, what
        assert not service.entered.is_set()
        assert await still_answers(serving)


async def test_a_method_that_is_not_there_is_unimplemented(root: Path) -> None:
    async with served(root) as serving:
        assert (await call(serving, framed(b""), **{":path": "/x.Y/Z"}))["grpc-status"] == "12"


async def test_a_method_that_is_not_there_is_unimplemented_for_a_client_too(root: Path) -> None:
    async with transport.serve(root / "s", []) as serving, connect_plugin(serving.path) as client:
        with pytest.raises(PeerRefused, match="UNIMPLEMENTED"):
            await client.options()


NOT_GRPC = {
    "nothing": b"",
    "HTTP/1.1": b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(32),
    "half a preface": PREFACE[:10],
    "a preface and nothing": PREFACE,
    "a preface and text": PREFACE + b"GET / HTTP/1.1\r\n\r\n",
    "a frame longer than allowed": PREFACE + SETTINGS + b"\xff\xff\xff\x00\x00\x00\x00\x00\x01",
    "data for a stream that is not open": PREFACE + SETTINGS + b"\x00\x00\x01\x00\x01\x00\x00\x00\x05x",
    "headers that cannot be decoded": PREFACE + SETTINGS + b"\x00\x00\x04\x01\x05\x00\x00\x00\x01\xff\xff\xff\xff",
    "headers that are no ASCII": PREFACE + SETTINGS + b"\x00\x00\x07\x01\x05\x00\x00\x00\x01\x00\x02te\x02\xff\xfe",
    "headers without a method": PREFACE + SETTINGS + b"\x00\x00\x07\x01\x05\x00\x00\x00\x01\x00\x02te\x02ab",
    "a frame of a kind that nobody knows": PREFACE + SETTINGS + b"\x00\x00\x01\xfa\x00\x00\x00\x00\x00x",
    "a push promise": PREFACE + SETTINGS + b"\x00\x00\x05\x05\x04\x00\x00\x00\x01\x00\x00\x00\x02\x82",
}


async def test_a_peer_that_does_not_speak_grpc_is_disconnected(root: Path) -> None:
    service = Patient()
    async with served(root, service) as serving:
        for data in NOT_GRPC.values():
            await send(serving, data)
        assert not service.entered.is_set()
        assert await still_answers(serving)


@pytest.mark.parametrize("opening", [b"", PREFACE, PREFACE + SETTINGS], ids=["bytes", "preface", "settings"])
async def test_random_bytes_are_survived(opening: bytes, root: Path) -> None:
    random = Random(len(opening))
    async with served(root) as serving:
        for _ in range(60):
            await send(serving, opening + random.randbytes(random.choice([1, 9, 24, 100, 20_000])))
        assert await still_answers(serving)


async def test_random_messages_are_survived(root: Path) -> None:
    random = Random(4)
    message = bytearray(b"\x0a\x0e\x0a\x03st0\x0a\x03st1\x0a\x02\xc3\xbc")
    async with served(root) as serving:
        for _ in range(60):
            changed = bytearray(message)
            changed[random.randrange(len(changed))] = random.randrange(256)
            assert (await call(serving, framed(bytes(changed))))["grpc-status"] in {"0", "3"}
        assert await still_answers(serving)


@pytest.mark.skipif(
    resource.getrlimit(resource.RLIMIT_NOFILE)[0] < 512,
    reason="needs 512 file descriptors, for 150 connections' two ends",
)
async def test_idle_connections_do_not_disturb_other_calls(root: Path) -> None:
    async with served(root) as serving:
        left = [await asyncio.open_unix_connection(serving.path) for _ in range(150)]
        for number, (_, writer) in enumerate(left):
            writer.write((PREFACE + SETTINGS)[: number % 40])
        assert await still_answers(serving)
    for reader, writer in left:
        await reader.read()  # ends because the server has ended it
        writer.close()


async def test_a_call_in_progress_when_serving_ends_gets_unavailable(root: Path) -> None:
    service = Patient()
    service.go_on.clear()
    async with connect_plugin(root / "s") as client:
        async with served(root, service):
            allocating = asyncio.create_task(client.allocate(["st0"]))
            await service.entered.wait()
        with pytest.raises(PeerGone, match="the plugin is stopping or registers again"):
            await allocating


async def test_a_call_that_ends_soon_is_answered_although_serving_ends(root: Path) -> None:
    """A refused pod is final (3.67): an Allocate under way when the plugin stops has a moment to finish."""
    service = Patient()
    service.go_on.clear()
    async with connect_plugin(root / "s") as client:
        async with served(root, service):
            lists = client.lists()
            await anext(lists)
            service.entered.clear()
            allocating = asyncio.create_task(client.allocate(["st0"]))
            await service.entered.wait()
            ending = asyncio.create_task(service.left.wait())  # the stream is ended at once
            ending.add_done_callback(lambda _: service.go_on.set())
        assert await allocating == [Allocation(env={"IDS": "st0"})]
        with pytest.raises(PeerGone, match="the plugin is stopping or registers again"):
            await anext(lists)


async def test_a_request_over_the_limit_is_refused_by_its_prefix_before_it_is_collected(root: Path) -> None:
    service = Patient()
    async with served(root, service) as serving:
        answer = await call(serving, framed(b"", length=REQUEST_LIMIT + 1))
        assert answer["grpc-status"] == "8"
        assert "larger than max" in answer["grpc-message"]
        assert not service.entered.is_set()


async def test_bytes_of_any_kind_go_out_and_come_back_as_they_are(root: Path) -> None:
    async with served(root) as serving, transport.connect(serving.path) as connection:
        assert await connection.call_encoded(f"{device_plugin.SERVICE}/GetDevicePluginOptions", b"") == b"\x10\x01"
        with pytest.raises(PeerRefused, match="INVALID_ARGUMENT"):
            await connection.call_encoded(ALLOCATE, b"\xff\xff")


@pytest.mark.skipif(
    resource.getrlimit(resource.RLIMIT_NOFILE)[0] < 2 * CONNECTIONS_LIMIT + 150,
    reason=f"needs {2 * CONNECTIONS_LIMIT + 150} file descriptors, for the two ends of more connections than the limit",
)
async def test_more_connections_than_the_limit_cost_the_oldest_that_is_idle(root: Path) -> None:
    service = Patient()
    async with served(root, service) as serving, connect_plugin(serving.path) as watching:
        lists = watching.lists()
        await anext(lists)
        left = [await asyncio.open_unix_connection(serving.path) for _ in range(CONNECTIONS_LIMIT + 20)]
        await left[0][0].read()  # ends: it gave way
        assert await still_answers(serving)
        for _, writer in left:
            writer.close()
        await lists.aclose()


async def test_a_stream_in_progress_when_serving_ends_gets_unavailable(root: Path) -> None:
    service = Patient()
    async with connect_plugin(root / "s") as client:
        async with served(root, service):
            lists = client.lists()
            assert await anext(lists) == [Device("st0")]
        assert service.left.is_set()
        with pytest.raises(PeerGone, match="the plugin is stopping or registers again"):
            await anext(lists)


async def test_a_caller_that_gives_up_ends_the_work_for_it(root: Path) -> None:
    service = Patient()
    service.go_on.clear()
    async with served(root, service) as serving, connect_plugin(serving.path) as client:
        with pytest.raises(PeerGone):
            await client.pre_start(["st0"], timeout=0.05)
        await service.left.wait()


async def test_a_peer_that_does_not_read_keeps_neither_the_others_nor_the_end_waiting(root: Path) -> None:
    large = messages.encode_devices("a/b", [Device(f"{number:063}") for number in range(50_000)])
    service = Patient(large, large, large)
    with socket.socket(socket.AF_UNIX) as deaf:
        async with served(root, service) as serving:
            deaf.connect(str(serving.path))
            deaf.sendall(asking_for_lists())
            await service.entered.wait()
            async with connect_plugin(serving.path) as client:
                lists = client.lists()
                assert len(await anext(lists)) == 50_000
                await lists.aclose()
            assert await still_answers(serving)
            service.left.clear()
        assert service.left.is_set()


def asking_for_lists() -> bytes:
    peer = H2Connection(H2Configuration(header_encoding="utf-8"))
    peer.initiate_connection()
    peer.increment_flow_control_window(2**30)
    peer.send_headers(1, list({**HEADERS, ":path": "/v1beta1.DevicePlugin/ListAndWatch"}.items()))
    peer.send_data(1, framed(b""), end_stream=True)
    return peer.data_to_send()


async def test_messages_encoded_before_arrive_as_they_are(root: Path) -> None:
    first, second = messages.encode_devices("a/b", [Device("st0")]), messages.encode_devices("a/b", [])
    async with served(root, Patient(first, second)) as serving, connect_plugin(serving.path) as client:
        lists = client.lists()
        assert [await anext(lists), await anext(lists)] == [[Device("st0")], []]
        await lists.aclose()


async def test_a_request_of_more_than_4_mib_is_accepted(root: Path) -> None:
    many = PreferenceRequest(tuple(f"{number:063}" for number in range(70_000)), (), 1)
    async with served(root) as serving, transport.connect(serving.path) as connection:
        assert await device_plugin.DevicePluginClient(connection).prefer(many) == [list(many.available)]


async def test_an_answer_beyond_the_kubelets_limit_is_refused_in_its_words(root: Path) -> None:
    many = PreferenceRequest(tuple(f"{number:063}" for number in range(70_000)), (), 1)
    async with served(root) as serving, connect_plugin(serving.path) as client:
        with pytest.raises(PeerRefused, match=r"received message larger than max \(\d+ vs. 4194304\)"):
            await client.prefer(many)


async def test_many_calls_on_one_connection_get_their_own_answers(root: Path) -> None:
    service = Patient()
    service.go_on.clear()
    async with (
        served(root, service) as serving,
        connect_plugin(serving.path) as client,
        asyncio.TaskGroup() as tasks,
    ):
        calls = [tasks.create_task(client.allocate([f"st{number}"])) for number in range(90)]
        await service.entered.wait()
        service.go_on.set()
    assert [task.result()[0].env["IDS"] for task in calls] == [f"st{number}" for number in range(90)]


async def test_the_socket_is_for_its_owner_alone_whatever_the_umask(root: Path) -> None:
    before = os.umask(0)
    try:
        async with served(root) as serving:
            assert stat.S_IMODE(serving.path.stat().st_mode) == 0o600
    finally:
        os.umask(before)


async def test_a_removed_socket_no_longer_exists_and_its_removal_is_no_error(root: Path) -> None:
    async with device_plugin.serve(Patient(), root / "s") as serving:
        assert serving.exists()
        serving.path.unlink()
        assert not serving.exists()


async def test_a_socket_that_replaced_ours_stays(root: Path) -> None:
    async with device_plugin.serve(Patient(), root / "s") as old:
        old.path.unlink()
        async with device_plugin.serve(Patient(), root / "s") as new:
            assert not old.exists()
            old.unlink()
            assert await still_answers(new)


async def test_a_socket_in_use_is_not_taken_over(root: Path) -> None:
    async with served(root) as serving:
        with pytest.raises(OSError, match="in use"):
            async with device_plugin.serve(Patient(), serving.path):
                pass
        assert await still_answers(serving)


async def test_serving_that_ends_with_an_error_leaves_room_for_the_next(root: Path) -> None:
    for _ in range(3):
        with pytest.raises(PlugwrightError, match="refused"):
            async with device_plugin.serve(Patient(), root / "s"):
                raise PlugwrightError("refused")
        assert not (root / "s").exists()
        async with served(root) as serving:
            assert await still_answers(serving)
