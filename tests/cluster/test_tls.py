"""Certificates that last, are used again, and are made anew where they cannot be trusted."""

import asyncio
import ssl
import stat
from pathlib import Path

import pytest

from plugwright.cluster import tls
from plugwright.cluster.tls import Certificates


def contents(found: Certificates) -> list[bytes]:
    return [each.read_bytes() for each in (found.authority, found.certificate, found.key)]


def test_a_server_can_show_them_and_its_key_is_private(tmp_path: Path) -> None:
    made = tls.obtain(tmp_path)
    ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(made.certificate, made.key)
    ssl.create_default_context(cafile=made.authority)
    assert stat.S_IMODE(made.key.stat().st_mode) == 0o600


async def test_the_strictest_client_trusts_them(tmp_path: Path) -> None:
    made = tls.make(tmp_path)
    shown = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    shown.load_cert_chain(made.certificate, made.key)
    trusting = ssl.create_default_context(cafile=made.authority)
    trusting.verify_flags |= ssl.VERIFY_X509_STRICT
    ended = asyncio.Event()

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()
        await writer.wait_closed()
        ended.set()

    async with await asyncio.start_server(serve, "127.0.0.1", 0, ssl=shown) as server:
        port = server.sockets[0].getsockname()[1]
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusting)
        assert await reader.read() == b""
        writer.close()
        await writer.wait_closed()
        await ended.wait()


def test_those_that_are_there_are_used_again(tmp_path: Path) -> None:
    before = contents(tls.obtain(tmp_path))
    assert contents(tls.obtain(tmp_path)) == before


@pytest.mark.parametrize("name", ["ca.crt", "server.crt", "server.key"])
def test_half_of_them_is_not_enough(tmp_path: Path, name: str) -> None:
    before = contents(tls.obtain(tmp_path))
    (tmp_path / name).write_bytes(b"")
    after = contents(tls.obtain(tmp_path))
    assert not set(before) & set(after)


@pytest.mark.parametrize("name", ["ca.crt", "server.crt", "server.key"])
def test_those_of_another_authority_do_not_mix(tmp_path: Path, name: str) -> None:
    for directory in (tmp_path / "one", tmp_path / "other"):
        directory.mkdir()
        tls.make(directory)
    (tmp_path / "one" / name).write_bytes((tmp_path / "other" / name).read_bytes())
    before = (tmp_path / "one" / "server.crt").read_bytes()
    assert tls.obtain(tmp_path / "one").certificate.read_bytes() != before
