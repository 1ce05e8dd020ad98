"""Objects as the store keeps them: at first as written, later packed.

The objects of a kind are very similar. Packed, as JSON compressed with another of them as the dictionary, an object
takes at most a twentieth of its memory, and the garbage collector does not traverse its parts.
"""

import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, overload

import msgspec

__all__ = ["Object", "StoredObject", "StoredObjects"]

Object = dict[str, Any]  # type: ignore[explicit-any,unused-ignore]  # JSON, as clients send it

_RAW = -14  # a window of 16 KiB, without a header and a checksum
_MEMORY = 7  # a quarter of the default's time, which is spent on larger tables for every object
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Object).decode


class StoredObject:
    """One version of an object; `version` is its resource version."""

    __slots__ = ("_content", "_dictionary", "version")

    def __init__(self, content: Object, version: str) -> None:
        self.version = version
        self._content: Object | bytes = content
        self._dictionary = b""

    @property
    def content(self) -> Object:
        return _decode(self.json) if isinstance(self._content, bytes) else self._content

    @property
    def json(self) -> bytes:
        if not isinstance(self._content, bytes):
            return _encode(self._content)
        return zlib.decompressobj(_RAW, self._dictionary).decompress(self._content)

    def pack(self, dictionary: bytes) -> None:
        """Packs it; `dictionary` is the JSON of a similar object."""
        packing = zlib.compressobj(zlib.Z_BEST_SPEED, wbits=_RAW, memLevel=_MEMORY, zdict=dictionary)
        self._content = packing.compress(self.json) + packing.flush()
        self._dictionary = dictionary


class StoredObjects(Sequence[Object]):
    """Objects of one moment in their order; each is unpacked when it is read, and not kept."""

    def __init__(self, stored: Iterable[StoredObject]) -> None:
        self._stored = tuple(stored)

    def raw(self) -> list[msgspec.Raw]:
        """The objects as parts of a JSON document for msgspec, without unpacking them."""
        return [msgspec.Raw(stored.json) for stored in self._stored]

    def __iter__(self) -> Iterator[Object]:
        return (stored.content for stored in self._stored)

    def __len__(self) -> int:
        return len(self._stored)

    @overload
    def __getitem__(self, index: int) -> Object: ...

    @overload
    def __getitem__(self, index: slice) -> "StoredObjects": ...

    def __getitem__(self, index: int | slice) -> "Object | StoredObjects":
        if isinstance(index, slice):
            return StoredObjects(self._stored[index])
        return self._stored[index].content
