"""A certificate authority for one embedded cluster, and the server's certificate.

How they are signed is `signing`'s. The server's key is written with mode 0600 and dies with its directory; the
authority's is never written.

An authority made up on the spot, and the certificate it signs. With `certificates` the home of `cryptography`.

Strict verifiers are content with them: Python's own is one from 3.13 on, and asks for key identifiers.
"""

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

__all__ = ["Certificates", "Signed", "make", "obtain", "sign"]

_SHORTEST = timedelta(days=7)  # what is to be used should last for a while


@dataclass(frozen=True, slots=True)
class Certificates:
    """Where they are: what clients trust, and what the server shows."""

    authority: Path
    certificate: Path
    key: Path


def obtain(directory: Path) -> Certificates:
    """Those that are in the directory, if they are still good; else new ones."""
    found = _in(directory)
    return found if _are_good(found) else make(directory)


def make(
    directory: Path, names: tuple[str, ...] = ("localhost",), addresses: tuple[str, ...] = ("127.0.0.1",)
) -> Certificates:
    # loads cryptography

    made, signed = _in(directory), sign(names, addresses)
    made.authority.write_bytes(signed.authority)
    made.certificate.write_bytes(signed.certificate)
    made.key.unlink(missing_ok=True)  # a file that is there would keep its mode
    made.key.touch(mode=0o600)
    made.key.write_bytes(signed.key)
    return made


def _in(directory: Path) -> Certificates:
    return Certificates(directory / "ca.crt", directory / "server.crt", directory / "server.key")


def _are_good(found: Certificates) -> bool:
    """They belong together, and last; a process that was killed may have left half of them."""
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        authority, server = (
            x509.load_pem_x509_certificate(each.read_bytes()) for each in (found.authority, found.certificate)
        )
        server.verify_directly_issued_by(authority)
        key = load_pem_private_key(found.key.read_bytes(), None)
    except (OSError, ValueError, TypeError, InvalidSignature):
        return False
    lasts = server.not_valid_after_utc > datetime.now(UTC) + _SHORTEST
    return lasts and key.public_key() == server.public_key()


_LIFE = timedelta(days=365)
_ALREADY = timedelta(minutes=5)  # clocks differ
_USES = (
    "digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement",
    "key_cert_sign", "crl_sign", "encipher_only", "decipher_only",
)  # fmt: skip
_Extensions = list[tuple[x509.ExtensionType, bool]]  # with whether they are critical


@dataclass(frozen=True, slots=True)
class Signed:
    """As PEM; the authority's key is gone."""

    authority: bytes
    certificate: bytes
    key: bytes


def sign(names: Iterable[str], addresses: Iterable[str]) -> Signed:
    authority, server = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    return Signed(
        _signed(authority, authority, _of_authority()).public_bytes(Encoding.PEM),
        _signed(server, authority, _of_server(names, addresses)).public_bytes(Encoding.PEM),
        server.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
    )


def _of_authority() -> _Extensions:
    uses = {use: use in ("key_cert_sign", "crl_sign") for use in _USES}
    return [(x509.BasicConstraints(ca=True, path_length=0), True), (x509.KeyUsage(**uses), True)]


def _of_server(names: Iterable[str], addresses: Iterable[str]) -> _Extensions:
    alternatives = [*map(x509.DNSName, names), *(x509.IPAddress(ipaddress.ip_address(each)) for each in addresses)]
    return [
        (x509.SubjectAlternativeName(alternatives), False),
        (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False),
        (x509.BasicConstraints(ca=False, path_length=None), True),
    ]


def _signed(
    key: ec.EllipticCurvePrivateKey, authority: ec.EllipticCurvePrivateKey, extensions: _Extensions
) -> x509.Certificate:
    now, issuer = datetime.now(UTC), _name("plugwright embedded cluster")
    subject = issuer if key is authority else _name("plugwright API server")
    builder = x509.CertificateBuilder(issuer, subject, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now - _ALREADY).not_valid_after(now + _LIFE)
    identifiers: _Extensions = [
        (x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False),
        (x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key()), False),
    ]
    for extension, critical in (*identifiers, *extensions):
        builder = builder.add_extension(extension, critical=critical)
    return builder.sign(authority, hashes.SHA256())


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])
