"""Mutants of the small driver: each has one defect, and is named with the rule that must catch it.

What a defect breaks besides, further rules may say; the correct driver keeps them all.
"""

from tests.conformance.driver_mutants import (
    announcing,
    over_time,
    preparing,
    production,
    reporting,
    shipped,
    slicing,
    surviving,
    unpreparing,
)
from tests.conformance.driver_mutants.driver_mutant import MUTANTS, DriverMutant

__all__ = [
    "MUTANTS",
    "DriverMutant",
    "announcing",
    "over_time",
    "preparing",
    "production",
    "reporting",
    "shipped",
    "slicing",
    "surviving",
    "unpreparing",
]
