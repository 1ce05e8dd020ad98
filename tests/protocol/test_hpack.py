"""Header blocks are decoded as the hpack library, our oracle, encodes them, and the other way round."""

import hpack as oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plugwright.protocol.hpack import Decoder, HeadersTooLarge, HpackError, encode

NAMES = st.sampled_from([b":path", b":method", b"te", b"content-type", b"grpc-timeout", b"x-a", b"x-b"]) | st.binary(
    min_size=1, max_size=12
)
FIELDS = st.lists(st.tuples(NAMES, st.binary(max_size=40)), max_size=8)


@settings(max_examples=150)
@given(st.lists(st.tuples(FIELDS, st.booleans(), st.sampled_from([None, 0, 60, 200, 4096])), max_size=12))
def test_blocks_of_one_connection_mean_what_the_oracle_wrote(
    blocks: list[tuple[list[tuple[bytes, bytes]], bool, int | None]],
) -> None:
    encoder, decoder = oracle.Encoder(), Decoder(1 << 20)
    for fields, is_huffman, table_size in blocks:
        if table_size is not None:
            encoder.header_table_size = table_size
        assert list(decoder.decode(encoder.encode(fields, huffman=is_huffman))) == fields


@given(FIELDS)
def test_what_we_encode_the_oracle_decodes_and_its_table_stays_as_it_is(fields: list[tuple[bytes, bytes]]) -> None:
    decoder = oracle.Decoder()
    assert [tuple(field) for field in decoder.decode(encode(fields), raw=True)] == fields
    assert not decoder.header_table.dynamic_entries


@settings(max_examples=500)
@given(st.lists(st.binary(max_size=60), max_size=4))
def test_any_bytes_are_decoded_as_by_the_oracle_or_refused(blocks: list[bytes]) -> None:
    ours, theirs = Decoder(1 << 20), oracle.Decoder()
    for block in blocks:
        try:
            fields = ours.decode(block)
        except HpackError:
            return
        assert [tuple(field) for field in theirs.decode(block, raw=True)] == list(fields)


@pytest.mark.parametrize(
    ("block", "problem"),
    [
        (b"\x80", "index 0"),
        (b"\xbe", "beyond the table"),
        (b"\x82\x20", "after a header field"),
        (b"\x3f\xe2\x1f", "limit is 4096"),
        (b"\x00\x01", "ends in the middle"),
        (b"\x00\x05ab", "ends in the middle"),
        (b"\xff\xff\xff\xff\xff\xff\xff", "more than 32 bits"),
        (b"\x00\x81\xff\x00", "padding"),
        (b"\x00\x81\x18\x00", "padding"),
        (b"\x00\x84\xff\xff\xff\xff\x00", "end of string"),
    ],
)
def test_a_block_that_breaks_a_rule_is_refused(block: bytes, problem: str) -> None:
    with pytest.raises(HpackError, match=problem):
        Decoder(1 << 20).decode(block)


def test_a_list_beyond_the_limit_is_refused_without_being_kept_and_the_table_goes_on() -> None:
    decoder, encoder = Decoder(10_000), oracle.Encoder()
    encoder.encode([])
    bomb = encoder.encode([(b"x", b"a" * 3_000)]) + b"\xbe" * 1_000_000
    with pytest.raises(HeadersTooLarge, match="10000"):
        decoder.decode(bomb)
    assert decoder.decode(b"\xbe") == ((b"x", b"a" * 3_000),)


def test_the_version_changes_with_the_table_alone() -> None:
    decoder = Decoder(10_000)
    decoder.decode(b"\x82\x00\x01a\x01b")
    assert decoder.version == 0
    decoder.decode(b"\x40\x01a\x01b")
    assert decoder.version == 1
    decoder.decode(b"\xbe")
    assert decoder.version == 1
    decoder.decode(b"\x20")
    assert decoder.version == 2
