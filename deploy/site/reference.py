"""Writes the reference pages of the documentation site from the code: `make docs` runs it first.

    python deploy/site/reference.py reference        # one page per subject, in the directory `reference`

The rules of `plugwright verify` and the health codes have pages in docs/, which tests compare with the code.
"""

import ast
import inspect
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import click
import msgspec

from plugwright import errors
from plugwright.cli.main import cli
from plugwright.config import schema
from plugwright.sdk.share_usage import SHARE_LABELS

__all__ = ["PAGES", "main"]

_ROOT = Path(__file__).parents[2]
_PUBLIC = ("plugwright", "plugwright.testing")
_Json = Mapping[str, Any]


class _Metric(NamedTuple):
    name: str
    text: str
    labels: tuple[str, ...]


# --- commands


def _commands() -> Iterator[str]:
    yield "# Commands"
    yield (
        "Every command with its flags, as `--help` prints them. Exit codes and environment variables: "
        "[Running](../docs/run.md)."
    )
    for words, command in _tree(cli, ("plugwright",)):
        context = click.Context(command, info_name=" ".join(words), terminal_width=100, **command.context_settings)
        yield f"{'#' * min(len(words) + 1, 4)} {' '.join(words)}"
        yield f"```text\n{context.get_help()}\n```"


def _tree(command: click.Command, words: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """The command and its visible subcommands, in the order of the help."""
    yield words, command
    if not isinstance(command, click.Group):
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        inner = command.get_command(context, name)
        if inner is not None and not inner.hidden:
            yield from _tree(inner, (*words, name))


# --- configuration keys


def _configuration() -> Iterator[str]:
    (top,), parts = msgspec.json.schema_components([schema.file_type()], ref_template="{name}")
    names = {name: part for name, part in parts.items() if "properties" in part}
    yield "# Configuration keys"
    yield (
        "Every key of `plugwright.yaml`, as `plugwright run` reads it; an unknown key is an error. What the keys do: "
        "[ordinary devices](../docs/devices.md), [NVIDIA GPUs](../docs/nvidia.md), [mock devices](../docs/mock.md), "
        "[claims](../docs/dra.md). `plugwright check FILE` checks a file."
    )
    order = [top["$ref"], *(name for name in names if name != top["$ref"])]
    for name in order:
        yield f"## {_heading(name)}"
        if text := inspect.cleandoc(names[name].get("description", "")):
            yield text
        yield _key_table(names[name], parts)


def _heading(name: str) -> str:
    return {"ConfigFile": "The file", "ResourceEntry": "Entries of resources"}.get(name, name)


def _key_table(part: _Json, parts: Mapping[str, _Json]) -> str:
    required = part.get("required", ())
    rows = [
        (f"`{key}`", _type(value, parts), "required" if key in required else _default(value))
        for key, value in part["properties"].items()
    ]
    return _table(("key", "value", "default"), rows)


def _default(value: _Json) -> str:
    default = value.get("default")
    return "" if default in (None, "", [], {}) else f"`{json.dumps(default)}`"


def _type(value: _Json, parts: Mapping[str, _Json]) -> str:
    """A JSON schema in words, with a link to each part that has keys of its own."""
    if "$ref" in value:
        part = parts[value["$ref"]]
        if "properties" in part:
            heading = _heading(value["$ref"])
            return f"[{heading}](#{heading.lower().replace(' ', '-')})"
        return _type(part, parts)
    if choices := value.get("anyOf"):
        kinds = [_type(choice, parts) for choice in choices if choice.get("type") != "null"]
        return " or ".join(dict.fromkeys(kinds))
    if "enum" in value:
        return ", ".join(f"`{choice}`" for choice in value["enum"])
    if "const" in value:
        return f"`{value['const']}`"
    if value.get("type") == "array":
        return f"list of {_type(value.get('items') or {}, parts)}"
    if value.get("type") == "object":
        inner = value.get("additionalProperties")
        return f"mapping to {_type(inner, parts)}" if isinstance(inner, dict) and inner else "mapping"
    return f"{value.get('type', 'anything')}{_bounds(value)}"


def _bounds(value: _Json) -> str:
    low, high = value.get("minimum", value.get("exclusiveMinimum")), value.get("maximum")
    if low is not None and high is not None:
        return f" from {low} to {high}"
    if low is not None:
        return f" above {low}" if "exclusiveMinimum" in value else f" of at least {low}"
    if high is not None:
        return f" of at most {high}"
    return f" matching `{value['pattern']}`".replace("|", "\\|") if "pattern" in value else ""


# --- metrics


def _metrics() -> Iterator[str]:
    yield "# Metrics"
    yield (
        "Every metric on the daemon's `/metrics` page. With `NODE_NAME` set, each sample has the label `node` too. "
        "Alerts and the dashboard that use them: [Operations](../docs/operations.md)."
    )
    rows = [
        (f"`{metric.name}`", _kind(metric.name), metric.text, ", ".join(f"`{label}`" for label in metric.labels))
        for metric in sorted(set(_found_metrics()))
    ]
    yield _table(("metric", "type", "meaning", "labels"), rows)


def _kind(name: str) -> str:
    return "counter" if name.endswith("_total") else "histogram" if name.endswith("duration_seconds") else "gauge"


def _found_metrics() -> Iterator[_Metric]:
    """The metrics that the sources of `sdk` construct: some appear on a live page only in rare states."""
    for path in sorted((_ROOT / "src/plugwright/sdk").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                yield from _constructed(node)
            elif isinstance(node, ast.Dict):
                yield from _tabled(node)


def _constructed(call: ast.Call) -> Iterator[_Metric]:
    texts = [node.value for node in call.args[:2] if isinstance(node, ast.Constant)]
    called = call.func.id if isinstance(call.func, ast.Name) else ""
    if called in ("MetricFamily", "single") and len(texts) == 2:  # a name and its help text
        nodes = [*call.args[2:3], *(keyword.value for keyword in call.keywords if keyword.arg == "labels")]
        labels = nodes[0] if called == "MetricFamily" and nodes else ast.List([])
        yield _Metric(str(texts[0]), str(texts[1]), tuple(_texts_in(labels)))


def _texts_in(node: ast.AST) -> list[str]:
    return [each.value for each in ast.walk(node) if isinstance(each, ast.Constant) and isinstance(each.value, str)]


def _tabled(table: ast.Dict) -> Iterator[_Metric]:
    for key, value in zip(table.keys, table.values, strict=True):
        if isinstance(key, ast.Constant) and str(key.value).startswith("plugwright_") and isinstance(value, ast.Tuple):
            yield _Metric(str(key.value), _texts_in(value)[0], SHARE_LABELS)


# --- errors


def _errors() -> Iterator[str]:
    yield "# Errors"
    yield (
        "Every exception that plugwright raises, with its base class. They live in `plugwright.errors`; "
        "`ConfigError`, `InvalidValue`, `PluginError` and `PlugwrightError` are also names of `plugwright`."
    )
    rows = []
    for name in sorted(errors.__all__):
        kind = getattr(errors, name)
        rows.append((f"`{name}`", f"`{kind.__mro__[1].__name__}`", _first_line(kind)))
    yield _table(("exception", "base", "meaning"), rows)


def _first_line(documented: object) -> str:
    return (inspect.getdoc(documented) or "").partition("\n\n")[0].replace("\n", " ").replace("|", "\\|")


# --- schemas


def _schemas() -> Iterator[str]:
    yield "# Schemas of machine-readable output"
    yield "The JSON documents that plugwright prints, and the keys of each. Ignore keys that you do not know."
    for path in sorted((_ROOT / "docs").glob("*.schema.json")):
        document = json.loads(path.read_text())
        parts = {f"#/$defs/{name}": part for name, part in document.get("$defs", {}).items()}
        yield f"## {_title(path)}"
        yield f"JSON Schema: [{path.name}](../docs/{path.name})."
        top = parts.get(document.get("$ref", ""), document)
        yield _schema_table(top)
        for reference, part in parts.items():
            if part is not top and "properties" in part:
                yield f"### {_title(path)}: {reference.rpartition('/')[2]}"
                yield from [text] if (text := inspect.cleandoc(part.get("description", ""))) else []
                yield _schema_table(part)


def _title(path: Path) -> str:
    return path.name.removesuffix(".schema.json").replace("-", " ").capitalize()


def _schema_table(part: _Json) -> str:
    rows = [
        (f"`{key}`", _plain_type(value), "yes" if key in part.get("required", ()) else "")
        for key, value in part.get("properties", {}).items()
    ]
    return _table(("key", "value", "always there"), rows)


def _plain_type(value: _Json) -> str:
    if "$ref" in value:
        return str(value["$ref"]).rpartition("/")[2]
    if choices := value.get("anyOf"):
        return " or ".join(dict.fromkeys(_plain_type(choice) for choice in choices))
    if "enum" in value:
        return ", ".join(f"`{choice}`" for choice in value["enum"])
    if value.get("type") == "array":
        return f"list of {_plain_type(value.get('items') or {})}"
    return str(value.get("type", "anything"))


# --- the Python API


def _python() -> Iterator[str]:
    yield "# Python API"
    yield (
        "The public names, with their signatures and docstrings. How they work together: [SDK](../docs/sdk.md), "
        "[test kit](../docs/testing.md)."
    )
    for module_name in _PUBLIC:
        module = import_module(module_name)
        yield f"## {module_name}"
        for name in module.__all__:
            if not name.startswith("__"):
                yield from _documented(f"{module_name}.{name}", name, getattr(module, name))


def _documented(path: str, name: str, value: object) -> Iterator[str]:
    yield f"### {path}"
    yield f"```text\n{'class ' if isinstance(value, type) else ''}{name}{_signature(value)}\n```"
    yield _doc(value)
    if isinstance(value, type):
        for member, function in _members(value):
            called = "" if isinstance(function, property) else _signature(function)
            yield f"```text\n{name}.{member}{called}\n```"
            yield _doc(function)


def _members(kind: type) -> Iterator[tuple[str, object]]:
    """Public methods and properties with a docstring of their own, in the order of the source."""
    for member, value in vars(kind).items():
        function = value.__func__ if isinstance(value, (classmethod, staticmethod)) else value
        is_callable = inspect.isfunction(function) or isinstance(function, property)
        if is_callable and not member.startswith("_") and function.__doc__:
            yield member, function


def _signature(value: object) -> str:
    assert callable(value)
    try:
        text = str(inspect.signature(value))
    except ValueError:  # an exception or another class written in C
        return ""
    text = re.sub(r"<factory>|<function [^>]*>|<class '([^']*)'>|<object object at [^>]*>", r"\1…", text)
    return re.sub(r"\b(?:plugwright|typing|collections|pathlib)(?:\.[a-z_]+)*\.(?=[A-Z])", "", text)


def _doc(value: object) -> str:
    """A docstring as Markdown: its indented lines are code."""
    text = inspect.getdoc(value) or ""
    return re.sub(r"(?m)^(#+ )", r"\\\1", text).replace("<", "\\<")


# --- pages


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


PAGES: Mapping[str, Callable[[], Iterator[str]]] = {
    "commands": _commands,
    "configuration": _configuration,
    "metrics": _metrics,
    "errors": _errors,
    "schemas": _schemas,
    "python": _python,
}


def main(directory: Path) -> None:
    directory.mkdir(exist_ok=True)
    for name, parts in PAGES.items():
        (directory / f"{name}.md").write_text("\n\n".join(parts()) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
