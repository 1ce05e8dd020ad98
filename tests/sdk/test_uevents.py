"""The kernel's news: what is one, and what only looks like one."""

import os
import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plugwright.sdk import hotplug
from plugwright.sdk.hotplug import Uevent

PLUGGED = (
    b"add@/devices/pci0000:00/usb1/1-4\0ACTION=add\0DEVPATH=/devices/pci0000:00/usb1/1-4\0"
    b"SUBSYSTEM=usb\0DEVNAME=bus/usb/001/004\0SEQNUM=1\0"
)
NULL = Path("/sys/class/mem/null/uevent")


def test_an_event_says_what_happened_to_what() -> None:
    assert hotplug.parse(PLUGGED) == Uevent("add", "/devices/pci0000:00/usb1/1-4", "usb", "bus/usb/001/004")
    assert hotplug.parse(b"unbind@/devices/a\0SUBSYSTEM=pci\0") == Uevent("unbind", "/devices/a", "pci", "")


@pytest.mark.parametrize("message", [b"", b"\0", b"libudev\0\xfe\xed\xca\xfe", b"add", b"add@relative\0", b"@\0"])
def test_what_is_no_event_is_passed_over(message: bytes) -> None:
    assert hotplug.parse(message) is None


@given(st.binary(max_size=200))
def test_no_bytes_break_it(message: bytes) -> None:
    event = hotplug.parse(message)
    assert event is None or event.path.startswith("/")


def test_events_come_one_by_one_until_there_are_no_more() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with ours, theirs:
        ours.setblocking(False)
        theirs.send(PLUGGED)
        theirs.send(b"nonsense")
        assert hotplug.receive(ours) is not None
        assert hotplug.receive(ours) is None
        with pytest.raises(BlockingIOError):
            hotplug.receive(ours)


@pytest.mark.skipif(os.geteuid() != 0 or not os.access(NULL, os.W_OK), reason="making the kernel speak needs root")
def test_the_kernel_is_heard_and_nobody_who_pretends_to_be_it() -> None:
    with hotplug.listen_to_kernel() as hearing, hotplug.listen_to_kernel() as pretender:
        pretender.sendto(PLUGGED, (0, 1))
        NULL.write_text("change")
        hearing.setblocking(True)
        hearing.settimeout(10)
        while (event := hotplug.receive(hearing)) is None or event.node != "null":
            assert event is None or event.path != "/devices/pci0000:00/usb1/1-4"
        assert event == Uevent("change", "/devices/virtual/mem/null", "mem", "null")
