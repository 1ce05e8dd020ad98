"""The grammars of names, texts, paths and lists in values, and their checks.

`model` and `attributes` contain the values.
"""

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath
from types import MappingProxyType

from plugwright.errors import InvalidValue

__all__ = [
    "CDI_DEVICE",
    "CDI_KIND",
    "CDI_NAME",
    "CLASS_PREFIX",
    "DNS_LABEL",
    "DNS_SUBDOMAIN",
    "PERMISSIONS",
    "broken_resource_rule",
    "checked_flag",
    "checked_list",
    "checked_mapping",
    "checked_path",
    "checked_text",
    "checked_texts",
    "directory_before_wildcard",
    "has_wildcard",
]

PERMISSIONS = re.compile(r"(?!.*(.).*\1)[rwm]{1,3}")
CDI_KIND = re.compile(r"[A-Za-z](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?/[A-Za-z](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?")
CDI_DEVICE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.:-]*[A-Za-z0-9])?")
CDI_NAME = re.compile(f"{CDI_KIND.pattern}={CDI_DEVICE.pattern}")
# The extended resource that every DeviceClass stands for is this prefix and the name of the class.
CLASS_PREFIX = "deviceclass.resource.kubernetes.io/"
DNS_LABEL = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?")
DNS_SUBDOMAIN = re.compile(r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?(?:\.[a-z0-9](?:[-a-z0-9]*[a-z0-9])?)*")
_WILDCARDS = "*?["
_NAME_PART = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")


def checked_text(what: str, text: object) -> str:
    """A sendable string: not half of a surrogate pair, as in a file name outside UTF-8."""
    if not isinstance(text, str):
        raise InvalidValue(f"{what} must be a string, got {text!r}")
    if "\0" in text or not (text.isascii() or _is_sendable(text)):
        raise InvalidValue(f"{what} must be valid Unicode without NUL, got {text!r}")
    return text


def checked_path(what: str, path: object) -> str:
    path = os.fspath(path) if isinstance(path, os.PathLike) else path
    if not isinstance(path, str) or not path.startswith("/"):
        raise InvalidValue(f"{what} must be absolute, got {path!r}")
    if (".." in path and ".." in PurePosixPath(path).parts) or not path.isprintable():
        raise InvalidValue(f"{what} must have no '..' and no unprintable characters, got {path!r}")
    return path


def checked_flag(what: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise InvalidValue(f"{what} must be True or False, got {value!r}")
    return value


def checked_mapping(what: str, value: object) -> Mapping[str, object]:
    if not isinstance(value, Mapping):
        raise InvalidValue(f"{what} must be a mapping, got {value!r}")
    return value


def checked_list(what: str, values: object) -> list[object]:
    """The values as a list. A single string is iterable too: `nodes="/dev/fuse"` would become nine device nodes."""
    if type(values) in (list, tuple):  # checking the abstract classes below takes longer than everything else
        return list(values)  # type: ignore[call-overload, no-any-return]
    if isinstance(values, str | Mapping) or not isinstance(values, Iterable):
        raise InvalidValue(f"{what} must be a list, got {values!r}")
    return list(values)


def checked_texts(what: str, texts: Mapping[str, str]) -> Mapping[str, str]:
    if type(texts) is not dict and not isinstance(texts, Mapping):
        raise InvalidValue(f"{what} must be a mapping of strings, got {texts!r}")
    for name, text in texts.items():
        if not _is_plain(name) and not checked_text(f"{what} name", name):
            raise InvalidValue(f"{what} name must not be empty")
        if not _is_plain(text):
            checked_text(f"the value of {what} {name}", text)
    return MappingProxyType(dict(sorted(texts.items())))


def _is_plain(text: object) -> bool:
    """Whether the text is certainly valid and not empty."""
    return type(text) is str and text.isascii() and text != "" and "\0" not in text


def broken_resource_rule(name: object) -> str:
    """The rule of resource names broken by `name`; empty if none."""
    if not isinstance(name, str) or name.count("/") != 1:
        return "must have one '/', as in example.com/fpga"
    domain, _, kind = name.partition("/")
    if "kubernetes.io/" in name or domain.startswith("requests."):
        return "must not use kubernetes.io or 'requests.', which are Kubernetes' own"
    if len("requests." + domain) > 253 or not DNS_SUBDOMAIN.fullmatch(domain):
        return "must have a lower-case DNS name of at most 244 characters before the '/'"
    if not _NAME_PART.fullmatch(kind):
        return "must have 1 to 63 letters, digits, '-', '_' or '.' after the '/', a letter or digit first and last"
    return ""


def _is_sendable(text: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in text)


def has_wildcard(path: str) -> bool:
    return any(wildcard in path for wildcard in _WILDCARDS)


def directory_before_wildcard(path: str) -> str:
    """The directory before the first wildcard, or that of the path; /dev for everything below it."""
    parts = PurePosixPath(path).parts
    if parts[1:2] == ("dev",) and len(parts) > 2:
        return "/dev"
    fixed = next((index for index, part in enumerate(parts) if has_wildcard(part)), len(parts) - 1)
    return str(PurePosixPath(*parts[:fixed]))
