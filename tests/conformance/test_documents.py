"""The documents: what other programs read of the verdicts, and the baseline."""

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from plugwright.conformance import catalogue, documents
from plugwright.conformance.baseline import Baseline, baseline_text, read_baseline
from plugwright.conformance.rule import Report, RuleStatus, Verdict
from plugwright.errors import ConfigError

MUST, SHOULD, OTHER = (catalogue.find(rule) for rule in ("REG-01", "REG-08", "LST-01"))
FAILED = Verdict(MUST, "1.36", RuleStatus.FAIL, "a | list", "none\x00 <&>", ("Register x", "list y"), 1.5)
WARNED = Verdict(SHOULD, "1.36", RuleStatus.WARNING, "mode 0600", "mode 0777")
PASSED = Verdict(OTHER, "1.37", RuleStatus.PASS)
SKIPPED = Verdict(OTHER, "1.36", RuleStatus.NOT_APPLICABLE, seen="no list")
REPORT = Report("plugin --dir {dir}", (FAILED, WARNED, SKIPPED, PASSED))


def test_json_has_the_counts_and_every_verdict() -> None:
    document = json.loads(documents.as_json(REPORT))
    assert (document["failed"], document["command"]) == (True, "plugin --dir {dir}")
    assert document["counts"] == {"pass": 1, "fail": 1, "warning": 1, "not applicable": 1}
    assert document["verdicts"][0]["calls"] == ["Register x", "list y"]
    assert document["verdicts"][0]["page"] == "docs/verify.md#reg-01"


def test_junit_fails_a_must_and_passes_a_should() -> None:
    suites = ElementTree.fromstring(documents.as_junit(REPORT))
    counts = [(suite.get("name"), suite.get("tests"), suite.get("failures"), suite.get("skipped")) for suite in suites]
    assert counts == [("kubelet 1.36", "3", "1", "1"), ("kubelet 1.37", "1", "0", "0")]
    [failure] = suites.iter("failure")
    assert MUST.fix in (failure.text or "")
    assert len(list(suites.iter("system-out"))) == 1


def test_sarif_names_the_rules_and_the_results() -> None:
    [run] = json.loads(documents.as_sarif(REPORT))["runs"]
    assert [rule["id"] for rule in run["tool"]["driver"]["rules"]] == ["REG-01", "REG-08", "LST-01"]
    kinds = [(result["kind"], result["level"]) for result in run["results"]]
    assert kinds == [("fail", "error"), ("fail", "warning"), ("notApplicable", "none"), ("pass", "none")]


def test_markdown_has_a_row_for_what_did_not_pass() -> None:
    text = documents.as_markdown(REPORT)
    assert "| 1 pass | 1 fail | 1 warning | 1 not applicable |" in text
    assert "| REG-01 | 1.36 | fail | a \\| list |" in text
    assert "LST-01" not in text


@pytest.mark.parametrize("entry", ["REG-01", "REG-01@1.36"])
def test_a_known_failure_does_not_fail_the_report(entry: str) -> None:
    report = Baseline((entry,)).report("plugin", REPORT.verdicts)
    assert not report.failed
    assert [verdict.known for verdict in report.verdicts] == [True, False, False, False]
    [run] = json.loads(documents.as_sarif(report))["runs"]
    assert "suppressions" in run["results"][0]
    assert not list(ElementTree.fromstring(documents.as_junit(report)).iter("failure"))


def test_a_rule_that_no_longer_fails_is_named() -> None:
    report = Baseline(("LST-01@1.37", "REG-01@1.30")).report("plugin", REPORT.verdicts)
    assert report.fixed == ("LST-01@1.37",)
    assert report.failed


def test_a_baseline_that_was_written_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "known.txt"
    path.write_text(baseline_text(REPORT.verdicts))
    assert read_baseline(path).entries == ("REG-01", "REG-08")


def test_a_baseline_with_an_unknown_rule_is_refused_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "known.txt"
    path.write_text("REG-01\nREG-99  # no such rule\n")
    with pytest.raises(ConfigError, match="line 2: rule must be one"):
        read_baseline(path)


def test_rules_are_chosen_by_id_group_and_pattern() -> None:
    assert [rule.id for rule in catalogue.select(["lst-03", "REG-01"])] == ["REG-01", "LST-03"]
    assert {rule.id[:3] for rule in catalogue.select(["ANS"])} == {"ANS"}
    assert len(catalogue.select(["*-01"])) == 10
    with pytest.raises(ConfigError, match="rules must be ids"):
        catalogue.select(["REG-77"])


def test_versions_of_a_rule_are_kept() -> None:
    late, early = catalogue.find("REG-19"), catalogue.find("ANS-10")
    assert [late.holds_for(version) for version in ("1.36.4", "1.37", "1.37.0")] == [False, True, True]
    assert [early.holds_for(version) for version in ("1.26", "1.27", "1.28")] == [True, True, False]
