"""docs/reliability.md has a row for every fault, and what docs/threat-model.md names is there."""

import re
from pathlib import Path

from chaos import catalogue, kubernetes, soak, table

DOCS = Path(__file__).parents[2] / "docs"
RELIABILITY = (DOCS / "reliability.md").read_text()
THREATS = (DOCS / "threat-model.md").read_text()


def test_every_fault_has_its_row_and_no_other_has() -> None:
    titles = [found.title for found in catalogue.EXPERIMENTS]
    assert list(table.rows_of(RELIABILITY)) == [*titles, *kubernetes.TITLES, soak.TITLE]


def test_every_promise_of_the_page_holds() -> None:
    broken = [title for title, row in table.rows_of(RELIABILITY).items() if "**" in row]
    assert broken == []


def test_tests_and_settings_that_are_named_exist() -> None:
    root = DOCS.parent
    named = re.findall(r"`((?:tests|deploy)/[\w./-]+)`", THREATS)
    assert len(named) > 20
    assert not [path for path in named if not (root / path).exists()]


def test_faults_that_are_named_exist() -> None:
    lists = re.findall(r"faults? ((?:`[\w-]+`(?:, | and )?)+)", THREATS)
    named = {name for found in lists for name in re.findall(r"`([\w-]+)`", found)}
    assert len(named) > 8
    assert named <= {found.name for found in catalogue.EXPERIMENTS}


def test_links_within_the_page_lead_somewhere() -> None:
    anchors = {
        re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        for heading in re.findall(r"^## (.+)$", THREATS, re.MULTILINE)
    }
    assert set(re.findall(r"\]\(#([^)]+)\)", THREATS)) == anchors
