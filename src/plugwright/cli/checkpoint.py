"""`plugwright checkpoint`: reads the kubelet's device checkpoint; never writes one.

Checkpoints as `plugwright checkpoint` shows them: lines for people, values that JSON can carry for programs.
"""

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import click

from plugwright.errors import CheckpointCorrupt, ConfigError
from plugwright.protocol import checkpoint as codec
from plugwright.protocol.checkpoint import Checkpoint, Reading
from plugwright.protocol.checkpoint_diff import Difference, Fact, Holding, Owner, differences, explain, facts, holdings
from plugwright.protocol.paths import KubeletPaths

__all__ = [
    "checkpoint",
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


F = TypeVar("F", bound=Callable[..., Any])


def _common(command: F) -> F:
    for option in (
        click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True),
        click.option(
            "--device-plugins-dir",
            type=click.Path(path_type=Path),
            help="Where its file lies, else device-plugins under that.  [env var: PLUGWRIGHT_DEVICE_PLUGINS_DIR]",
        ),
        click.option(
            "--kubelet-dir",
            type=click.Path(path_type=Path),
            help="The kubelet's directory, else /var/lib/kubelet.  [env var: PLUGWRIGHT_KUBELET_DIR]",
        ),
    ):
        command = option(command)
    return command


@click.group(epilog="Example:  plugwright checkpoint show /var/lib/kubelet/device-plugins/kubelet_internal_checkpoint")
def checkpoint() -> None:
    """The file where the kubelet keeps which container holds which devices: look, check, compare."""


@checkpoint.command(epilog="Example:  plugwright checkpoint show --output json | jq '.entries[] | {pod, devices}'")
@click.argument("file", type=click.Path(allow_dash=True), default="")
@_common
def show(file: str, output: str, kubelet_dir: Path | None, device_plugins_dir: Path | None) -> None:
    """Show who holds what, and what the plugins answered for each container.

    FILE is a checkpoint, or - for standard input; the kubelet's own where it is not given.
    """
    name = file or _kubelets_own(kubelet_dir, device_plugins_dir)
    reading = _read(name)
    click.echo(json.dumps(show_report(name, reading)) if output == "json" else "\n".join(show_lines(reading)))
    _check(name, reading)


@checkpoint.command(epilog="Example:  plugwright checkpoint verify --output json | jq .checksum")
@click.argument("file", type=click.Path(allow_dash=True), default="")
@_common
def verify(file: str, output: str, kubelet_dir: Path | None, device_plugins_dir: Path | None) -> None:
    """Check that the kubelet would take the file; else say which part is wrong, and what the checksum should be.

    FILE is a checkpoint, or - for standard input; the kubelet's own where it is not given.
    """
    name = file or _kubelets_own(kubelet_dir, device_plugins_dir)
    reading, findings = _examined(_bytes_of(name))
    dropped = list(_dropped(reading.checkpoint)) if reading else []
    if output == "json":
        click.echo(json.dumps(verify_report(name, reading, findings, dropped)))
    else:
        good = [("good", summary(reading))] if reading and not findings else []
        for part, problem in (*findings, *good, *dropped):
            click.echo(f"{name}: {part}: {plain(problem)}")
    if findings:
        sys.exit(1)


@checkpoint.command(epilog="Example:  plugwright checkpoint diff before.json after.json")
@click.argument("old", metavar="FILE", type=click.Path(allow_dash=True))
@click.argument("new", metavar="[FILE]", type=click.Path(allow_dash=True), default="")
@_common
def diff(old: str, new: str, output: str, kubelet_dir: Path | None, device_plugins_dir: Path | None) -> None:
    """Compare what two checkpoints mean: who holds what, and which devices are healthy.

    The first FILE is the old one, the second the new one; where that is not given, the kubelet's own. The order of
    entries and ids, which changes from write to write, makes no difference. Exit code 1 where they differ.
    """
    new = new or _kubelets_own(kubelet_dir, device_plugins_dir)
    if old == new == "-":
        raise click.UsageError("only one of the two can be standard input")
    found = differences(*(_trusted(name) for name in (old, new)))
    if output == "json":
        click.echo(json.dumps({"old": old, "new": new, "differences": [difference_report(each) for each in found]}))
    else:
        click.echo("\n".join(line for each in found for line in difference_lines(each)) or "no differences")
    if found:
        sys.exit(1)


def _kubelets_own(kubelet_dir: Path | None, device_plugins_dir: Path | None) -> str:
    return str(KubeletPaths.under(kubelet_dir, device_plugins_dir).checkpoint)


def _bytes_of(name: str) -> bytes:
    if name == "-":
        return sys.stdin.buffer.read()
    try:
        return Path(name).read_bytes()
    except IsADirectoryError as error:
        raise ConfigError(f"cannot read {name}: Is a directory; for a kubelet's own: --kubelet-dir {name}") from error
    except OSError as error:
        raise ConfigError(f"cannot read {name}: {error.strerror}") from error


def _read(name: str) -> Reading:
    try:
        return codec.read(_bytes_of(name), plain_lists=True)
    except CheckpointCorrupt as error:
        raise CheckpointCorrupt(f"{name}: {error}") from error


def _trusted(name: str) -> Checkpoint:
    reading = _read(name)
    _check(name, reading)
    return reading.checkpoint


def _check(name: str, reading: Reading) -> None:
    if reading.stored != reading.computed:
        told = f"checksum stored {reading.stored}, computed {reading.computed}"
        raise CheckpointCorrupt(f"{name} is not what was written: {told}; a kubelet starts empty with it")


def _examined(data: bytes) -> tuple[Reading | None, list[Fact]]:
    """What the file says, where it parses, and what is wrong with it, by its part."""
    try:
        reading = codec.read(data, plain_lists=True)
    except CheckpointCorrupt as error:
        return None, [("format", str(error).removeprefix("checkpoint does not parse: "))]
    return reading, list(_checksum_findings(reading))


def _checksum_findings(reading: Reading) -> Iterator[Fact]:
    if reading.stored != reading.computed:
        yield "checksum", f"stored {reading.stored}, should be {reading.computed}"
        if explanation := explain(reading):
            yield "checksum", f"what is stored fits {explanation}"


def _dropped(found: Checkpoint) -> Iterator[Fact]:
    """Entries that cost the file nothing, but that the kubelet leaves out."""
    for holding in holdings(found):
        if holding.problem:
            told = f"AllocResp of {named(holding.owner)}: {holding.problem}"
            yield f"entry {holding.number}", f"{told}; the kubelet drops this entry"
