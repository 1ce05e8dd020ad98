"""An encoder for a frequently written checkpoint, whose cost is proportional to the changes since the last write.

It returns the same bytes as `checkpoint.encode`, which takes a tenth of a second for 4,000 containers, mostly to hash
byte by byte. Here each piece of text is hashed once, and the effects of the pieces are composed. `checkpoint` defines
the format and the hash.
"""

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import compress, count, islice
from operator import is_not

from plugwright.protocol.checkpoint import (
    FNV_MASK,
    FNV_OFFSET,
    FNV_PRIME,
    GO_ENTRIES,
    GO_NIL,
    GO_REGISTERED,
    Checkpoint,
    DeviceLists,
    PodDevicesEntry,
    entry_members,
    fnv1a,
    go_json,
    go_printed_entry,
    go_printed_list,
)

__all__ = ["CheckpointEncoder"]

_INVERSE_PRIME = pow(FNV_PRIME, -1, FNV_MASK + 1)
_TABLES_PER_WRITE = 32  # about 15 ms: a thousand pods that come and go are fast after a while, and no write waits long
_MISSES_BEFORE_TABLE = 20  # this number costs as much as filling the table
_MAX_TABLE_TEXT = 2**16  # bytes, as of 4,000 devices; more would delay one allocation for too long
_LANE = 8  # bytes; a state times the prime has 57 bits
_LANES = int.from_bytes((b"\1" + bytes(_LANE - 1)) * 256, "little")


class CheckpointEncoder:
    """Keeps the pieces of the last checkpoint: an identical object in the next checkpoint is not encoded again."""

    def __init__(self) -> None:
        self._entries: Sequence[PodDevicesEntry] = ()
        self._pieces: list[_Piece] = []
        # The states of the hash before each entry, and after the last.
        self._states = [_before_separator(_hash(FNV_OFFSET, GO_ENTRIES + "["))]
        self._registered: dict[str, tuple[tuple[str, ...] | None, _Piece]] = {}

    def encode(self, checkpoint: Checkpoint) -> bytes:
        entries, state = self._encode_entries(checkpoint.entries)
        registered, state = self._encode_registered(checkpoint.registered, _hash(state, GO_REGISTERED))
        ending = b'},"Checksum":%d}' % _hash(state, "}")
        return b"".join([b'{"Data":{"PodDeviceEntries":', *entries, b',"RegisteredDevices":', *registered, ending])

    def _encode_entries(self, entries: tuple[PodDevicesEntry, ...] | None) -> tuple[Iterable[bytes], int]:
        if entries is None:
            return [b"null"], _hash(FNV_OFFSET, GO_ENTRIES + GO_NIL)
        self._update_pieces(entries)
        if not entries:
            return [b"[]"], _hash(FNV_OFFSET, GO_ENTRIES + "[]")
        return [b"[", *_joined(self._pieces), b"]"], _hash(self._states[-1], "]")

    def _update_pieces(self, entries: tuple[PodDevicesEntry, ...]) -> None:
        """Keeps everything before the first change, and after it the pieces of merely moved entries."""
        same = next(compress(count(), map(is_not, entries, self._entries)), min(len(entries), len(self._entries)))
        moved = {id(entry): piece for entry, piece in zip(self._entries[same:], self._pieces[same:], strict=True)}
        for piece in islice((piece for piece in moved.values() if not piece.has_table), _TABLES_PER_WRITE):
            piece.fill_table()
        pieces = [moved.get(id(entry)) or _entry_piece(entry) for entry in islice(entries, same, None)]
        del self._pieces[same:], self._states[same + 1 :]
        self._entries = entries
        for piece in pieces:
            self._pieces.append(piece)
            self._states.append(piece.after(self._states[-1]))

    def _encode_registered(self, registered: DeviceLists[str] | None, state: int) -> tuple[Iterable[bytes], int]:
        if registered is None:
            return [b"null"], _hash(state, GO_NIL)
        self._registered = {name: self._registered_piece(name, registered[name]) for name in sorted(registered)}
        if not registered:
            return [b"{}"], _hash(state, "map[]")
        pieces = [piece for _, piece in self._registered.values()]
        state = _before_separator(_hash(state, "map["))
        for piece in pieces:
            if piece.misses >= _MISSES_BEFORE_TABLE and len(piece.text) <= _MAX_TABLE_TEXT and not piece.has_table:
                piece.fill_table()
            state = piece.after(state)
        return [b"{", *_joined(pieces), b"}"], _hash(state, "]")

    def _registered_piece(
        self, name: str, device_ids: tuple[str, ...] | None
    ) -> "tuple[tuple[str, ...] | None, _Piece]":
        known = self._registered.get(name)
        if known and known[0] is device_ids:
            return known
        return device_ids, _piece(f"{go_json(name)}:{go_json(device_ids)}", f"{name}:{go_printed_list(device_ids)}")


@dataclass(slots=True)
class _Piece:
    """An item of a list with the separator before it: in the file, and in the hashed text.

    FNV-1a multiplies the state by the prime at every byte; the rest of the effect depends only on the text and on the
    lowest byte of the state. So a whole text is one multiplication and one of 256 additions, computed on first use.
    """

    json: bytes
    text: bytes
    factor: int
    additions: "array[int]" = field(default_factory=lambda: array("I", bytes(4 * 256)))  # 0: not computed yet
    misses: int = 0
    has_table: bool = False

    def after(self, state: int) -> int:
        """The state of the hash after this text."""
        low = state & 0xFF
        addition = self.additions[low]
        if not addition:
            self.misses += 1
            addition = self.additions[low] = (fnv1a(low, self.text) - low * self.factor) & FNV_MASK
        return (state * self.factor + addition) & FNV_MASK

    def fill_table(self) -> None:
        """Computes all additions together, at the cost of about twenty: a piece moves more than once."""
        states = _fnv1a_of_all_bytes(self.text)
        self.additions = array("I", ((state - low * self.factor) & FNV_MASK for low, state in enumerate(states)))
        self.has_table = True


def _entry_piece(entry: PodDevicesEntry) -> _Piece:
    return _piece(go_json(entry_members(entry)), go_printed_entry(entry))


def _piece(json: str, text: str) -> _Piece:
    separated = f" {text}".encode()
    return _Piece(f",{json}".encode(), separated, pow(FNV_PRIME, len(separated), FNV_MASK + 1))


def _joined(pieces: Sequence[_Piece]) -> Iterable[bytes]:
    first, *others = pieces
    return [first.json[1:], *[piece.json for piece in others]]


def _before_separator(state: int) -> int:
    """The state from which a separator leads to `state`, for a separator before the first piece too."""
    return (state * _INVERSE_PRIME) & FNV_MASK ^ ord(" ")


def _hash(state: int, text: str) -> int:
    return fnv1a(state, text.encode())


def _fnv1a_of_all_bytes(text: bytes) -> Sequence[int]:
    """`fnv1a` for the states 0 to 255 in parallel, each in its own lane of one large number."""
    states = int.from_bytes(b"".join(low.to_bytes(_LANE, "little") for low in range(256)), "little")
    spread, mask = {byte: _LANES * byte for byte in set(text)}, _LANES * FNV_MASK
    for byte in text:
        states = ((states ^ spread[byte]) * FNV_PRIME) & mask
    lanes = states.to_bytes(256 * _LANE, "little")
    return [int.from_bytes(lanes[at : at + _LANE], "little") for at in range(0, len(lanes), _LANE)]
