"""The translation of a text by an importer: its resources, notes and errors."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from plugwright.errors import ConfigError
from plugwright.importers.source import ForeignConfig, ImportResult, ManifestContents, read_manifests
from plugwright.importers.values import flag_value, parse_all

__all__ = ["dangerous", "notes", "refused", "resources", "source"]

Translate = Callable[[ForeignConfig], ImportResult]
Resource = dict[str, object]


def dangerous(config: ForeignConfig) -> ForeignConfig:
    return replace(config, dangerous=True)


def source(
    text: str = "", flags: tuple[str, ...] = (), domain: str = "", names: tuple[str, ...] | None = None
) -> ForeignConfig:
    contents = read_manifests(parse_all("file", text)) if text else ManifestContents()
    words = [flag_value(number, word) for number, word in enumerate(flags, 1)]
    return ForeignConfig(contents.file(""), domain, (*contents.flags, *words), contents.environment, names=names)


def resources(translate: Translate, config: ForeignConfig) -> dict[str, Resource]:
    """The contents by resource name, without the name."""
    contents = [dict(resource.content) for resource in translate(config).resources]
    return {str(content.pop("name")): content for content in contents}


def notes(translate: Translate, config: ForeignConfig) -> list[str]:
    """`LINE: TEXT` of every note, in the order of the lines."""
    result = translate(config)
    all_notes = [*result.notes, *(note for resource in result.resources for note in resource.notes)]
    return [f"{note.line}: {note.text}" for note in sorted(all_notes, key=lambda note: note.line)]


def refused(translate: Translate, config: ForeignConfig) -> str:
    with pytest.raises(ConfigError) as caught:
        translate(config)
    return str(caught.value)
