"""What an importer makes of a text: its resources, and what it says."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from plugwright.errors import ConfigError
from plugwright.importers.source import Found, Imported, Source, flag_word, parse_all, unwrap

__all__ = ["dangerous", "notes", "refused", "resources", "source"]

Translate = Callable[[Source], Imported]
Resource = dict[str, object]


def dangerous(given: Source) -> Source:
    return replace(given, dangerous=True)


def source(
    text: str = "", flags: tuple[str, ...] = (), domain: str = "", names: tuple[str, ...] | None = None
) -> Source:
    found = unwrap(parse_all("file", text)) if text else Found()
    words = [flag_word(number, word) for number, word in enumerate(flags, 1)]
    return Source(found.file(""), domain, (*found.flags, *words), found.environment, names=names)


def resources(translate: Translate, given: Source) -> dict[str, Resource]:
    """By their names, without them."""
    found = [dict(entry.content) for entry in translate(given).entries]
    return {str(each.pop("name")): each for each in found}


def notes(translate: Translate, given: Source) -> list[str]:
    """`LINE: TEXT` of each, in order of the lines."""
    imported = translate(given)
    found = [*imported.notes, *(note for entry in imported.entries for note in entry.notes)]
    return [f"{note.line}: {note.text}" for note in sorted(found, key=lambda note: note.line)]


def refused(translate: Translate, given: Source) -> str:
    with pytest.raises(ConfigError) as caught:
        translate(given)
    return str(caught.value)
