"""smarter-device-manager: its list of patterns.

It makes a resource of every node that a pattern matches, with as many units as `nummaxdevices` says. Ours are written
out in the file, so the names are found here: in /dev where --dev was given, else from the pattern itself.
"""

import re
from collections.abc import Iterator

from plugwright.cli.imports import patterns, texts
from plugwright.cli.imports.source import Entry, Imported, Source
from plugwright.cli.imports.values import Note, Value
from plugwright.errors import ConfigError
from plugwright.model import natural_order

__all__ = ["recognises", "translate"]

_KEYS = ("devicematch", "nummaxdevices")
_DOMAIN = "smarter-devices"
_JETSON = "nvidia-gpu"
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]")
_NAME = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9_]{0,61}[A-Za-z0-9])?")  # no dot is left by then


def recognises(source: Source) -> bool:
    items = source.root.items() if source.root is not None and source.root.is_list else []
    return any(key.lower() == "devicematch" for item in items if item.is_mapping for key, _ in item.members())


def translate(source: Source) -> Imported:
    if source.root is None:
        raise ConfigError("smarter-device-manager has a file, there is none")
    domain = source.domain or _DOMAIN
    notes: list[Note] = []
    entries: dict[str, Entry] = {}
    for value in source.root.items():
        for entry in _entries(value, source.names, notes):
            name = f"{domain}/{entry.content['name']}"
            if name in entries:
                notes.append(value.note(f"{name} is there already, by an earlier pattern; left out here"))
            else:
                entries[name] = Entry({**entry.content, "name": name}, entry.notes)
    return Imported(tuple(entries.values()), tuple(notes))


def _entries(value: Value, known: tuple[str, ...] | None, notes: list[Note]) -> Iterator[Entry]:
    found = value.fields(_KEYS, notes)
    if "devicematch" not in found:
        raise value.error("devicematch is missing")
    pattern, count = found["devicematch"], texts.count(found["nummaxdevices"]) if "nummaxdevices" in found else 0
    if pattern.text() == _JETSON:
        notes.append(pattern.note("the GPUs of a Jetson are not among our devices, left out"))
    elif not count:
        notes.append(pattern.note("nummaxdevices is 0, so no pod ever gets one; left out"))
    else:
        names = _in_directory(pattern, known) if known is not None else _written_out(pattern, notes)
        for name in sorted(names, key=natural_order):
            yield from _entry(pattern, name, count, notes)


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


def _entry(pattern: Value, name: str, count: int, notes: list[Note]) -> Iterator[Entry]:
    resource = _NOT_IN_NAMES.sub("_", name)
    if _NAME.fullmatch(resource):
        dangers: list[Note] = []
        texts.check_danger(pattern, f"/dev/{name}", dangers)
        yield Entry(_content(resource, name, count), tuple(dangers))
    else:
        notes.append(pattern.note(f"{resource!r} cannot be the name of a resource, left out"))


def _content(resource: str, name: str, count: int) -> dict[str, object]:
    path = {"path": texts.literal(f"/dev/{name}"), "type": "device"}
    return {"name": resource, "paths": [path], "count": count, "ids": "index"}
