"""generic-device-plugin: its configuration file, environment variables and flags.

Device ids stay the same, because the kubelet's checkpoint holds them. A note warns if the plugin does what its
user cannot have meant, such as reading an unquoted USB id as another number or ignoring a `count`.
"""

import re
from dataclasses import dataclass, field

from plugwright.errors import ConfigError
from plugwright.grammars import PERMISSIONS
from plugwright.importers import text
from plugwright.importers.source import ForeignConfig, ImportedResource, ImportResult
from plugwright.importers.values import ConfigValue, ImportNote, parse_flags

__all__ = ["recognises", "translate"]

_FILE_KEYS = ("domain", "listen", "log-level", "plugin-directory", "device", "devices")
_GROUP_KEYS = ("paths", "usb", "count")
_PATH_KEYS = ("path", "mountPath", "type", "permissions", "readOnly", "limit", "optional")
_DAEMON_SETTINGS = {
    "listen": "use `plugwright run --listen HOST:PORT` instead, which serves /healthz, /readyz and /metrics",
    "log-level": "use `plugwright run --log-level` instead",
    "plugin-directory": "use `plugwright run --device-plugins-dir` instead",
}
_CONFIG_FLAGS = ("config", "config-file")
_DEFAULT_DOMAIN = "squat.ai"
_NAME = re.compile(r"[a-z0-9][-a-z0-9]*[a-z0-9]")
_USB_ID = re.compile(r"(?:0x)?([0-9a-f]{1,4})", re.IGNORECASE)
_YAML_NUMBER = re.compile(r"[0-9]+(?:e[0-9]+)?|0x[0-9a-f]+", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class _GdpPath:
    """One path of a group as a pattern of ours; a container gets it as a device node, or as a mount."""

    path: str
    container: str = ""
    mount: bool = False
    permissions: str = "mrw"
    read_only: bool = False
    limit: int = 1
    optional: bool = False
    dangerous: bool = False


@dataclass(frozen=True, slots=True)
class _GdpUsb:
    """Every USB device with these ids."""

    vendor: str
    product: str
    serial: str = ""


@dataclass(frozen=True, slots=True)
class _GdpGroup:
    """Paths that a container gets together, or USB devices that are one device together."""

    count: int
    paths: tuple[_GdpPath, ...] = ()
    usb: tuple[_GdpUsb, ...] = ()


@dataclass(frozen=True, slots=True)
class _GdpDevice:
    """One resource; its groups are alternatives."""

    name: str
    groups: tuple[_GdpGroup, ...]

    @property
    def dangerous(self) -> bool:
        return any(path.dangerous for group in self.groups for path in group.paths)


@dataclass(slots=True)
class _GdpSettings:
    """Settings from the file, the variables and the flags; flags override variables, which override the file."""

    devices: list[ConfigValue] = field(default_factory=list)
    values: dict[str, ConfigValue] = field(default_factory=dict)
    notes: list[ImportNote] = field(default_factory=list)


def recognises(source: ForeignConfig) -> bool:
    if source.root is not None:
        keys = {key.lower() for key, _ in source.root.members()} if source.root.is_mapping else set()
        return bool(keys & {"device", "devices"})
    return any(word.raw.partition("=")[0] == "--device" for word in source.flags)


def translate(source: ForeignConfig) -> ImportResult:
    settings = _GdpSettings()
    _read_file(source, settings)
    _read_environment(source, settings)
    _read_flags(source, settings)
    for name, value in settings.values.items():
        if name in _DAEMON_SETTINGS:
            settings.notes.append(value.note(_DAEMON_SETTINGS[name]))
    domain = source.domain or _domain(settings)
    if not settings.devices:
        raise _no_devices(source, settings)
    return _import_devices(source, settings, domain)


def _read_file(source: ForeignConfig, settings: _GdpSettings) -> None:
    if source.root is None:
        return
    settings.values = source.root.fields(_FILE_KEYS, settings.notes)
    lists = [settings.values.pop(key) for key in ("device", "devices") if key in settings.values]
    if len(lists) > 1:
        raise lists[1].error("must not stand beside `device`, which is the same key")
    settings.devices = lists[0].items() if lists else []


def _read_environment(source: ForeignConfig, settings: _GdpSettings) -> None:
    for name in ("domain", *_DAEMON_SETTINGS):
        variable = name.upper().replace("-", "_")
        if variable in source.environment:
            settings.values[name] = source.environment[variable]


def _read_flags(source: ForeignConfig, settings: _GdpSettings) -> None:
    devices = []
    for name, value in parse_flags(source.flags, takes_value=lambda name: name != "version"):
        if name == "device":
            devices.append(value.embedded())
        elif name in ("domain", *_DAEMON_SETTINGS, *_CONFIG_FLAGS):
            settings.values[name] = value
        else:
            settings.notes.append(value.note(f"unknown flag '{name}', left out"))
    if devices and settings.devices:
        settings.notes.append(settings.devices[0].note("the file's devices are ignored because --device is given"))
    settings.devices = devices or settings.devices


def _domain(settings: _GdpSettings) -> str:
    if "domain" in settings.values:
        return settings.values["domain"].string()
    if settings.devices:
        first = settings.devices[0]
        advice = f"no domain is given: {_DEFAULT_DOMAIN}, the default before 0.2.0; later ones need --domain devic.es"
        settings.notes.append(ImportNote(first.file, first.line, advice))
    return _DEFAULT_DOMAIN


def _no_devices(source: ForeignConfig, settings: _GdpSettings) -> ConfigError:
    for name in _CONFIG_FLAGS:
        if name in settings.values and source.root is None:
            file = settings.values[name]
            return file.error(f"its devices are in {file.raw}: import that file, or the ConfigMap that holds it")
    return ConfigError("generic-device-plugin needs at least one device, got none")


def _import_devices(source: ForeignConfig, settings: _GdpSettings, domain: str) -> ImportResult:
    lines: dict[str, int] = {}
    resources: list[ImportedResource] = []
    for value in settings.devices:
        notes: list[ImportNote] = []
        device = _read_device(value, notes)
        if device.name in lines:
            raise value.error(f"device {device.name} must not be repeated, the first is in line {lines[device.name]}")
        lines[device.name] = value.line
        name = text.resource_name(value, domain, device.name)
        if device.dangerous and not source.dangerous:
            settings.notes += [*notes, value.note(f"{name} is left out; --dangerous imports it")]
        elif device.groups:
            resources.append(ImportedResource(_content(name, device), tuple(notes)))
        else:
            settings.notes += notes
    return ImportResult(tuple(resources), tuple(settings.notes))


def _read_device(value: ConfigValue, notes: list[ImportNote]) -> _GdpDevice:
    fields = value.fields(("name", "groups", "count"), notes)
    name = fields["name"].string().strip() if "name" in fields else ""
    if not _NAME.fullmatch(name):
        raise fields.get("name", value).error(
            f"name must be two or more of a-z, 0-9 and '-', with '-' neither first nor last, got {name!r}"
        )
    if "count" in fields:
        notes.append(fields["count"].note("generic-device-plugin ignores count here, and reads it in groups; left out"))
    groups = [_read_group(group, notes) for group in (fields["groups"].items() if "groups" in fields else [])]
    if not any(groups):
        notes.append(value.note(f"no group of {name} can match a device, left out"))
    return _GdpDevice(name, tuple(group for group in groups if group))


def _read_group(value: ConfigValue, notes: list[ImportNote]) -> _GdpGroup | None:
    fields = value.fields(_GROUP_KEYS, notes)
    count = (text.device_count(fields["count"]) if "count" in fields else 1) or 1
    paths = tuple(_read_path(path, notes) for path in (fields["paths"].items() if "paths" in fields else []))
    usb_values = fields["usb"].items() if "usb" in fields else []
    if paths and usb_values:
        raise value.error("must have either paths or usb, got both")
    usb = tuple(device for device in (_read_usb(usb_value, notes) for usb_value in usb_values) if device)
    if not paths and not usb:
        notes.append(value.note("this group matches nothing, left out"))
        return None
    if usb:
        notes.append(
            value.note("all USB devices of this group are one device, as in that plugin; its id changes on replugging")
        )
    return _GdpGroup(count, paths, usb)


def _read_path(value: ConfigValue, notes: list[ImportNote]) -> _GdpPath:
    fields = value.fields(_PATH_KEYS, notes)
    if "path" not in fields:
        raise value.error("path is missing")
    mount = _is_mount(fields.get("type"), notes)
    unused = fields.get("permissions" if mount else "readOnly")
    if unused:
        notes.append(unused.note(f"has no effect on a {'mount' if mount else 'device'}, left out"))
    path = text.from_go_glob(fields["path"])
    danger = text.danger_of(path)
    notes += [fields["path"].note(note) for note in (danger, text.possible_danger_of(path)) if note]
    return _GdpPath(
        path=path,
        dangerous=bool(danger),
        container=_container_path(fields, notes),
        mount=mount,
        permissions=_permissions(fields.get("permissions")),
        read_only=mount and "readOnly" in fields and fields["readOnly"].boolean(),
        limit=(text.device_count(fields["limit"]) if "limit" in fields else 1) or 1,
        optional="optional" in fields and fields["optional"].boolean(),
    )


def _container_path(fields: dict[str, ConfigValue], notes: list[ImportNote]) -> str:
    if "mountPath" not in fields or not fields["mountPath"].raw:
        return ""
    value, path = fields["mountPath"], fields["mountPath"].string()
    if not path.startswith("/") or ".." in path.split("/") or not path.isprintable():
        raise value.error(f"must be an absolute path without '..', got {path!r}")
    if not path.endswith("/") and re.search(r"[*?\[]", fields["path"].raw):
        notes.append(value.note("every match is put at this path: a container can have only one of them"))
    return text.escape_templates(path)


def _is_mount(value: ConfigValue | None, notes: list[ImportNote]) -> bool:
    kind = value.string() if value else "Device"
    if value and kind.lower() not in ("device", "mount"):
        raise value.error(f"must be Device or Mount, got {kind!r}")
    if value and kind not in ("Device", "Mount"):
        notes.append(value.note(f"generic-device-plugin ignores type {kind!r}; imported as {kind.lower()}"))
    return kind.lower() == "mount"


def _permissions(value: ConfigValue | None) -> str:
    letters = value.string() if value else ""
    if value and letters and not PERMISSIONS.fullmatch(letters):
        raise value.error(f"must be letters of 'mrw', got {letters!r}")
    return letters or "mrw"


def _read_usb(value: ConfigValue, notes: list[ImportNote]) -> _GdpUsb | None:
    fields = value.fields(("vendor", "product", "serial"), notes)
    ids = {key: _usb_id(fields[key], notes) for key in ("vendor", "product") if key in fields}
    if len(ids) < 2 or "0000" in ids.values():
        notes.append(value.note("matches nothing without a vendor and a product, left out"))
        return None
    return _GdpUsb(ids["vendor"], ids["product"], fields["serial"].raw if "serial" in fields else "")


def _usb_id(value: ConfigValue, notes: list[ImportNote]) -> str:
    """Four digits as lsusb prints them: what the user meant by an unquoted number."""
    digits = _USB_ID.fullmatch(value.raw)
    if not digits:
        raise value.error(f"must be up to four hexadecimal digits, got {value.raw!r}")
    usb_id = digits[1].lower().rjust(4, "0")
    if not value.quoted and _YAML_NUMBER.fullmatch(value.raw):
        notes.append(value.note(f"generic-device-plugin may read this unquoted id as a number; imported as {usb_id}"))
    return usb_id


def _content(name: str, device: _GdpDevice) -> dict[str, object]:
    """A list of paths if every group is a single path, otherwise groups."""
    permissions = "rw" if any(group.usb for group in device.groups) else "mrw"
    counts = {group.count for group in device.groups}
    content: dict[str, object] = {"name": name}
    if len(counts) == 1 and all(len(group.paths) == 1 for group in device.groups):
        content["paths"] = [_path_content(group.paths[0], permissions) for group in device.groups]
    else:
        content["groups"] = [_group_content(group, permissions, with_count=len(counts) > 1) for group in device.groups]
    if len(counts) == 1 and counts != {1}:
        content["count"] = counts.pop()
    if permissions != "rw":
        content["permissions"] = permissions
    if device.dangerous:
        content["dangerous"] = True
    return content | {"ids": "gdp"}


def _group_content(group: _GdpGroup, permissions: str, *, with_count: bool) -> dict[str, object]:
    content: dict[str, object] = {}
    if group.usb:
        content["usb"] = [_usb_content(usb) for usb in group.usb]
        content["by"] = "all"
    else:
        content["paths"] = [_path_content(path, permissions) | _group_keys(path) for path in group.paths]
    return content | {"count": group.count} if with_count else content


def _usb_content(usb: _GdpUsb) -> dict[str, object]:
    serial = {"serial": text.literal(usb.serial)} if usb.serial else {}
    return {"vendor": usb.vendor, "product": usb.product, **serial, "nodes": ["usb"]}


def _path_content(path: _GdpPath, permissions: str) -> dict[str, object]:
    content: dict[str, object] = {"path": path.path}
    if path.container:
        content["to"] = path.container
    content["type"] = "mount" if path.mount else "device"
    if path.read_only:
        content["readOnly"] = True
    if not path.mount and path.permissions != permissions:
        content["permissions"] = path.permissions
    return content


def _group_keys(path: _GdpPath) -> dict[str, object]:
    """The keys of a path that only groups have."""
    optional: dict[str, object] = {"optional": True} if path.optional else {}
    return optional | {"limit": path.limit} if path.limit > 1 else optional
