"""Uevents: which messages are events, and which only look like one."""

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


def test_a_uevent_is_parsed() -> None:
    assert hotplug.parse(PLUGGED) == Uevent("add", "/devices/pci0000:00/usb1/1-4", "usb", "bus/usb/001/004")
    assert hotplug.parse(b"unbind@/devices/a\0SUBSYSTEM=pci\0") == Uevent("unbind", "/devices/a", "pci", "")


@pytest.mark.parametrize("message", [b"", b"\0", b"libudev\0\xfe\xed\xca\xfe", b"add", b"add@relative\0", b"@\0"])
def test_a_message_that_is_no_uevent_is_ignored(message: bytes) -> None:
    assert hotplug.parse(message) is None


@given(st.binary(max_size=200))
def test_any_bytes_are_parsed_without_an_error(message: bytes) -> None:
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


@pytest.mark.skipif(
    os.geteuid() != 0 or not os.access(NULL, os.W_OK), reason="making the kernel send an event needs root"
)
def test_uevents_of_the_kernel_are_received_and_those_of_another_sender_are_not() -> None:
    with hotplug.open_uevent_socket() as connection, hotplug.open_uevent_socket() as pretender:
        pretender.sendto(PLUGGED, (0, 1))
        NULL.write_text("change")
        connection.setblocking(True)
        connection.settimeout(10)
        while (event := hotplug.receive(connection)) is None or event.node != "null":
            assert event is None or event.path != "/devices/pci0000:00/usb1/1-4"
        assert event == Uevent("change", "/devices/virtual/mem/null", "mem", "null")
