import struct
import zlib

import pytest

from plugwright.apiserver import spdy
from plugwright.errors import MalformedMessage


def opening(block: bytes) -> bytes:
    compressor = zlib.compressobj(zdict=spdy._DICTIONARY)
    payload = struct.pack(">IIBB", 1, 0, 0, 0) + compressor.compress(block) + compressor.flush(zlib.Z_SYNC_FLUSH)
    return struct.pack(">HHI", 0x8003, 1, len(payload)) + payload


def words(*each: bytes) -> bytes:
    return struct.pack(">I", len(each) // 2) + b"".join(struct.pack(">I", len(word)) + word for word in each)


def test_the_dictionary_is_the_one_of_the_standard() -> None:
    # Every compressed header begins with this number: two sides with other dictionaries do not understand each other.
    assert zlib.adler32(spdy._DICTIONARY) == 0xE3C6A7C2


def test_frames_may_arrive_octet_by_octet() -> None:
    reader, events = spdy.SpdyReader(), list[spdy.StreamEvent]()
    for octet in opening(words(b"Port", b"80")) + struct.pack(">II", 1, (1 << 24) | 2) + b"hi":
        events += reader.feed(bytes((octet,)))
    assert events == [spdy.StreamOpened(1, {"port": "80"}), spdy.StreamData(1, b"hi", is_ended=True)]


@pytest.mark.parametrize(
    "block",
    [struct.pack(">II", 1, 1) + b"a", struct.pack(">I", 2**31), words(b"\xff", b"1"), words(b"a", b"x" * 2**17)],
)
def test_headers_that_cannot_be_read_are_malformed(block: bytes) -> None:
    with pytest.raises(MalformedMessage, match="SPDY headers"):
        list(spdy.SpdyReader().feed(opening(block)))
