"""All mistakes in the operator's file, not only the first one.

Loaded only when a file has a mistake. Removes an invalid key and checks the rest again, until no mistake is left or
the remaining ones can be consequences of the removal.
"""

import copy
import re
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from plugwright.config import schema
from plugwright.config.document import Document
from plugwright.errors import ConfigError
from plugwright.sdk.device_family import ResourceEntry

__all__ = ["with_others"]

_MAX_MISTAKES = 20  # more are not collected
_STEP = re.compile(r"\.(?P<key>[^.\[\]]+)|\[\d+\]")


def with_others(document: Document, first: ConfigError) -> ConfigError:
    """The first mistake by line, with the messages of all others."""
    found = {str(first): first} | {str(error): error for error in _mistakes(document)}
    ordered = sorted(found.values(), key=lambda error: (document.line(error.path, error.key), str(error)))
    head, *rest = ordered[:_MAX_MISTAKES]
    return ConfigError(str(head), head.path, head.key, tuple(map(str, rest)))


def _mistakes(document: Document) -> list[ConfigError]:
    content = copy.deepcopy(document.content)
    if not isinstance(content, dict):
        return []
    errors = _collect(content, "$", partial(document.convert, schema.Outline, "$", content))
    resources = content.get("resources")
    if not isinstance(resources, list) or not all(isinstance(resource, dict) for resource in resources):
        return errors
    entries = {}
    for index, resource in enumerate(resources):
        path = f"$.resources[{index}]"
        of_entry = _collect(resource, path, partial(schema.resource_entry, document, path, resource))
        errors += of_entry
        if all(map(_is_harmless, of_entry)):
            with suppress(ConfigError):  # the removed key was the kind of device
                entries[index] = schema.resource_entry(document, path, resource)
    errors += _repeated_names(document, resources, entries)
    try:
        outline = document.convert(schema.Outline, "$", content)
    except ConfigError:
        return errors
    errors += _contradictions(document, entries, outline)
    if len(entries) == len(resources):  # every name is known
        errors += _wrong_cordons(document, list(entries.values()), outline)
    return errors


def _is_harmless(error: ConfigError) -> bool:
    """Whether the rest of an entry means the same without this mistake."""
    return f"unknown key {error.key!r}" in str(error) and "did you mean" not in str(error)


def _repeated_names(
    document: Document, resources: Sequence[Mapping[str, Any]], checked: Container[int]
) -> list[ConfigError]:
    """Names that an invalid entry shares with an earlier one; `checked` are the others."""
    errors, first = [], dict[str, int]()
    for index, resource in enumerate(resources):
        name = resource.get("name")
        if not isinstance(name, str):
            continue
        earlier = first.setdefault(name, index)
        if earlier != index and not (index in checked and earlier in checked):
            errors.append(schema.repeated(document, "$.resources", name, earlier, index))
    return errors


def _collect(content: dict[str, Any], path: str, check: Callable[[], object]) -> list[ConfigError]:
    """The mistakes of one mapping; removes wrong keys from `content`."""
    errors: list[ConfigError] = []
    removed: set[str] = set()
    while len(errors) < _MAX_MISTAKES:
        try:
            check()
        except ConfigError as error:
            inner = error.path.removeprefix(path)
            is_about_all = not inner and not error.key
            if f"{inner}.{error.key}" in removed or (removed and is_about_all):
                break  # missing because we removed it
            errors.append(error)
            wrong = _remove(content, inner, error.key)
            if not wrong:
                break
            removed.add(wrong)
        else:
            break
    return errors


def _remove(content: dict[str, Any], inner: str, key: str) -> str:
    """Removes the wrong value, or the list that contains it; returns the path of the removed key, or nothing."""
    keys = []
    for step in _STEP.finditer(f"{inner}.{key}" if key else inner):
        if step["key"] is None:
            break
        keys.append(step["key"])
    for name in keys[:-1]:
        inside = content.get(name)
        if not isinstance(inside, dict):
            return ""
        content = inside
    if not keys or keys[-1] not in content:
        return ""
    del content[keys[-1]]
    return "".join(f".{name}" for name in keys)


def _contradictions(
    document: Document, entries: Mapping[int, ResourceEntry[Any]], outline: schema.Outline
) -> list[ConfigError]:
    """Mistakes of resources whose types are right: settings that cannot be followed, and conflicts between them."""
    errors, checked = [], {}
    for index, entry in entries.items():
        checked[index] = entry
        try:
            schema.check_resource(document, "$.resources", checked, outline.host)
        except ConfigError as error:
            errors.append(error)
    return errors


def _wrong_cordons(
    document: Document, entries: Sequence[ResourceEntry[Any]], outline: schema.Outline
) -> list[ConfigError]:
    try:
        schema.check_cordons(document, schema.ConfigFile(entries, outline.host, outline.cordons))
    except ConfigError as error:
        return [error]
    return []
