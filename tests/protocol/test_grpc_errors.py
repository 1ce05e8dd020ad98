"""Our errors become gRPC codes, and at the other end errors of ours again."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from plugwright.errors import (
    CheckpointCorrupt,
    ConfigError,
    InvalidValue,
    ListTooLarge,
    MalformedMessage,
    PeerGone,
    PeerRefused,
    PeerSilent,
    PluginError,
    PluginFailed,
    PluginTimeout,
    PlugwrightError,
    RepeatedDevice,
    UnhealthyDevice,
    UnknownDevice,
)
from plugwright.protocol import registration
from plugwright.protocol.registration import RegisterRequest, RegistrationClient

REQUEST = RegisterRequest("example.com/tape", "tape.sock")
CODES: list[tuple[PlugwrightError, str]] = [
    (UnknownDevice("a/b", ["st9"]), "INVALID_ARGUMENT"),
    (UnhealthyDevice("a/b", {"st0": "no tape"}), "INVALID_ARGUMENT"),
    (RepeatedDevice("a/b", ["st0"]), "INVALID_ARGUMENT"),
    (MalformedMessage("not a message"), "INVALID_ARGUMENT"),
    (PluginTimeout("a/b", "allocate", 10), "DEADLINE_EXCEEDED"),
    (PluginFailed("a/b", "allocate", OSError("bus error")), "INTERNAL"),
    (InvalidValue("an env name has no '='"), "INTERNAL"),
    (ListTooLarge("a/b", 1, 2, 3), "INTERNAL"),
    (PluginError("broken"), "INTERNAL"),
    (ConfigError("no such file"), "UNKNOWN"),
    (CheckpointCorrupt("checkpoint does not parse"), "UNKNOWN"),
    (PeerRefused("RESOURCE_EXHAUSTED", "rejected by rate limit"), "RESOURCE_EXHAUSTED"),
    (PeerRefused("UNKNOWN", 'the ResourceName "gpu" is invalid'), "UNKNOWN"),
]


class Raising:
    """A service that raises whatever it is told to, and accepts when it is told nothing."""

    def __init__(self) -> None:
        self.error: BaseException | None = None

    async def register(self, request: RegisterRequest) -> None:
        if self.error is not None:
            raise self.error


@asynccontextmanager
async def called(service: Raising, root: Path) -> AsyncIterator[RegistrationClient]:
    async with registration.serve(service, root / "s"), registration.connect(root / "s") as client, asyncio.timeout(60):
        yield client


async def refusal(service: Raising, client: RegistrationClient, error: BaseException) -> tuple[str, str]:
    service.error = error
    with pytest.raises(PeerRefused) as caught:
        await client.register(REQUEST)
    return caught.value.code, caught.value.message


async def test_an_error_reaches_the_caller_with_its_code_and_text(root: Path) -> None:
    service = Raising()
    async with called(service, root) as client:
        for error, code in CODES:
            text = error.message if isinstance(error, PeerRefused) else str(error)
            assert await refusal(service, client, error) == (code, text)


async def test_a_peer_behind_our_service_that_is_gone_makes_us_unavailable(root: Path) -> None:
    service = Raising()
    service.error = PeerGone("the kubelet went away")
    async with called(service, root) as client:
        with pytest.raises(PeerGone, match="s: the kubelet went away"):
            await client.register(REQUEST)


async def test_a_long_text_is_cut_to_what_a_header_can_carry(root: Path) -> None:
    service = Raising()
    async with called(service, root) as client:
        for letter in ["x", "ü", "💾", "%", "\n"]:
            assert await refusal(service, client, PluginError(letter * 100_000)) == ("INTERNAL", letter * 2000)


async def test_an_unknown_exception_is_answered_without_details_and_serving_goes_on(root: Path) -> None:
    service = Raising()
    async with called(service, root) as client:
        for error in [KeyError("secret"), AssertionError("secret"), NotImplementedError("secret"), OSError("secret")]:
            assert await refusal(service, client, error) == ("UNKNOWN", "Internal Server Error")
        service.error = None
        await client.register(REQUEST)


async def test_a_text_that_is_no_unicode_still_ends_the_call(root: Path) -> None:
    service = Raising()
    service.error = PluginFailed("a/b", "allocate", FileNotFoundError("/sys/\udcff"))  # a name that is not UTF-8
    async with registration.serve(service, root / "s"), registration.connect(root / "s") as client:
        with pytest.raises(PeerRefused, match="/sys/"):
            await client.register(REQUEST, timeout=60)


async def test_a_peer_that_is_not_there_is_gone(root: Path) -> None:
    async with registration.connect(root / "kubelet.sock") as client:
        with pytest.raises(PeerGone, match=r"kubelet.sock: No such file"):
            await client.register(REQUEST)


async def test_a_peer_that_left_its_socket_behind_is_gone(root: Path) -> None:
    async with registration.serve(Raising(), root / "s") as serving:
        serving.path.rename(root / "kubelet.sock")
    async with registration.connect(root / "kubelet.sock") as client:
        with pytest.raises(PeerGone, match=r"no process listens on kubelet.sock"):
            await client.register(REQUEST)


async def test_a_peer_that_reports_the_deadline_itself_is_silent(root: Path) -> None:
    service = Raising()
    service.error = PeerRefused("DEADLINE_EXCEEDED", "")
    async with called(service, root) as client:
        with pytest.raises(PeerSilent, match="s did not answer in time"):
            await client.register(REQUEST)


async def test_a_peer_that_does_not_answer_in_time_is_gone(root: Path) -> None:
    class Deaf:
        async def register(self, request: RegisterRequest) -> None:
            await asyncio.Event().wait()

    async with registration.serve(Deaf(), root / "s"), registration.connect(root / "s") as client:
        with pytest.raises(PeerSilent, match="s did not answer in time"):
            await client.register(REQUEST, timeout=0.05)


@pytest.mark.parametrize("answer", [b"", b"no HTTP/2 at all\r\n\r\n", b"\x00\x00\x00\x00\x00\x00\x00\x00\x00"])
async def test_a_peer_that_does_not_speak_grpc_is_gone(answer: bytes, root: Path) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(answer)
        writer.close()
        await writer.wait_closed()

    async with await asyncio.start_unix_server(talk, root / "s"), registration.connect(root / "s") as client:
        with pytest.raises(PeerGone, match="s: "):
            await client.register(REQUEST, timeout=60)
