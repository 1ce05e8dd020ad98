"""Converts strings of other plugins to ours: paths and patterns, resource names, ids, counts.

Our patterns are those of a shell: `*`, `?`, `[ab]`, `[!ab]`.
"""

import re

from plugwright.errors import InvalidValue
from plugwright.grammars import has_wildcard
from plugwright.importers.values import ConfigValue, ImportNote
from plugwright.model import Resource
from plugwright.plugins.generic import safety

__all__ = [
    "danger_of",
    "device_count",
    "escape_templates",
    "from_go_glob",
    "hex_id",
    "link_type",
    "literal",
    "possible_danger_of",
    "resource_name",
    "scalar_or_list",
]

_LINK_TYPES = {"ether": "ethernet", "infiniband": "infiniband"}
_WILDCARD = re.compile(r"([*?\[])")
_MAX_DEVICES = 100_000
_HEX_ID = re.compile(r"(?:0x)?([0-9a-f]{4})", re.IGNORECASE)
_GO_CLASS = re.compile(r"\[(\^?)([^\]\\]+)\]")


def literal(text: str) -> str:
    """The pattern that matches exactly `text`."""
    return _WILDCARD.sub(r"[\1]", text.replace("\\", "\\\\"))


def escape_templates(text: str) -> str:
    """Escapes `text` for a key of ours that expands templates, if the other plugin does not expand them."""
    return text.replace("{", "{{").replace("}", "}}")


def device_count(value: ConfigValue) -> int:
    if value.integer() > _MAX_DEVICES:
        raise value.error(f"must be at most {_MAX_DEVICES:,}, got {value.integer():,}")
    return value.integer()


def danger_of(path: str) -> str:
    """Why a container with this path controls the node, which no other plugin checks; empty if it does not."""
    return "" if has_wildcard(path) else safety.danger_of_path(path.rstrip("/"))


def possible_danger_of(path: str) -> str:
    """The same for a path with wildcards: the node decides what it matches, and rejects it."""
    danger = safety.danger_of_pattern(path) if has_wildcard(path) else ""
    return f"{danger}; such a device is listed as Unhealthy, without 'dangerous: true'" if danger else ""


def resource_name(value: ConfigValue, domain: str, name: str) -> str:
    try:
        return Resource(f"{domain}/{name}").name
    except InvalidValue as error:
        raise value.error(str(error)) from error


def scalar_or_list(texts: list[str]) -> str | list[str]:
    """A list of one item is written as that item."""
    return texts[0] if len(texts) == 1 else texts


def hex_id(value: ConfigValue, notes: list[ImportNote]) -> str:
    """A PCI id, which the other plugin compares letter by letter with the kernel's lower-case digits."""
    digits = _HEX_ID.fullmatch(value.string())
    if not digits:
        raise value.error(f"must be four hexadecimal digits, got {value.raw!r}")
    pci_id = digits[1].lower()
    if value.raw != pci_id:
        notes.append(value.note(f"{value.raw!r} matches no device in that plugin; imported as {pci_id!r}"))
    return pci_id


def link_type(value: ConfigValue) -> str:
    if value.string().lower() not in _LINK_TYPES:
        raise value.error(f"must be one of {', '.join(sorted(_LINK_TYPES))}, got {value.raw!r}")
    return _LINK_TYPES[value.raw.lower()]


def from_go_glob(value: ConfigValue) -> str:
    """The same pattern in our syntax; Go negates a class with `^` and escapes a character with `\\`."""
    text, pattern, position = value.string(), "", 0
    while position < len(text):
        part, position = _from_go_part(value, text, position)
        pattern += "" if part == "*" and pattern.endswith("*") and not pattern.endswith("[*") else part
    if not text.startswith("/") or not text.strip("/") or ".." in pattern.split("/") or not text.isprintable():
        raise value.error(f"must be an absolute path without '..', got {text!r}")
    return pattern


def _from_go_part(value: ConfigValue, text: str, position: int) -> tuple[str, int]:
    if text[position] == "\\":
        if position + 1 == len(text):
            raise value.error(f"must not end with a single backslash, got {text!r}")
        return literal(text[position + 1]), position + 2
    if text[position] != "[":
        return text[position], position + 1
    character_class = _GO_CLASS.match(text, position)
    if not character_class or character_class[2].startswith("-") or character_class[2].endswith("-"):
        raise value.error(f"must have complete character classes such as [a-z], got {text!r}")
    members = character_class[2].lstrip("!") + "!" * (len(character_class[2]) - len(character_class[2].lstrip("!")))
    return f"[{'!' if character_class[1] else ''}{members}]", character_class.end()
