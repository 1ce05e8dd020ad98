"""The base of the public values that check their arguments in their own `__init__`.

Other values are frozen `msgspec.Struct`s. A dataclass would be shorter, but Python compiles its methods at every start
of the daemon, 0.5 ms for each class.
"""

from collections.abc import Callable
from operator import attrgetter
from typing import ClassVar, Self, TypeVar, dataclass_transform

__all__ = ["FrozenValue", "freeze", "frozen"]

freeze = object.__setattr__  # sets a field, only for __init__


class FrozenValue:
    """An immutable value, compared, hashed and shown by its fields: the names in `__match_args__`, which are its slots.

    Decorate subclasses with `frozen()`; an undecorated subclass has the same fields and can have its own slots.
    """

    __slots__ = ()
    __match_args__: ClassVar[tuple[str, ...]] = ()
    _fields: ClassVar["attrgetter[object]"]
    _hashed: ClassVar["attrgetter[object]"]

    def replace(self, **changes: object) -> Self:
        """A copy with some fields replaced, checked like every new value."""
        fields = {name: getattr(self, name) for name in self.__match_args__}
        return type(self)(**fields | changes)

    __replace__ = replace  # for copy.replace(), from Python 3.13 on

    def _replace_unchecked(self, **changes: object) -> Self:
        """Like replace(), for values known to be valid."""
        made = object.__new__(type(self))
        for name in self.__match_args__:
            freeze(made, name, changes[name] if name in changes else getattr(self, name))
        return made

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a {type(self).__name__} cannot be changed: use replace({name}=…)")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"a {type(self).__name__} cannot be changed")

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self._fields(self) == self._fields(other)

    def __hash__(self) -> int:
        return hash(self._hashed(self))

    def __repr__(self) -> str:
        fields = [f"{name}={getattr(self, name)!r}" for name in self.__match_args__]
        return f"{type(self).__name__}({', '.join(fields)})"

    def __reduce__(self) -> tuple[type[Self], tuple[object, ...]]:
        """Supports copies and pickles: __init__ takes the fields in their order."""
        return type(self), tuple([getattr(self, name) for name in self.__match_args__])


Value = TypeVar("Value", bound=FrozenValue)


@dataclass_transform(frozen_default=True)
def frozen(*, unhashed: tuple[str, ...] = ()) -> Callable[[type[Value]], type[Value]]:
    """Completes a value's class; `unhashed` fields, which are mappings, count only for equality."""

    def complete(cls: type[Value]) -> type[Value]:
        cls._fields = attrgetter(*cls.__match_args__)
        cls._hashed = attrgetter(*[name for name in cls.__match_args__ if name not in unhashed])
        return cls

    return complete
