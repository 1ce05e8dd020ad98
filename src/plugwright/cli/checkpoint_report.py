"""Checkpoints as `plugwright checkpoint` shows them: lines for people, values that JSON can carry for programs."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict

import click

from plugwright.protocol import checkpoint as codec
from plugwright.protocol.checkpoint import Reading
from plugwright.protocol.checkpoint_meaning import Difference, Fact, Holding, Owner, facts, holdings

__all__ = [
    "difference_lines",
    "difference_report",
    "named",
    "plain",
    "show_lines",
    "show_report",
    "summary",
    "verify_report",
]

_OLD_LAYOUT = "written by Kubernetes 1.11 to 1.19, without NUMA nodes; kubelets from 1.31 on refuse it"
_COLOURS = {"+": "green", "-": "red"}
_INDENT = "    "


def summary(reading: Reading) -> str:
    found = reading.checkpoint
    pods = len({entry.pod_uid for entry in found.entries or ()})
    layout = f"; {_OLD_LAYOUT}" if reading.plain_lists else ""
    return (
        f"{_count(len(found.entries or ()), 'entry', 'entries')} of {_count(pods, 'pod', 'pods')}, "
        f"{_count(len(found.registered or ()), 'resource', 'resources')}, checksum {reading.stored}{layout}"
    )


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


def show_lines(reading: Reading) -> Iterator[str]:
    if reading.plain_lists:
        yield _OLD_LAYOUT
    found = holdings(reading.checkpoint)
    if not found:
        yield "no container holds a device"
    for holding in found:
        yield click.style(named(holding.owner), bold=True)
        yield from _fact_lines(facts(holding), "")
    lists = sorted((reading.checkpoint.registered or {}).items())
    for name, device_ids in lists:
        held = codec.held(reading.checkpoint, name)
        yield f"{plain(name)}: {len(device_ids or ())} healthy, {len(held)} held"


def _fact_lines(found: Iterable[Fact], sign: str) -> Iterator[str]:
    for kind, text in found:
        line = f"{sign}{_INDENT[len(sign) :]}{kind:<10}  {plain(text)}"
        yield click.style(line, fg=_COLOURS[sign]) if sign else line


def difference_lines(difference: Difference) -> Iterator[str]:
    yield click.style(f"{named(difference.owner)}: {difference.change}", bold=True)
    yield from _fact_lines(difference.removed, "-")
    yield from _fact_lines(difference.added, "+")


def named(owner: Owner) -> str:
    if owner.registered:
        return f"healthy devices of {plain(owner.resource)}"
    return f"pod {plain(owner.pod_uid)}, container {plain(owner.container)}, {plain(owner.resource)}"


def plain(text: str) -> str:
    """What a plugin or a pod has named cannot move the cursor of whoever looks at it."""
    return text if text and text.isprintable() else repr(text)


def show_report(name: str, reading: Reading) -> dict[str, object]:
    registered = reading.checkpoint.registered or {}
    return {
        "file": name,
        **_reading_report(reading),
        "entries": [_holding_report(holding) for holding in holdings(reading.checkpoint)],
        "registered": {resource: sorted(registered[resource] or ()) for resource in sorted(registered)},
    }


def _reading_report(reading: Reading) -> dict[str, object]:
    return {
        "layout": "plain lists" if reading.plain_lists else "by NUMA node",
        "checksum": {"stored": reading.stored, "computed": reading.computed},
    }


def _holding_report(holding: Holding) -> dict[str, object]:
    return {
        **_owner_report(holding.owner),
        "devices": [{"id": device_id, "numa": nodes} for device_id, nodes in holding.devices.items()],
        "answer": asdict(holding.answer) if holding.answer else None,
        "problem": holding.problem,
    }


def verify_report(
    name: str, reading: Reading | None, findings: Sequence[Fact], dropped: Sequence[Fact]
) -> dict[str, object]:
    return {
        "file": name,
        "good": not findings,
        **(_reading_report(reading) if reading else {"layout": None, "checksum": None}),
        "findings": [{"part": part, "problem": problem} for part, problem in findings],
        "dropped": [{"part": part, "problem": problem} for part, problem in dropped],
    }


def difference_report(difference: Difference) -> dict[str, object]:
    return {
        "change": difference.change,
        **({"pod": None, "container": None} | _owner_report(difference.owner)),
        "removed": [{"part": kind, "value": text} for kind, text in difference.removed],
        "added": [{"part": kind, "value": text} for kind, text in difference.added],
    }


def _owner_report(owner: Owner) -> dict[str, object]:
    if owner.registered:
        return {"resource": owner.resource}
    return {"pod": owner.pod_uid, "container": owner.container, "resource": owner.resource}
