"""Texts of the peers in the words of our selectors, whose patterns are those of a shell: `*`, `?`, `[ab]`, `[!ab]`."""

import re

from plugwright.errors import InvalidValue
from plugwright.importers.source import Note, Value
from plugwright.model import Resource
from plugwright.plugins.generic import safety
from plugwright.plugins.generic.paths import has_wildcard

__all__ = [
    "alone",
    "danger_of",
    "device_count",
    "from_go_glob",
    "hexadecimal",
    "link_type",
    "literal",
    "resource",
    "without_templates",
]

_LINKS = {"ether": "ethernet", "infiniband": "infiniband"}
_SPECIAL = re.compile(r"([*?\[])")
_MOST = 100_000
_ID = re.compile(r"(?:0x)?([0-9a-f]{4})", re.IGNORECASE)
_GO_CLASS = re.compile(r"\[(\^?)([^\]\\]+)\]")


def literal(text: str) -> str:
    """The pattern that matches `text` alone."""
    return _SPECIAL.sub(r"[\1]", text.replace("\\", "\\\\"))


def without_templates(text: str) -> str:
    """A text where we fill in templates and the peer does not."""
    return text.replace("{", "{{").replace("}", "}}")


def device_count(value: Value) -> int:
    if value.whole() > _MOST:
        raise value.error(f"at most {_MOST:,} can be offered, not {value.whole():,}")
    return value.whole()


def danger_of(path: str) -> str:
    """Why a path would hand out the node itself, which no peer asks; empty if it would not."""
    return "" if has_wildcard(path) else safety.danger_of_path(path.rstrip("/"))


def resource(value: Value, domain: str, name: str) -> str:
    """The name of a resource that `value` stands for, if it can be one."""
    try:
        return Resource(f"{domain}/{name}").name
    except InvalidValue as error:
        raise value.error(str(error)) from error


def alone(texts: list[str]) -> str | list[str]:
    """A list of one is written as that one."""
    return texts[0] if len(texts) == 1 else texts


def hexadecimal(value: Value, notes: list[Note]) -> str:
    """An id of four digits that its plugin compares letter by letter with what the kernel writes, in small letters."""
    found = _ID.fullmatch(value.text())
    if not found:
        raise value.error(f"an id has four hexadecimal digits, not {value.raw!r}")
    if value.raw != found[1].lower():
        notes.append(
            value.note(f"{value.raw!r} matches nothing there, ids are as in {found[1].lower()!r}; so it is here")
        )
    return found[1].lower()


def link_type(value: Value) -> str:
    if value.text().lower() not in _LINKS:
        raise value.error(f"a link type is one of {', '.join(sorted(_LINKS))}, not {value.raw!r}")
    return _LINKS[value.raw.lower()]


def from_go_glob(value: Value) -> str:
    """The same as a pattern of ours; Go negates with `^`, and takes the character after a `\\` as it is."""
    text, made, at = value.text(), "", 0
    if not text.startswith("/") or not text.strip("/") or ".." in text.split("/") or not text.isprintable():
        raise value.error(f"an absolute path without '..' is needed here, not {text!r}")
    while at < len(text):
        part, at = _go_part(value, text, at)
        made += "" if part == "*" and made.endswith("*") and not made.endswith("[*") else part
    return made


def _go_part(value: Value, text: str, at: int) -> tuple[str, int]:
    if text[at] == "\\":
        if at + 1 == len(text):
            raise value.error(f"{text!r} ends in the middle of a pattern")
        return literal(text[at + 1]), at + 2
    if text[at] != "[":
        return text[at], at + 1
    found = _GO_CLASS.match(text, at)
    if not found or found[2].startswith("-") or found[2].endswith("-"):
        raise value.error(f"{text!r} has a [class] that is not understood")
    members = found[2].lstrip("!") + "!" * (len(found[2]) - len(found[2].lstrip("!")))
    return f"[{'!' if found[1] else ''}{members}]", found.end()
