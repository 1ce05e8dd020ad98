"""CEL's static types, their names in messages, and assignability with type parameters."""

from collections.abc import Iterable

from msgspec import Struct

__all__ = [
    "ANY",
    "BOOL",
    "BYTES",
    "DOUBLE",
    "DURATION",
    "DYN",
    "ERROR",
    "INT",
    "NULL",
    "STRING",
    "TIMESTAMP",
    "UINT",
    "Substitutions",
    "Type",
    "is_dynamic",
    "list_of",
    "map_of",
    "most_general",
    "optional_of",
    "parameter",
    "type_of",
    "unwrap_optional",
]


class Type(Struct, frozen=True):
    """A type: its kind, its name at run time, and its parameters."""

    kind: str
    name: str
    parameters: tuple["Type", ...] = ()

    def __str__(self) -> str:
        """As messages about results name it."""
        if self.kind == "parameter":
            return f"<{self.name}>"
        return self._with_parameters(str)

    def shown(self) -> str:
        """As messages of the type checker name it."""
        if self.kind in _SHOWN:
            return _SHOWN[self.kind]
        return self._with_parameters(Type.shown)

    def _with_parameters(self, render: "object") -> str:
        assert callable(render)
        if not self.parameters:
            return self.name
        return f"{self.name}({', '.join(render(parameter) for parameter in self.parameters)})"


_SHOWN = {"any": "any", "duration": "duration", "timestamp": "timestamp", "error": "!error!", "null": "null"}

BOOL, BYTES, DOUBLE, INT = Type("bool", "bool"), Type("bytes", "bytes"), Type("double", "double"), Type("int", "int")
STRING, UINT, NULL, DYN = Type("string", "string"), Type("uint", "uint"), Type("null", "null_type"), Type("dyn", "dyn")
ANY, ERROR = Type("any", "google.protobuf.Any"), Type("error", "*error*")
DURATION = Type("duration", "google.protobuf.Duration")
TIMESTAMP = Type("timestamp", "google.protobuf.Timestamp")

_COMPOSITE = ("list", "map", "opaque", "type")
_NULLABLE = ("opaque", "struct", "any", "duration", "timestamp", "null")


def list_of(element: Type) -> Type:
    return Type("list", "list", (element,))


def map_of(key: Type, value: Type) -> Type:
    return Type("map", "map", (key, value))


def optional_of(value: Type) -> Type:
    return Type("opaque", "optional_type", (value,))


def type_of(value: Type) -> Type:
    return Type("type", "type", (value,))


def parameter(name: str) -> Type:
    return Type("parameter", name)


def is_dynamic(kind: Type) -> bool:
    return kind.kind in ("dyn", "any")


def unwrap_optional(kind: Type) -> tuple[Type, bool]:
    """The type within an optional, and whether it was an optional."""
    if kind.name == "optional_type":
        return kind.parameters[0], True
    return kind, False


def most_general(first: Type, second: Type) -> Type:
    """The less specific of two types that unify."""
    return first if _less_specific(first, second) else second


def _less_specific(first: Type, second: Type) -> bool:
    if is_dynamic(first) or first.kind == "parameter":
        return True
    if is_dynamic(second) or second.kind == "parameter" or first.kind != second.kind:
        return False
    if first.kind == "type":
        return True
    if first.kind in _COMPOSITE:
        return (
            first.name == second.name
            and len(first.parameters) == len(second.parameters)
            and all(_less_specific(a, b) for a, b in zip(first.parameters, second.parameters, strict=True))
        )
    return first == second


class Substitutions:
    """Types bound to type parameters. An attempt that fails binds nothing."""

    def __init__(self) -> None:
        self._bound: dict[Type, Type] = {}
        self._fresh = 0

    def fresh(self) -> Type:
        self._fresh += 1
        return parameter(f"_var{self._fresh - 1}")

    def renamed(self, types: Iterable[Type]) -> list[Type]:
        """The types, with fresh parameters instead of their own."""
        names: dict[str, Type] = {}

        def rename(kind: Type) -> Type:
            if kind.kind == "parameter":
                if kind.name not in names:
                    names[kind.name] = self.fresh()
                return names[kind.name]
            if not kind.parameters:
                return kind
            return Type(kind.kind, kind.name, tuple(rename(each) for each in kind.parameters))

        return [rename(kind) for kind in types]

    def assignable(self, first: Iterable[Type], second: Iterable[Type]) -> bool:
        """Whether each of the first types is assignable to its counterpart. Binds parameters if so."""
        before = dict(self._bound)
        if self._all_assignable(tuple(first), tuple(second)):
            return True
        self._bound = before
        return False

    def resolve(self, kind: Type, *, free_is_dyn: bool = False) -> Type:
        """The type with its bound parameters replaced."""
        bound = self._bound.get(kind)
        if bound is not None:
            return self.resolve(bound, free_is_dyn=free_is_dyn)
        if kind.kind == "parameter":
            return DYN if free_is_dyn else kind
        if not kind.parameters:
            return kind
        inner = tuple(self.resolve(each, free_is_dyn=free_is_dyn) for each in kind.parameters)
        return Type(kind.kind, kind.name, inner)

    def _all_assignable(self, first: tuple[Type, ...], second: tuple[Type, ...]) -> bool:
        return len(first) == len(second) and all(self._one(a, b) for a, b in zip(first, second, strict=True))

    def _one(self, first: Type, second: Type) -> bool:
        if second.kind == "parameter":
            valid, bound = self._binds(first, second)
            if valid or bound:
                return valid
        if first.kind == "parameter":
            return self._binds(second, first)[0]
        if _wild(first) or _wild(second):
            return True
        if "null" in (first.kind, second.kind):
            return (second if first.kind == "null" else first).kind in _NULLABLE
        if first.kind == "type":
            return second.kind == "type"
        if first.kind in _COMPOSITE:
            same = first.kind == second.kind and first.name == second.name
            return same and self._all_assignable(first.parameters, second.parameters)
        return first == second

    def _binds(self, value: Type, variable: Type) -> tuple[bool, bool]:
        """Whether the value is valid for the variable, and whether the variable was bound before."""
        if value == variable:
            return True, True
        bound = self._bound.get(variable)
        if bound is None:
            if self._free_of(variable, value):
                self._bound[variable] = value
                return True, False
            return False, False
        if value == bound:
            return True, True
        if not self._one(value, bound):
            return False, True
        general = most_general(value, bound)
        if self._free_of(variable, general):
            self._bound[variable] = general
        return True, True

    def _free_of(self, variable: Type, within: Type) -> bool:
        """The occurs check."""
        if variable == within:
            return False
        if within.kind == "parameter":
            bound = self._bound.get(within)
            return bound is None or self._free_of(variable, bound)
        return all(self._free_of(variable, each) for each in within.parameters)


def _wild(kind: Type) -> bool:
    return kind.kind in ("dyn", "any", "error")
