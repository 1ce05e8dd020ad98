"""Selectors: expressions that are true for the devices a request may get."""

from collections.abc import Mapping

from msgspec import Struct

__all__ = ["CelDevice", "Selector", "SelectorError", "compile_selector"]


class SelectorError(Exception):
    """A selector that does not compile, or one whose evaluation failed. The text is in the API server's words."""


class CelDevice(Struct, frozen=True):
    """A device as selectors see it. Attributes and capacities are grouped by domain."""

    driver: str
    attributes: Mapping[str, Mapping[str, object]]  # bool, int or str; a version is a `Semver`
    capacity: Mapping[str, Mapping[str, str]]  # quantities
    allow_multiple: bool = False


class Selector:
    """A compiled expression."""

    def __init__(self, expression: str) -> None:
        self.expression = expression

    def matches(self, device: CelDevice) -> bool:
        """Whether the expression is true for this device. Raises `SelectorError` for an error or an exhausted budget."""
        raise NotImplementedError


def compile_selector(expression: str, *, stored: bool = False) -> Selector:
    """Compiles an expression; raises `SelectorError` if it does not compile, is not boolean, or may cost too much.

    `stored` compiles as kube-scheduler does for objects which the API server accepted before: newer functions are
    available, and the cost is limited during evaluation alone.
    """
    return Selector(expression)
