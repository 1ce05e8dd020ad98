"""docs/verify.md has every rule as the code has it; PLUGWRIGHT_REWRITE_RULES=1 writes that part again."""

import os
import re
from pathlib import Path

from plugwright.conformance import catalogue, documents
from plugwright.conformance.rule import Level

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "verify.md"
FACTS = set(re.findall(r'<a id="([\d.a-z]+)">', (ROOT / "docs" / "kubelet-behaviour.md").read_text()))
HEADING = "How to fix it is in italics.\n\n"
GROUPS = {**catalogue.GROUPS, **catalogue.DRIVER_GROUPS}
RULES = (*catalogue.RULES, *catalogue.DRIVER_RULES)


def test_the_page_lists_every_rule_with_its_reason() -> None:
    text = PAGE.read_text()
    before, _, rules = text.partition(HEADING)
    if os.environ.get("PLUGWRIGHT_REWRITE_RULES"):
        PAGE.write_text(before + HEADING + documents.rules_page(GROUPS))
        return
    assert rules == documents.rules_page(GROUPS)


def test_ids_are_unique_and_in_order() -> None:
    ids = [rule.id for rule in RULES]
    assert len(ids) == len(set(ids)) >= 60
    assert all(re.fullmatch(r"[A-Z]{3}-\d\d", rule_id) for rule_id in ids)


def test_every_rule_says_what_why_and_how() -> None:
    for rule in RULES:
        assert rule.level in Level
        assert rule.title
        assert not rule.title.endswith(".")
        assert rule.why.endswith(".")
        assert rule.fix.endswith(".")


def test_the_facts_of_rules_exist() -> None:
    named = {fact for rule in RULES for fact in rule.facts}
    assert named - FACTS == set()


def test_links_within_the_page_lead_somewhere() -> None:
    text = PAGE.read_text()
    headings = re.findall(r"^##+ (.+)$", text, re.MULTILINE)
    named = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
    anchors = named | set(re.findall(r'<a id="([\w-]+)">', text))
    assert set(re.findall(r"\]\(#([^)]+)\)", text)) <= anchors
