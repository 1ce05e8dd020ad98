"""`plugwright import`: another plugin's configuration as ours.

Modules in `importers` read the formats; this module detects the format, and prints.
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
from plugwright.importers.source import ForeignConfig, ImportResult, ManifestContents, read_manifests
from plugwright.importers.values import ImportNote, flag_value, parse_all
from plugwright.model import Resource

__all__ = ["import_", "recognised_format"]

_FORMATS = {
    "gdp": "generic_device_plugin",
    "nvidia": "nvidia",
    "rdma": "rdma",
    "smarter": "smarter",
    "sriov": "sriov",
}
_SEARCH_DEPTH = 11  # path components
_YAML_STYLE: dict[str, Any] = {"sort_keys": False, "width": 116, "allow_unicode": True, "default_flow_style": None}


def _domain(_: click.Context, __: click.Parameter, value: str) -> str:
    try:
        return value and Resource(f"{value}/x").name.removesuffix("/x")
    except InvalidValue as error:
        raise click.BadParameter(str(error)) from error


@click.command(
    "import",
    epilog="Example:  plugwright import --from gdp config.yaml >plugwright.yaml",
)
@click.argument("words", metavar="FILE [-- FLAGS]...", nargs=-1, required=True)
@click.option(
    "--from", "format_name", type=click.Choice(sorted(_FORMATS)), help="The other plugin.  [default: detected]"
)
@click.option("--domain", default="", callback=_domain, help="The domain of the resource names.")
@click.option("--dangerous", is_flag=True, help="Also import devices that give control of the node, such as /dev/mem.")
@click.option("--key", default="", help="The file to import from a ConfigMap with several.")
@click.option("--dev", type=click.Path(path_type=Path, exists=True, file_okay=False),
              help="Match smarter's patterns with the names in this directory, such as /dev.")  # fmt: skip
@click.option("-o", "--output", type=click.Choice(["yaml", "json"]), default="yaml", show_default=True)
def import_(words: tuple[str, ...], output: str, format_name: str | None, **options: object) -> None:
    """Convert another plugin's configuration to plugwright's, and print it for `plugwright run -c`.

    FILE is the plugin's own file, a ConfigMap that contains it, or the manifest that starts the plugin with its flags;
    - is standard input. The plugin's flags can follow after --, with a file or without. Notes are printed as comments
    above the resources, and on standard error.
    """
    source = _source(words, options)
    format_name = format_name or _guess(source)
    imported: ImportResult = _module(format_name).translate(source)
    text = "".join(_lines(imported, format_name))
    schema.read("the imported configuration", text)
    for note in _all_notes(imported):
        click.echo(f"plugwright: {note.file}:{note.line}: {note.text}", err=True)
    click.echo(_as_json(imported, format_name) if output == "json" else text, nl=output == "json")


def _source(words: tuple[str, ...], options: dict[str, object]) -> ForeignConfig:
    path = words[0] if words[0] == "-" or not words[0].startswith("-") else None
    contents = read_manifests(parse_all(*_read(path))) if path else ManifestContents()
    flags = [flag_value(number, word) for number, word in enumerate(words[1:] if path else words, 1)]
    return ForeignConfig(
        root=contents.file(str(options["key"])),
        domain=str(options["domain"]),
        flags=(*contents.flags, *flags),
        environment=contents.environment,
        dangerous=bool(options["dangerous"]),
        names=_names_below(Path(str(options["dev"]))) if options["dev"] else None,
    )


def _read(path: str) -> tuple[str, str]:
    try:
        if path == "-":
            return "stdin", sys.stdin.buffer.read().decode("utf-8")
        return Path(path).name, Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8: {error.reason} at byte {error.start}") from error


def _names_below(directory: Path) -> tuple[str, ...]:
    """The paths of all files below a directory, relative to it, up to the depth of smarter's searches."""
    paths = (path.relative_to(directory) for path in directory.rglob("*"))
    return tuple(sorted(str(path) for path in paths if len(path.parts) <= _SEARCH_DEPTH))


def recognised_format(path: Path) -> str:
    """The value of --from for another plugin's file; empty if its format is not clear."""
    try:
        names = _recognising(ForeignConfig(root=read_manifests(parse_all(*_read(str(path)))).file("")))
    except ConfigError:
        return ""
    return names[0] if len(names) == 1 else ""


def _recognising(source: ForeignConfig) -> list[str]:
    return [name for name in _FORMATS if _module(name).recognises(source)]


def _guess(source: ForeignConfig) -> str:
    names = _recognising(source)
    if len(names) != 1:
        raise click.UsageError(
            f"cannot tell which plugin this file belongs to; use --from: {', '.join(sorted(_FORMATS))}"
        )
    return names[0]


def _module(name: str) -> ModuleType:
    return import_module(f"plugwright.importers.{_FORMATS[name]}")


def _all_notes(imported: ImportResult) -> Iterator[ImportNote]:
    yield from _by_line(imported.notes)
    for resource in imported.resources:
        yield from _by_line(resource.notes)


def _by_line(notes: Iterable[ImportNote]) -> list[ImportNote]:
    return sorted(notes, key=lambda note: note.line)


def _lines(imported: ImportResult, format_name: str) -> Iterator[str]:
    yield f"# Made by `plugwright import --from {format_name}`.\n"
    yield from (_comment(note) for note in _by_line(imported.notes))
    yield "resources:\n" if imported.resources else "resources: []\n"
    for resource in imported.resources:
        yield from (f"  {_comment(note)}" for note in _by_line(resource.notes))
        dumped = yaml.dump([resource.content], Dumper=Dumper, **_YAML_STYLE)
        yield from (f"  {line}" for line in dumped.splitlines(keepends=True))


def _comment(note: ImportNote) -> str:
    text = f"{note.file}:{note.line}: {note.text}"
    return f"# {''.join(character if character.isprintable() else ' ' for character in text)}\n"


def _as_json(imported: ImportResult, format_name: str) -> str:
    notes = [{"file": note.file, "line": note.line, "text": note.text} for note in _all_notes(imported)]
    resources = [resource.content for resource in imported.resources]
    return json.dumps({"from": format_name, "resources": resources, "notes": notes}, indent=2, ensure_ascii=False)
