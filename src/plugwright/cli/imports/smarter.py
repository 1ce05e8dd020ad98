"""smarter-device-manager: its list of patterns.

It makes a resource of every node that a pattern matches, with as many units as `nummaxdevices` says. Ours are written
out in the file, so the names are found here: in /dev where --dev was given, else from the pattern itself.
"""

import re
from dataclasses import dataclass

from plugwright.cli.imports import patterns, texts
from plugwright.cli.imports.source import Entry, Imported, Source
from plugwright.cli.imports.values import Note, Value
from plugwright.errors import ConfigError, InvalidValue
from plugwright.model import Resource, natural_order

__all__ = ["recognises", "translate"]

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
        return texts.danger_of(f"/dev/{self.name}")


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
    pattern, count = found["devicematch"], texts.count(found["nummaxdevices"]) if "nummaxdevices" in found else 0
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
    names = patterns.texts_of(text)
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
        notes.append(pattern.note(f"{text!r} is written out for the numbers 0 to {patterns.NUMBERS - 1}"))
    return names


def _entry(name: str, node: _Node) -> Entry:
    path = {"path": texts.literal(f"/dev/{node.name}"), "type": "device"}
    content: dict[str, object] = {"name": name, "paths": [path], "count": node.count, "ids": "index"}
    if node.danger:
        return Entry(content | {"dangerous": True}, (node.pattern.note(node.danger),))
    return Entry(content)
