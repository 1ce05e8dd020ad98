"""What an importer is given, and what it gives back.

A peer's YAML or JSON, each value with its line.

Stricter than the peers, which pass over what they do not know: an unknown key becomes a note. What a value means is
the format's own business.

Command lines as Go programs read them: `--name value`, `--name=value`, with one dash or two.

What stands around a peer's file in a cluster: ConfigMaps, and the manifests that start the peer.

Finds the file, the flags and the variables in them. What they mean is the business of the format's own module.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import yaml

from plugwright.config import document
from plugwright.errors import ConfigError

__all__ = [
    "Entry",
    "Found",
    "Imported",
    "Note",
    "Source",
    "Value",
    "flag_word",
    "parse",
    "parse_all",
    "read_flags",
    "unwrap",
]

_MARK = re.compile(r"^---(?=\s|$)", re.MULTILINE)
_TAG = "tag:yaml.org,2002:"
_NUMBER = re.compile(r"[0-9]{1,18}")


@dataclass(frozen=True, slots=True)
class Note:
    """Something that the user of a peer's file should know, and the line that it is about."""

    file: str
    line: int
    text: str


@dataclass(frozen=True, slots=True)
class Value:
    """A value in a peer's file, and where it stands."""

    file: str
    place: str
    node: yaml.Node

    @property
    def line(self) -> int:
        return int(self.node.start_mark.line) + 1

    @property
    def raw(self) -> str:
        """The text of a scalar as it is written, whatever YAML takes it for."""
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

    def error(self, what: str) -> ConfigError:
        return ConfigError(f"{self.file}:{self.line}: {self.place + ': ' if self.place else ''}{what}")

    def note(self, what: str) -> Note:
        return Note(self.file, self.line, f"{self.place + ': ' if self.place else ''}{what}")

    def members(self) -> Iterator[tuple[str, "Value"]]:
        """The keys as they are written, each with its value."""
        if not self.is_mapping:
            raise self.error(f"a mapping is needed here, not {self._shown()}")
        for key, node in self.node.value:
            yield key.value, Value(self.file, f"{self.place}.{key.value}" if self.place else key.value, node)

    def fields(self, known: Collection[str], notes: list[Note]) -> dict[str, "Value"]:
        """The values by their names in `known`, however the case is written; any other key is noted."""
        names = {name.lower(): name for name in known}
        found: dict[str, Value] = {}
        for key, value in self.members():
            name = names.get(key.lower())
            if name is None:
                notes.append(self._at(key).note(f"unknown key '{key}', left out"))
            elif name in found:
                raise self._at(key).error(f"key '{name}' stands here a second time, as '{key}'")
            elif not value.is_null:
                found[name] = value
        return found

    def items(self) -> list["Value"]:
        if self.is_null:
            return []
        if not self.is_list:
            raise self.error(f"a list is needed here, not {self._shown()}")
        return [Value(self.file, f"{self.place}[{index}]", node) for index, node in enumerate(self.node.value)]

    def text(self) -> str:
        if self.node.tag != f"{_TAG}str":
            raise self.error(f"a text is needed here, not {self._shown()}")
        return self.raw

    def whole(self) -> int:
        """A number as JSON writes it: no sign, no octal."""
        if self.node.tag != f"{_TAG}int" or not _NUMBER.fullmatch(self.raw):
            raise self.error(f"a whole number is needed here, not {self._shown()}")
        return int(self.raw)

    def switch(self) -> bool:
        if self.raw.lower() not in ("true", "false") or self.quoted:
            raise self.error(f"true or false is needed here, not {self._shown()}")
        return self.raw.lower() == "true"

    def texts(self) -> list[str]:
        return [each.text() for each in self.items()]

    def inner(self) -> "Value":
        """The YAML or JSON that this text holds; its lines are those of the outer file where they can be."""
        # Blank lines in front change nothing but the count. In a block they put each line at its outer number.
        block = isinstance(self.node, yaml.ScalarNode) and self.node.style == "|"
        before = self.line if block else self.line - 1
        several = not block and "\n" in self.raw.strip()
        file = f"{self.file}:{self.line}: inside {self.place}" if several else self.file
        return parse(file, "\n" * (0 if several else before) + self.raw)

    def _at(self, key: str) -> "Value":
        node = next(name for name, _ in self.node.value if name.value == key)
        return Value(self.file, self.place, node)

    def _shown(self) -> str:
        if isinstance(self.node, yaml.ScalarNode):
            return "nothing" if self.is_null else repr(self.raw)
        return "a list" if self.is_list else "a mapping"


def parse(file: str, text: str) -> Value:
    """One document; an empty one is an empty mapping."""
    return _parse(file, text) or Value(file, "", yaml.MappingNode(f"{_TAG}map", [], _mark(1), _mark(1)))


def parse_all(file: str, text: str) -> list[Value]:
    """Every document of a file that may hold several, as manifests do."""
    starts = [0, *(found.start() for found in _MARK.finditer(text))]
    ends = [*starts[1:], len(text)]
    found = [
        _parse(file, "\n" * text.count("\n", 0, start) + text[start:end])
        for start, end in zip(starts, ends, strict=True)
    ]
    return [each for each in found if each and not each.is_null] or [parse(file, "")]


def _parse(file: str, text: str) -> Value | None:
    if text.lstrip().startswith(("{", "[")):
        text = text.replace("\t", " ")  # JSON is indented with tabs by many; YAML without libyaml takes none
    root = document.parse(file, text).root
    return Value(file, "", _flat(root, set())) if root is not None else None


def flag_word(number: int, text: str) -> Value:
    """A word of a command line, whose line is its number."""
    return Value("flags", "", yaml.ScalarNode(f"{_TAG}str", text, _mark(number), _mark(number), style='"'))


def _mark(line: int) -> yaml.Mark:
    return yaml.Mark("", 0, line - 1, 0, None, 0)


def _flat(node: yaml.Node, visited: set[int]) -> yaml.Node:
    """`<<` is written out, as every reader of YAML does."""
    if id(node) not in visited:
        visited.add(id(node))
        if isinstance(node, yaml.MappingNode):
            yaml.constructor.SafeConstructor().flatten_mapping(node)
        for child in _children(node):
            _flat(child, visited)
    return node


def _children(node: yaml.Node) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return [value for _, value in node.value]
    return list(node.value) if isinstance(node, yaml.SequenceNode) else []


@dataclass(frozen=True, slots=True)
class Source:
    """A peer's configuration: its file, the flags and variables that it is started with, and what we were told."""

    root: Value | None
    domain: str = ""
    flags: tuple[Value, ...] = ()
    environment: Mapping[str, Value] = field(default_factory=dict)
    dangerous: bool = False  # --dangerous: what would take over the node is wanted
    names: tuple[str, ...] | None = None  # what is in /dev, where --dev was given


@dataclass(frozen=True, slots=True)
class Entry:
    """One resource of our file, and what is to be said about it."""

    content: dict[str, object]
    notes: tuple[Note, ...] = ()


@dataclass(frozen=True, slots=True)
class Imported:
    """What a peer's file says, in our words; `notes` are about the file as a whole."""

    entries: tuple[Entry, ...]
    notes: tuple[Note, ...] = ()


def read_flags(words: Iterable[Value], switches: Iterable[str] = ()) -> Iterator[tuple[str, Value]]:
    """Each flag's name, without its dashes, and its value; `switches` take none. What is no flag is passed over."""
    rest = iter(words)
    for word in rest:
        name, equals, value = word.raw.lstrip("-").partition("=")
        if not word.raw.startswith("-") or not name:
            continue
        if equals:
            yield name, _replaced(word, value)
        elif name in switches:
            yield name, _replaced(word, "true")
        else:
            follower = next(rest, None)
            if follower is None:
                raise word.error(f"nothing follows {word.raw}")
            yield name, follower


def _replaced(word: Value, text: str) -> Value:
    """`text`, standing where `word` stood."""
    node = word.node
    made = yaml.ScalarNode(
        "tag:yaml.org,2002:str", text, node.start_mark, node.end_mark, style=getattr(node, "style", None)
    )
    return Value(word.file, word.place, made)


_PODS = {
    "Pod": ("spec",),
    "DaemonSet": ("spec", "template", "spec"),
    "Deployment": ("spec", "template", "spec"),
    "ReplicaSet": ("spec", "template", "spec"),
    "StatefulSet": ("spec", "template", "spec"),
}


@dataclass(slots=True)
class Found:
    """The files of a peer by name, still texts where a ConfigMap holds them, and the command lines beside them."""

    files: dict[str, Value] = field(default_factory=dict)
    flags: list[Value] = field(default_factory=list)
    environment: dict[str, Value] = field(default_factory=dict)

    def file(self, key: str) -> Value | None:
        """The one file, or the one named `key`."""
        if key:
            if key not in self.files:
                raise ConfigError(f"there is no file {key!r}, only: {', '.join(sorted(self.files)) or 'none'}")
            return self._read(key)
        if len(self.files) > 1:
            raise ConfigError(f"several files in there, say which with --key: {', '.join(sorted(self.files))}")
        return next((self._read(name) for name in self.files), None)

    def _read(self, name: str) -> Value:
        return self.files[name].inner() if name else self.files[name]


def unwrap(documents: list[Value]) -> Found:
    found = Found()
    for wrapped in documents:
        for member in _members(wrapped):
            _take(member, found)
    return found


def _take(document: Value, found: Found) -> None:
    kind = _kind(document)
    if not kind:
        if "" in found.files:
            raise document.error("a second file after '---': give them one by one")
        found.files[""] = document
    elif kind == "ConfigMap":
        for name, text in _data(document):
            if name in found.files:
                raise text.error(f"a second file of the name {name!r}")
            found.files[name] = text
    elif kind in _PODS:
        for container in _containers(document, _PODS[kind]):
            _take_container(container, found)


def _members(document: Value) -> Iterator[Value]:
    """`kubectl get -o yaml` makes a List of several objects."""
    if _kind(document).endswith("List"):
        items = dict(document.members()).get("items")
        for item in items.items() if items else ():
            yield from _members(item)
    else:
        yield document


def _kind(document: Value) -> str:
    """The kind of a Kubernetes object, "" of anything else."""
    members = dict(document.members()) if document.is_mapping else {}
    return members["kind"].raw if "kind" in members and "apiVersion" in members else ""


def _data(document: Value) -> Iterator[tuple[str, Value]]:
    data = dict(document.members()).get("data")
    for name, text in data.members() if data and not data.is_null else ():
        if text.text().strip():
            yield name, text


def _containers(document: Value, path: tuple[str, ...]) -> list[Value]:
    spec: Value | None = document
    for step in (*path, "containers"):
        spec = dict(spec.members()).get(step) if spec and spec.is_mapping else None
    return spec.items() if spec else []


def _take_container(container: Value, found: Found) -> None:
    members = dict(container.members())
    for key in ("command", "args"):
        found.flags.extend(members[key].items() if key in members else [])
    for variable in members["env"].items() if "env" in members else []:
        pair = dict(variable.members())
        if "name" in pair and "value" in pair:
            found.environment[pair["name"].raw] = pair["value"]
