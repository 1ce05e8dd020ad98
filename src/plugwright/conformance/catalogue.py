"""The catalogue: every rule in order, by group, and the selection of rules."""

import fnmatch
from collections.abc import Mapping, Sequence
from difflib import get_close_matches

from plugwright.conformance.dra.rules import (
    announcing,
    api_server,
    failing,
    idling,
    lifetime,
    parameters,
    preparing,
    reporting,
    several_claim_devices,
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
    several_devices,
)
from plugwright.errors import ConfigError

__all__ = [
    "DRIVER_GROUPS",
    "DRIVER_RULES",
    "GROUPS",
    "RULES",
    "causes",
    "find",
    "followed",
    "is_about_crashes",
    "prerequisite",
    "registration",
    "restarts",
    "select",
]

GROUPS: Mapping[str, tuple[type[Rule], ...]] = {
    "Registration": (*registering.RULES, *registering_again.RULES),
    "The device list": listing.RULES,
    "Allocate and PreStartContainer": (*allocating.RULES, *several_devices.RULES),
    "Preferred allocation": preferring.RULES,
    "Answers that a runtime accepts": answering.RULES,
    "Faults": faults.RULES,
    "The end of the program": ending.RULES,
    "Resources": footprint.RULES,
    "Health and hot-plug": hot_plug.RULES,
}
RULES: tuple[type[Rule], ...] = tuple(rule for rules in GROUPS.values() for rule in rules)
DRIVER_GROUPS: Mapping[str, tuple[type[Rule], ...]] = {
    "DRA: registration": (*announcing.RULES, *lifetime.AWAY_RULES),
    "DRA: ResourceSlices": (*slicing.RULES, *failing.SLICE_RULES),
    "DRA: preparing claims": (*preparing.RULES, *shared_claims.RULES, *several_claim_devices.PREPARE_RULES),
    "DRA: parameters of claims": parameters.RULES,
    "DRA: unpreparing claims": (
        *unpreparing.UNPREPARE_RULES,
        *several_claim_devices.UNPREPARE_RULES,
        *unpreparing.WITHOUT_SPEC_RULES,
    ),
    "DRA: CDI devices": unpreparing.CDI_RULES,
    "DRA: restarts, reboots and damage": (*surviving.STATE_RULES, *lifetime.UPDATE_RULES, *surviving.KILL_RULES),
    "DRA: the API server": api_server.RULES,
    "DRA: health": (*reporting.HEALTH_RULES, *failing.HEALTH_RULES),
    "DRA: rights": reporting.RIGHTS_RULES,
    "DRA: the end of the program": surviving.END_RULES,
    "DRA: resources": (*lifetime.LEAK_RULES, *idling.RULES),
}
DRIVER_RULES: tuple[type[Rule], ...] = tuple(rule for rules in DRIVER_GROUPS.values() for rule in rules)


# The rule about the first call of all rules of a group: an error of this call is a finding of that rule.
_PREREQUISITES = {
    "ALO": "ALO-01",
    "ANS": "ALO-01",
    "FLT": "ALO-01",
    "PST": "PST-01",
    "PRF": "PRF-01",
    "HOT": "HOT-01",
    "PRP": "PRP-01",
    "UNP": "PRP-01",
    "CDI": "PRP-01",
    "DST": "PRP-01",
    "DRG": "PRP-01",
}


_LOST_STREAMS = "FLT-10"  # the rule about the end of streams, which rules that restart kubelets also cause
_LOST_CONNECTIONS = "DRG-11"  # the rule about the end of connections, which every rule causes


def registration(*, dra: bool) -> type[Rule]:
    """The rule that is always checked first."""
    return DRIVER_RULES[0] if dra else RULES[0]


def prerequisite(rule: type[Rule]) -> str:
    """The id of the rule to which an unexpected error of a call belongs; empty if there is none."""
    return _PREREQUISITES.get(rule.id.partition("-")[0], "")


def causes(rule: type[Rule], cause: str) -> tuple[str, ...]:
    """The rules to which an error can belong.

    A restarted driver with other devices cannot prepare earlier claims, and one that remembers a refusal repeats it. A
    device that has failed once can be unwatched afterwards.
    """
    if cause == "HOT-01":
        return (cause, "HOT-10")
    if rule.alone and cause == "PRP-01":
        return (cause, "SLC-16", "API-07")
    return (cause,) if cause else ()


def followed(rule: type[Rule], *, crashed: bool) -> tuple[str, ...]:
    """The rules whose violation can be the reason for a finding of this one, in this order."""
    if rule in DRIVER_RULES:
        return (*rule.follows, *((_LOST_CONNECTIONS,) if crashed else ()))
    return (*((_LOST_STREAMS,) if rule.waits else ()), *rule.follows)


def restarts(rule: type[Rule]) -> str:
    """The id of the rule violated by a program that does not register again."""
    if rule.alone:
        return ""
    return "DRG-10" if rule in DRIVER_RULES else "REG-14"


def is_about_crashes(rule: type[Rule]) -> bool:
    """Whether the rule tests for the end of the program, so that it is a failure and not an error."""
    return rule in faults.RULES


def find(rule_id: str) -> type[Rule]:
    for rule in (*RULES, *DRIVER_RULES):
        if rule.id == rule_id.upper():
            return rule
    raise ConfigError(f"rule must be one that `plugwright verify --list` shows, got {rule_id!r}{_close_rule(rule_id)}")


def _close_rule(rule_id: str) -> str:
    close = get_close_matches(rule_id.upper(), [rule.id for rule in (*RULES, *DRIVER_RULES)], n=1)
    return f"; did you mean {close[0]}?" if close else ""


def select(
    patterns: Sequence[str] = (), *, dra: bool = False, exclude: Sequence[str] = (), notes: bool = False
) -> list[type[Rule]]:
    """The rules that match any of the patterns, such as `REG-01`, `LST` or `ANS-*`; without patterns all but notes.

    Those for DRA drivers, or those for device plugins. An id or a pattern also selects notes, a group only with
    `notes`.
    """
    rules = DRIVER_RULES if dra else RULES
    patterns, exclude = (_separated(given) for given in (patterns, exclude))
    chosen = {rule for pattern in patterns for rule in _matching(pattern, rules, notes=notes)}
    excluded = {rule for pattern in exclude for rule in _matching(pattern, rules, notes=True)}
    wanted = [rule for rule in rules if rule in chosen or not (patterns or (rule.note and not notes))]
    selected = [rule for rule in wanted if rule not in excluded]
    if not selected:
        raise ConfigError("--rules and --exclude leave no rule to check")
    return selected


def _separated(patterns: Sequence[str]) -> list[str]:
    """Splits patterns at commas: `ALO,END` is two."""
    return [word for pattern in patterns for word in pattern.split(",")]


def _matching(pattern: str, rules: Sequence[type[Rule]], *, notes: bool) -> list[type[Rule]]:
    words = pattern.upper()
    group = [rule for rule in rules if rule.id.partition("-")[0] == words and (notes or not rule.note)]
    matching = group + [rule for rule in rules if fnmatch.fnmatchcase(rule.id, words)]
    if not matching:
        raise ConfigError(
            f"rules must be ids such as REG-01, groups such as LST or patterns such as ANS-*, got {pattern!r}"
            f"{_close_rule(pattern)}"
        )
    return matching
