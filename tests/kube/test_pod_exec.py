"""exec in a container: its output, its errors, and servers that do not keep to the protocol."""

import json
from pathlib import Path

import pytest
from tests.kube.exec_server import daemon_pod, exec_server, frame

from plugwright.errors import MalformedMessage, PeerGone, PeerRefused, PlugwrightError
from plugwright.kube.access import ClusterAccess
from plugwright.kube.credentials import Credentials
from plugwright.kube.pod_exec import ExecTarget, exec_lines

SUCCESS = frame(3, b'{"status": "Success"}')
CONTAINER = ExecTarget("devices", "plugwright-x7", "plugwright")


def lines(frames: list[bytes]) -> list[bytes]:
    with exec_server([daemon_pod("plugwright-x7")]) as server:
        server.frames = frames
        access = ClusterAccess(server.url, Credentials("token"))
        return list(exec_lines(access, CONTAINER, ["plugwright", "request", "{}"], 10.0))


def test_the_output_of_a_command_is_read_by_line_whatever_its_frames() -> None:
    assert lines([frame(1, b"o"), frame(1, b"ne\ntw"), frame(1, b"o\n"), frame(1, b"rest"), SUCCESS]) == [
        b"one",
        b"two",
        b"rest",
    ]


def test_a_long_output_and_a_message_of_several_frames_are_read() -> None:
    long = b"x" * 100_000
    fragments = b"\x02\x03\x01ab" + b"\x80\x01c"
    assert lines([frame(1, long + b"\n"), fragments, SUCCESS]) == [long, b"abc"]


def test_pings_and_other_channels_are_no_output() -> None:
    assert lines([b"\x89\x04ping", frame(2, b"warning"), frame(1, b""), SUCCESS]) == []


def test_a_command_that_fails_is_refused_with_its_own_words() -> None:
    failure = {"status": "Failure", "reason": "NonZeroExitCode", "message": "exit code 1"}
    with pytest.raises(PeerRefused, match="plugwright: no daemon") as refused:
        lines([frame(2, b"plugwright: no daemon\x1b[31m here\n"), frame(3, json.dumps(failure).encode())])
    assert "\x1b" not in str(refused.value)


@pytest.mark.parametrize(
    ("frames", "error"),
    [
        ([], PeerGone),  # no status
        ([frame(3, b"[]")], PeerGone),
        ([frame(3, b"{" * 5000)], PeerGone),
        ([b"\x82\x85mask"], MalformedMessage),  # a server must not mask
        ([b"\xc2\x01\x01"], MalformedMessage),  # an extension that nobody asked for
        ([b"\x82\x7f" + b"\xff" * 8], MalformedMessage),
        ([b"\x02\x7f\x00\x00\x00\x00\x00\x0f\xff\xff" + b"x" * (2**20 - 1)] * 2, MalformedMessage),
        ([b"\x82\x7e\x10\x00short"], PeerGone),
    ],
)
def test_a_server_that_breaks_the_protocol_is_an_error(frames: list[bytes], error: type[PlugwrightError]) -> None:
    with pytest.raises(error):
        lines(frames)


def test_a_refused_exec_names_the_reason(tmp_path: Path) -> None:
    with exec_server([]) as server:
        access = ClusterAccess(server.url + "/elsewhere", Credentials("token"))
        with pytest.raises(PlugwrightError):
            next(exec_lines(access, ExecTarget("a", "b/../c", "d"), ["x"], 10.0))
        assert "b%2F..%2Fc" in server.requests[0]
