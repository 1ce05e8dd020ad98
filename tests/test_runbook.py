"""docs/operations.md is a runbook: symptom, command, cause, cure; and each of its commands is played by a test."""

import re
from pathlib import Path

import pytest
from tests.kubernetes import runbook

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "docs" / "operations.md").read_text()
SECTIONS = dict(re.findall(r"^##+ (.*?)\n(.*?)(?=^##+ |\Z)", TEXT, re.MULTILINE | re.DOTALL))
WITH_CAUSE = [heading for heading, text in SECTIONS.items() if "- Cause:" in text]


def test_most_sections_are_of_symptoms() -> None:
    assert len(WITH_CAUSE) > len(SECTIONS) / 2


@pytest.mark.parametrize("heading", WITH_CAUSE)
def test_a_symptom_has_a_command_a_cause_and_a_cure(heading: str) -> None:
    assert re.search(r"^    \S.*?^- Cause: \S.*?^- Cure: \S", SECTIONS[heading], re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("beginning", [*runbook.PLAYED_BY, *runbook.NOT_PLAYED])
def test_what_is_excepted_is_a_command_of_the_page(beginning: str) -> None:
    assert any(command.startswith(beginning) for command in runbook.PAGE.commands())


@pytest.mark.parametrize("beginning", runbook.PLAYED_BY)
def test_what_another_test_plays_is_played_there(beginning: str) -> None:
    name, _, function = runbook.PLAYED_BY[beginning].partition("::")
    text = (ROOT / "tests" / "kubernetes" / name).read_text()
    body = re.search(rf"^def {function}\(.*?(?=^def |\Z)", text, re.MULTILINE | re.DOTALL)
    assert body is not None
    if beginning != "POD=":
        played = re.findall(r'OPERATIONS\.command\("[^"]+", "([^"]+)"', body[0])
        assert any(beginning.startswith(each) or each.startswith(beginning) for each in played)


def test_all_others_are_played_on_a_healthy_node() -> None:
    played = runbook.commands()
    assert len(played) >= 20
    assert not [each for each in played if re.search(r"kubectl exec|^(?:helm|kubectl) \S+ .*-- plugwright", each)]
