"""`plugwright import`: another plugin's configuration in our words.

Reading each format is the work of its module in `imports`; this one finds the format, and prints.
"""

import json
import sys
from collections.abc import Iterable, Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import yaml

from plugwright.cli.output import Dumper
from plugwright.config import schema
from plugwright.errors import ConfigError, InvalidValue
from plugwright.importers.source import Found, Imported, Note, Source, flag_word, parse_all, unwrap
from plugwright.model import Resource

__all__ = ["import_"]

_FORMATS = {
    "gdp": "generic_device_plugin",
    "nvidia": "nvidia",
    "rdma": "rdma",
    "smarter": "smarter",
    "sriov": "sriov",
}
_STYLE: dict[str, Any] = {"sort_keys": False, "width": 116, "allow_unicode": True, "default_flow_style": None}


def _domain(_: click.Context, __: click.Parameter, value: str) -> str:
    try:
        return value and Resource(f"{value}/x").name.removesuffix("/x")
    except InvalidValue as error:
        raise click.BadParameter(str(error)) from error


@click.command(
    "import",
    epilog="Example:  plugwright import --from gdp config.yaml >new.yaml && plugwright run --check -c new.yaml",
)
@click.argument("words", metavar="FILE [-- FLAGS]...", nargs=-1, required=True)
@click.option(
    "--from", "whose", type=click.Choice(sorted(_FORMATS)), help="The plugin whose it is.  [default: guessed]"
)
@click.option("--domain", default="", callback=_domain, help="What stands before the '/' in the names of resources.")
@click.option("--dangerous", is_flag=True, help="Also take over what would hand out the node itself, such as /dev/mem.")
@click.option("--key", default="", help="Which file, of a ConfigMap that holds several.")
@click.option("--dev", type=click.Path(path_type=Path, exists=True, file_okay=False),
              help="Look up smarter's patterns in this directory, such as /dev.")  # fmt: skip
@click.option("-o", "--output", type=click.Choice(["yaml", "json"]), default="yaml", show_default=True)
def import_(words: tuple[str, ...], output: str, whose: str | None, **options: object) -> None:
    """Print what another plugin's configuration says as ours, ready for `plugwright run -c`.

    FILE is the plugin's own file, a ConfigMap that holds it, or the manifest that starts the plugin with its flags;
    - is standard input. The plugin's flags may stand behind --, with a file or without. What is worth knowing stands
    above each resource, and on standard error.
    """
    source = _source(words, options)
    whose = whose or _guess(source)
    imported: Imported = _module(whose).translate(source)
    text = "".join(_lines(imported, whose))
    schema.read("what was made of it", text)
    for note in _notes(imported):
        click.echo(f"plugwright: {note.file}:{note.line}: {note.text}", err=True)
    click.echo(_as_json(imported, whose) if output == "json" else text, nl=output == "json")


def _source(words: tuple[str, ...], options: dict[str, object]) -> Source:
    given = words[0] if words[0] == "-" or not words[0].startswith("-") else None
    found = unwrap(parse_all(*_read(given))) if given else Found()
    flags = [flag_word(number, word) for number, word in enumerate(words[1:] if given else words, 1)]
    return Source(
        root=found.file(str(options["key"])),
        domain=str(options["domain"]),
        flags=(*found.flags, *flags),
        environment=found.environment,
        dangerous=bool(options["dangerous"]),
        names=_names(Path(str(options["dev"]))) if options["dev"] else None,
    )


def _read(given: str) -> tuple[str, str]:
    try:
        if given == "-":
            return "stdin", sys.stdin.buffer.read().decode("utf-8")
        return Path(given).name, Path(given).read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot read {given}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{given}: not UTF-8: {error.reason} at byte {error.start}") from error


def _names(directory: Path, depth: int = 10) -> tuple[str, ...]:
    """Everything below a directory by its path from there, as deep as smarter looks."""
    found = (each.relative_to(directory) for each in directory.rglob("*"))
    return tuple(sorted(str(each) for each in found if len(each.parts) <= depth + 1))


def _guess(source: Source) -> str:
    names = [name for name in _FORMATS if _module(name).recognises(source)]
    if len(names) != 1:
        raise click.UsageError(
            f"this is not plainly of one plugin, say whose with --from: {', '.join(sorted(_FORMATS))}"
        )
    return names[0]


def _module(name: str) -> ModuleType:
    return import_module(f"plugwright.importers.{_FORMATS[name]}")


def _notes(imported: Imported) -> Iterator[Note]:
    yield from _sorted(imported.notes)
    for entry in imported.entries:
        yield from _sorted(entry.notes)


def _sorted(notes: Iterable[Note]) -> list[Note]:
    return sorted(notes, key=lambda note: note.line)


def _lines(imported: Imported, whose: str) -> Iterator[str]:
    yield f"# Made by `plugwright import --from {whose}`.\n"
    yield from (_comment(note) for note in _sorted(imported.notes))
    yield "resources:\n" if imported.entries else "resources: []\n"
    for entry in imported.entries:
        yield from (f"  {_comment(note)}" for note in _sorted(entry.notes))
        dumped = yaml.dump([entry.content], Dumper=Dumper, **_STYLE)
        yield from (f"  {line}" for line in dumped.splitlines(keepends=True))


def _comment(note: Note) -> str:
    text = f"{note.file}:{note.line}: {note.text}"
    return f"# {''.join(each if each.isprintable() else ' ' for each in text)}\n"


def _as_json(imported: Imported, whose: str) -> str:
    notes = [{"file": each.file, "line": each.line, "text": each.text} for each in _notes(imported)]
    resources = [entry.content for entry in imported.entries]
    return json.dumps({"from": whose, "resources": resources, "notes": notes}, indent=2, ensure_ascii=False)
