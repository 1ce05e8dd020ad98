"""Values of another plugin's YAML, JSON and command line, each with the file and line that it comes from.

Stricter than the plugins, which ignore unknown keys: an unknown key becomes a note. Each format's module
interprets its values.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass

import yaml

from plugwright.config import document
from plugwright.errors import ConfigError

__all__ = ["ConfigValue", "ImportNote", "flag_value", "parse", "parse_all", "parse_flags"]

_DOCUMENT_START = re.compile(r"^---(?=\s|$)", re.MULTILINE)
_TAG = "tag:yaml.org,2002:"
_INTEGER = re.compile(r"[0-9]{1,18}")


@dataclass(frozen=True, slots=True)
class ImportNote:
    """A note to the user about a line of the file."""

    file: str
    line: int
    text: str


@dataclass(frozen=True, slots=True)
class ConfigValue:
    """A value, with its file and its path there, such as `devices[0].name`."""

    file: str
    path: str
    node: yaml.Node

    @property
    def line(self) -> int:
        return int(self.node.start_mark.line) + 1

    @property
    def raw(self) -> str:
        """The scalar as written in the file, regardless of its YAML type."""
        return str(self.node.value) if isinstance(self.node, yaml.ScalarNode) else ""

    @property
    def quoted(self) -> bool:
        return isinstance(self.node, yaml.ScalarNode) and bool(self.node.style)

    @property
    def is_null(self) -> bool:
        return self.node.tag == f"{_TAG}null"

    @property
    def is_mapping(self) -> bool:
        return isinstance(self.node, yaml.MappingNode)

    @property
    def is_list(self) -> bool:
        return isinstance(self.node, yaml.SequenceNode)

    def error(self, problem: str) -> ConfigError:
        return ConfigError(f"{self.file}:{self.line}: {self.path + ': ' if self.path else ''}{problem}")

    def note(self, text: str) -> ImportNote:
        return ImportNote(self.file, self.line, f"{self.path + ': ' if self.path else ''}{text}")

    def members(self) -> Iterator[tuple[str, "ConfigValue"]]:
        """The keys of a mapping as they are written, with their values."""
        if not self.is_mapping:
            raise self.error(f"must be a mapping, got {self._shown()}")
        for key, node in self.node.value:
            yield key.value, ConfigValue(self.file, f"{self.path}.{key.value}" if self.path else key.value, node)

    def fields(self, known: Collection[str], notes: list[ImportNote]) -> dict[str, "ConfigValue"]:
        """Values by their names in `known`, ignoring case; each other key gives a note."""
        names = {name.lower(): name for name in known}
        fields: dict[str, ConfigValue] = {}
        for key, value in self.members():
            name = names.get(key.lower())
            if name is None:
                notes.append(self._key(key).note(f"unknown key '{key}', left out"))
            elif name in fields:
                raise self._key(key).error(f"key '{name}' must not be repeated, got '{key}' too")
            elif not value.is_null:
                fields[name] = value
        return fields

    def items(self) -> list["ConfigValue"]:
        """The items of a list; null is an empty list."""
        if self.is_null:
            return []
        if not self.is_list:
            raise self.error(f"must be a list, got {self._shown()}")
        return [ConfigValue(self.file, f"{self.path}[{index}]", node) for index, node in enumerate(self.node.value)]

    def string(self) -> str:
        if self.node.tag != f"{_TAG}str":
            raise self.error(f"must be a string, got {self._shown()}")
        return self.raw

    def integer(self) -> int:
        """A number as JSON writes it: no sign, no octal."""
        if self.node.tag != f"{_TAG}int" or not _INTEGER.fullmatch(self.raw):
            raise self.error(f"must be an integer, got {self._shown()}")
        return int(self.raw)

    def boolean(self) -> bool:
        if self.raw.lower() not in ("true", "false") or self.quoted:
            raise self.error(f"must be true or false, got {self._shown()}")
        return self.raw.lower() == "true"

    def embedded(self) -> "ConfigValue":
        """Parses the YAML or JSON in this text, with the line numbers of the outer file where possible."""
        # Blank lines in front only shift the count: in a block they give each line its number in the outer file.
        block = isinstance(self.node, yaml.ScalarNode) and self.node.style == "|"
        before = self.line if block else self.line - 1
        several = not block and "\n" in self.raw.strip()
        file = f"{self.file}:{self.line}: inside {self.path}" if several else self.file
        return parse(file, "\n" * (0 if several else before) + self.raw)

    def replaced(self, text: str) -> "ConfigValue":
        """A string in the position of this value."""
        style = getattr(self.node, "style", None)
        node = yaml.ScalarNode(f"{_TAG}str", text, self.node.start_mark, self.node.end_mark, style=style)
        return ConfigValue(self.file, self.path, node)

    def _key(self, key: str) -> "ConfigValue":
        node = next(name for name, _ in self.node.value if name.value == key)
        return ConfigValue(self.file, self.path, node)

    def _shown(self) -> str:
        if isinstance(self.node, yaml.ScalarNode):
            return "nothing" if self.is_null else repr(self.raw)
        return "a list" if self.is_list else "a mapping"


def parse(file: str, text: str) -> ConfigValue:
    """One document; an empty one is an empty mapping."""
    return _parse(file, text) or ConfigValue(file, "", yaml.MappingNode(f"{_TAG}map", [], _mark(1), _mark(1)))


def parse_all(file: str, text: str) -> list[ConfigValue]:
    """Parses all documents of a file, such as a manifest."""
    starts = [0, *(mark.start() for mark in _DOCUMENT_START.finditer(text))]
    ends = [*starts[1:], len(text)]
    documents = [
        _parse(file, "\n" * text.count("\n", 0, start) + text[start:end])
        for start, end in zip(starts, ends, strict=True)
    ]
    return [value for value in documents if value and not value.is_null] or [parse(file, "")]


def flag_value(number: int, word: str) -> ConfigValue:
    """A word of a command line, with its number as its line."""
    return ConfigValue("flags", "", yaml.ScalarNode(f"{_TAG}str", word, _mark(number), _mark(number), style='"'))


def parse_flags(words: Iterable[ConfigValue], takes_value: Callable[[str], bool]) -> Iterator[tuple[str, ConfigValue]]:
    """Flags as Go programs read them (`--name value`, `--name=value`, one dash or two): names without dashes, values.

    `takes_value` decides whether a flag's value can be the next word; otherwise its value is `true`. Words that are not
    flags are skipped.
    """
    rest = iter(words)
    for word in rest:
        name, equals, text = word.raw.lstrip("-").partition("=")
        if not word.raw.startswith("-") or not name:
            continue
        if equals or not takes_value(name):
            yield name, word.replaced(text if equals else "true")
        else:
            value = next(rest, None)
            if value is None:
                raise word.error(f"{word.raw} must be followed by a value")
            yield name, value


def _parse(file: str, text: str) -> ConfigValue | None:
    if text.lstrip().startswith(("{", "[")):
        text = text.replace("\t", " ")  # JSON is often indented with tabs, which YAML without libyaml refuses
    root = document.parse(file, text).root
    return ConfigValue(file, "", _with_merged_keys(root, set())) if root is not None else None


def _mark(line: int) -> yaml.Mark:
    return yaml.Mark("", 0, line - 1, 0, None, 0)


def _with_merged_keys(node: yaml.Node, visited: set[int]) -> yaml.Node:
    """The node with `<<` keys replaced by the members of the mappings that they name."""
    if id(node) not in visited:
        visited.add(id(node))
        children: list[yaml.Node] = []
        if isinstance(node, yaml.MappingNode):
            yaml.constructor.SafeConstructor().flatten_mapping(node)
            children = [value for _, value in node.value]
        elif isinstance(node, yaml.SequenceNode):
            children = node.value
        for child in children:
            _with_merged_keys(child, visited)
    return node
