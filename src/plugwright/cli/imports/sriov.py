"""The SR-IOV network device plugin: its config file.

A device goes to the first pool that takes it, hence `exclusive`. A selector that asks for what we cannot look at is
left out with a note: without that key it would take too much.
"""

import re

from plugwright.cli.imports import flags, sriov_file, texts
from plugwright.cli.imports.source import Entry, Imported, Source
from plugwright.cli.imports.sriov_file import Pool, Selector
from plugwright.cli.imports.values import Note, Value
from plugwright.errors import ConfigError

__all__ = ["recognises", "translate"]

_PREFIX = "intel.com"
_CLASSES = {"netDevice": "02", "accelerator": "12"}
_NOT_OURS = ("ddpProfiles", "auxTypes")
_FUNCTION = re.compile(r"(?P<name>[^#]+)(?P<range>#[0-9]+(?:-[0-9]+)?(?:,[0-9]+(?:-[0-9]+)?)*)?")


def recognises(source: Source) -> bool:
    root = source.root
    return root is not None and root.is_mapping and any(key.lower() == "resourcelist" for key, _ in root.members())


def translate(source: Source) -> Imported:
    if source.root is None:
        raise ConfigError("the SR-IOV network device plugin has a file, there is none")
    notes: list[Note] = []
    found = source.root.fields(("resourceList",), notes)
    pools = found["resourceList"].items() if "resourceList" in found else []
    if not pools:
        raise source.root.error("resourceList is empty: the SR-IOV plugin ends without a word")
    prefix = source.domain or _prefix(source, notes)
    return _imported(pools, prefix, notes)


def _prefix(source: Source, notes: list[Note]) -> str:
    prefix = _PREFIX
    for name, value in flags.read(source.flags, switches=("use-cdi",)):
        if name == "resource-prefix":
            prefix = value.raw
        elif name == "use-cdi":
            notes.append(value.note("write `cdi: true` beside each resource for that"))
    return prefix


def _imported(values: list[Value], prefix: str, spare: list[Note]) -> Imported:
    """`spare` are notes that belong to no resource."""
    seen: dict[str, Value] = {}
    entries: list[Entry] = []
    for value in values:
        notes: list[Note] = []
        pool = sriov_file.read_pool(value, notes)
        name = texts.resource(value, pool.prefix or prefix, pool.name)
        if name in seen:
            raise value.error(f"{name} is a resource already in line {seen[name].line}")
        seen[name] = value
        selectors = [made for made in (_selector(each, pool.kind, notes) for each in pool.selectors) if made]
        if selectors:
            entries.append(Entry(_content(name, pool, selectors), tuple(notes)))
        else:
            spare += [*notes, value.note(f"no selector of {name} is left, so it is left out")]
    return Imported(tuple(entries), tuple(spare))


def _content(name: str, pool: Pool, selectors: list[dict[str, object]]) -> dict[str, object]:
    content: dict[str, object] = {"name": name, "pci": selectors[0] if len(selectors) == 1 else selectors}
    if pool.exclude_topology:
        content["topology"] = False
    if pool.extra:
        content["info"] = pool.extra
    return content | {"exclusive": True}


def _selector(selector: Selector, kind: str, notes: list[Note]) -> dict[str, object] | None:
    reason = _why_not(selector, kind)
    if reason:
        notes.append(selector.value.note(f"{reason}, which is not looked at here; left out"))
        return None
    given = selector.lists
    parents = [*given.get("pfNames", []), *given.get("rootDevices", [])]
    functions = _functions(parents, notes)
    if parents and not functions:
        return None
    lists: dict[str, list[str]] = {
        "vendor": [texts.hexadecimal(each, notes) for each in given.get("vendors", [])],
        "device": [texts.hexadecimal(each, notes) for each in given.get("devices", [])],
        "driver": [texts.literal(each.text()) for each in given.get("drivers", [])],
        "address": [texts.literal(each.text()) for each in given.get("pciAddresses", [])],
        "acpiIndex": [texts.literal(each.text()) for each in given.get("acpiIndexes", [])],
        "pf": functions,
        "linkType": [texts.link_type(each) for each in given.get("linkTypes", [])],
        "pkey": [texts.literal(each.text()) for each in given.get("pKeys", [])],
    }
    content: dict[str, object] = {"class": _CLASSES[kind]}
    content |= {key: texts.alone(wanted) for key, wanted in lists.items() if wanted}
    content |= {key: True for key, wanted in (("rdma", selector.rdma), ("vhost", selector.vhost)) if wanted}
    return content


def _why_not(selector: Selector, kind: str) -> str:
    if kind not in _CLASSES:
        return f"it takes devices of the type {kind}"
    if selector.vdpa:
        return "it has a vdpaType"
    if selector.lists.get("pfNames") and selector.lists.get("rootDevices"):
        return "it has both pfNames and rootDevices"
    return next((f"it has {key}" for key in _NOT_OURS if selector.lists.get(key)), "")


def _functions(values: list[Value], notes: list[Note]) -> list[str]:
    """The first entry of a name decides there, and one that is not understood selects nothing."""
    found: dict[str, str] = {}
    for value in values:
        matched = _FUNCTION.fullmatch(value.text())
        if not matched or not _rises(matched["range"] or ""):
            notes.append(value.note(f"{value.raw!r} is not understood, there it selects nothing; left out"))
        elif matched["name"].lower() in found:
            notes.append(value.note(f"{value.raw!r} comes after another of that name, which decides; left out"))
        else:
            found[matched["name"].lower()] = texts.literal(matched["name"]) + (matched["range"] or "")
    return list(found.values())


def _rises(numbers: str) -> bool:
    """Whether every range in `#0-3,7` begins before it ends, and such functions can be."""
    spans = [each.partition("-") for each in numbers.removeprefix("#").split(",")]
    return all(int(first) <= int(last or first) <= 65535 for first, _, last in spans if first)
