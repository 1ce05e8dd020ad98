"""The kernel's own news of hardware: uevents, over netlink.

The kernel's broadcast (group 1) reaches a pod with a network namespace of its own too; udev's (group 2) does not. What
a change means is for its listeners to find out by looking.
"""

import socket
from dataclasses import dataclass

__all__ = ["Uevent", "listen", "parse", "receive"]

_KOBJECT_UEVENT = 15
_KERNEL_GROUP = 1
_LARGEST = 16 * 1024  # the kernel's own limit is 2 KiB of variables and the path
_BUFFER = 256 * 1024  # a machine that boots has many in a row


@dataclass(frozen=True, slots=True)
class Uevent:
    action: str
    path: str
    subsystem: str
    node: str  # below /dev, where there is one


def listen() -> socket.socket:
    """A socket that hears the kernel; OSError where that is not permitted."""
    hearing = socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK, _KOBJECT_UEVENT)
    try:
        hearing.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER)
        hearing.bind((0, _KERNEL_GROUP))
    except OSError:
        hearing.close()
        raise
    return hearing


def receive(hearing: socket.socket) -> Uevent | None:
    """The next event; None for what is none, or not the kernel's. BlockingIOError when there is no more."""
    message, sender = hearing.recvfrom(_LARGEST)
    # A netlink address is (process, groups), and the kernel's process is 0: any other could pretend.
    return None if isinstance(sender, tuple) and sender[0] != 0 else parse(message)


def parse(message: bytes) -> Uevent | None:
    head, *lines = message.decode("utf-8", errors="replace").split("\0")
    action, at, path = head.partition("@")
    if not at or not path.startswith("/"):
        return None  # udev's own format, or no event at all
    values = {name: value for name, _, value in (line.partition("=") for line in lines)}
    return Uevent(action, path, values.get("SUBSYSTEM", ""), values.get("DEVNAME", ""))
