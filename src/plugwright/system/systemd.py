"""Messages to systemd about this service: ready, reloading, stopping, alive. Silent if systemd is not listening.

The protocol is one datagram of `NAME=value` lines to the socket of NOTIFY_SOCKET; see sd_notify(3).
"""

import logging
import os
import socket
import time
from collections.abc import Mapping

__all__ = ["Systemd"]

logger = logging.getLogger(__name__)


class Systemd:
    """`environment` is the process's, as made by systemd."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._address = environment.get("NOTIFY_SOCKET", "")
        self._status = ""
        self.watchdog = self._watchdog(environment) if self._address else 0.0

    def ready(self) -> None:
        self._send("READY=1")

    def reloading(self) -> None:
        self._send("RELOADING=1", f"MONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}")

    def stopping(self) -> None:
        self._send("STOPPING=1")

    def alive(self) -> None:
        self._send("WATCHDOG=1")

    def status(self, text: str) -> None:
        """The line shown by `systemctl status`."""
        if text != self._status:
            self._status = text
            self._send(f"STATUS={text}")

    @staticmethod
    def _watchdog(environment: Mapping[str, str]) -> float:
        """The watchdog interval of systemd in seconds; 0 without a watchdog."""
        microseconds = environment.get("WATCHDOG_USEC", "")
        is_ours = environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        return int(microseconds) / 1_000_000 if is_ours and microseconds.isdecimal() else 0.0

    def _send(self, *lines: str) -> None:
        if not self._address:
            return
        # A name beginning with @ is in the abstract namespace: the kernel expects a NUL in place of the @.
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.setblocking(False)
                sender.sendto("\n".join(lines).encode(), address)
        except OSError as error:
            logger.debug("systemd not notified", extra={"message_lost": lines[0], "error": str(error)})
