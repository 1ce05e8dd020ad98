"""Modules of Python that a daemon does without, until something needs them after all."""

import sys
from contextlib import suppress
from functools import cache
from importlib import import_module
from types import ModuleType

__all__ = ["allow_ssl", "leave_out_archives", "leave_out_ssl", "sha256"]


def leave_out_ssl() -> None:
    """asyncio loads ssl where there is one; a daemon that has only unix sockets saves 4 MiB without it."""
    sys.modules.setdefault("ssl", None)  # type: ignore[arg-type]  # None makes an import fail


def allow_ssl() -> None:
    """Before the first module is loaded that needs it."""
    if sys.modules.get("ssl", sys) is None:
        for name in ("ssl", "http.client", "urllib.request"):  # the last two may have been loaded without it
            sys.modules.pop(name, None)


def leave_out_archives() -> None:
    """ctypes loads shutil to find libraries, and shutil loads every archive module that exists."""
    for name in ("bz2", "lzma"):
        sys.modules.setdefault(name, None)  # type: ignore[arg-type]


def sha256(content: bytes) -> str:
    """As `sha256sum` prints it, without hashlib: that loads OpenSSL, 4 MiB that the daemon has no other use for."""
    return str(_sha256_module().sha256(content).hexdigest())


@cache
def _sha256_module() -> ModuleType:
    """Found once: to look for a module that is not there takes longer than a digest."""
    for name in ("_sha2", "_sha256", "hashlib"):
        with suppress(ImportError):
            return import_module(name)
    raise AssertionError("no SHA-256 in this Python")
