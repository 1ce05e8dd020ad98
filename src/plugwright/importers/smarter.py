"""smarter-device-manager: its list of patterns.

It makes a resource of every node that a pattern matches, with as many units as `nummaxdevices` says. Ours are written
out in the file, so the names are found here: in /dev where --dev was given, else from the pattern itself.

The texts that a regular expression stands for, where they are few.

Enough of Go's syntax for names of device nodes. An endless repetition of digits is taken for the numbers from 0 to 15;
anything else that has no end, and anything not understood, is None: not to be written out.
"""

import re
import string
from dataclasses import dataclass
from itertools import product

from plugwright.errors import ConfigError, InvalidValue
from plugwright.importers.source import Entry, Imported, Note, Source, Value
from plugwright.importers.text import danger_of, device_count, literal
from plugwright.model import Resource, natural_order

__all__ = ["MOST", "NUMBERS", "recognises", "texts_of", "translate"]

MOST = 64
NUMBERS = 16
_CLASSES = {"d": string.digits, "w": string.digits + string.ascii_letters + "_"}


class _Endless(Exception):
    """This cannot be written out."""


def texts_of(pattern: str) -> list[str] | None:
    """Every text that `pattern` matches from end to end, sorted; anchors at its ends are passed over."""
    inner = pattern.removeprefix("^")
    inner = inner[:-1] if inner.endswith("$") and not inner.endswith("\\$") else inner
    try:
        texts, rest = _alternatives(inner, 0)
    except (_Endless, IndexError, ValueError, RecursionError):
        return None
    return sorted(texts) if rest == len(inner) else None


def _alternatives(text: str, at: int) -> tuple[set[str], int]:
    found, at = _sequence(text, at)
    while at < len(text) and text[at] == "|":
        more, at = _sequence(text, at + 1)
        found |= more
    return _few(found), at


def _sequence(text: str, at: int) -> tuple[set[str], int]:
    found = {""}
    while at < len(text) and text[at] not in "|)":
        atom, at = _atom(text, at)
        repeated, at = _repeated(atom, text, at)
        if len(found) * len(repeated) > MOST:
            raise _Endless
        found = {first + second for first, second in product(found, repeated)}
    return found, at


def _atom(text: str, at: int) -> tuple[set[str], int]:
    if text[at] == "(":
        start = at + 3 if text.startswith("(?:", at) else at + 1
        found, at = _alternatives(text, start)
        if text[at] != ")":
            raise _Endless
        return found, at + 1
    if text[at] == "[":
        return _character_class(text, at + 1)
    if text[at] == "\\":
        return _escaped(text[at + 1]), at + 2
    if text[at] in ".^$*+?{})]":
        raise _Endless
    return {text[at]}, at + 1


def _escaped(character: str) -> set[str]:
    if character in _CLASSES:
        return set(_CLASSES[character])
    if character.isalnum():
        raise _Endless
    return {character}


def _character_class(text: str, at: int) -> tuple[set[str], int]:
    found: set[str] = set()
    if text[at] in "^]":
        raise _Endless
    while text[at] != "]":
        if text[at] == "\\":
            found |= _escaped(text[at + 1])
            at += 2
        elif text[at] == "[":
            raise _Endless
        elif text[at + 1] == "-" and text[at + 2] != "]":
            found |= {chr(code) for code in range(ord(text[at]), ord(text[at + 2]) + 1)}
            at += 3
        else:
            found.add(text[at])
            at += 1
    return _few(found), at + 1


def _repeated(atom: set[str], text: str, at: int) -> tuple[set[str], int]:
    sign = text[at : at + 1]
    if sign == "?":
        return atom | {""}, at + 1
    if sign and sign in "*+":
        if atom != set(string.digits):
            raise _Endless
        return {str(number) for number in range(NUMBERS)}, at + 1
    if sign == "{":
        end = text.index("}", at)
        least, comma, most = text[at + 1 : end].partition(",")
        return _times(atom, int(least), int(most) if comma else int(least)), end + 1
    return atom, at


def _times(atom: set[str], least: int, most: int) -> set[str]:
    if most > len(str(MOST)) + 1 or len(atom) ** most > MOST:
        raise _Endless
    return {"".join(parts) for count in range(least, most + 1) for parts in product(sorted(atom), repeat=count)}


def _few(texts: set[str]) -> set[str]:
    if len(texts) > MOST:
        raise _Endless
    return texts


_KEYS = ("devicematch", "nummaxdevices")
_DOMAIN = "smarter-devices"
_JETSON = "nvidia-gpu"
_MANY = 32
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]")


@dataclass(frozen=True, slots=True)
class _Node:
    """A node below /dev that a pattern stands for, and how many units there are of it."""

    pattern: Value
    name: str
    count: int

    @property
    def danger(self) -> str:
        return danger_of(f"/dev/{self.name}")


def recognises(source: Source) -> bool:
    items = source.root.items() if source.root is not None and source.root.is_list else []
    return any(key.lower() == "devicematch" for item in items if item.is_mapping for key, _ in item.members())


def translate(source: Source) -> Imported:
    if source.root is None:
        raise ConfigError("smarter-device-manager has a file, there is none")
    notes: list[Note] = []
    entries: dict[str, Entry] = {}
    for value in source.root.items():
        for node in _nodes(value, source.names, notes):
            name = f"{source.domain or _DOMAIN}/{_NOT_IN_NAMES.sub('_', node.name)}"
            reason = f"{name} is there already, by an earlier pattern" if name in entries else _why_not(node, name)
            if not reason and node.danger and not source.dangerous:
                reason = f"{node.danger}, --dangerous takes it over"
            if reason:
                notes.append(node.pattern.note(f"{reason}; left out"))
            else:
                entries[name] = _entry(name, node)
    if len(entries) > _MANY and source.names is None:
        what = f"{len(entries)} resources, most of which will have no device: on a node, --dev /dev takes what is there"
        notes.append(source.root.note(what))
    return Imported(tuple(entries.values()), tuple(notes))


def _nodes(value: Value, known: tuple[str, ...] | None, notes: list[Note]) -> list[_Node]:
    found = value.fields(_KEYS, notes)
    if "devicematch" not in found:
        raise value.error("devicematch is missing")
    pattern, count = found["devicematch"], device_count(found["nummaxdevices"]) if "nummaxdevices" in found else 0
    if pattern.text() == _JETSON:
        notes.append(pattern.note("the GPUs of a Jetson are not among our devices, left out"))
        return []
    if not count:
        notes.append(pattern.note("nummaxdevices is 0, so no pod ever gets one; left out"))
        return []
    names = _in_directory(pattern, known) if known is not None else _written_out(pattern, notes)
    return [_Node(pattern, name, count) for name in sorted(names, key=natural_order)]


def _why_not(node: _Node, name: str) -> str:
    if ".." in node.name.split("/") or not node.name.isprintable():
        return f"{node.name!r} is no path of a device"
    try:
        Resource(name)
    except InvalidValue as error:
        return str(error)
    return ""


def _in_directory(pattern: Value, known: tuple[str, ...]) -> list[str]:
    try:
        wanted = re.compile(pattern.text())
    except (re.error, RecursionError, OverflowError) as error:
        raise pattern.error(f"not a regular expression: {error}") from error
    return [name for name in known if wanted.search(name)]


def _written_out(pattern: Value, notes: list[Note]) -> list[str]:
    text = pattern.text()
    names = texts_of(text)
    if names is None:
        notes.append(
            pattern.note(f"{text!r} stands for too many names to write out; left out. On a node, --dev /dev finds them")
        )
        return []
    if not text.startswith("^") or not text.endswith("$"):
        notes.append(
            pattern.note(f"{text!r} has no ^ and $: smarter takes every path with it inside, here it is the whole name")
        )
    if re.search(r"(?:\\d|\[0-9\])[*+]", text):
        notes.append(pattern.note(f"{text!r} is written out for the numbers 0 to {NUMBERS - 1}"))
    return names


def _entry(name: str, node: _Node) -> Entry:
    path = {"path": literal(f"/dev/{node.name}"), "type": "device"}
    content: dict[str, object] = {"name": name, "paths": [path], "count": node.count, "ids": "index"}
    if node.danger:
        return Entry(content | {"dangerous": True}, (node.pattern.note(node.danger),))
    return Entry(content)
