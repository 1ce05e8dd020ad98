"""The operator's file: its resources and its settings for the host, checked, and the plugins that it asks for.

Each resource has one key that names its device family. `families` loads the family of a key, and the family defines the
type of the key's value; this module combines them into the type of a resource.
"""

import logging
import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec.structs import replace

from plugwright.config import families
from plugwright.config.document import Document, parse
from plugwright.config.expect_entry import ExpectValue, expectation
from plugwright.config.serve_entry import ServeValue, driver_of, serve_settings
from plugwright.deprecation import ENTRY_KEYS, Former, current_keys
from plugwright.errors import ConfigError, InvalidSetting, InvalidValue, PluginError
from plugwright.model import Resource, some
from plugwright.sdk.cordons import CordonRule
from plugwright.sdk.device_family import DeviceFamily, FamilyContext, FamilySettings, HostSettings, ResourceEntry
from plugwright.sdk.hotplug import HotplugSource
from plugwright.sdk.plugin import Plugin
from plugwright.sdk.serve_settings import ServeMode
from plugwright.system import files
from plugwright.system.cpython import sha256
from plugwright.text import clean

__all__ = [
    "Config",
    "ConfigFile",
    "decode",
    "digest",
    "file_type",
    "load",
    "read",
    "read_bytes",
    "resources_at",
]

logger = logging.getLogger(__name__)

_DIGITS = 12
_LARGEST = 2**20  # bytes; a ConfigMap cannot have more
_MOST_RESOURCES = 1_000  # each is a socket, and is compared with all others


_Pattern = Annotated[str, msgspec.Meta(min_length=1)]
_Value = str | int | bool


class CordonEntry(FamilySettings, frozen=True):
    """Devices that are out of service on every node that has the file.

    `*` and `?` stand for any text and any character. Without `id` and `attributes`, every device of the resource.
    """

    resource: _Pattern
    reason: _Pattern
    id: _Pattern | tuple[_Pattern, ...] = ()
    attributes: dict[str, _Value | tuple[_Value, ...]] = msgspec.field(default_factory=dict)
    until: datetime | None = None

    def __post_init__(self) -> None:
        if self.until is not None and self.until.tzinfo is None:
            raise ValueError("until must have a zone, as 2026-12-01T08:00:00Z has")

    def rule(self) -> CordonRule:
        return CordonRule(
            resource=self.resource,
            reason=clean(self.reason),
            ids=_texts(self.id),
            attributes={name: _texts(value) for name, value in self.attributes.items()},
            until=math.inf if self.until is None else self.until.timestamp(),
        )


def _texts(value: _Value | tuple[_Value, ...]) -> tuple[str, ...]:
    return tuple(map(str, value)) if isinstance(value, tuple) else (str(value),)


class ConfigFile(msgspec.Struct, frozen=True):
    """The operator's file, read and checked."""

    resources: Sequence[ResourceEntry[Any]] = ()
    host: HostSettings = msgspec.field(default_factory=HostSettings)
    cordons: tuple[CordonEntry, ...] = ()

    @property
    def cordon_rules(self) -> tuple[CordonRule, ...]:
        return tuple(cordon.rule() for cordon in self.cordons)


class Config(msgspec.Struct, frozen=True):
    """A file whose content is valid."""

    document: Document
    file: ConfigFile
    sha256: str = ""  # as `schema.digest` has it
    content: bytes = b""  # as it was read

    def plugins(self, before: "Config | None" = None, serving: Mapping[str, Plugin] | None = None) -> list[Plugin]:
        """The plugins of the file; one whose entry is as in `before` is taken from `serving`, by its resource."""
        old = before.file if before is not None else ConfigFile()
        entries = {entry.name: entry for entry in old.resources if old.host == self.file.host}
        plugins, hotplug = [], HotplugSource()
        for index, entry in enumerate(self.file.resources):
            if entry.is_template:
                continue  # `reload.ResourceNames` replaces it by plain entries
            same = entries.get(entry.name) == entry
            same = same and entry.family.context(old.resources) == entry.family.context(self.file.resources)
            kept = (serving or {}).get(entry.name) if same else None
            context = FamilyContext(self.file.host, hotplug, self.file.resources[:index])
            plugins.append(kept or _served(entry, context))
        for family in dict.fromkeys(entry.family for entry in self.file.resources):
            family.join(plugins, list((serving or {}).values()))
        return plugins


def _served(entry: ResourceEntry[Any], context: FamilyContext) -> Plugin:
    plugin = entry.family.plugin(entry, context)
    # Also without claims: CDI specs of earlier ones tell which devices are held.
    plugin.serve = replace(entry.serve, cdi=context.host.cdi, host_root=context.host.root)
    plugin.expect, plugin.configured = entry.expect, _digest_of(entry)
    return plugin


def _digest_of(entry: ResourceEntry[Any]) -> str:
    """Of the settings that decide which devices are found."""
    try:
        content = msgspec.json.encode([entry.key, entry.settings, entry.options])
    except (TypeError, ValueError):  # a family of another package can have any settings
        content = repr([entry.key, entry.settings, entry.options]).encode()
    return digest(content)


class Outline(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The file before the families of its resources are known."""

    resources: list[dict[str, Any]]
    host: HostSettings = HostSettings()
    cordons: tuple[CordonEntry, ...] = ()


def load(path: Path) -> Config:
    """The file at `path`, for a command that reads it once: a pipe is read to its end."""
    return decode(path, read_bytes(path, from_pipe=path.is_fifo()))


def read_bytes(path: Path, *, from_pipe: bool = False) -> bytes:
    """The content of a regular file, or of a pipe. ConfigError if it is larger than a ConfigMap may be."""
    try:
        return files.read_pipe(path, _LARGEST) if from_pipe else files.read(path, _LARGEST)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"cannot read {path}: {error}") from error


def decode(path: Path, content: bytes) -> Config:
    """The file at `path`, which has this content."""
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8: {error.reason} at byte {error.start}") from error
    return replace(read(path.name, text), sha256=digest(content), content=content)


def digest(content: bytes) -> str:
    """The first digits of what `sha256sum` prints."""
    return sha256(content)[:_DIGITS]


def read(name: str, text: str, former: Mapping[str, Former] = ENTRY_KEYS) -> Config:
    document = parse(name, text)
    _check_count(document)
    try:
        outline = document.convert(Outline)
        contents = [_current(document, index, content, former) for index, content in enumerate(outline.resources)]
        file = replace(resources_at(document, "$.resources", contents, outline.host), cordons=outline.cordons)
        check_cordons(document, file)
    except ConfigError as error:
        from plugwright.config import mistakes  # loaded only for a mistake

        raise mistakes.with_others(document, error) from error
    return Config(document, file)


def _check_count(document: Document) -> None:
    """Before anything is read of the resources, which takes the longer the more there are."""
    resources = document.content.get("resources") if isinstance(document.content, dict) else None
    if isinstance(resources, list) and len(resources) > _MOST_RESOURCES:
        raise document.error(
            "$", f"must have at most {_MOST_RESOURCES:,} resources, got {len(resources):,}", "resources"
        )


def _current(document: Document, index: int, content: dict[str, Any], former: Mapping[str, Former]) -> dict[str, Any]:
    """The entry with the current names of its keys."""
    current, warnings = current_keys(content, former)
    for warning in warnings:
        place = f"{document.name}:{document.line(f'$.resources[{index}]')}"
        logger.warning("deprecated configuration key", extra={"place": place, "warning": warning})
    return current


def resources_at(
    document: Document, path: str, contents: Sequence[dict[str, Any]], host: HostSettings | None = None
) -> ConfigFile:
    """The list of resources at `path` of any file, checked as that of the operator's file is."""
    entries = [resource_entry(document, f"{path}[{index}]", content) for index, content in enumerate(contents)]
    file = ConfigFile(entries, host or HostSettings())
    for index in range(len(entries)):
        check_resource(document, path, dict(enumerate(entries[: index + 1])), file.host)
    return file


def file_type() -> type[msgspec.Struct]:
    """The type of a whole file with all built-in families, for a JSON schema."""
    fields: dict[str, Any] = {}
    for key in sorted(families.BUILT_IN):
        family = families.load(key)
        fields[key] = (key, family.settings | None, None)
        for option in msgspec.structs.fields(family.options) if family.options else ():
            fields[option.name] = (option.name, option.type, _default(option))
    strict: dict[str, Any] = {"frozen": True, "forbid_unknown_fields": True, "kw_only": True}
    text = "One resource: its name, and one key that says what kind of device it is."
    serve: Any = ("serve", ServeValue, ServeMode.DEVICE_PLUGIN)
    own: list[Any] = [("name", str), serve, ("expect", ExpectValue | None, None)]
    entry = msgspec.defstruct("ResourceEntry", [*own, *fields.values()], namespace={"__doc__": text}, **strict)
    host = ("host", HostSettings, HostSettings())
    cordons = ("cordons", tuple[CordonEntry, ...], ())
    return msgspec.defstruct("ConfigFile", [("resources", list[entry]), host, cordons], **strict)  # type: ignore[valid-type]


def resource_entry(document: Document, path: str, content: dict[str, Any]) -> ResourceEntry[Any]:
    registered = set(families.BUILT_IN)
    used = _used_families(document, path, content, registered)
    if not _known_keys(registered, used).issuperset(content):
        registered |= families.installed().keys()
        used = _used_families(document, path, content, registered)
    known = _known_keys(registered, used)
    for key in [key for key in content if key not in known]:
        is_option = any(key in _option_keys(families.load(name)) for name in families.BUILT_IN)
        if not is_option:
            from plugwright.config import hints  # loaded only for a mistake

            raise document.error(path, f"unknown key '{key}'{hints.did_you_mean(key, known)}", key)
        if len(used) == 1:
            raise document.error(path, f"{next(iter(used))} takes no key '{key}' beside it", key)
    if len(used) > 1:
        raise document.error(path, f"a resource must have one kind of device, got {' and '.join(used)}", list(used)[1])
    if not used:
        every = ", ".join(sorted(registered | families.installed().keys()))
        raise document.error(path, f"a resource must have one kind of device, got none; one of: {every}")
    [(key, family)] = used.items()
    # The key of another family can exist without a value, as in a file made from a template.
    present = {name: value for name, value in content.items() if name == key or name not in registered}
    value: Any = document.convert(_entry_type(key, family), path, present)
    options = family.options
    entry: ResourceEntry[Any] = ResourceEntry(
        name=value.name,
        key=key,
        family=family,
        settings=value.settings,
        options=options(**{name: getattr(value, name) for name in options.__struct_fields__}) if options else None,
    )
    try:
        serve, expect = serve_settings(value.serve, entry.is_template), expectation(value.expect, entry.is_template)
        return replace(entry, serve=serve, expect=expect)
    except InvalidSetting as error:
        raise document.error(f"{path}.{error.path}", str(error)) from error


def _used_families(
    document: Document, path: str, content: dict[str, Any], registered: set[str]
) -> dict[str, DeviceFamily[Any]]:
    """The families that a resource has settings for, by their keys."""
    used = {}
    for key, value in content.items():
        if key in registered and value is not None:
            try:
                used[key] = families.load(key)
            except ConfigError as error:
                raise document.error(path, str(error), key) from error
    return used


def _known_keys(registered: set[str], used: Mapping[str, DeviceFamily[Any]]) -> set[str]:
    return {"name", "serve", "expect"}.union(registered, *map(_option_keys, used.values()))


def _option_keys(family: DeviceFamily[Any]) -> Sequence[str]:
    return family.options.__struct_fields__ if family.options else ()


@cache
def _entry_type(key: str, family: DeviceFamily[Any]) -> type[msgspec.Struct]:
    bases = (family.options,) if family.options else ()
    settings = ("settings", family.settings, msgspec.field(name=key))
    serve: Any = ("serve", ServeValue, ServeMode.DEVICE_PLUGIN)
    own: list[Any] = [("name", str), settings, serve, ("expect", ExpectValue | None, None)]
    return msgspec.defstruct("ResourceEntry", own, bases=bases, frozen=True, forbid_unknown_fields=True, kw_only=True)


def _default(option: msgspec.structs.FieldInfo) -> Any:
    if option.default_factory is not msgspec.NODEFAULT:
        return msgspec.field(default_factory=option.default_factory)
    return option.default


def check_cordons(document: Document, file: ConfigFile) -> None:
    """A name that no resource has would cordon nothing, without an error. The names of templates are not known yet."""
    names = [entry.name for entry in file.resources]
    if any(entry.is_template for entry in file.resources):
        return
    for index, rule in enumerate(file.cordon_rules):
        if not any(map(rule.is_for, names)):
            problem = f"no resource of this file is called {rule.resource} (it has: {some(names)})"
            raise document.error(f"$.cordons[{index}].resource", problem)


def repeated(document: Document, resources: str, name: str, earlier: int, index: int) -> ConfigError:
    line = document.line(f"{resources}[{earlier}].name")
    return document.error(f"{resources}[{index}].name", f"{name} is already a resource, in line {line}")


def check_resource(
    document: Document, resources: str, entries: Mapping[int, ResourceEntry[Any]], host: HostSettings
) -> None:
    """Refuses the last of these resources, given by index, if its settings cannot be followed."""
    *numbered, (index, entry) = entries.items()
    path, earlier = f"{resources}[{index}]", [same for _, same in numbered]
    for other, same in numbered:
        if same.name == entry.name:
            raise repeated(document, resources, entry.name, other, index)
        driver = driver_of(entry)
        if driver and driver_of(same) == driver:
            line = document.line(f"{resources}[{other}]", "serve")
            raise document.error(path, f"driver {driver} is already that of {same.name} in line {line}", "serve")
    example = entry.name
    for placeholder, value in entry.family.placeholders.items():
        example = example.replace(f"{{{placeholder}}}", value)
    try:
        Resource(example)
    except InvalidValue as error:
        raise document.error(f"{path}.name", str(error)) from error
    try:
        entry.family.plugin(entry, FamilyContext(host, HotplugSource(), earlier))
        entry.family.check(entry, [other for other in earlier if other.family is entry.family])
    except (ConfigError, PluginError) as error:
        setting = error.path if isinstance(error, InvalidSetting) else ""
        raise document.error(f"{path}.{setting or entry.key}", str(error)) from error
    except Exception as error:
        if entry.key in families.BUILT_IN:
            raise
        raise document.error(f"{path}.{entry.key}", f"its device family failed: {error!r}") from error
