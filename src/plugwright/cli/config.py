"""The operator's file: its types, its checks, and the plugins it asks for.

Each kind of device is one key of a resource. A new kind is a struct here and a line in `_KINDS`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec

from plugwright.cli import config_nvidia, documents
from plugwright.cli.config_nvidia import NvidiaEntry
from plugwright.cli.documents import Document
from plugwright.cli.quantities import quantity
from plugwright.errors import ConfigError, InvalidValue
from plugwright.model import Resource
from plugwright.plugins.mock import Links, Mock, MockOptions
from plugwright.sdk.plugin import Plugin

__all__ = ["Config", "ConfigFile", "MockEntry", "ResourceEntry", "effective", "load", "quantity"]


class MockEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Devices that do not exist."""

    count: Annotated[int, msgspec.Meta(ge=0, le=100_000)] = 8
    model: str = "Mock"
    memory: int | str = "16Gi"
    numa: Annotated[int, msgspec.Meta(ge=0, le=64)] = 1
    links: Links = Links.NONE
    seed: str = "plugwright"
    nodes: bool = False
    facts: str = ""


class ResourceEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One resource: its name, and one key that says what kind of device it is."""

    name: str
    mock: MockEntry | None = None
    nvidia: NvidiaEntry | None = None


class ConfigFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    resources: list[ResourceEntry]


@dataclass(frozen=True, slots=True)
class Config:
    """A file that was read and found good."""

    document: Document
    file: ConfigFile

    def plugins(self, before: "Config | None" = None, serving: dict[str, Plugin] | None = None) -> list[Plugin]:
        """The plugins it asks for; those that `before` asked for in the same way are those of `serving`."""
        unchanged = {entry.name: entry for entry in before.file.resources} if before else {}
        made = []
        for entry in self.file.resources:
            if config_nvidia.is_family(entry.name):
                continue  # see `families`
            kept = (serving or {}).get(entry.name) if unchanged.get(entry.name) == entry else None
            made.append(kept or _plugin(entry))
        return config_nvidia.joined(made, (serving or {}).values())


def load(path: Path) -> Config:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8: {error.reason} at byte {error.start}") from error
    document = documents.parse(path.name, text)
    file = document.convert(ConfigFile)
    _check(document, file)
    return Config(document, file)


def effective(config: Config) -> Iterator[tuple[str, object, str]]:
    """Every value of the file: its name, the value in force, and where it comes from."""
    for index, entry in enumerate(config.file.resources):
        place = f"$.resources[{index}]"
        yield f"resources[{index}].name", entry.name, _source(config.document, f"{place}.name")
        kind = _kind(entry)
        for name, value in _flat(kind, getattr(entry, kind)):
            yield f"resources[{index}].{name}", value, _source(config.document, f"{place}.{name}")


def _flat(name: str, value: object) -> Iterator[tuple[str, object]]:
    """Every value by its full name, those of mappings inside one by one."""
    if not isinstance(value, msgspec.Struct):
        yield name, value
        return
    for inner, each in msgspec.structs.asdict(value).items():
        yield from _flat(f"{name}.{inner}", each)


def _source(document: Document, place: str) -> str:
    return f"{document.name}:{document.line(place)}" if document.has(place) else "default"


def _check(document: Document, file: ConfigFile) -> None:
    """What types alone cannot say."""
    seen: dict[str, int] = {}
    for index, entry in enumerate(file.resources):
        place = f"$.resources[{index}]"
        if entry.name in seen:
            first = document.line(f"$.resources[{seen[entry.name]}].name")
            raise document.error(f"{place}.name", f"{entry.name} is a resource already in line {first}")
        seen[entry.name] = index
        _check_entry(document, place, entry)
    config_nvidia.check(document, [(entry.name, entry.nvidia) for entry in file.resources])


def _check_entry(document: Document, place: str, entry: ResourceEntry) -> None:
    kinds = [kind for kind in _KINDS if getattr(entry, kind) is not None]
    if len(kinds) != 1:
        raise document.error(place, f"a resource has one kind of device, one of: {', '.join(sorted(_KINDS))}")
    try:
        Resource(config_nvidia.name_of(entry.name, "model", "1g.10gb") if entry.nvidia else entry.name)
    except InvalidValue as error:
        raise document.error(f"{place}.name", str(error)) from error
    try:
        _plugin(entry)
    except (ConfigError, InvalidValue) as error:
        raise document.error(f"{place}.{kinds[0]}", str(error)) from error


def _kind(entry: ResourceEntry) -> str:
    return next(kind for kind in _KINDS if getattr(entry, kind) is not None)


def _plugin(entry: ResourceEntry) -> Plugin:
    kind = _kind(entry)
    return _KINDS[kind](entry.name, getattr(entry, kind))


def _mock(resource: str, entry: MockEntry) -> Plugin:
    if entry.facts and not entry.facts.startswith("/"):
        raise ConfigError(f"facts is an absolute path, not {entry.facts!r}")
    options = MockOptions(
        count=entry.count,
        model=entry.model,
        memory=quantity(entry.memory),
        numa=entry.numa,
        links=entry.links,
        seed=entry.seed,
        nodes=entry.nodes,
        facts=Path(entry.facts) if entry.facts else None,
    )
    return Mock(resource, options)


_KINDS: dict[str, Callable[[str, Any], Plugin]] = {"mock": _mock, "nvidia": config_nvidia.plugin}
