"""The certificate authority of one embedded cluster and its API server's certificate, as files.

trustme signs them and is imported only here; our own code only decides whether files of an earlier run can be reused.
Strict verifiers accept the result, such as Python's own from 3.13 on, which requires key identifiers. The server's key
is written with mode 0600; the authority's key is never written.

`python -m plugwright.apiserver.tls DIRECTORY` is the process in which `obtain` does it: trustme loads 11 MiB, which
would stay with a cluster for as long as it runs.
"""

import os
import subprocess
import sys
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from plugwright.errors import ClusterError
from plugwright.system import files

__all__ = ["Certificates", "make", "obtain"]

_VALIDITY = timedelta(days=365)
_CLOCK_SKEW = timedelta(minutes=5)  # a client's clock can be behind ours
_SHORTEST_VALIDITY = timedelta(days=7)  # of reused certificates


@dataclass(frozen=True, slots=True)
class Certificates:
    """Paths: the authority that clients trust, and the certificate and key of the server."""

    authority: Path
    certificate: Path
    key: Path


def obtain(directory: Path) -> Certificates:
    """The certificates in `directory` if they match and stay valid for a week; otherwise new ones."""
    # -P: no module of the working directory
    command = [sys.executable, "-P", "-m", "plugwright.apiserver.tls", str(directory)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    try:
        subprocess.run(command, check=True, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    except subprocess.CalledProcessError as error:
        reason = (error.stderr.splitlines() or [str(error)])[-1]
        raise ClusterError(f"cannot make certificates in {directory}: {reason}") from None
    return _paths(directory)


def make(directory: Path, names: tuple[str, ...] = ("localhost", "127.0.0.1")) -> Certificates:
    """New certificates; `names` are the host names and addresses of the server."""
    import trustme

    now = datetime.now(UTC)
    authority = trustme.CA(path_length=0, organization_name="plugwright", organization_unit_name="embedded cluster")
    server = authority.issue_cert(
        *names,
        organization_name="plugwright",
        organization_unit_name="API server",
        not_before=now - _CLOCK_SKEW,
        not_after=now + _VALIDITY,
    )
    certificates = _paths(directory)
    files.write_atomically(certificates.authority, authority.cert_pem.bytes(), sync=False)
    files.write_atomically(certificates.certificate, server.cert_chain_pems[0].bytes(), sync=False)
    files.write_atomically(certificates.key, server.private_key_pem.bytes(), mode=0o600, sync=False)
    return certificates


def _paths(directory: Path) -> Certificates:
    return Certificates(directory / "ca.crt", directory / "server.crt", directory / "server.key")


def _are_usable(certificates: Certificates) -> bool:
    """Whether all three match: a killed process can have written only some of them."""
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        authority = x509.load_pem_x509_certificate(certificates.authority.read_bytes())
        server = x509.load_pem_x509_certificate(certificates.certificate.read_bytes())
        server.verify_directly_issued_by(authority)
        key = load_pem_private_key(certificates.key.read_bytes(), None)
    except (OSError, ValueError, TypeError, InvalidSignature):
        return False
    is_valid = server.not_valid_after_utc > datetime.now(UTC) + _SHORTEST_VALIDITY
    return is_valid and key.public_key() == server.public_key()


def _main(directory: Path) -> None:
    if not _are_usable(_paths(directory)):
        make(directory)


if __name__ == "__main__":
    _main(Path(sys.argv[1]))
