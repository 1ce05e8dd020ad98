"""Hints for errors in the operator's file: the keys and values that could have been meant.

Loaded only when there is an error to explain: inspecting types takes 7 ms, which a daemon with a valid file saves.
"""

import difflib
import re
from collections.abc import Iterable, Iterator
from typing import Any

from msgspec import inspect
from msgspec.inspect import DictType, EnumType, ListType, LiteralType, Metadata, StructType, UnionType

__all__ = ["choices_at", "did_you_mean", "keys_at"]

_STEP = re.compile(r"\.(?P<key>[^.\[\]]+)|\[(?P<item>[^\]]*)\]")


def did_you_mean(key: str, known: Iterable[str]) -> str:
    """`: did you mean 'count'?`, or nothing if no known key is close."""
    return "".join(f": did you mean '{close}'?" for close in difflib.get_close_matches(key, sorted(known), n=1))


def keys_at(kind: Any, path: str) -> set[str]:
    """The keys that a value of `kind` can have at `path`, such as `$.mock` or `$.usb[0].serial`."""
    return {
        field.encode_name for found in _types_at(kind, path) if isinstance(found, StructType) for field in found.fields
    }


def choices_at(kind: Any, path: str) -> list[str]:
    """The values of the enumeration or the literal at `path`."""
    types = _types_at(kind, path)
    values = [str(member.value) for found in types if isinstance(found, EnumType) for member in found.cls]
    return values + [str(value) for found in types if isinstance(found, LiteralType) for value in found.values]


def _types_at(kind: Any, path: str) -> list[inspect.Type]:
    found = list(_members(inspect.type_info(kind)))
    for step in _STEP.finditer(path):
        found = [inner for outer in found for inner in _inside(outer, step["key"])]
    return found


def _members(kind: inspect.Type) -> Iterator[inspect.Type]:
    """The members of a union, without their `Meta` annotations."""
    if isinstance(kind, Metadata):
        yield from _members(kind.type)
    elif isinstance(kind, UnionType):
        for member in kind.types:
            yield from _members(member)
    else:
        yield kind


def _inside(kind: inspect.Type, key: str | None) -> Iterator[inspect.Type]:
    if isinstance(kind, StructType):
        for field in kind.fields:
            if field.encode_name == key:
                yield from _members(field.type)
    elif isinstance(kind, ListType) and key is None:
        yield from _members(kind.item_type)
    elif isinstance(kind, DictType):
        yield from _members(kind.value_type)
