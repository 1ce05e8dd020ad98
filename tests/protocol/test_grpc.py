"""gRPC's own part of the wire: messages, deadlines, error texts."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from plugwright.protocol import grpc
from plugwright.protocol.grpc import GrpcError, MessageReader, Status


@given(st.lists(st.binary(max_size=50), max_size=6), st.lists(st.integers(1, 20), min_size=1, max_size=8))
def test_messages_arrive_whole_however_the_data_is_cut(messages: list[bytes], sizes: list[int]) -> None:
    data, reader, read = b"".join(map(grpc.prefixed, messages)), MessageReader(50), []
    position = number = 0
    while position < len(data):
        size = sizes[number % len(sizes)]
        read += reader.feed(data[position : position + size])
        position, number = position + size, number + 1
    assert read == messages
    assert reader.is_between_messages


@pytest.mark.parametrize("cut", [5, 6, 9])
def test_a_message_over_the_limit_is_refused_by_its_prefix(cut: int) -> None:
    with pytest.raises(GrpcError, match=r"larger than max \(11 vs. 10\)") as refused:
        MessageReader(10).feed(grpc.prefixed(b"x" * 11)[:cut])
    assert refused.value.status is Status.RESOURCE_EXHAUSTED
    reader = MessageReader(10)
    assert reader.feed(b"\0\0\0\0") == []
    with pytest.raises(GrpcError, match="larger than max"):
        reader.feed(b"\x0b")


@given(st.floats(0, 1e9, allow_nan=False))
@example(0.1)  # 100,000,000 ns
@example(100.0)
def test_a_timeout_has_at_most_eight_digits_and_is_read_back(seconds: float) -> None:
    written = grpc.encode_timeout(seconds)
    assert len(written) <= 9
    assert grpc.decode_timeout(written) == pytest.approx(seconds, rel=1e-4, abs=1e-8)


@pytest.mark.parametrize("text", [b"", b"s", b"1", b"1x", b"-1S", b"123456789S", b"1.5S", "\u0661S".encode()])
def test_a_text_that_is_no_timeout_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"grpc-timeout|ascii"):
        grpc.decode_timeout(text)


@given(st.text())
def test_an_error_text_is_read_back_and_travels_as_printable_ascii(text: str) -> None:
    sent = grpc.encode_text(text)
    assert all(0x20 <= octet < 0x7F for octet in sent)
    assert grpc.decode_text(sent) == text.encode("utf-8", "backslashreplace").decode()
