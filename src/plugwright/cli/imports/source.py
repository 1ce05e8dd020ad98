"""What an importer is given, and what it gives back."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from plugwright.cli.imports.values import Note, Value

__all__ = ["Entry", "Imported", "Source"]


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
