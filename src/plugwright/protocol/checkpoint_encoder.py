"""Encodes one checkpoint again and again, at the cost of what changed since the last time.

Gives the bytes that `checkpoint.encode` gives. That takes a tenth of a second for 4,000 containers, nearly all of it
for the checksum, byte by byte; here a piece of text is hashed once, and composed with the others.
"""

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import compress, count, islice
from operator import is_not

from plugwright.protocol.checkpoint import (
    Checkpoint,
    Lists,
    PodDevicesEntry,
    entry_members,
    go_json,
    printed_entry,
    printed_list,
)

__all__ = ["Encoder"]

_START, _PRIME, _MASK = 2166136261, 16777619, 0xFFFFFFFF
_INVERSE = pow(_PRIME, -1, _MASK + 1)
_HEAD = b"(checkpoint.checkpointData){PodDeviceEntries:([]checkpoint.PodDevicesEntry)"
_MIDDLE = b" RegisteredDevices:(map[string][]string)"
_LEARNED_AT_ONCE = 32  # about 15 ms: a thousand pods that come and go are fast after a while, and none has to wait long
_WORTH_LEARNING = 20  # misses cost as much as learning
_LEARNABLE = 2**16  # bytes, as of 4,000 devices; more would hold up one allocation for too long
_LANE = 8  # bytes; a state times the prime has 57 bits
_LANES = int.from_bytes((b"\1" + bytes(_LANE - 1)) * 256, "little")


class Encoder:
    """Remembers the last checkpoint: what is in the next one too, as the same object, is not encoded again."""

    def __init__(self) -> None:
        self._entries: Sequence[PodDevicesEntry] = ()
        self._pieces: list[_Piece] = []
        # Of the checksum: before each entry, and after the last.
        self._states = [_before_first(_hashed(_START, _HEAD + b"["))]
        self._registered: dict[str, tuple[tuple[str, ...] | None, _Piece]] = {}

    def encode(self, checkpoint: Checkpoint) -> bytes:
        entries, state = self._encode_entries(checkpoint.entries)
        registered, state = self._encode_registered(checkpoint.registered, _hashed(state, _MIDDLE))
        ending = b'},"Checksum":%d}' % _hashed(state, b"}")
        return b"".join([b'{"Data":{"PodDeviceEntries":', *entries, b',"RegisteredDevices":', *registered, ending])

    def _encode_entries(self, entries: tuple[PodDevicesEntry, ...] | None) -> tuple[Iterable[bytes], int]:
        if entries is None:
            return [b"null"], _hashed(_START, _HEAD + b"<nil>")
        self._follow(entries)
        if not entries:
            return [b"[]"], _hashed(_START, _HEAD + b"[]")
        return [b"[", *_separated(self._pieces), b"]"], _hashed(self._states[-1], b"]")

    def _follow(self, entries: tuple[PodDevicesEntry, ...]) -> None:
        """Keeps what stands before the first change; of what comes after, the pieces of entries that moved."""
        same = next(compress(count(), map(is_not, entries, self._entries)), min(len(entries), len(self._entries)))
        moved = {id(entry): piece for entry, piece in zip(self._entries[same:], self._pieces[same:], strict=True)}
        for piece in islice((piece for piece in moved.values() if not piece.learned), _LEARNED_AT_ONCE):
            piece.learn()
        pieces = [moved.get(id(entry)) or _entry_piece(entry) for entry in islice(entries, same, None)]
        del self._pieces[same:], self._states[same + 1 :]
        self._entries = entries
        for piece in pieces:
            self._pieces.append(piece)
            self._states.append(piece.after(self._states[-1]))

    def _encode_registered(self, registered: Lists[str] | None, state: int) -> tuple[Iterable[bytes], int]:
        if registered is None:
            return [b"null"], _hashed(state, b"<nil>")
        self._registered = {name: self._kept(name, registered[name]) for name in sorted(registered)}
        if not registered:
            return [b"{}"], _hashed(state, b"map[]")
        pieces = [piece for _, piece in self._registered.values()]
        state = _before_first(_hashed(state, b"map["))
        for piece in pieces:
            if piece.misses >= _WORTH_LEARNING and len(piece.text) <= _LEARNABLE and not piece.learned:
                piece.learn()
            state = piece.after(state)
        return [b"{", *_separated(pieces), b"}"], _hashed(state, b"]")

    def _kept(self, name: str, device_ids: tuple[str, ...] | None) -> "tuple[tuple[str, ...] | None, _Piece]":
        known = self._registered.get(name)
        return known if known and known[0] is device_ids else (device_ids, _registered_piece(name, device_ids))


@dataclass(slots=True)
class _Piece:
    """A part of a list, with the separator before it: in the file, and in the text that is hashed.

    FNV-1a multiplies the state by the prime at every byte; what else it adds depends on the text and on the lowest byte
    of the state alone. So a whole text is one multiplication and one of 256 additions, found when first needed.
    """

    json: bytes
    text: bytes
    factor: int
    additions: "array[int]" = field(default_factory=lambda: array("I", bytes(4 * 256)))  # 0: not found yet
    misses: int = 0
    learned: bool = False

    def after(self, state: int) -> int:
        """The state once this text is hashed too."""
        low = state & 0xFF
        addition = self.additions[low]
        if not addition:
            self.misses += 1
            addition = self.additions[low] = (_hashed(low, self.text) - low * self.factor) & _MASK
        return (state * self.factor + addition) & _MASK

    def learn(self) -> None:
        """Finds all additions at once, at the cost of some twenty: a piece that moved once will move again."""
        states = _hashed_from_each_byte(self.text)
        self.additions = array("I", ((state - low * self.factor) & _MASK for low, state in enumerate(states)))
        self.learned = True


def _entry_piece(entry: PodDevicesEntry) -> _Piece:
    return _piece(go_json(entry_members(entry)), printed_entry(entry))


def _registered_piece(name: str, device_ids: tuple[str, ...] | None) -> _Piece:
    return _piece(f"{go_json(name)}:{go_json(device_ids)}", f"{name}:{printed_list(device_ids)}")


def _piece(json: str, text: str) -> _Piece:
    hashed = f" {text}".encode()
    return _Piece(f",{json}".encode(), hashed, pow(_PRIME, len(hashed), _MASK + 1))


def _separated(pieces: Sequence[_Piece]) -> Iterable[bytes]:
    first, *others = pieces
    return [first.json[1:], *[piece.json for piece in others]]


def _before_first(state: int) -> int:
    """The state from which a separator leads to this one: so that the first piece, too, may have one."""
    return (state * _INVERSE) & _MASK ^ ord(" ")


def _hashed(state: int, text: bytes) -> int:
    for byte in text:
        state = ((state ^ byte) * _PRIME) & _MASK
    return state


def _hashed_from_each_byte(text: bytes) -> Sequence[int]:
    """`_hashed` for the states 0 to 255 in one go, each in a lane of one large number."""
    states = int.from_bytes(b"".join(low.to_bytes(_LANE, "little") for low in range(256)), "little")
    spread, mask = {byte: _LANES * byte for byte in set(text)}, _LANES * _MASK
    for byte in text:
        states = ((states ^ spread[byte]) * _PRIME) & mask
    lanes = states.to_bytes(256 * _LANE, "little")
    return [int.from_bytes(lanes[at : at + _LANE], "little") for at in range(0, len(lanes), _LANE)]
