"""How a mutant is declared: a class with one defect, under the rule that must catch it."""

import re
from collections.abc import Callable
from dataclasses import dataclass

from tests.conformance.plugin import SmallPlugin

__all__ = ["MUTANTS", "Mutant", "breaks"]


@dataclass(frozen=True, slots=True)
class Mutant:
    """`slow`: the rule waits for a start that never comes, so starts have a shorter limit."""

    rule: str
    plugin: type[SmallPlugin]
    version: str = "1.36"
    slow: bool = False


MUTANTS: dict[str, Mutant] = {}


def breaks(rule: str, version: str = "1.36", *, slow: bool = False) -> Callable[[type[SmallPlugin]], type[SmallPlugin]]:
    def add(plugin: type[SmallPlugin]) -> type[SmallPlugin]:
        name = re.sub(r"(?<!^)(?=[A-Z])", "-", plugin.__name__).lower()
        MUTANTS[name] = Mutant(rule, plugin, version, slow)
        return plugin

    return add
