"""The effective values of the operator's file with their sources, for `plugwright run --print-config`."""

from collections.abc import Iterator
from typing import Any

import msgspec

from plugwright.config.document import Document
from plugwright.config.schema import Config
from plugwright.config.serve_entry import serve_value
from plugwright.sdk.device_family import ResourceEntry
from plugwright.sdk.serve_settings import ServeMode

__all__ = ["effective"]


def effective(config: Config) -> Iterator[tuple[str, object, str]]:
    """Every value of the file: its name, the value in force, and its source."""
    for index, entry in enumerate(config.file.resources):
        for name, value in _values(entry):
            yield f"resources[{index}].{name}", value, _source(config.document, f"$.resources[{index}].{name}")
    for index, cordon in enumerate(config.file.cordons):
        for name, value in _flat(f"cordons[{index}]", cordon):
            yield name, value, _source(config.document, f"$.{name}")


def _source(document: Document, path: str) -> str:
    return f"{document.name}:{document.line(path)}" if document.has(path) else "default"


def _values(entry: ResourceEntry[Any]) -> Iterator[tuple[str, object]]:
    yield "name", entry.name
    if isinstance(entry.family.settings, type):
        yield from _flat(entry.key, entry.settings)
    else:  # one of several types: shown as a whole
        yield entry.key, msgspec.to_builtins(entry.settings)
    if entry.options is not None:
        for name, value in msgspec.structs.asdict(entry.options).items():
            yield name, msgspec.to_builtins(value)
    if entry.serve.api is ServeMode.DEVICE_PLUGIN:
        yield "serve", ServeMode.DEVICE_PLUGIN.value
    else:
        yield from serve_value(entry.serve).items()
    if entry.expect is not None:
        yield "expect", msgspec.to_builtins(entry.expect)


def _flat(name: str, value: object) -> Iterator[tuple[str, object]]:
    """Every value by its full name, those of structs inside one by one."""
    if not isinstance(value, msgspec.Struct):
        yield name, msgspec.to_builtins(value)
        return
    for attribute, key in zip(value.__struct_fields__, value.__struct_encode_fields__, strict=True):
        yield from _flat(f"{name}.{key}", getattr(value, attribute))
