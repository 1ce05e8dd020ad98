"""The documents: what other programs read of the verdicts, and the baseline."""

import datetime
import json
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from plugwright.conformance import catalogue, documents
from plugwright.conformance.baseline import Baseline, BaselineEntry, baseline_text, read_baseline
from plugwright.conformance.rule import Report, RuleStatus, Verdict, installed_docs
from plugwright.errors import ConfigError

MUST, SHOULD, OTHER, CRASHING = (catalogue.find(rule) for rule in ("REG-01", "REG-08", "LST-01", "RES-01"))
FAILED = Verdict(MUST, "1.36", RuleStatus.FAIL, "a | list", "none\x00 <&>", ("Register x", "list y"), 1.5)
WARNED = Verdict(SHOULD, "1.36", RuleStatus.WARNING, "mode 0600", "mode 0777")
PASSED = Verdict(OTHER, "1.37", RuleStatus.PASS)
SKIPPED = Verdict(OTHER, "1.36", RuleStatus.NOT_APPLICABLE, seen="no list")
CRASHED = Verdict(CRASHING, "1.37", RuleStatus.ERROR, "it runs", "panic: no", output=("panic: no", "goroutine 1"))
HINDERED = Verdict(SHOULD, "1.37", RuleStatus.NOT_CHECKED, depends_on="RES-01")
REPORT = Report("plugin --dir {dir}", (FAILED, WARNED, SKIPPED, PASSED, CRASHED, HINDERED))


def test_json_has_the_counts_and_every_verdict() -> None:
    document = json.loads(documents.as_json(REPORT))
    assert (document["failed"], document["command"]) == (True, "plugin --dir {dir}")
    assert document["counts"] == {"pass": 1, "fail": 1, "warning": 1, "error": 1, "not checked": 1, "not applicable": 1}
    assert (document["outcome"], document["verified"]) == ("failed", True)
    assert document["verdicts"][0]["calls"] == ["Register x", "list y"]
    assert document["verdicts"][0]["more"] == "plugwright verify --explain REG-01"
    assert document["verdicts"][0]["page"] == ""


def test_junit_fails_a_must_and_passes_a_should() -> None:
    suites = ElementTree.fromstring(documents.as_junit(REPORT))
    counts = [(suite.get("name"), suite.get("tests"), suite.get("failures"), suite.get("skipped")) for suite in suites]
    assert counts == [("kubelet 1.36", "3", "1", "1"), ("kubelet 1.37", "3", "0", "1")]
    [failure] = suites.iter("failure")
    [error] = suites.iter("error")
    assert ("goroutine 1" in (error.text or ""), suites[1].get("errors")) == (True, "1")
    skipped = [case.get("message") for case in suites.iter("skipped")]
    assert skipped == ["no list", "not checked: RES-01 failed"]
    assert MUST.fix in (failure.text or "")
    assert len(list(suites.iter("system-out"))) == 1


def test_sarif_has_what_github_asks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLUGWRIGHT_DOCS_URL", "https://example.com/docs")
    [run] = json.loads(documents.as_sarif(replace(REPORT, source="cmd/main.go")))["runs"]
    rules = run["tool"]["driver"]["rules"]
    assert [rule["id"] for rule in rules] == ["REG-01", "REG-08", "LST-01", "RES-01"]
    assert all(rule["helpUri"].startswith("https://") and rule["help"]["text"] for rule in rules)
    kinds = [(result["ruleId"], result["level"], rules[result["ruleIndex"]]["id"]) for result in run["results"]]
    assert kinds == [("REG-01", "error", "REG-01"), ("REG-08", "warning", "REG-08"), ("RES-01", "error", "RES-01")]
    for result in run["results"]:
        [location] = result["locations"]
        assert location["physicalLocation"]["artifactLocation"]["uri"] == "cmd/main.go"
        assert location["physicalLocation"]["region"]["startLine"] == 1
        assert result["partialFingerprints"]


def test_sarif_points_at_a_file_of_the_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "go.mod").touch()
    monkeypatch.chdir(tmp_path)
    [run] = json.loads(documents.as_sarif(REPORT))["runs"]
    location = run["results"][0]["locations"][0]["physicalLocation"]
    assert location["artifactLocation"]["uri"] == "go.mod"


def test_links_lead_to_the_pages_that_a_variable_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLUGWRIGHT_DOCS_URL", "https://example.com/docs/")
    assert MUST.page() == "https://example.com/docs/verify.md#reg-01"
    assert f"| [REG-01]({MUST.page()}) | 1.36 | fail | a \\| list |" in documents.as_markdown(REPORT)


@pytest.mark.parametrize("kind", documents.FORMATS)
def test_no_report_has_a_link_without_a_page_behind_it(kind: str) -> None:
    text = documents.FORMATS[kind](REPORT)
    assert "plugwright.dev/docs" not in text
    assert "helpUri" not in text


def test_annotations_are_workflow_commands() -> None:
    first, second, third = documents.as_annotations(REPORT).splitlines()
    assert first.startswith(f"::error title=REG-01 {MUST.title} (kubelet 1.36)::Expected a | list; seen none")
    assert second.startswith("::warning title=REG-08")
    assert third.startswith("::error title=RES-01")


def test_markdown_has_a_row_for_what_did_not_pass() -> None:
    text = documents.as_markdown(REPORT)
    assert "| 1 pass | 1 fail | 1 warning | 1 error | 1 not checked | 1 not applicable |" in text
    assert "| REG-01 | 1.36 | fail | a \\| list |" in text
    assert "LST-01" not in text


@pytest.mark.parametrize("entry", ["REG-01", "REG-01@1.36"])
def test_a_known_failure_does_not_fail_the_report(entry: str) -> None:
    report = Baseline((entry,)).report("plugin", REPORT.verdicts[:4])
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
    assert read_baseline(path).entries == ("REG-01", "REG-08@1.36", "RES-01")


def test_a_baseline_keeps_reasons_and_dates_when_it_is_written_again(tmp_path: Path) -> None:
    path = tmp_path / "known.txt"
    path.write_text("REG-01 until 2026-12-31  # vendor#42\n")
    known = read_baseline(path)
    assert known.known == [BaselineEntry("REG-01", "vendor#42", datetime.date(2026, 12, 31))]
    assert "REG-01 until 2026-12-31  # vendor#42\n" in baseline_text(REPORT.verdicts, known)


@pytest.mark.parametrize(("day", "known"), [("2026-12-31", True), ("2027-01-01", False)])
def test_an_entry_of_a_baseline_holds_until_its_date(day: str, known: bool) -> None:
    entry = BaselineEntry("REG-01", "vendor#42", datetime.date(2026, 12, 31))
    today = datetime.date.fromisoformat(day)
    report = Baseline(("REG-01",), (entry,)).report("plugin", [FAILED, PASSED], today)
    assert (report.verdicts[0].known, report.failed) == (known, not known)
    assert report.expired == (() if known else ("REG-01 (until 2026-12-31)",))


@pytest.mark.parametrize("line", ["REG-01 until soon", "REG-01 REG-02", "REG-01 until 2026-13-01"])
def test_a_baseline_with_a_wrong_line_is_refused(line: str, tmp_path: Path) -> None:
    path = tmp_path / "known.txt"
    path.write_text(f"# known\n{line}  # reason\n")
    with pytest.raises(ConfigError, match="line 2"):
        read_baseline(path)


@pytest.mark.parametrize(
    ("verdicts", "code"),
    [
        ((), 2),
        ((SKIPPED,), 2),
        ((SKIPPED, HINDERED), 2),
        ((replace(FAILED, known=True), HINDERED), 2),
        ((replace(FAILED, known=True),), 2),
        ((replace(CRASHED, known=True),), 0),
        ((WARNED,), 0),
        ((PASSED, SKIPPED), 0),
        ((PASSED, CRASHED), 1),
        ((FAILED,), 1),
    ],
)
def test_a_report_that_proves_nothing_has_exit_code_2(verdicts: tuple[Verdict, ...], code: int) -> None:
    assert Report("plugin", verdicts).exit_code == code


def test_rules_are_excluded() -> None:
    ids = [rule.id for rule in catalogue.select(["ALO"], exclude=["ALO-01", "alo-1*"])]
    assert ids[:2] == ["ALO-02", "ALO-03"]
    assert "ALO-10" not in ids
    with pytest.raises(ConfigError, match="leave no rule"):
        catalogue.select(["ALO"], exclude=["ALO"])
    with pytest.raises(ConfigError, match="rules must be ids"):
        catalogue.select(exclude=["XYZ"])


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


@pytest.mark.parametrize(
    ("origin", "address"),
    [
        (
            {"url": "https://git.example.com/team/plugwright.git", "vcs_info": {"vcs": "git", "commit_id": "4f2a"}},
            "https://git.example.com/team/plugwright/blob/4f2a/docs",
        ),
        ({"url": "ssh://git@git.example.com/team/plugwright.git", "vcs_info": {"commit_id": "4f2a"}}, ""),
        ({"url": "https://me:secret@git.example.com/plugwright", "vcs_info": {"commit_id": "4f2a"}}, ""),
        ({"url": "file:///home/me/plugwright", "dir_info": {"editable": True}}, ""),
        ({}, ""),
    ],
)
def test_the_page_is_in_the_repository_that_was_installed(origin: dict[str, object], address: str) -> None:
    assert installed_docs(json.dumps(origin)) == address
