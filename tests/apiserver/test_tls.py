"""Certificates: used again while they are valid, made again where they cannot be trusted."""

import asyncio
import ssl
import stat
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from pathlib import Path

import pytest
from cryptography import x509

from plugwright.apiserver import tls
from plugwright.apiserver.tls import Certificates
from plugwright.errors import ClusterError


def contents(certificates: Certificates) -> list[bytes]:
    return [path.read_bytes() for path in (certificates.authority, certificates.certificate, certificates.key)]


def test_certificates_can_be_loaded_and_the_key_is_private(tmp_path: Path) -> None:
    certificates = tls.obtain(tmp_path)
    ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(certificates.certificate, certificates.key)
    ssl.create_default_context(cafile=certificates.authority)
    assert stat.S_IMODE(certificates.key.stat().st_mode) == 0o600


async def test_certificates_pass_strict_verification(tmp_path: Path) -> None:
    certificates = tls.make(tmp_path)
    server_context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server_context.load_cert_chain(certificates.certificate, certificates.key)
    client_context = ssl.create_default_context(cafile=certificates.authority)
    client_context.verify_flags |= ssl.VERIFY_X509_STRICT
    ended = asyncio.Event()

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()
        await writer.wait_closed()
        ended.set()

    async with await asyncio.start_server(serve, "127.0.0.1", 0, ssl=server_context) as server:
        port = server.sockets[0].getsockname()[1]
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=client_context)
        assert await reader.read() == b""
        writer.close()
        await writer.wait_closed()
        await ended.wait()


def test_the_libraries_that_make_certificates_are_not_loaded_by_the_cluster(tmp_path: Path) -> None:
    code = "import pathlib, sys; from plugwright.apiserver import tls; tls.obtain(pathlib.Path(sys.argv[1]));"
    code += "print(*{'cryptography', 'trustme'} & sys.modules.keys())"
    ended = subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, capture_output=True, text=True)
    assert ended.stdout.split() == []


def test_certificates_that_cannot_be_written_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ClusterError, match=r"cannot make certificates in .*file: .*(File exists|Not a directory)"):
        tls.obtain(tmp_path / "file")


def test_existing_certificates_are_used_again(tmp_path: Path) -> None:
    before = contents(tls.obtain(tmp_path))
    assert contents(tls.obtain(tmp_path)) == before


@pytest.mark.parametrize("name", ["ca.crt", "server.crt", "server.key"])
def test_damaged_certificates_are_made_again(tmp_path: Path, name: str) -> None:
    before = contents(tls.obtain(tmp_path))
    (tmp_path / name).write_bytes(b"")
    after = contents(tls.obtain(tmp_path))
    assert not set(before) & set(after)


@pytest.mark.parametrize("name", ["ca.crt", "server.crt", "server.key"])
def test_certificates_of_different_authorities_are_made_again(tmp_path: Path, name: str) -> None:
    for directory in (tmp_path / "one", tmp_path / "other"):
        directory.mkdir()
        tls.make(directory)
    (tmp_path / "one" / name).write_bytes((tmp_path / "other" / name).read_bytes())
    before = (tmp_path / "one" / "server.crt").read_bytes()
    assert tls.obtain(tmp_path / "one").certificate.read_bytes() != before


def test_a_server_certificate_is_valid_for_a_year_by_name_and_address(tmp_path: Path) -> None:
    certificate = x509.load_pem_x509_certificate(tls.make(tmp_path).certificate.read_bytes())
    assert certificate.not_valid_before_utc < datetime.now(UTC)
    assert timedelta(days=364) < certificate.not_valid_after_utc - datetime.now(UTC) <= timedelta(days=365)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["localhost"]
    assert names.get_values_for_type(x509.IPAddress) == [IPv4Address("127.0.0.1")]


def test_a_module_in_the_working_directory_is_not_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "trustme.py").write_text("raise SystemExit('another trustme')\n")
    monkeypatch.chdir(tmp_path)
    assert tls.obtain(tmp_path / "certificates").key.exists()
