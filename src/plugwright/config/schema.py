"""The operator's file: its types, its checks, and the plugins it asks for.

Each kind of device is one key of a resource. A new kind is a struct here and a line in `_KINDS`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec

from plugwright.config import generic
from plugwright.config.document import Document, parse, quantity
from plugwright.config.generic import GenericKeys, HostEntry
from plugwright.config.nvidia import NvidiaEntry, check, is_family, joined, name_of, plugin
from plugwright.errors import ConfigError, InvalidValue
from plugwright.model import Resource
from plugwright.plugins.mock import Links, Mock, MockOptions
from plugwright.sdk.hotplug import HotplugSource
from plugwright.sdk.plugin import Plugin

__all__ = ["Config", "ConfigFile", "MockEntry", "ResourceEntry", "effective", "load", "quantity", "read"]


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


class ResourceEntry(GenericKeys, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One resource: its name, and one key that says what kind of device it is."""

    name: str
    mock: MockEntry | None = None
    nvidia: NvidiaEntry | None = None


class ConfigFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    resources: list[ResourceEntry]
    host: HostEntry = HostEntry()


@dataclass(frozen=True, slots=True)
class Config:
    """A file that was read and found good."""

    document: Document
    file: ConfigFile

    def plugins(self, before: "Config | None" = None, serving: dict[str, Plugin] | None = None) -> list[Plugin]:
        """The plugins it asks for; those that `before` asked for in the same way are those of `serving`."""
        alike = before is not None and _context(before.file) == _context(self.file)
        unchanged = {entry.name: entry for entry in before.file.resources} if before is not None and alike else {}
        made, ears = [], HotplugSource()
        for entry in self.file.resources:
            if is_family(entry.name):
                continue  # see `families`
            kept = (serving or {}).get(entry.name) if unchanged.get(entry.name) == entry else None
            made.append(kept or _plugin(entry, self.file, ears))
        return joined(made, (serving or {}).values())


def load(path: Path) -> Config:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8: {error.reason} at byte {error.start}") from error
    return read(path.name, text)


def read(name: str, text: str) -> Config:
    document = parse(name, text)
    file = document.convert(ConfigFile)
    _check(document, file)
    return Config(document, file)


def effective(config: Config) -> Iterator[tuple[str, object, str]]:
    """Every value of the file: its name, the value in force, and where it comes from."""
    for index, entry in enumerate(config.file.resources):
        place = f"$.resources[{index}]"
        yield f"resources[{index}].name", entry.name, _source(config.document, f"{place}.name")
        for name, value in _values(entry):
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
        _check_entry(document, index, file)
    check(document, [(entry.name, entry.nvidia) for entry in file.resources])


def _check_entry(document: Document, index: int, file: ConfigFile) -> None:
    place, entry = f"$.resources[{index}]", file.resources[index]
    kinds = _kinds(entry)
    if len(kinds) != 1:
        raise document.error(place, f"a resource has one kind of device, one of: {', '.join(_ALL_KINDS)}")
    if kinds[0] in _KINDS and generic.hands_out(entry):
        key = generic.hands_out(entry)[0]
        raise document.error(place, f"{kinds[0]} takes no key '{key}' beside it", key)
    try:
        Resource(name_of(entry.name, "model", "1g.10gb") if entry.nvidia else entry.name)
    except InvalidValue as error:
        raise document.error(f"{place}.name", str(error)) from error
    if wrong := _wrong(entry, kinds[0]):
        raise document.error(f"{place}.{wrong[0]}", wrong[1])
    try:
        _plugin(entry, file, HotplugSource())
    except (ConfigError, InvalidValue) as error:
        raise document.error(f"{place}.{kinds[0]}", str(error)) from error


def _kinds(entry: ResourceEntry) -> list[str]:
    return [kind for kind in _ALL_KINDS if getattr(entry, kind) is not None]


def _values(entry: ResourceEntry) -> Iterator[tuple[str, object]]:
    [kind] = _kinds(entry)
    if kind in generic.KINDS:
        yield from generic.values(entry, kind)
    else:
        yield from _flat(kind, getattr(entry, kind))


def _wrong(entry: ResourceEntry, kind: str) -> tuple[str, str] | None:
    if kind not in generic.KINDS:
        return None
    from plugwright.config import generic_build

    return generic_build.wrong(entry)


def _plugin(entry: ResourceEntry, file: ConfigFile, ears: HotplugSource) -> Plugin:
    [kind] = _kinds(entry)
    if kind in generic.KINDS:
        from plugwright.config import generic_build  # 2 MiB, for those who use it

        above = file.resources[: file.resources.index(entry)]
        return generic_build.plugin(
            entry.name, entry, generic_build.Shared(file.host, ears, [each for each in above if each.exclusive])
        )
    return _KINDS[kind](entry.name, getattr(entry, kind))


def _context(file: ConfigFile) -> object:
    """What a plugin is made of besides its own entry."""
    return file.host, [entry for entry in file.resources if entry.exclusive]


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


_KINDS: dict[str, Callable[[str, Any], Plugin]] = {"mock": _mock, "nvidia": plugin}
_ALL_KINDS = sorted((*_KINDS, *generic.KINDS))
