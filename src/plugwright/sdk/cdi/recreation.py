"""CDI names that containers were given, made again after a reboot has emptied the directory of the specs.

Whoever gave the names says what they stand for now: it makes the allocation of the same devices again, and the names
that were stored become names of the same edits. So a name may be made in another way by a later version, and a stored
one still resolves.
"""

from collections.abc import Iterable, Mapping

from plugwright.errors import InvalidValue
from plugwright.sdk.cdi.files import SpecDirectory, read
from plugwright.sdk.cdi.spec import Device, Spec, split_name

__all__ = ["keep_names", "names_in"]


def names_in(cdi: Iterable[str], annotations: Mapping[str, str]) -> list[str]:
    """The CDI names of an allocation, those in its annotations too, whatever their prefix."""
    candidates = [*cdi, *(name for text in annotations.values() for name in text.split(","))]
    return list(dict.fromkeys(name for name in candidates if _is_name(name)))


def keep_names(directory: SpecDirectory, kind: str, stored: Iterable[str], current: Iterable[str]) -> list[str]:
    """Writes the stored names of this kind that are in no file, as names of what `current` names.

    Each has a file of its own, as `SpecDirectory.write` makes it with the device's name as `part`. Returns the names
    that no device is known for.
    """
    current_edits = [device.edits for name in _of_kind(kind, current) if (device := _device(directory, kind, name))]
    unknown = []
    for name in _of_kind(kind, stored):
        if _device(directory, kind, name) is not None:
            continue
        if len(current_edits) == 1:
            directory.write(Spec(kind, [Device(name, current_edits[0])]), part=name)
        else:
            unknown.append(f"{kind}={name}")
    return unknown


def _of_kind(kind: str, names: Iterable[str]) -> list[str]:
    return [name.removeprefix(f"{kind}=") for name in names if name.startswith(f"{kind}=")]


def _device(directory: SpecDirectory, kind: str, name: str) -> Device | None:
    try:
        return next((device for device in read(directory.file(kind, name)).devices if device.name == name), None)
    except (OSError, InvalidValue):
        return None


def _is_name(text: str) -> bool:
    try:
        split_name(text)
    except InvalidValue:
        return False
    return "=" in text
