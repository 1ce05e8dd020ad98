"""A certificate authority for one embedded cluster, and the server's certificate.

How they are signed is `signing`'s. The server's key is written with mode 0600 and dies with its directory; the
authority's is never written.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

__all__ = ["Certificates", "make", "obtain"]

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
    from plugwright.cluster import signing  # loads cryptography

    made, signed = _in(directory), signing.sign(names, addresses)
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
