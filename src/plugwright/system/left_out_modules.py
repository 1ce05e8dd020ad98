"""Modules of Python that a daemon does without, until something needs them after all."""

import sys

__all__ = ["allow_ssl", "leave_out_archives", "leave_out_ssl"]


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
