"""Protobuf's wire format: a message as its fields by number, from bytes and to bytes.

Limited to the types of the kubelet's APIs: strings, integers, booleans and nested messages. Unknown fields and fields
of an unexpected type are skipped, as in protobuf. `messages`, `registration` and `pod_resources` define the field
numbers; the `.proto` files in tests/proto list them all.
"""

from plugwright.errors import MalformedMessage

__all__ = [
    "Fields",
    "flag",
    "integer",
    "message",
    "messages",
    "read",
    "text",
    "texts",
    "varint",
    "varints",
    "write",
    "write_flag",
    "write_integer",
    "write_text",
]

Fields = dict[int, list[int | bytes]]

_VARINT, _FIXED_64, _BYTES, _FIXED_32 = 0, 1, 2, 5
_FIXED_SIZES = {_FIXED_64: 8, _FIXED_32: 4}
_VARINT_LIMIT = 10  # octets
_TAG_LIMIT = 2**32
_MASK, _SIGN = 2**64 - 1, 2**63
_LENGTHS = [bytes([length]) for length in range(128)]
_TAGS = [bytes([number << 3 | _BYTES]) for number in range(16)]  # of numbers that fit into one octet


def read(data: bytes) -> Fields:
    """The values of every field in order; `MalformedMessage` if the bytes are not a message.

    For a field of fixed size, which none of the APIs has, only the number.
    """
    fields: Fields = {}
    position, size = 0, len(data)
    while position < size:
        tag, position = _read_varint(data, position)
        number, kind = tag >> 3, tag & 7
        if not number or tag >= _TAG_LIMIT:
            raise MalformedMessage(f"field must have a number from 1 to {_TAG_LIMIT // 8 - 1}, got {number}")
        value: int | bytes
        if kind == _VARINT:
            value, position = _read_varint(data, position)
        else:
            if kind == _BYTES:
                length, position = _read_varint(data, position)
            elif kind in _FIXED_SIZES:
                length = _FIXED_SIZES[kind]
            else:
                raise MalformedMessage(f"field {number} is of kind {kind}, which no message has")
            value, position = data[position : position + length], position + length
            if position > size:
                raise MalformedMessage(f"field {number} ends {position - size} octets beyond the message")
            if kind != _BYTES:
                fields.setdefault(number, [])
                continue
        values = fields.get(number)
        if values is None:
            fields[number] = [value]
        else:
            values.append(value)
    return fields


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
    """The value and its end position."""
    try:
        octet = data[position]
        if octet < 128:
            return octet, position + 1
        value, shift = octet & 127, 7
        for end in range(position + 1, position + _VARINT_LIMIT):
            octet = data[end]
            value |= (octet & 127) << shift
            if octet < 128:
                return value & _MASK, end + 1
            shift += 7
    except IndexError:
        raise MalformedMessage("message ends within a number") from None
    raise MalformedMessage(f"number must have at most {_VARINT_LIMIT} octets")


def texts(fields: Fields, number: int) -> list[str]:
    """Of a repeated field."""
    try:
        return [value.decode() for value in fields.get(number, ()) if isinstance(value, bytes)]
    except UnicodeDecodeError as error:
        raise MalformedMessage(f"field {number} must be UTF-8: {error.reason}") from None


def text(fields: Fields, number: int) -> str:
    """The last one counts."""
    found = texts(fields, number)
    return found[-1] if found else ""


def integer(fields: Fields, number: int) -> int:
    """Of 64 bits, with its sign."""
    value = next((value for value in reversed(fields.get(number, ())) if isinstance(value, int)), 0)
    return value - 2 * _SIGN if value >= _SIGN else value


def flag(fields: Fields, number: int) -> bool:
    return integer(fields, number) != 0


def messages(fields: Fields, number: int) -> list[Fields]:
    """Of a repeated field."""
    return [read(value) for value in fields.get(number, ()) if isinstance(value, bytes)]


def message(fields: Fields, number: int) -> Fields | None:
    """None if absent; several are merged into a value with the fields of all."""
    parts = messages(fields, number)
    for part in parts[1:]:
        for inner, values in part.items():
            parts[0].setdefault(inner, []).extend(values)
    return parts[0] if parts else None


def write(number: int, data: bytes) -> bytes:
    """A message or a string, which can be empty; `number` is below 16."""
    length = len(data)
    return _TAGS[number] + (_LENGTHS[length] if length < 128 else varint(length)) + data


def write_text(number: int, text: str) -> bytes:
    """Nothing for an empty string, as for every default value."""
    return write(number, text.encode()) if text else b""


def write_integer(number: int, value: int) -> bytes:
    return _LENGTHS[number << 3] + varint(value) if value else b""


def write_flag(number: int, value: bool) -> bytes:
    return write_integer(number, int(value))


def varints(data: bytes) -> list[int]:
    """The numbers of a packed list, without their signs."""
    position, numbers = 0, list[int]()
    while position < len(data):
        number, position = _read_varint(data, position)
        numbers.append(number)
    return numbers


def varint(value: int) -> bytes:
    """A number on the wire; a negative number has ten octets."""
    value &= _MASK
    octets = bytearray()
    while value > 127:
        octets.append(value & 127 | 128)
        value >>= 7
    octets.append(value)
    return bytes(octets)
