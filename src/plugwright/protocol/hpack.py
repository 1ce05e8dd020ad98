"""HPACK (RFC 7541): header blocks to fields and back.

The decoder is complete: dynamic table, Huffman, size updates. The encoder writes literals only, which every decoder
reads: our own headers are constant and are encoded once.
"""

from collections.abc import Iterable
from functools import lru_cache

__all__ = ["Decoder", "Field", "HeadersTooLarge", "HpackError", "encode"]

Field = tuple[bytes, bytes]  # name, value

TABLE_SIZE = 4096  # of the dynamic table: the protocol's default, which we do not change
_ENTRY_OVERHEAD = 32  # octets that an entry counts beyond its name and value (4.1)

_STATIC: tuple[Field, ...] = tuple(
    (name, value)
    for name, _, value in (
        line.partition(b" ")
        for line in (
            b":authority|:method GET|:method POST|:path /|:path /index.html|:scheme http|:scheme https|:status 200|"
            b":status 204|:status 206|:status 304|:status 400|:status 404|:status 500|accept-charset|"
            b"accept-encoding gzip, deflate|accept-language|accept-ranges|accept|access-control-allow-origin|age|allow|"
            b"authorization|cache-control|content-disposition|content-encoding|content-language|content-length|"
            b"content-location|content-range|content-type|cookie|date|etag|expect|expires|from|host|if-match|"
            b"if-modified-since|if-none-match|if-range|if-unmodified-since|last-modified|link|location|max-forwards|"
            b"proxy-authenticate|proxy-authorization|range|referer|refresh|retry-after|server|set-cookie|"
            b"strict-transport-security|transfer-encoding|user-agent|vary|via|www-authenticate"
        ).split(b"|")
    )
)
_STATIC_NAMES = {name: len(_STATIC) - number for number, (name, _) in enumerate(reversed(_STATIC))}
_STATIC_FIELDS = {field: number for number, field in enumerate(_STATIC, 1)}


class HpackError(Exception):
    """An undecodable header block; nothing after it on the connection can be decoded either."""


class HeadersTooLarge(Exception):
    """A decoded header block over the limit; the decoder can continue with the next block."""


class Decoder:
    """Decodes the header blocks of one connection, in the order they arrive."""

    def __init__(self, limit: int) -> None:
        self.version = 0  # changes with every change of the dynamic table: a block means the same while it does not
        self._limit = limit
        self._table: list[Field] = []  # the newest first; at most 128, and mostly none
        self._size = 0
        self._maximum = TABLE_SIZE

    def decode(self, block: bytes) -> tuple[Field, ...]:
        """The fields; `HeadersTooLarge` if they count more octets than the limit."""
        fields: list[Field] = []
        left, position = self._limit, 0
        try:
            while position < len(block):
                octet = block[position]
                if octet & 0xE0 == 0x20:
                    position = self._resize(block, position, bool(fields) or left != self._limit)
                    continue
                field, position = self._field(block, position)
                left -= _weight(field)
                if left >= 0:  # an entry of the table costs one octet each time it is named: none is kept beyond
                    fields.append(field)
        except IndexError:
            raise HpackError("header block ends in the middle of a field") from None
        if left < 0:
            raise HeadersTooLarge(f"headers of more than {self._limit} octets")
        return tuple(fields)

    def _field(self, block: bytes, position: int) -> tuple[Field, int]:
        octet = block[position]
        if octet & 0x80:
            index, position = _integer(block, position, 7)
            return self._entry(index), position
        is_indexed = octet & 0xC0 == 0x40
        index, position = _integer(block, position, 6 if is_indexed else 4)
        if index:
            name = self._entry(index)[0]
        else:
            name, position = _string(block, position)
        value, position = _string(block, position)
        if is_indexed:
            self._insert((name, value))
        return (name, value), position

    def _entry(self, index: int) -> Field:
        if index == 0:
            raise HpackError("header field with index 0")
        if index <= len(_STATIC):
            return _STATIC[index - 1]
        if index - len(_STATIC) > len(self._table):
            raise HpackError(f"header field with index {index} beyond the table")
        return self._table[index - len(_STATIC) - 1]

    def _insert(self, field: Field) -> None:
        self.version += 1
        self._table.insert(0, field)
        self._size += _weight(field)
        self._evict()

    def _resize(self, block: bytes, position: int, is_late: bool) -> int:
        size, position = _integer(block, position, 5)
        if is_late:
            raise HpackError("size of the dynamic table updated after a header field")
        if size > TABLE_SIZE:
            raise HpackError(f"dynamic table of {size} octets, the limit is {TABLE_SIZE}")
        if size != self._maximum:
            self.version += 1
        self._maximum = size
        self._evict()
        return position

    def _evict(self) -> None:
        while self._size > self._maximum:
            self._size -= _weight(self._table.pop())


def _weight(field: Field) -> int:
    return len(field[0]) + len(field[1]) + _ENTRY_OVERHEAD


def _integer(block: bytes, position: int, bits: int) -> tuple[int, int]:
    mask = (1 << bits) - 1
    value = block[position] & mask
    position += 1
    if value < mask:
        return value, position
    for shift in range(0, 28, 7):
        octet = block[position]
        position += 1
        value += (octet & 0x7F) << shift
        if octet < 0x80:
            return value, position
    raise HpackError("integer of more than 32 bits in a header block")


def _string(block: bytes, position: int) -> tuple[bytes, int]:
    is_huffman = block[position] & 0x80
    length, position = _integer(block, position, 7)
    end = position + length
    if end > len(block):
        raise HpackError("header block ends in the middle of a string")
    text = block[position:end]
    if is_huffman:
        text = _from_short_huffman(text) if length <= _SHORT else _from_huffman(text)
    return text, end


# The Huffman code is canonical: sorted by length and symbol, each code is its predecessor plus one. So the lengths say
# it all. Symbol 256 is the end of the string, which must not occur in one.
_HUFFMAN_LENGTHS = {
    5: b"012aceiost",
    6: b" %-./3456789=A_bdfghlmnpru",
    7: b":BCDEFGHIJKLMNOPQRSTUVWYjkqvwxyz",
    8: b"&*,;XZ",
    10: b'!"()?',
    11: b"'+|",
    12: b"#>",
    13: b"\x00$@[]~",
    14: b"^}",
    15: b"<`{",
    19: b"\x5c\xc3\xd0",
    20: b"\x80\x82\x83\xa2\xb8\xc2\xe0\xe2",
    21: b"\x99\xa1\xa7\xac\xb0\xb1\xb3\xd1\xd8\xd9\xe3\xe5\xe6",
    22: bytes.fromhex("8184858688929a9ca0a3a4a9aaadb2b5b9babbbdbec4c6e4e8e9"),
    23: bytes.fromhex("0187898a8b8c8d8f93959697989b9d9ea5a6a8aeafb4b6b7bcbfc5e7ef"),
    24: b"\x09\x8e\x90\x91\x94\x9f\xab\xce\xd7\xe1\xec\xed",
    25: b"\xc7\xcf\xea\xeb",
    26: b"\xc0\xc1\xc8\xc9\xca\xcd\xd2\xd5\xda\xdb\xee\xf0\xf2\xf3\xff",
    27: b"\xcb\xcc\xd3\xd4\xd6\xdd\xde\xdf\xf1\xf4\xf5\xf6\xf7\xf8\xfa\xfb\xfc\xfd\xfe",
    28: bytes.fromhex("02030405060708 0b0c 0e0f101112131415 1718191a1b1c1d1e1f 7f dc f9"),
    30: b"\x0a\x0d\x16",
}


def _codes() -> dict[int, int]:
    """Symbols by their codes, each code with a 1 before it to make its length part of it."""
    codes: dict[int, int] = {}
    code = before = 0
    for length, symbols in sorted(_HUFFMAN_LENGTHS.items()):
        code <<= length - before
        before = length
        for symbol in symbols:
            codes[1 << length | code] = symbol
            code += 1
    return codes


_HUFFMAN = _codes()


def _from_huffman(data: bytes) -> bytes:
    decoded = bytearray()
    code = 1
    for octet in data:
        for shift in (7, 6, 5, 4, 3, 2, 1, 0):
            code = code << 1 | octet >> shift & 1
            symbol = _HUFFMAN.get(code)
            if symbol is not None:
                decoded.append(symbol)
                code = 1
        if code >> 31:
            raise HpackError("end of string inside a Huffman string")
    if code > 0xFF or code & (code + 1):  # the rest is padding: at most seven bits, all of them ones
        raise HpackError("Huffman string with bad padding")
    return bytes(decoded)


_SHORT = 64  # octets
# A reconnecting client sends the same strings, such as a method's path: decoding one takes 20 to 50 µs.
_from_short_huffman = lru_cache(maxsize=128)(_from_huffman)


def encode(fields: Iterable[Field]) -> bytes:
    """A header block for any decoder, which neither uses nor changes its dynamic table."""
    return b"".join(map(_encoded, fields))


def _encoded(field: Field) -> bytes:
    name, value = field
    if field in _STATIC_FIELDS:
        return _prefixed(_STATIC_FIELDS[field], 7, 0x80)
    index = _STATIC_NAMES.get(name, 0)
    written = _prefixed(index, 4, 0)
    return written + (b"" if index else _literal(name)) + _literal(value)


def _literal(text: bytes) -> bytes:
    return _prefixed(len(text), 7, 0) + text


def _prefixed(value: int, bits: int, flags: int) -> bytes:
    mask = (1 << bits) - 1
    if value < mask:
        return bytes((flags | value,))
    written = bytearray((flags | mask,))
    value -= mask
    while value >= 0x80:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    written.append(value)
    return bytes(written)
