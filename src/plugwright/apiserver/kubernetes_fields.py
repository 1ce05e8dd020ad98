"""The fields of API objects: names, numbers on the wire, types, and how lists of them are merged.

`kubernetes_fields.txt` is the table, one line for each field. A program in Go prints it from Kubernetes' own types
(`tests/kubernetes/kubernetes_types`), and a test compares them. A type with `[]` is a list, with `{}` a map; `pointer`
is a value whose zero is written if it is set, `always` one that JSON contains even if it is zero, `omitzero` an object
that JSON then omits; `patch=` is the strategic merge of a list, `keys=`, `set` and `atomic` are the rules of
server-side apply for it.
"""

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources

__all__ = ["Field", "ObjectType", "inner_type", "members", "object_type"]

_SCALARS = frozenset({"bool", "bytes", "int32", "int64", "string"})
_META = "meta"


@dataclass(frozen=True, slots=True)
class Field:
    number: int
    name: str  # in JSON; `-` if the enclosing object contains the value's members; empty for an item of a list
    type: str  # of the value, or of the items of a list or map
    is_list: bool = False
    is_map: bool = False
    is_pointer: bool = False
    is_always_written: bool = False  # in JSON, if it is zero
    is_left_out: bool = False  # in JSON, if it is zero and an object
    patch_key: str | None = None  # None for a list that a strategic merge patch replaces, empty for one of plain values
    apply_keys: tuple[str, ...] = ()
    is_set: bool = False
    is_atomic: bool = False

    @property
    def is_inline(self) -> bool:
        return self.name == "-"

    @property
    def is_message(self) -> bool:
        """Whether the type is in the table."""
        return "." in self.type

    @property
    def is_always_there(self) -> bool:
        """Whether Go's JSON contains it even if it is unset: objects without a pointer are not omitted."""
        if not self.name or self.is_pointer or self.is_left_out or self.is_inline:
            return False
        return self.is_always_written or not (self.is_list or self.is_map or self.is_scalar)

    @property
    def is_scalar(self) -> bool:
        return self.type in _SCALARS


@dataclass(frozen=True, slots=True, eq=False)
class ObjectType:
    """The fields in the order of their numbers."""

    name: str
    fields: tuple[Field, ...]

    def member(self, name: str) -> Field | None:
        """The field with this name in JSON, also inside an inlined field."""
        return members(self.name).get(name)


def object_type(api_version: str, kind: str) -> ObjectType | None:
    """The type of objects of a kind: `v1`, `Pod`. None for a kind missing in the table."""
    group = api_version.rpartition("/")[0].partition(".")[0] or "core"
    types = _table()
    return types.get(f"{group}.{kind}") or types.get(f"{_META}.{kind}")


def inner_type(field: Field) -> ObjectType:
    """The type of the value, or of the items of a list or map, for a field whose type is in the table."""
    return _table()[field.type]


@functools.cache
def _table() -> dict[str, ObjectType]:
    text = resources.files(__package__).joinpath("kubernetes_fields.txt").read_text(encoding="utf-8")
    return {found.name: found for found in _types(text.splitlines())}


def _types(lines: list[str]) -> Iterator[ObjectType]:
    name, fields = "", list[Field]()
    for line in lines:
        if line.startswith(" "):
            fields.append(_field(*line.split()))
            continue
        if name:
            yield ObjectType(name, tuple(fields))
        name, fields = line, []
    yield ObjectType(name, tuple(fields))


def _field(number: str, name: str, type_name: str, *words: str) -> Field:
    values = dict(word.partition("=")[::2] for word in words)
    return Field(
        number=int(number),
        name=name,
        type=type_name.removeprefix("[]").removeprefix("{}"),
        is_list=type_name.startswith("[]"),
        is_map=type_name.startswith("{}"),
        is_pointer="pointer" in values,
        is_always_written="always" in values,
        is_left_out="omitzero" in values,
        patch_key=values["patch"].partition(":")[2] if "patch" in values else None,
        apply_keys=tuple(values["keys"].split(",")) if "keys" in values else (),
        is_set="set" in values,
        is_atomic="atomic" in values,
    )


@functools.cache
def members(name: str) -> dict[str, Field]:
    """The fields of a type by their names in JSON, including those of inlined fields."""
    found: dict[str, Field] = {}
    for field in _table()[name].fields:
        found |= members(field.type) if field.is_inline else {field.name: field}
    return found
