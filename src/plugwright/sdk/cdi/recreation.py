"""Restores the CDI names given to containers, after a reboot has emptied the directory of the specs.

The plugin of these names makes the allocation of the same devices again, and the stored names become names of the same
edits. So stored names still resolve after a later version has changed how it makes names.
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress

from plugwright.errors import InvalidValue
from plugwright.sdk.cdi.files import SpecDirectory, read
from plugwright.sdk.cdi.spec import Device, Spec, split_name

__all__ = ["keep_names", "names_in", "unresolved"]


def names_in(cdi: Iterable[str], annotations: Mapping[str, str]) -> list[str]:
    """The CDI names of an allocation, including those in its annotations, whatever their prefix."""
    candidates = [*cdi, *(name for text in annotations.values() for name in text.split(","))]
    return list(dict.fromkeys(name for name in candidates if _is_name(name)))


def keep_names(directory: SpecDirectory, kind: str, stored: Iterable[str], current: Iterable[str]) -> None:
    """Writes the undefined stored names of this kind, as names of the device of `current`.

    Each name gets its own file, as `SpecDirectory.write` makes it with the device's name as `part`.
    """
    edits = [device.edits for name in _of_kind(kind, current) if (device := _device(directory, kind, name))]
    for name in _of_kind(kind, stored):
        if len(edits) == 1 and _device(directory, kind, name) is None:
            directory.write(Spec(kind, [Device(name, edits[0])]), part=name)


def unresolved(directory: SpecDirectory, names: Iterable[str]) -> list[str]:
    """The names not defined in any file of this owner."""
    return [name for name in names if _device(directory, *split_name(name)) is None]


def _of_kind(kind: str, names: Iterable[str]) -> list[str]:
    return [name.removeprefix(f"{kind}=") for name in names if name.startswith(f"{kind}=")]


def _device(directory: SpecDirectory, kind: str, name: str) -> Device | None:
    """The device in its own file or in the file of its kind."""
    for part in (name, ""):
        with suppress(OSError, InvalidValue):
            for device in read(directory.file(kind, part)).devices:
                if device.name == name:
                    return device
    return None


def _is_name(text: str) -> bool:
    try:
        split_name(text)
    except InvalidValue:
        return False
    return "=" in text
