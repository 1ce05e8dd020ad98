"""What CDI allows in names, paths and lists; each check returns the value it was given, or refuses it."""

import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import TypeVar

from plugwright.errors import InvalidValue

__all__ = ["absolute", "device_name", "env", "kind", "one_of", "permissions", "texts", "values", "whole_number"]

T = TypeVar("T")
_KIND = re.compile(r"[A-Za-z](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?/[A-Za-z](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?")
_DEVICE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.:-]*[A-Za-z0-9])?")
_PERMISSIONS = re.compile(r"(?!.*(.).*\1)[rwm]{0,3}|none")
_VENDOR_LIMIT, _CLASS_LIMIT = 253, 63


def kind(text: object) -> str:
    """`vendor.com/class`."""
    if not isinstance(text, str) or not _KIND.fullmatch(text):
        raise InvalidValue(f"a CDI kind looks like vendor.com/class, not {text!r}")
    vendor, _, of = text.partition("/")
    if len(vendor) > _VENDOR_LIMIT or len(of) > _CLASS_LIMIT:
        raise InvalidValue(f"a CDI vendor has at most {_VENDOR_LIMIT} characters and a class {_CLASS_LIMIT}: {text!r}")
    return text


def device_name(text: object) -> str:
    if not isinstance(text, str) or not _DEVICE.fullmatch(text):
        raise InvalidValue(
            "a CDI device name has letters, digits, '_', '.', ':' and '-', a letter or digit first and last, "
            f"not {text!r}"
        )
    return text


def absolute(what: str, text: object) -> str:
    if not isinstance(text, str) or not text.startswith("/") or not text.isprintable():
        raise InvalidValue(f"{what} is an absolute path, not {text!r}")
    return text


def permissions(text: object) -> str:
    if not isinstance(text, str) or not _PERMISSIONS.fullmatch(text):
        raise InvalidValue(f"CDI permissions are letters of 'rwm' or 'none', not {text!r}")
    return text


def one_of(what: str, text: object, allowed: Iterable[str]) -> str:
    allowed = list(allowed)
    if not isinstance(text, str) or text not in allowed:
        raise InvalidValue(f"{what} is one of {', '.join(each or 'nothing' for each in allowed)}, not {text!r}")
    return text


def whole_number(what: str, number: object) -> int | None:
    if number is None:
        return None
    if not isinstance(number, int) or isinstance(number, bool) or number < 0:
        raise InvalidValue(f"{what} is a whole number from 0 on, not {number!r}")
    return number


def values(what: str, items: object, of: type[T]) -> tuple[T, ...]:
    if isinstance(items, str | Mapping) or not isinstance(items, Iterable):
        raise InvalidValue(f"{what} is a list, not {items!r}")
    made = tuple(items)
    for item in made:
        if not isinstance(item, of) or (of is int and isinstance(item, bool)):
            raise InvalidValue(f"{what} holds {of.__name__} values, not {item!r}")
    return made


def texts(what: str, mapping: object) -> Mapping[str, str]:
    """A mapping of texts, sorted: the same content is always the same file."""
    if not isinstance(mapping, Mapping):
        raise InvalidValue(f"{what} is a mapping of texts, not {mapping!r}")
    for name, text in mapping.items():
        if not isinstance(name, str) or not name or not isinstance(text, str) or "\0" in name + text:
            raise InvalidValue(f"{what} maps texts to texts, not {name!r} to {text!r}")
    return MappingProxyType(dict(sorted(mapping.items())))


def env(mapping: object) -> Mapping[str, str]:
    checked = texts("env", mapping)
    for name in checked:
        if "=" in name:
            raise InvalidValue(f"an env name has no '=': {name!r}")
    return checked
