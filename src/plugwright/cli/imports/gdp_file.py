"""The devices of a generic-device-plugin file or flag, as values; what they become is `gdp`'s work."""

import re
from dataclasses import dataclass

from plugwright.cli.imports import texts
from plugwright.cli.imports.values import Note, Value

__all__ = ["Device", "Group", "Path", "Usb", "read_device"]

_GROUP = ("paths", "usb", "count")
_PATH = ("path", "mountPath", "type", "permissions", "readOnly", "limit", "optional")
_NAME = re.compile(r"[a-z0-9][-a-z0-9]*[a-z0-9]")
_HEX = re.compile(r"(?:0x)?([0-9a-f]{1,4})", re.IGNORECASE)
_NOT_A_TEXT = re.compile(r"[0-9]+(?:e[0-9]+)?|0x[0-9a-f]+", re.IGNORECASE)
_PERMISSIONS = re.compile(r"(?!.*(.).*\1)[rwm]{1,3}")


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
    groups = [_group(each, notes) for each in (found["groups"].items() if "groups" in found else [])]
    if not any(groups):
        notes.append(value.note(f"no group of {name} could ever find a device, left out"))
    return Device(name, tuple(group for group in groups if group))


def _group(value: Value, notes: list[Note]) -> Group | None:
    found = value.fields(_GROUP, notes)
    count = (texts.count(found["count"]) if "count" in found else 1) or 1
    paths = tuple(_path(each, notes) for each in (found["paths"].items() if "paths" in found else []))
    usb = found["usb"].items() if "usb" in found else []
    if paths and usb:
        raise value.error("a group has paths or usb, not both")
    chosen = tuple(each for each in (_usb(each, notes) for each in usb) if each)
    if not paths and not chosen:
        notes.append(value.note("this group finds nothing, left out"))
        return None
    if chosen:
        what = (
            "all that this group finds is one device, as it was there, and gets another id when it is plugged in anew"
        )
        notes.append(value.note(what))
    return Group(count, paths, chosen)


def _path(value: Value, notes: list[Note]) -> Path:
    found = value.fields(_PATH, notes)
    if "path" not in found:
        raise value.error("path is missing")
    mount = _is_mount(found.get("type"), notes)
    useless = found.get("permissions" if mount else "readOnly")
    if useless:
        notes.append(useless.note(f"means nothing for a {'mount' if mount else 'device'}, left out"))
    path = texts.from_go_glob(found["path"])
    danger = texts.danger_of(path)
    notes += [found["path"].note(danger)] if danger else []
    return Path(
        path=path,
        dangerous=bool(danger),
        container=_container(found, notes),
        mount=mount,
        permissions=_permissions(found.get("permissions")),
        read_only=mount and "readOnly" in found and found["readOnly"].switch(),
        limit=(texts.count(found["limit"]) if "limit" in found else 1) or 1,
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
    return texts.without_templates(path)


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
    if value and written and not _PERMISSIONS.fullmatch(written):
        raise value.error(f"permissions are letters of 'mrw', not {written!r}")
    return written or "mrw"


def _usb(value: Value, notes: list[Note]) -> Usb | None:
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
