"""`plugwright checkpoint`: shows, verifies and compares the kubelet's device checkpoint; never writes one.

`protocol.checkpoint` defines the format, `protocol.checkpoint_diff` the meaning. A report is text or, with `--output
json`, values for programs.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from plugwright.cli.output import document_printed, output_option
from plugwright.errors import CheckpointCorrupt, ConfigError
from plugwright.protocol import checkpoint as codec
from plugwright.protocol.checkpoint import Checkpoint, CheckpointReading
from plugwright.protocol.checkpoint_diff import (
    DecodedEntry,
    Detail,
    Difference,
    EntryKey,
    decoded_entries,
    details,
    differences,
    explain,
)
from plugwright.protocol.messages import AllocateResponse
from plugwright.protocol.paths import KubeletPaths

__all__ = [
    "checkpoint",
    "difference_lines",
    "difference_report",
    "key_text",
    "printable",
    "show_lines",
    "show_report",
    "summary",
    "verify_report",
]

_PLAIN_LISTS = "written by Kubernetes 1.11 to 1.19, without NUMA nodes; kubelets from 1.31 on refuse it"
_COLOURS = {"+": "green", "-": "red"}
_INDENT = "    "
F = TypeVar("F", bound=Callable[..., Any])


def _shared_options(command: F) -> F:
    for option in (
        output_option(),
        click.option(
            "--device-plugins-dir",
            type=click.Path(path_type=Path),
            help="Directory of the checkpoint; default: device-plugins in the kubelet's directory.  "
            "[env var: PLUGWRIGHT_DEVICE_PLUGINS_DIR]",
        ),
        click.option(
            "--kubelet-dir",
            type=click.Path(path_type=Path),
            help="The kubelet's directory; default: /var/lib/kubelet.  [env var: PLUGWRIGHT_KUBELET_DIR]",
        ),
    ):
        command = option(command)
    return command


@click.group(epilog="Example:  plugwright checkpoint show kubelet_internal_checkpoint")
def checkpoint() -> None:
    """Show, verify and compare device checkpoints.

    The checkpoint is the kubelet's record of which container holds which devices.
    """


@checkpoint.command(epilog="Example:  plugwright checkpoint show -o json | jq '.entries[].pod'")
@click.argument("file", type=click.Path(allow_dash=True), default="")
@_shared_options
def show(file: str, output: str, kubelet_dir: Path | None, device_plugins_dir: Path | None) -> None:
    """Show the devices of each container.

    The plugins' responses are shown with them: environment, mounts, device nodes, annotations and CDI devices.

    FILE is a checkpoint, or - for standard input; by default the kubelet's own.
    """
    name = file or _default_file(kubelet_dir, device_plugins_dir)
    reading = _read(name)
    if not document_printed(show_report(name, reading), output):
        click.echo("\n".join(show_lines(reading)))
    _check(name, reading)


@checkpoint.command(epilog="Example:  plugwright checkpoint verify --output json | jq .checksum")
@click.argument("file", type=click.Path(allow_dash=True), default="")
@_shared_options
def verify(file: str, output: str, kubelet_dir: Path | None, device_plugins_dir: Path | None) -> None:
    """Check that the kubelet accepts the file.

    If not, show the problem and the correct checksum; exit code 1.

    FILE is a checkpoint, or - for standard input; by default the kubelet's own.
    """
    name = file or _default_file(kubelet_dir, device_plugins_dir)
    reading, problems = _examine(_bytes_of(name))
    dropped = list(_dropped(reading.checkpoint)) if reading else []
    if not document_printed(verify_report(name, reading, problems, dropped), output):
        good = [("good", summary(reading))] if reading and not problems else []
        for part, problem in (*problems, *good, *dropped):
            click.echo(f"{name}: {part}: {printable(problem)}")
    if problems:
        sys.exit(1)


@checkpoint.command(epilog="Example:  plugwright checkpoint diff before.json after.json")
@click.argument("old", metavar="FILE", type=click.Path(allow_dash=True))
@click.argument("new", metavar="[FILE]", type=click.Path(allow_dash=True), default="")
@_shared_options
def diff(old: str, new: str, output: str, kubelet_dir: Path | None, device_plugins_dir: Path | None) -> None:
    """Compare the content of two checkpoints.

    It compares which container holds which devices, and which devices are healthy. The first FILE is the old one, the
    second the new one, by default the kubelet's own. The order of entries and ids, which changes from write to write,
    is ignored. Exit code 1 if they differ.
    """
    new = new or _default_file(kubelet_dir, device_plugins_dir)
    if old == new == "-":
        raise click.UsageError("only one of the two files can be standard input")
    changes = differences(*(_trusted(name) for name in (old, new)))
    report = {"old": old, "new": new, "differences": [difference_report(change) for change in changes]}
    if not document_printed(report, output):
        click.echo("\n".join(line for change in changes for line in difference_lines(change)) or "no differences")
    if changes:
        sys.exit(1)


def _default_file(kubelet_dir: Path | None, device_plugins_dir: Path | None) -> str:
    return str(KubeletPaths.under(kubelet_dir, device_plugins_dir).checkpoint)


def _bytes_of(name: str) -> bytes:
    if name == "-":
        return sys.stdin.buffer.read()
    try:
        return Path(name).read_bytes()
    except IsADirectoryError as error:
        raise ConfigError(
            f"cannot read {name}: Is a directory; to read the checkpoint in it, use --kubelet-dir {name}"
        ) from error
    except OSError as error:
        raise ConfigError(f"cannot read {name}: {error.strerror}") from error


def _read(name: str) -> CheckpointReading:
    try:
        return codec.read(_bytes_of(name), plain_lists=True)
    except CheckpointCorrupt as error:
        raise CheckpointCorrupt(f"{name}: {error}") from error


def _trusted(name: str) -> Checkpoint:
    reading = _read(name)
    _check(name, reading)
    return reading.checkpoint


def _check(name: str, reading: CheckpointReading) -> None:
    if reading.stored != reading.computed:
        checksums = f"stored {reading.stored}, computed {reading.computed}"
        raise CheckpointCorrupt(f"{name} does not match its checksum: {checksums}; a kubelet starts empty with it")


def _examine(data: bytes) -> tuple[CheckpointReading | None, list[Detail]]:
    """The content, if the file parses, and its problems, each with the affected part."""
    try:
        reading = codec.read(data, plain_lists=True)
    except CheckpointCorrupt as error:
        return None, [("format", str(error).removeprefix("checkpoint does not parse: "))]
    return reading, list(_checksum_problems(reading))


def _checksum_problems(reading: CheckpointReading) -> Iterator[Detail]:
    if reading.stored != reading.computed:
        yield "checksum", f"stored {reading.stored}, should be {reading.computed}"
        if explanation := explain(reading):
            yield "checksum", f"the stored one matches the content {explanation}"


def _dropped(content: Checkpoint) -> Iterator[Detail]:
    """The entries that the kubelet drops from a file that it accepts."""
    for entry in decoded_entries(content):
        if entry.problem:
            problem = f"AllocResp of {key_text(entry.key)}: {entry.problem}"
            yield f"entry {entry.number}", f"{problem}; the kubelet drops this entry"


def summary(reading: CheckpointReading) -> str:
    content = reading.checkpoint
    pods = len({entry.pod_uid for entry in content.entries or ()})
    layout = f"; {_PLAIN_LISTS}" if reading.plain_lists else ""
    return (
        f"{_count(len(content.entries or ()), 'entry', 'entries')} of {_count(pods, 'pod', 'pods')}, "
        f"{_count(len(content.registered or ()), 'resource', 'resources')}, checksum {reading.stored}{layout}"
    )


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


def show_lines(reading: CheckpointReading) -> Iterator[str]:
    if reading.plain_lists:
        yield _PLAIN_LISTS
    entries = decoded_entries(reading.checkpoint)
    if not entries:
        yield "no container holds a device"
    for entry in entries:
        yield click.style(key_text(entry.key), bold=True)
        yield from _detail_lines(details(entry), "")
    held = codec.held_by_resource(reading.checkpoint)
    for name, device_ids in sorted((reading.checkpoint.registered or {}).items()):
        yield f"{printable(name)}: {len(device_ids or ())} healthy, {len(held.get(name, ()))} held"


def _detail_lines(lines: Iterable[Detail], sign: str) -> Iterator[str]:
    for kind, text in lines:
        line = f"{sign}{_INDENT[len(sign) :]}{kind:<10}  {printable(text)}"
        yield click.style(line, fg=_COLOURS[sign]) if sign else line


def difference_lines(difference: Difference) -> Iterator[str]:
    yield click.style(f"{key_text(difference.key)}: {difference.change}", bold=True)
    yield from _detail_lines(difference.removed, "-")
    yield from _detail_lines(difference.added, "+")


def key_text(key: EntryKey) -> str:
    if key.registered:
        return f"healthy devices of {printable(key.resource)}"
    return f"pod {printable(key.pod_uid)}, container {printable(key.container)}, {printable(key.resource)}"


def printable(text: str) -> str:
    """The text, quoted if it has control characters, so that names of plugins or pods cannot control the terminal."""
    return text if text and text.isprintable() else repr(text)


def show_report(name: str, reading: CheckpointReading) -> dict[str, object]:
    registered = reading.checkpoint.registered or {}
    return {
        "file": name,
        **_reading_report(reading),
        "entries": [_entry_report(entry) for entry in decoded_entries(reading.checkpoint)],
        "registered": {resource: sorted(registered[resource] or ()) for resource in sorted(registered)},
    }


def _reading_report(reading: CheckpointReading) -> dict[str, object]:
    return {
        "layout": "plain lists" if reading.plain_lists else "by NUMA node",
        "checksum": {"stored": reading.stored, "computed": reading.computed},
    }


def _entry_report(entry: DecodedEntry) -> dict[str, object]:
    return {
        **_key_report(entry.key),
        "devices": [{"id": device_id, "numa": nodes} for device_id, nodes in entry.devices.items()],
        "answer": _answer_report(entry.answer) if entry.answer else None,
        "problem": entry.problem,
    }


def _answer_report(answer: AllocateResponse) -> dict[str, object]:
    mounts, nodes = [mount._asdict() for mount in answer.mounts], [node._asdict() for node in answer.nodes]
    return {**answer._asdict(), "mounts": mounts, "nodes": nodes}


def verify_report(
    name: str, reading: CheckpointReading | None, problems: Sequence[Detail], dropped: Sequence[Detail]
) -> dict[str, object]:
    return {
        "file": name,
        "good": not problems,
        **(_reading_report(reading) if reading else {"layout": None, "checksum": None}),
        "findings": [{"part": part, "problem": problem} for part, problem in problems],
        "dropped": [{"part": part, "problem": problem} for part, problem in dropped],
    }


def difference_report(difference: Difference) -> dict[str, object]:
    return {
        "change": difference.change,
        **({"pod": None, "container": None} | _key_report(difference.key)),
        "removed": [{"part": kind, "value": text} for kind, text in difference.removed],
        "added": [{"part": kind, "value": text} for kind, text in difference.added],
    }


def _key_report(key: EntryKey) -> dict[str, object]:
    if key.registered:
        return {"resource": key.resource}
    return {"pod": key.pod_uid, "container": key.container, "resource": key.resource}
