"""generic-device-plugin: its config file, and its flags.

Its devices keep their ids, which the kubelet's checkpoint holds. Where it does what nobody can have meant (an unquoted
USB id read as another number, a `count` that it never looks at), a note says so.
"""

from dataclasses import dataclass, field

from plugwright.cli.imports import flags, gdp_file, texts
from plugwright.cli.imports.gdp_file import Device, Group, Path, Usb
from plugwright.cli.imports.source import Entry, Imported, Source
from plugwright.cli.imports.values import Note, Value
from plugwright.errors import ConfigError

__all__ = ["recognises", "translate"]

_FILE = ("domain", "listen", "log-level", "plugin-directory", "device", "devices")
_ELSEWHERE = {
    "listen": "belongs to `plugwright run --listen HOST:PORT`, which answers /healthz, /readyz and /metrics",
    "log-level": "belongs to `plugwright run --log-level`",
    "plugin-directory": "belongs to `plugwright run --device-plugins-dir`",
}
_CONFIG = ("config", "config-file")
_DOMAIN = "squat.ai"


@dataclass(slots=True)
class _Settings:
    """What the file, the variables and the flags say; the later ones win."""

    devices: list[Value] = field(default_factory=list)
    found: dict[str, Value] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)


def recognises(source: Source) -> bool:
    if source.root is not None:
        keys = {key.lower() for key, _ in source.root.members()} if source.root.is_mapping else set()
        return bool(keys & {"device", "devices"})
    return any(word.raw.partition("=")[0] == "--device" for word in source.flags)


def translate(source: Source) -> Imported:
    settings = _Settings()
    _take_file(source, settings)
    _take_environment(source, settings)
    _take_flags(source, settings)
    settings.notes += [value.note(_ELSEWHERE[name]) for name, value in settings.found.items() if name in _ELSEWHERE]
    domain = source.domain or _domain(settings)
    return _imported(source, settings, domain)


def _take_file(source: Source, settings: _Settings) -> None:
    if source.root is None:
        return
    settings.found = source.root.fields(_FILE, settings.notes)
    lists = [settings.found.pop(key) for key in ("device", "devices") if key in settings.found]
    if len(lists) > 1:
        raise lists[1].error("device and devices are two names of one list")
    settings.devices = lists[0].items() if lists else []


def _take_environment(source: Source, settings: _Settings) -> None:
    for name in ("domain", *_ELSEWHERE):
        variable = name.upper().replace("-", "_")
        if variable in source.environment:
            settings.found[name] = source.environment[variable]


def _take_flags(source: Source, settings: _Settings) -> None:
    devices = []
    for name, value in flags.read(source.flags, switches=("version",)):
        if name == "device":
            devices.append(value.inner())
        elif name in ("domain", *_ELSEWHERE, *_CONFIG):
            settings.found[name] = value
        else:
            settings.notes.append(value.note(f"unknown flag '{name}', left out"))
    if devices and settings.devices:
        settings.notes.append(
            settings.devices[0].note("--device is given, so the file's own devices are not looked at")
        )
    settings.devices = devices or settings.devices


def _domain(settings: _Settings) -> str:
    if "domain" in settings.found:
        return settings.found["domain"].text()
    if settings.devices:
        first = settings.devices[0]
        what = f"no domain is given: {_DOMAIN}, the default before 0.2.0; later ones say --domain devic.es"
        settings.notes.append(Note(first.file, first.line, what))
    return _DOMAIN


def _imported(source: Source, settings: _Settings, domain: str) -> Imported:
    if not settings.devices:
        elsewhere = [value for name, value in settings.found.items() if name in _CONFIG]
        if elsewhere and source.root is None:
            raise elsewhere[0].error(f"its devices are in {elsewhere[0].raw}: give that file, or the ConfigMap with it")
        raise ConfigError("generic-device-plugin needs at least one device, there is none")
    seen: dict[str, Value] = {}
    entries: list[Entry] = []
    for value in settings.devices:
        notes: list[Note] = []
        device = gdp_file.read_device(value, notes)
        if device.name in seen:
            raise value.error(
                f"a second device of the name {device.name}, the first is in line {seen[device.name].line}"
            )
        seen[device.name] = value
        name = texts.resource(value, domain, device.name)
        if device.dangerous and not source.dangerous:
            settings.notes += [*notes, value.note(f"{name} is left out; --dangerous takes it over")]
        elif device.groups:
            entries.append(Entry(_content(name, device), tuple(notes)))
        else:
            settings.notes += notes
    return Imported(tuple(entries), tuple(settings.notes))


def _content(name: str, device: Device) -> dict[str, object]:
    """Plain paths where they say it all, else groups."""
    permissions = "rw" if any(group.usb for group in device.groups) else "mrw"
    counts = {group.count for group in device.groups}
    content: dict[str, object] = {"name": name}
    if len(counts) == 1 and all(len(group.paths) == 1 for group in device.groups):
        content["paths"] = [_path(group.paths[0], permissions) for group in device.groups]
    else:
        content["groups"] = [_group(group, permissions, alone=len(counts) == 1) for group in device.groups]
    if len(counts) == 1 and counts != {1}:
        content["count"] = counts.pop()
    if permissions != "rw":
        content["permissions"] = permissions
    if device.dangerous:
        content["dangerous"] = True
    return content | {"ids": "gdp"}


def _group(group: Group, permissions: str, *, alone: bool) -> dict[str, object]:
    """`alone`: one count for all groups stands beside them."""
    content: dict[str, object] = {}
    if group.usb:
        content["usb"] = [_usb(each) for each in group.usb]
        content["by"] = "all"
    else:
        content["paths"] = [_path(each, permissions) | _in_group(each) for each in group.paths]
    return content if alone else content | {"count": group.count}


def _usb(usb: Usb) -> dict[str, object]:
    serial = {"serial": texts.literal(usb.serial)} if usb.serial else {}
    return {"vendor": usb.vendor, "product": usb.product, **serial, "nodes": ["usb"]}


def _path(path: Path, permissions: str) -> dict[str, object]:
    content: dict[str, object] = {"path": path.path}
    if path.container:
        content["to"] = path.container
    content["type"] = "mount" if path.mount else "device"
    if path.read_only:
        content["readOnly"] = True
    if not path.mount and path.permissions != permissions:
        content["permissions"] = path.permissions
    return content


def _in_group(path: Path) -> dict[str, object]:
    optional: dict[str, object] = {"optional": True} if path.optional else {}
    return optional | {"limit": path.limit} if path.limit > 1 else optional
