"""Errors of NVSwitches (SXids), which the driver reports only in the kernel's log.

The log is followed from the moment it is opened, because a reset can have fixed earlier errors. It is a file descriptor
of the event loop: while the kernel logs nothing, nothing happens here.
"""

import asyncio
import errno
import logging
import os
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from plugwright.plugins.nvidia.driver import SWITCH, EventKind, GpuEvent
from plugwright.system.log_once import LogOnce
from plugwright.text import clean

__all__ = ["SwitchLog"]

logger = logging.getLogger(__name__)

_RECORD_LIMIT = 8192  # octets; the kernel rejects reads into a smaller buffer
_SXID = re.compile(r"nvidia-nvswitch\d+: SXid \(PCI:(?P<address>[0-9A-Fa-f:.]+)\): (?P<code>\d+), (?P<kind>[\w-]+)")


class SwitchLog:
    """Passes fatal errors on as events of the switch; other errors are only logged, because the fabric continues."""

    def __init__(self, on_event: Callable[[GpuEvent], None]) -> None:
        self._on_event = on_event
        self._descriptor: int | None = None
        self._problems = LogOnce(logger)

    def follow(self, path: Path | None) -> None:
        """Follows the log; None without NVSwitches. If a log cannot be opened, the next call tries again."""
        if path is None or self._descriptor is not None:
            return
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            reason = f"cannot read {path}: {error.strerror}"
            self._problems.warning("errors of NVSwitches are not seen", reason, extra={"error": reason})
            return
        with suppress(OSError):  # a pipe cannot seek to its end
            os.lseek(descriptor, 0, os.SEEK_END)
        self._descriptor = descriptor
        self._problems.recovered()
        asyncio.get_running_loop().add_reader(descriptor, self._read, descriptor)

    def stop(self) -> None:
        if self._descriptor is not None:
            asyncio.get_running_loop().remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = None

    def _read(self, descriptor: int) -> None:
        try:
            record = os.read(descriptor, _RECORD_LIMIT)
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EPIPE):  # EPIPE: records were overwritten before they were read
                logger.error("errors of NVSwitches are not seen", extra={"error": clean(error)})
                self.stop()
            return
        if not record:
            self.stop()
        for line in record.decode(errors="replace").splitlines():
            self._take(line)

    def _take(self, line: str) -> None:
        found = _SXID.search(line)
        if found is None:
            return
        text = clean(line.partition(";")[2] or line)
        logger.warning("SXid", extra={"switch": found["address"], "sxid": int(found["code"]), "text": text})
        if found["kind"] == "Fatal":
            self._on_event(GpuEvent(EventKind.SXID, f"{SWITCH}{found['address']}", int(found["code"])))
