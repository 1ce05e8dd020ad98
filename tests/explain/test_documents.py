"""The documents of `-o json`: versioned, with a schema and a page that describe them."""

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.explain.worlds import node, pod

from plugwright.explain.claim_lint import LintReport
from plugwright.explain.explanation import Explanation, explain_pod
from plugwright.explain.fitting import FitReport, fit_pod
from plugwright.explain.waiting import WaitingList
from plugwright.explain.world import World

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "why.md"
DOCUMENTS = {
    "explanation": Explanation,
    "fit-report": FitReport,
    "lint-report": LintReport,
    "waiting-list": WaitingList,
}


def properties(schema: dict[str, Any]) -> set[str]:
    return {key for part in schema["$defs"].values() for key in part.get("properties", {})}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_the_schema_beside_the_page_is_the_documents_own(name: str) -> None:
    path = DOCS / f"{name}.schema.json"
    text = json.dumps(msgspec.json.schema(DOCUMENTS[name]), indent=2, sort_keys=True) + "\n"
    if not path.exists() or path.read_text() != text:
        path.write_text(text)
        pytest.fail(f"{path.name} was not the schema of the document; it is written again, look at the difference")


@pytest.mark.parametrize("name", DOCUMENTS)
def test_the_page_has_every_key(name: str) -> None:
    documented = set(re.findall(r"`(\w+)`", PAGE.read_text()))
    assert properties(msgspec.json.schema(DOCUMENTS[name])) - documented == set()


def test_an_explanation_is_its_schemas_document() -> None:
    world = World((node("n1", 2),), (pod("h", 2, "n1"), pod("w", 1)))
    explanation = explain_pod(world, world.pods[-1])
    document = json.loads(msgspec.json.encode(explanation))
    assert (document["apiVersion"], document["kind"]) == ("plugwright.dev/v1alpha1", "Explanation")
    assert document["cures"][0]["matchingNodes"] == 1
    assert msgspec.convert(document, Explanation) == explanation


def test_a_fit_report_is_its_schemas_document() -> None:
    report = fit_pod(World((node("n1", 2),)), pod("w", 1), 3)
    assert msgspec.convert(json.loads(msgspec.json.encode(report)), FitReport) == report
