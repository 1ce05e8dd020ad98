"""Implementations of functions by the types of their arguments at run time."""

from collections.abc import Callable
from typing import TypeVar

from plugwright.allocator.cel.cel_values import EvaluationError, type_name
from plugwright.allocator.cel.celtypes import Type

__all__ = ["Implementation", "Types", "function", "implementation", "registered"]

Implementation = Callable[..., object]
Types = tuple[type, ...]
_Given = TypeVar("_Given", bound=Implementation)
_registered: dict[str, list[tuple[Types, Implementation]]] = {}


def function(names: str, *types: type) -> Callable[[_Given], _Given]:
    """Register an implementation of one overload; `object` accepts every type."""

    def register(implementation: _Given) -> _Given:
        for name in names.split():
            _registered.setdefault(name, []).append((types, implementation))
        return implementation

    return register


def registered(name: str) -> list[tuple[Types, Implementation]]:
    return _registered.get(name, [])


def implementation(name: str) -> Implementation:
    """A function that picks the overload by its arguments, and remembers the choice."""
    chosen: dict[Types, Implementation] = {}

    def call(*args: object) -> object:
        types = tuple([type(arg) for arg in args])
        found = chosen.get(types)
        if found is None:
            found = chosen[types] = _choose(name, args)
        return found(*args)

    return call


def _choose(name: str, args: tuple[object, ...]) -> Implementation:
    for types, candidate in registered(name):
        if len(types) == len(args) and all(map(_accepts, types, args)):
            return candidate
    message = "no such overload"
    if name[0].isalpha():
        message += f": {name}({', '.join(map(type_name, args))})"

    def refuse(*_: object) -> object:
        raise EvaluationError(message)

    return refuse


def _accepts(expected: type, value: object) -> bool:
    if expected is object or type(value) is expected:
        return True
    return expected in (dict, Type) and isinstance(value, expected)
