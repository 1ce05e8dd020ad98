"""smarter-device-manager: its list of patterns.

It makes a resource of every matching device node, with `nummaxdevices` units. Our file names its
resources, so this module finds them: in /dev if --dev was given, otherwise by expanding the regular expression.
"""

import re
import string
from dataclasses import dataclass
from itertools import product

from plugwright.errors import ConfigError, InvalidValue
from plugwright.importers.source import ForeignConfig, ImportedResource, ImportResult
from plugwright.importers.text import danger_of, device_count, literal
from plugwright.importers.values import ConfigValue, ImportNote
from plugwright.model import Resource, natural_order

__all__ = ["MAX_NUMBERS", "expand_pattern", "recognises", "translate"]

_MAX_NAMES = 64
MAX_NUMBERS = 16
_KEYS = ("devicematch", "nummaxdevices")
_DEFAULT_DOMAIN = "smarter-devices"
_JETSON = "nvidia-gpu"
_MANY_RESOURCES = 32
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]")
_CLASSES = {"d": string.digits, "w": string.digits + string.ascii_letters + "_"}


@dataclass(frozen=True, slots=True)
class _MatchedNode:
    """A matching device node below /dev, and its number of units."""

    pattern: ConfigValue
    name: str
    count: int

    @property
    def danger(self) -> str:
        return danger_of(f"/dev/{self.name}")


def recognises(source: ForeignConfig) -> bool:
    items = source.root.items() if source.root is not None and source.root.is_list else []
    return any(key.lower() == "devicematch" for item in items if item.is_mapping for key, _ in item.members())


def translate(source: ForeignConfig) -> ImportResult:
    if source.root is None:
        raise ConfigError("smarter-device-manager needs its file, got flags alone")
    notes: list[ImportNote] = []
    resources: dict[str, ImportedResource] = {}
    for value in source.root.items():
        for node in _matched_nodes(value, source.names, notes):
            name = f"{source.domain or _DEFAULT_DOMAIN}/{_NOT_IN_NAMES.sub('_', node.name)}"
            reason = f"{name} exists already, by an earlier pattern" if name in resources else _invalid(node, name)
            if not reason and node.danger and not source.dangerous:
                reason = f"{node.danger}, --dangerous imports it"
            if reason:
                notes.append(node.pattern.note(f"{reason}; left out"))
            else:
                resources[name] = _resource(name, node)
    if len(resources) > _MANY_RESOURCES and source.names is None:
        advice = (
            f"{len(resources)} resources, most of which have no device; run on a node, --dev /dev finds the real ones"
        )
        notes.append(source.root.note(advice))
    return ImportResult(tuple(resources.values()), tuple(notes))


def _matched_nodes(value: ConfigValue, existing: tuple[str, ...] | None, notes: list[ImportNote]) -> list[_MatchedNode]:
    fields = value.fields(_KEYS, notes)
    if "devicematch" not in fields:
        raise value.error("devicematch is missing")
    pattern, count = fields["devicematch"], device_count(fields["nummaxdevices"]) if "nummaxdevices" in fields else 0
    if pattern.string() == _JETSON:
        notes.append(pattern.note("the GPUs of a Jetson are not supported, left out"))
        return []
    if not count:
        notes.append(pattern.note("nummaxdevices is 0, so no pod ever gets one; left out"))
        return []
    names = _search(pattern, existing) if existing is not None else _expand(pattern, notes)
    return [_MatchedNode(pattern, name, count) for name in sorted(names, key=natural_order)]


def _invalid(node: _MatchedNode, name: str) -> str:
    """Why the node cannot become a resource; empty if it can."""
    if ".." in node.name.split("/") or not node.name.isprintable():
        return f"{node.name!r} is not a valid path below /dev"
    try:
        Resource(name)
    except InvalidValue as error:
        return str(error)
    return ""


def _search(pattern: ConfigValue, existing: tuple[str, ...]) -> list[str]:
    try:
        expression = re.compile(pattern.string())
    except (re.error, RecursionError, OverflowError) as error:
        raise pattern.error(f"must be a regular expression: {error}") from error
    return [name for name in existing if expression.search(name)]


def _expand(pattern: ConfigValue, notes: list[ImportNote]) -> list[str]:
    text = pattern.string()
    names = expand_pattern(text)
    if names is None:
        notes.append(
            pattern.note(f"{text!r} matches too many names to list them; left out. On a node, --dev /dev finds them")
        )
        return []
    if not text.startswith("^") or not text.endswith("$"):
        notes.append(
            pattern.note(f"{text!r} has no ^ and $: smarter matches any path that contains it, here the whole name")
        )
    if re.search(r"(?:\\d|\[0-9\])[*+]", text):
        notes.append(pattern.note(f"{text!r} is expanded to the numbers 0 to {MAX_NUMBERS - 1}"))
    return names


def _resource(name: str, node: _MatchedNode) -> ImportedResource:
    path = {"path": literal(f"/dev/{node.name}"), "type": "device"}
    content: dict[str, object] = {"name": name, "paths": [path], "count": node.count, "ids": "index"}
    if node.danger:
        return ImportedResource(content | {"dangerous": True}, (node.pattern.note(node.danger),))
    return ImportedResource(content)


class _CannotExpand(Exception):
    """The pattern has no end, too many names, or unsupported syntax."""


def expand_pattern(pattern: str) -> list[str] | None:
    """All names that `pattern` matches in full, sorted, or None; anchors at its ends are ignored.

    Supports enough of Go's syntax for names of device nodes. An unlimited number of digits expands to the numbers 0 to
    15; other unlimited repetitions, more than `_MAX_NAMES` names and other syntax give None.
    """
    inner = pattern.removeprefix("^")
    inner = inner[:-1] if inner.endswith("$") and not inner.endswith("\\$") else inner
    try:
        names, end = _alternatives(inner, 0)
    except (_CannotExpand, IndexError, ValueError, RecursionError):
        return None
    return sorted(names) if end == len(inner) else None


def _alternatives(text: str, position: int) -> tuple[set[str], int]:
    names, position = _sequence(text, position)
    while position < len(text) and text[position] == "|":
        more, position = _sequence(text, position + 1)
        names |= more
    return _limited(names), position


def _sequence(text: str, position: int) -> tuple[set[str], int]:
    names = {""}
    while position < len(text) and text[position] not in "|)":
        atom, position = _atom(text, position)
        repeated, position = _repeated(atom, text, position)
        if len(names) * len(repeated) > _MAX_NAMES:
            raise _CannotExpand
        names = {first + second for first, second in product(names, repeated)}
    return names, position


def _atom(text: str, position: int) -> tuple[set[str], int]:
    if text[position] == "(":
        start = position + 3 if text.startswith("(?:", position) else position + 1
        names, position = _alternatives(text, start)
        if text[position] != ")":
            raise _CannotExpand
        return names, position + 1
    if text[position] == "[":
        return _character_class(text, position + 1)
    if text[position] == "\\":
        return _escaped(text[position + 1]), position + 2
    if text[position] in ".^$*+?{})]":
        raise _CannotExpand
    return {text[position]}, position + 1


def _escaped(character: str) -> set[str]:
    if character in _CLASSES:
        return set(_CLASSES[character])
    if character.isalnum():
        raise _CannotExpand
    return {character}


def _character_class(text: str, position: int) -> tuple[set[str], int]:
    names: set[str] = set()
    if text[position] in "^]":
        raise _CannotExpand
    while text[position] != "]":
        if text[position] == "\\":
            names |= _escaped(text[position + 1])
            position += 2
        elif text[position] == "[":
            raise _CannotExpand
        elif text[position + 1] == "-" and text[position + 2] != "]":
            names |= {chr(code) for code in range(ord(text[position]), ord(text[position + 2]) + 1)}
            position += 3
        else:
            names.add(text[position])
            position += 1
    return _limited(names), position + 1


def _repeated(atom: set[str], text: str, position: int) -> tuple[set[str], int]:
    sign = text[position : position + 1]
    if sign == "?":
        return atom | {""}, position + 1
    if sign and sign in "*+":
        if atom != set(string.digits):
            raise _CannotExpand
        return {str(number) for number in range(MAX_NUMBERS)}, position + 1
    if sign == "{":
        end = text.index("}", position)
        least, comma, most = text[position + 1 : end].partition(",")
        return _times(atom, int(least), int(most) if comma else int(least)), end + 1
    return atom, position


def _times(atom: set[str], least: int, most: int) -> set[str]:
    if most > len(str(_MAX_NAMES)) + 1 or len(atom) ** most > _MAX_NAMES:
        raise _CannotExpand
    return {"".join(parts) for count in range(least, most + 1) for parts in product(sorted(atom), repeat=count)}


def _limited(names: set[str]) -> set[str]:
    if len(names) > _MAX_NAMES:
        raise _CannotExpand
    return names
