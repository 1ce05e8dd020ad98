"""How a mutant of the driver is declared: a class with one defect, under the rule that must catch it."""

import re
from collections.abc import Callable
from dataclasses import dataclass

from tests.conformance.driver import SmallDriver

__all__ = ["MUTANTS", "DriverMutant", "breaks"]


@dataclass(frozen=True, slots=True)
class DriverMutant:
    """`slow`: the rule waits for a start that never comes, so starts have a shorter limit.

    `parameters`: claims have parameters that the driver takes.
    """

    rule: str
    driver: type[SmallDriver]
    slow: bool = False
    parameters: bool = False


MUTANTS: dict[str, DriverMutant] = {}


def breaks(
    rule: str, *, slow: bool = False, parameters: bool = False
) -> Callable[[type[SmallDriver]], type[SmallDriver]]:
    def add(driver: type[SmallDriver]) -> type[SmallDriver]:
        name = re.sub(r"(?<!^)(?=[A-Z])", "-", driver.__name__).lower()
        MUTANTS[name] = DriverMutant(rule, driver, slow, parameters)
        return driver

    return add
