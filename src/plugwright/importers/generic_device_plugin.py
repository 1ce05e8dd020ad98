"""generic-device-plugin: its config file, and its flags.

Its devices keep their ids, which the kubelet's checkpoint holds. Where it does what nobody can have meant (an unquoted
USB id read as another number, a `count` that it never looks at), a note says so.

The devices of a generic-device-plugin file or flag, as values; what they become is `gdp`'s work.
"""

import re
from dataclasses import dataclass, field

from plugwright.errors import ConfigError
from plugwright.importers import text
from plugwright.importers.source import Entry, Imported, Note, Source, Value, read_flags
from plugwright.model import PERMISSIONS

__all__ = ["Device", "Group", "Path", "Usb", "read_device", "recognises", "translate"]

_GROUP = ("paths", "usb", "count")
_PATH = ("path", "mountPath", "type", "permissions", "readOnly", "limit", "optional")
_NAME = re.compile(r"[a-z0-9][-a-z0-9]*[a-z0-9]")
_HEX = re.compile(r"(?:0x)?([0-9a-f]{1,4})", re.IGNORECASE)
_NOT_A_TEXT = re.compile(r"[0-9]+(?:e[0-9]+)?|0x[0-9a-f]+", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Path:
    """One path of a group, in our patterns; a container gets it as a device node, or as a mount."""

    path: str
    container: str = ""
    mount: bool = False
    permissions: str = "mrw"
    read_only: bool = False
    limit: int = 1
    optional: bool = False
    dangerous: bool = False


@dataclass(frozen=True, slots=True)
class Usb:
    """Every USB device of these ids."""

    vendor: str
    product: str
    serial: str = ""


@dataclass(frozen=True, slots=True)
class Group:
    """Paths that are handed out together, or the USB devices that make one device together."""

    count: int
    paths: tuple[Path, ...] = ()
    usb: tuple[Usb, ...] = ()


@dataclass(frozen=True, slots=True)
class Device:
    """One resource; its groups are alternatives."""

    name: str
    groups: tuple[Group, ...]

    @property
    def dangerous(self) -> bool:
        return any(path.dangerous for group in self.groups for path in group.paths)


def read_device(value: Value, notes: list[Note]) -> Device:
    found = value.fields(("name", "groups", "count"), notes)
    name = found["name"].text().strip() if "name" in found else ""
    if not _NAME.fullmatch(name):
        place = found.get("name", value)
        raise place.error(f"a name has two or more of a-z, 0-9 and '-', '-' never first or last, not {name!r}")
    if "count" in found:
        notes.append(found["count"].note("generic-device-plugin looks at no count here, only in a group; left out"))
    groups = [_read_group(each, notes) for each in (found["groups"].items() if "groups" in found else [])]
    if not any(groups):
        notes.append(value.note(f"no group of {name} could ever find a device, left out"))
    return Device(name, tuple(group for group in groups if group))


def _read_group(value: Value, notes: list[Note]) -> Group | None:
    found = value.fields(_GROUP, notes)
    count = (text.device_count(found["count"]) if "count" in found else 1) or 1
    paths = tuple(_read_path(each, notes) for each in (found["paths"].items() if "paths" in found else []))
    usb = found["usb"].items() if "usb" in found else []
    if paths and usb:
        raise value.error("a group has paths or usb, not both")
    chosen = tuple(each for each in (_read_usb(each, notes) for each in usb) if each)
    if not paths and not chosen:
        notes.append(value.note("this group finds nothing, left out"))
        return None
    if chosen:
        what = (
            "all that this group finds is one device, as it was there, and gets another id when it is plugged in anew"
        )
        notes.append(value.note(what))
    return Group(count, paths, chosen)


def _read_path(value: Value, notes: list[Note]) -> Path:
    found = value.fields(_PATH, notes)
    if "path" not in found:
        raise value.error("path is missing")
    mount = _is_mount(found.get("type"), notes)
    useless = found.get("permissions" if mount else "readOnly")
    if useless:
        notes.append(useless.note(f"means nothing for a {'mount' if mount else 'device'}, left out"))
    path = text.from_go_glob(found["path"])
    danger = text.danger_of(path)
    notes += [found["path"].note(danger)] if danger else []
    return Path(
        path=path,
        dangerous=bool(danger),
        container=_container(found, notes),
        mount=mount,
        permissions=_permissions(found.get("permissions")),
        read_only=mount and "readOnly" in found and found["readOnly"].switch(),
        limit=(text.device_count(found["limit"]) if "limit" in found else 1) or 1,
        optional="optional" in found and found["optional"].switch(),
    )


def _container(found: dict[str, Value], notes: list[Note]) -> str:
    if "mountPath" not in found or not found["mountPath"].raw:
        return ""
    value, path = found["mountPath"], found["mountPath"].text()
    if not path.startswith("/") or ".." in path.split("/") or not path.isprintable():
        raise value.error(f"an absolute path without '..' is needed here, not {path!r}")
    if not path.endswith("/") and re.search(r"[*?\[]", found["path"].raw):
        notes.append(value.note("whatever is found is put there: a container can have only one of them"))
    return text.without_templates(path)


def _is_mount(value: Value | None, notes: list[Note]) -> bool:
    written = value.text() if value else "Device"
    if value and written.lower() not in ("device", "mount"):
        raise value.error(f"a type is Device or Mount, not {written!r}")
    if value and written not in ("Device", "Mount"):
        notes.append(
            value.note(f"generic-device-plugin hands out nothing for {written!r}; here it is what it looks like")
        )
    return written.lower() == "mount"


def _permissions(value: Value | None) -> str:
    written = value.text() if value else ""
    if value and written and not PERMISSIONS.fullmatch(written):
        raise value.error(f"permissions are letters of 'mrw', not {written!r}")
    return written or "mrw"


def _read_usb(value: Value, notes: list[Note]) -> Usb | None:
    found = value.fields(("vendor", "product", "serial"), notes)
    ids = {key: _usb_id(found[key], notes) for key in ("vendor", "product") if key in found}
    if len(ids) < 2 or "0000" in ids.values():
        notes.append(value.note("without a vendor and a product it finds nothing, left out"))
        return None
    return Usb(ids["vendor"], ids["product"], found["serial"].raw if "serial" in found else "")


def _usb_id(value: Value, notes: list[Note]) -> str:
    """Four digits, as the user saw them in lsusb: that is what an unquoted number was meant to be."""
    digits = _HEX.fullmatch(value.raw)
    if not digits:
        raise value.error(f"a USB id has four hexadecimal digits, not {value.raw!r}")
    if not value.quoted and _NOT_A_TEXT.fullmatch(value.raw):
        notes.append(
            value.note(
                f"unquoted, generic-device-plugin may take it for another number; here it is {digits[1].lower():0>4}"
            )
        )
    return digits[1].lower().rjust(4, "0")


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
    for name, value in read_flags(source.flags, switches=("version",)):
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
        device = read_device(value, notes)
        if device.name in seen:
            raise value.error(
                f"a second device of the name {device.name}, the first is in line {seen[device.name].line}"
            )
        seen[device.name] = value
        name = text.resource(value, domain, device.name)
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
    serial = {"serial": text.literal(usb.serial)} if usb.serial else {}
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
