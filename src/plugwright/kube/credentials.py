"""Credentials for an API server, and the TLS context made of them; files are read again when they change."""

import base64
import os
import ssl
import stat
from pathlib import Path
from typing import Protocol

import msgspec

from plugwright.errors import ConfigError
from plugwright.system import files

__all__ = ["Credentials", "IssuedCredentials", "Issuer"]

_LARGEST_TOKEN = 2**20  # bytes; those of a service account have about a thousand


class IssuedCredentials(msgspec.Struct, frozen=True):
    """Credentials from a credential plugin: a token, a client certificate with its key, or both."""

    token: str = ""
    certificate: bytes | None = None
    key: bytes | None = None

    def __repr__(self) -> str:  # no secret in a traceback
        return "IssuedCredentials(…)"


class Issuer(Protocol):
    """Implemented by `credential_plugin.CredentialPlugin`."""

    issued: IssuedCredentials  # by the last login

    def is_fresh(self) -> bool:
        """Whether the issued credentials have not expired."""
        ...

    def login(self) -> None:
        """Issues new credentials if the last credentials are about to expire."""
        ...

    def reject(self) -> None:
        """Discards credentials rejected by the server."""
        ...


class Credentials(msgspec.Struct, frozen=True):
    """How a client proves who it is, and which certificates it accepts.

    `authority` None means the authorities of the system; `basic` is `user:password`; `impersonation` has the headers
    of another identity to act as; `server_name` is the name in the server's certificate if it is not the host's.
    """

    token: Path | str | None = None
    authority: Path | bytes | None = None
    certificate: Path | bytes | None = None
    key: Path | bytes | None = None
    basic: str = ""
    issuer: Issuer | None = None
    impersonation: tuple[tuple[str, str], ...] = ()
    insecure: bool = False
    server_name: str = ""

    def __repr__(self) -> str:  # no secret in a traceback
        return "Credentials(…)"

    def headers(self) -> list[tuple[str, str]]:
        """The authentication headers of a request; raises `OSError` if the token's file cannot be read."""
        headers = list(self.impersonation)
        if self.basic:
            headers.append(("Authorization", f"Basic {base64.b64encode(self.basic.encode()).decode()}"))
        # Read for each request: the kubelet replaces the token of a pod before it expires.
        # Other bytes than ASCII become characters refused below.
        token = _token_in(self.token) if isinstance(self.token, Path) else self.token
        if not token and self.issuer is not None and not self.basic:
            token = self.issuer.issued.token
        if token:
            headers.append(("Authorization", f"Bearer {token}"))
        for name, text in headers:
            if not (text.isascii() and text.isprintable()):  # http.client's own error would show it
                raise ConfigError(f"the token or the header {name} for the API server must be one line of ASCII")
        return headers

    def tls_version(self) -> tuple[object, ...]:
        """A value, changed when the TLS context must be made again."""
        found = map(os.stat, self._paths())
        versions = tuple((status.st_ino, status.st_mtime_ns, status.st_size) for status in found)
        return (*versions, self.issuer.issued.certificate if self.issuer is not None else None)

    def tls_context(self, with_system: bool = False, with_certificate: bool = True) -> ssl.SSLContext:
        """Raises `OSError` or `ValueError` for an unreadable file or an invalid certificate.

        `with_system` trusts the authorities of the system too.
        """
        for path in self._paths():
            if not stat.S_ISREG(path.stat().st_mode):  # OpenSSL would wait for the end of a pipe or a device
                raise ValueError(f"{path} must be a regular file")
        if with_system or self.authority is None:
            context = ssl.create_default_context()
        else:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        if isinstance(self.authority, bytes):
            context.load_verify_locations(cadata=self.authority.decode("ascii"))
        elif self.authority is not None:
            context.load_verify_locations(cafile=self.authority)
        # Python 3.13 refuses certificates without key identifiers, which the authorities of many clusters leave out.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        if self.insecure:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        certificate, key = self.certificate, self.key
        if certificate is None and self.issuer is not None:
            certificate, key = self.issuer.issued.certificate, self.issuer.issued.key
        if with_certificate and certificate is not None:
            _load_certificate(context, certificate, key)
        return context

    def _paths(self) -> list[Path]:
        return [path for path in (self.authority, self.certificate, self.key) if isinstance(path, Path)]


def _token_in(path: Path) -> str:
    try:
        return files.read(path, _LARGEST_TOKEN).decode("latin-1").strip()
    except ValueError as error:
        raise ConfigError(f"cannot read the token in {path}: {error}") from error


def _load_certificate(context: ssl.SSLContext, certificate: Path | bytes, key: Path | bytes | None) -> None:
    parts = [files.read(part) if isinstance(part, Path) else part for part in (certificate, key) if part is not None]
    # OpenSSL loads keys only from files; this file is never on a disk.
    descriptor = os.memfd_create("client-certificate", os.MFD_CLOEXEC)
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(b"\n".join(parts))
        # With a password, OpenSSL does not prompt for the password of an encrypted key on the terminal.
        context.load_cert_chain(f"/proc/self/fd/{descriptor}", password="")
    finally:
        os.close(descriptor)
