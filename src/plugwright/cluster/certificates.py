"""A certificate authority for one embedded cluster, and the server's certificate.

The one home of `cryptography`. The server's key is written with mode 0600 and dies with its directory; the authority's
is never written.
"""

import ipaddress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

__all__ = ["Certificates", "make", "obtain"]

_LIFE = timedelta(days=365)
_ALREADY = timedelta(minutes=5)  # clocks differ
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
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    def subject(name: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])

    def builder(name: str, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject(name))
            .issuer_name(subject("plugwright embedded cluster"))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _ALREADY)
            .not_valid_after(now + _LIFE)
        )

    authority_key, server_key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    authority = (
        builder("plugwright embedded cluster", authority_key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(authority_key, hashes.SHA256())
    )
    alternatives = [*map(x509.DNSName, names), *(x509.IPAddress(ipaddress.ip_address(each)) for each in addresses)]
    certificate = (
        builder("plugwright API server", server_key)
        .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(authority_key, hashes.SHA256())
    )
    made = _in(directory)
    made.authority.write_bytes(authority.public_bytes(serialization.Encoding.PEM))
    made.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    made.key.touch(mode=0o600)
    made.key.write_bytes(
        server_key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
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
