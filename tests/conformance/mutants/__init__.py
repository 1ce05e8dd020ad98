"""Mutants of the small plugin: each has one defect, and is named with the rule that must catch it.

What a defect breaks besides, further rules may say; the correct plugin keeps them all.
"""

from tests.conformance.mutants import (
    allocating,
    answering,
    faults,
    lifetime,
    listing,
    many_devices,
    over_time,
    registering,
    shipped,
)
from tests.conformance.mutants.mutant import MUTANTS, Mutant

__all__ = [
    "MUTANTS",
    "Mutant",
    "allocating",
    "answering",
    "faults",
    "lifetime",
    "listing",
    "many_devices",
    "over_time",
    "registering",
    "shipped",
]
