"""docs/verify.md lists the rules tested on a real Kubernetes; PLUGWRIGHT_REWRITE_RULES=1 writes that part again."""

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from tests.conformance.played_rules import DRIVER_REASONS, PLUGIN_REASONS, PlayedRule, played_rules

from plugwright.conformance import catalogue

PAGE = Path(__file__).parents[2] / "docs" / "verify.md"
HEADING, END = "## Tested on a real Kubernetes\n\n", "\n## The rules\n"
PLAYED = played_rules()
DRIVER_RULES = [rule.id for rule in catalogue.DRIVER_RULES]
PLUGIN_RULES = [rule.id for rule in catalogue.RULES]


def names(rules: Iterable[str]) -> str:
    return ", ".join(f"[{rule}](#{rule.lower()})" for rule in rules)


def when(played: PlayedRule) -> str:
    if played.full:
        return "with both by `make test-kubernetes-full`"
    return "in CI with 1.36.4 and 1.37.0" if played.essential else "in CI with 1.36.4, in full with 1.37.0"


def counts(what: str, rules: list[str], reasons: Mapping[str, str]) -> str:
    played = [rule for rule in rules if rule in PLAYED]
    return f"Of {len(rules)} rules for {what}, {len(played)} are tested there, {len(reasons)} are not."


def rows(rules: list[str], reasons: Mapping[str, str]) -> Iterator[str]:
    played = {rule: when(PLAYED[rule]) for rule in rules if rule in PLAYED}
    for how in sorted(set(played.values())):
        yield f"| tested {how} | {names(rule for rule in rules if played.get(rule) == how)} |"
    for reason in dict.fromkeys(reasons.values()):
        yield f"| not tested: {reason} | {names(rule for rule in rules if reasons.get(rule) == reason)} |"


def section() -> str:
    lines = [
        "A small plugin or driver with the defect runs on a real Kubernetes (`tests/kubernetes/test_rules*.py`,",
        "`test_driver_rules_*.py`), and the test observes the effect that the rule describes.",
        "",
    ]
    for what, rules, reasons in (
        ("DRA drivers", DRIVER_RULES, DRIVER_REASONS),
        ("plugins", PLUGIN_RULES, PLUGIN_REASONS),
    ):
        lines += [counts(what, rules, reasons), "", "| | rules |", "|---|---|", *rows(rules, reasons), ""]
    return "\n".join(lines)


def test_the_page_says_which_rules_were_played() -> None:
    before, _, rest = PAGE.read_text().partition(HEADING)
    _, _, after = rest.partition(END)
    if os.environ.get("PLUGWRIGHT_REWRITE_RULES"):
        PAGE.write_text(before + HEADING + section() + END + after)
        return
    assert rest.startswith(section() + END)


def test_a_rule_is_played_or_there_is_a_reason() -> None:
    assert not {*DRIVER_REASONS, *PLUGIN_REASONS} & set(PLAYED)
    assert {*DRIVER_REASONS, *PLUGIN_REASONS, *PLAYED} == {*DRIVER_RULES, *PLUGIN_RULES}
