"""The catalogue: every rule in order, by group, and the choice of some."""

import fnmatch
from collections.abc import Mapping, Sequence

from plugwright.conformance.dra.rules import (
    announcing,
    preparing,
    reporting,
    shared_claims,
    slicing,
    surviving,
    unpreparing,
)
from plugwright.conformance.rule import Rule
from plugwright.conformance.rules import (
    allocating,
    answering,
    ending,
    faults,
    footprint,
    hot_plug,
    listing,
    preferring,
    registering,
    registering_again,
)
from plugwright.errors import ConfigError

__all__ = ["DRIVER_GROUPS", "DRIVER_RULES", "GROUPS", "RULES", "find", "select"]

GROUPS: Mapping[str, tuple[type[Rule], ...]] = {
    "Registration": (*registering.RULES, *registering_again.RULES),
    "The device list": listing.RULES,
    "Allocate and PreStartContainer": allocating.RULES,
    "Preferred allocation": preferring.RULES,
    "Answers that a runtime accepts": answering.RULES,
    "Faults": faults.RULES,
    "The end of the program": ending.RULES,
    "Resources": footprint.RULES,
    "Health and hot-plug": hot_plug.RULES,
}
RULES: tuple[type[Rule], ...] = tuple(rule for rules in GROUPS.values() for rule in rules)
DRIVER_GROUPS: Mapping[str, tuple[type[Rule], ...]] = {
    "DRA: registration": announcing.RULES,
    "DRA: ResourceSlices": slicing.RULES,
    "DRA: preparing claims": (*preparing.RULES, *shared_claims.RULES),
    "DRA: unpreparing claims": unpreparing.UNPREPARE_RULES,
    "DRA: CDI devices": unpreparing.CDI_RULES,
    "DRA: restarts, reboots and damage": surviving.STATE_RULES,
    "DRA: health": reporting.HEALTH_RULES,
    "DRA: rights": reporting.RIGHTS_RULES,
    "DRA: the end of the program": surviving.END_RULES,
}
DRIVER_RULES: tuple[type[Rule], ...] = tuple(rule for rules in DRIVER_GROUPS.values() for rule in rules)


def find(rule_id: str) -> type[Rule]:
    for rule in (*RULES, *DRIVER_RULES):
        if rule.id == rule_id.upper():
            return rule
    raise ConfigError(f"rule must be one that `plugwright verify --list` shows, got {rule_id!r}")


def select(patterns: Sequence[str] = (), *, dra: bool = False) -> list[type[Rule]]:
    """The rules that match any of the patterns, such as `REG-01`, `LST` or `ANS-*`; all where there is none.

    Those for DRA drivers, or those for device plugins.
    """
    rules = DRIVER_RULES if dra else RULES
    chosen = {rule for pattern in patterns for rule in _matching(pattern, rules)}
    return [rule for rule in rules if rule in chosen or not patterns]


def _matching(pattern: str, rules: Sequence[type[Rule]]) -> list[type[Rule]]:
    words = pattern.upper()
    matching = [rule for rule in rules if fnmatch.fnmatchcase(rule.id, words) or rule.id.partition("-")[0] == words]
    if not matching:
        raise ConfigError(
            f"rules must be ids such as REG-01, groups such as LST or patterns such as ANS-*, got {pattern!r}"
        )
    return matching
