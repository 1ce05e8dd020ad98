"""The shared RDMA device plugin: its config file.

Each of its units is the same: the nodes of every adapter that the selectors find. So it is here, by `together`.
"""

import re
from dataclasses import dataclass

from plugwright.errors import ConfigError
from plugwright.importers import text
from plugwright.importers.source import Entry, Imported, Note, Source, Value, read_flags

__all__ = ["recognises", "translate"]

_ENTRY = ("resourceName", "resourcePrefix", "rdmaHcaMax", "devices", "selectors")
_SELECTORS = ("vendors", "deviceIDs", "drivers", "ifNames", "linkTypes")
_NAME = re.compile(r"[a-zA-Z0-9_]+")
_PREFIX = "rdma"
_NEEDED = ["uverbs", "umad", "rdma_cm"]


@dataclass(frozen=True, slots=True)
class _Shared:
    """One resource: so many units, each of them all the adapters that the selectors find."""

    name: str
    units: int
    selectors: dict[str, object]


def recognises(source: Source) -> bool:
    root = source.root
    return root is not None and root.is_mapping and any(key.lower() == "configlist" for key, _ in root.members())


def translate(source: Source) -> Imported:
    notes: list[Note] = []
    if source.root is None:
        raise ConfigError("the shared RDMA device plugin has a file, there is none")
    found = source.root.fields(("periodicUpdateInterval", "configList"), notes)
    if "periodicUpdateInterval" in found:
        found["periodicUpdateInterval"].whole()
        notes.append(found["periodicUpdateInterval"].note("left out: what is plugged in or goes away is seen at once"))
    entries = found["configList"].items() if "configList" in found else []
    if not entries:
        raise source.root.error("configList has at least one entry")
    for name, value in read_flags(source.flags, switches=("use-cdi",)):
        if name == "use-cdi":
            notes.append(value.note("write `cdi: true` beside each resource for that"))
    return _imported(entries, source.domain or _PREFIX, notes)


def _imported(values: list[Value], domain: str, spare: list[Note]) -> Imported:
    """`spare` are notes that belong to no resource."""
    seen: dict[str, Value] = {}
    entries: list[Entry] = []
    for value in values:
        notes: list[Note] = []
        shared = _read(value, domain, notes)
        if shared.name in seen:
            raise value.error(f"{shared.name} is a resource already in line {seen[shared.name].line}")
        seen[shared.name] = value
        entries += [Entry(_content(shared), tuple(notes))] if shared.units else []
        spare += [] if shared.units else notes
    return Imported(tuple(entries), tuple(spare))


def _read(value: Value, domain: str, notes: list[Note]) -> _Shared:
    found = value.fields(_ENTRY, notes)
    name = found["resourceName"].text() if "resourceName" in found else ""
    if not _NAME.fullmatch(name):
        raise found.get("resourceName", value).error(f"a resourceName has letters, digits and '_', not {name!r}")
    units = text.device_count(found["rdmaHcaMax"]) if "rdmaHcaMax" in found else 0
    if not units:
        notes.append(found.get("rdmaHcaMax", value).note(f"{name} has no units, so no pod ever gets one; left out"))
    prefix = found["resourcePrefix"].text() if "resourcePrefix" in found else domain
    return _Shared(text.resource(value, prefix, name), units, _selectors(value, found, notes))


def _selectors(value: Value, found: dict[str, Value], notes: list[Note]) -> dict[str, object]:
    if ("devices" in found) == ("selectors" in found):
        raise value.error("either selectors or devices, which are names of interfaces, and not both")
    given = found["selectors"].fields(_SELECTORS, notes) if "selectors" in found else {"ifNames": found["devices"]}
    read = {theirs: given[theirs].items() for theirs in _SELECTORS if theirs in given}
    ours = {
        "interface": [text.literal(each.text()) for each in read.get("ifNames", [])],
        "vendor": [text.hexadecimal(each, notes) for each in read.get("vendors", [])],
        "device": [text.hexadecimal(each, notes) for each in read.get("deviceIDs", [])],
        "driver": [text.literal(each.text()) for each in read.get("drivers", [])],
        "linkType": [text.link_type(each) for each in read.get("linkTypes", [])],
    }
    return {key: text.alone(wanted) for key, wanted in ours.items() if wanted}


def _content(shared: _Shared) -> dict[str, object]:
    return {
        "name": shared.name,
        "rdma": {**shared.selectors, "required": _NEEDED},
        "together": True,
        "count": shared.units,
        "permissions": "rwm",
        "topology": False,
        "ids": "index",
    }
