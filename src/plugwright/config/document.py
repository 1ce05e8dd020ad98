"""YAML documents in which every value has its line, so that an error can name it.

Limits on depth and size come before anything is built: a file that is refused must not fill the memory.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import msgspec
import yaml

from plugwright.errors import ConfigError

__all__ = ["Document", "parse", "parse_all"]

T = TypeVar("T")
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
# Of msgspec's messages; compiled when the first error is reported.
_MESSAGE = r"(?s)^(?P<problem>.*?)(?: - at `(?P<path>[^`]*)`)?$"
_UNKNOWN = r"Object contains unknown field `(?P<key>.*)`"
_MISSING = r"Object missing required field `(?P<key>.*)`"
_PATTERN = r"Expected `str` matching regex '(?P<pattern>.*)'"
_WRONG_TYPE = r"Expected `(?P<expected>[^`]*)`, got `(?P<got>int|float|bool|date|datetime)`"
_DEPTH = 50
_SIZE = 100_000
_KEYS = ("tag:yaml.org,2002:str", "tag:yaml.org,2002:merge")
_BAD_SCALARS = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)
_WORDS = {
    "int": "an integer",
    "str": "a string",
    "bool": "true or false",
    "object": "a mapping",
    "array": "a list",
    "null": "nothing",
    "float": "a number",
    "date": "a date",
    "datetime": "a time",
}
# What the patterns of our own types mean.
_MEANINGS = {"^/": "must be an absolute path", "^[rwm]{1,3}$": "must be letters of 'rwm'"}
_TYPES = "`((?:{0})(?: \\| (?:{0}))*)`".format("|".join(_WORDS))
_STEP = re.compile(r"\.(?P<key>[^.\[\]]+)|\[(?P<index>\d+)\]")


class Document(msgspec.Struct, frozen=True):
    """A parsed file: its plain content, and the nodes that know their lines."""

    name: str
    content: object
    root: yaml.Node | None

    def line(self, path: str, key: str = "") -> int:
        """The line of `path`, written as `$.resources[0].mock`; with `key` the line of that key in it."""
        node = self.root
        for step in _STEP.finditer(path):
            node = _child(node, step["key"], step["index"])
        if key:
            node = next((name for name, _ in _pairs(node) if name.value == key), node)
        return node.start_mark.line + 1 if node is not None else 1

    def has(self, path: str) -> bool:
        return self._node(path) is not None

    def written(self, path: str) -> str:
        """The scalar at `path` as the file has it, such as `0403`; empty for anything else."""
        node = self._node(path)
        return str(node.value) if isinstance(node, yaml.ScalarNode) else ""

    def error(self, path: str, problem: str, key: str = "") -> ConfigError:
        shown = path.removeprefix("$").removeprefix(".")
        text = f"{self.name}:{self.line(path, key)}: {shown + ': ' if shown else ''}{problem}"
        return ConfigError(text, path, key)

    def convert(self, kind: type[T], path: str = "$", content: object = None) -> T:
        """The content as `kind`, strictly: an unknown key or a wrong type is an error with its line.

        `content` is the value at `path`, if that is not the whole file.
        """
        try:
            return msgspec.convert(self.content if content is None else content, kind, strict=True)
        except msgspec.ValidationError as error:
            message = re.match(_MESSAGE, str(error))
            problem, inner = (message["problem"], message["path"] or "$") if message else (str(error), "$")
            full_path = path + inner.removeprefix("$")
            from plugwright.config import hints  # loaded only for a mistake

            unknown = re.match(_UNKNOWN, problem)
            if unknown:
                hint = hints.did_you_mean(unknown["key"], hints.keys_at(kind, inner))
                raise self.error(full_path, f"unknown key '{unknown['key']}'{hint}", unknown["key"]) from error
            choices = hints.choices_at(kind, inner) if problem.startswith("Invalid enum value") else []
            missing = re.match(_MISSING, problem)
            key = missing["key"] if missing else ""
            raise self.error(full_path, self._in_plain_words(problem, full_path, choices), key) from error

    def _node(self, path: str) -> yaml.Node | None:
        node = self.root
        for step in _STEP.finditer(path):
            if node is not None:
                node = _child(node, step["key"], step["index"], strict=True)
        return node

    def _in_plain_words(self, problem: str, path: str, choices: list[str]) -> str:
        """msgspec's message in the words of the file's author; `choices` are those of an enumeration."""
        written = self.written(path)
        if choices:
            return f"must be one of {', '.join(choices)}, got {written!r}"
        if missing := re.match(_MISSING, problem):
            empty = "the file is empty: " if self.root is None else ""
            return f"{empty}the key '{missing['key']}' is missing"
        pattern = re.match(_PATTERN, problem)
        if pattern and pattern["pattern"] in _MEANINGS:
            return f"{_MEANINGS[pattern['pattern']]}, got {written!r}"
        plain = re.sub(_TYPES, lambda match: " or ".join(map(_WORDS.__getitem__, match[1].split(" | "))), problem)
        if written:
            plain = plain.replace("got a string", f'got the string "{written}"')
            plain = plain.replace("got an integer", f"got the integer {written}")
            plain += "" if "got " in plain else f", got {written}"
        wrong = re.match(_WRONG_TYPE, problem)
        hint = f': put it in quotes: "{written}"' if wrong and "str" in wrong["expected"].split(" | ") else ""
        return plain[:1].lower() + plain[1:] + hint


def parse(name: str, text: str) -> Document:
    with _reading(name, text) as loader:
        return _document(name, loader, loader.get_single_node())


def parse_all(name: str, text: str) -> list[Document]:
    """Every document of a file, separated by `---`."""
    documents = []
    with _reading(name, text) as loader:
        while loader.check_node():
            documents.append(_document(name, loader, loader.get_node()))
    return documents


@contextmanager
def _reading(name: str, text: str) -> Iterator[Any]:
    """A loader for the text, whose errors become `ConfigError` with their lines."""
    try:
        _check_depth(name, text)
        loader = _LOADER(text)
        try:
            yield loader
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise ConfigError(f"{name}:{line}: not YAML: {error.problem or error.context}") from error
    except (yaml.YAMLError, *_BAD_SCALARS) as error:
        raise ConfigError(f"{name}: not YAML: {' '.join(str(error).split())}") from error


def _document(name: str, loader: Any, root: yaml.Node | None) -> Document:
    _check_size(name, root)
    _check_keys(name, root)
    return Document(name, loader.construct_document(root) if root is not None else {}, root)


def _check_depth(name: str, text: str) -> None:
    """Checked on the events, before anything is built: deep nesting overflows the C stack."""
    depth = 0
    for event in yaml.parse(text, Loader=_LOADER):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > _DEPTH:
            raise ConfigError(f"{name}:{event.start_mark.line + 1}: nested more than {_DEPTH} deep")


def _check_size(name: str, root: yaml.Node | None) -> None:
    """Aliases of aliases multiply: a few lines can stand for more than fits into memory."""
    sizes: dict[int, int] = {}

    def size(node: yaml.Node) -> int:
        if id(node) not in sizes:
            sizes[id(node)] = _SIZE  # a node inside itself has no end
            sizes[id(node)] = 1 + sum(map(size, _children(node)))
        return sizes[id(node)]

    if root is not None and size(root) >= _SIZE:
        raise ConfigError(f"{name}: its aliases expand to more than {_SIZE:,} values")


def _check_keys(name: str, node: yaml.Node | None) -> None:
    """A key must be a text, and given once; PyYAML keeps the last of several without an error."""
    for mapping in _mappings(node, set()):
        seen = set()
        for key, _ in mapping.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode) or key.tag not in _KEYS:
                shown = f": {key.value}" if isinstance(key, yaml.ScalarNode) else ""
                raise ConfigError(f"{name}:{line}: a key must be a string{shown}")
            if key.value in seen:
                raise ConfigError(f"{name}:{line}: key '{key.value}' is given twice")
            seen.add(key.value)


def _mappings(node: yaml.Node | None, visited: set[int]) -> Iterator[yaml.MappingNode]:
    if id(node) in visited:
        return
    visited.add(id(node))
    if isinstance(node, yaml.MappingNode):
        yield node
    for child in _children(node):
        yield from _mappings(child, visited)


def _children(node: yaml.Node | None) -> Iterator[yaml.Node]:
    if isinstance(node, yaml.SequenceNode):
        yield from node.value
    yield from (value for _, value in _pairs(node))


def _pairs(node: yaml.Node | None) -> list[tuple[Any, Any]]:
    return list(node.value) if isinstance(node, yaml.MappingNode) else []


def _child(node: yaml.Node | None, key: str | None, index: str | None, strict: bool = False) -> yaml.Node | None:
    if index is not None:
        items = node.value if isinstance(node, yaml.SequenceNode) else []
        return items[int(index)] if int(index) < len(items) else (None if strict else node)
    return next((value for name, value in _pairs(node) if name.value == key), None if strict else node)
