"""The kernel's news: what is one, and what only looks like one."""

import os
import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plugwright.sdk import uevents
from plugwright.sdk.uevents import Uevent

PLUGGED = (
    b"add@/devices/pci0000:00/usb1/1-4\0ACTION=add\0DEVPATH=/devices/pci0000:00/usb1/1-4\0"
    b"SUBSYSTEM=usb\0DEVNAME=bus/usb/001/004\0SEQNUM=1\0"
)
NULL = Path("/sys/class/mem/null/uevent")


def test_an_event_says_what_happened_to_what() -> None:
    assert uevents.parse(PLUGGED) == Uevent("add", "/devices/pci0000:00/usb1/1-4", "usb", "bus/usb/001/004")
    assert uevents.parse(b"unbind@/devices/a\0SUBSYSTEM=pci\0") == Uevent("unbind", "/devices/a", "pci", "")


@pytest.mark.parametrize("message", [b"", b"\0", b"libudev\0\xfe\xed\xca\xfe", b"add", b"add@relative\0", b"@\0"])
def test_what_is_no_event_is_passed_over(message: bytes) -> None:
    assert uevents.parse(message) is None


@given(st.binary(max_size=200))
def test_no_bytes_break_it(message: bytes) -> None:
    event = uevents.parse(message)
    assert event is None or event.path.startswith("/")


def test_events_come_one_by_one_until_there_are_no_more() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with ours, theirs:
        ours.setblocking(False)
        theirs.send(PLUGGED)
        theirs.send(b"nonsense")
        assert uevents.receive(ours) is not None
        assert uevents.receive(ours) is None
        with pytest.raises(BlockingIOError):
            uevents.receive(ours)


@pytest.mark.skipif(os.geteuid() != 0 or not os.access(NULL, os.W_OK), reason="making the kernel speak needs root")
def test_the_kernel_is_heard_and_nobody_who_pretends_to_be_it() -> None:
    with uevents.listen() as hearing, uevents.listen() as pretender:
        pretender.sendto(PLUGGED, (0, 1))
        NULL.write_text("change")
        hearing.setblocking(True)
        hearing.settimeout(10)
        while (event := uevents.receive(hearing)) is None or event.node != "null":
            assert event is None or event.path != "/devices/pci0000:00/usb1/1-4"
        assert event == Uevent("change", "/devices/virtual/mem/null", "mem", "null")
