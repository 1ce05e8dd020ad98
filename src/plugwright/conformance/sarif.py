"""The findings as SARIF 2.1.0, in the subset that GitHub's code scanning accepts.

GitHub requires a physical location in the repository for each result, and makes an alert of every result of any kind:
so there are results only for findings, and they point at a file of the project.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from plugwright.conformance.rule import Level, Report, Rule, RuleStatus, Verdict
from plugwright.version import __version__

__all__ = ["as_sarif"]

_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_LEVELS = {Level.MUST: "error", Level.SHOULD: "warning"}
# The program is verified and not its source, so results point at the file that names the project.
_PROJECT_FILES = ("go.mod", "pyproject.toml", "Cargo.toml", "CMakeLists.txt", "package.json", "Makefile", "README.md")


def as_sarif(report: Report) -> str:
    found = [verdict for verdict in report.verdicts if verdict.status.is_finding]
    rules = list(dict.fromkeys(verdict.rule for verdict in report.verdicts))
    numbers = {rule: number for number, rule in enumerate(rules)}
    place = report.source or _project_file(report.command)
    run = {
        "tool": {
            "driver": {
                "name": "plugwright verify",
                "semanticVersion": __version__,
                "rules": [_rule(rule) for rule in rules],
            }
        },
        "automationDetails": {"id": f"plugwright-verify/{_digest(report.command)}"},
        "results": [_result(verdict, numbers[verdict.rule], place) for verdict in found],
    }
    return json.dumps({"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2, ensure_ascii=False)


def _rule(rule: type[Rule]) -> Mapping[str, object]:
    text, page = f"{rule.why} {rule.fix}", rule.page()
    more = f"[{rule.id}]({page})" if page else f"`{rule.more()}`"
    return {
        "id": rule.id,
        "name": rule.__name__,
        "shortDescription": {"text": rule.title},
        "fullDescription": {"text": rule.why},
        "help": {"text": f"{text} More: {rule.more()}", "markdown": f"{text} More: {more}"},
        **({"helpUri": page} if page else {}),
        "defaultConfiguration": {"level": _LEVELS[rule.level]},
        "properties": {"precision": "high", "tags": ["kubernetes"]},
    }


def _result(verdict: Verdict, number: int, place: str) -> Mapping[str, object]:
    level = "warning" if verdict.status is RuleStatus.WARNING else "error"
    text = f"{verdict.rule.title}. Expected {verdict.expected}; seen {verdict.seen} (kubelet {verdict.version})"
    location = {
        "physicalLocation": {
            "artifactLocation": {"uri": place, "uriBaseId": "%SRCROOT%"},
            "region": {"startLine": 1},
        },
        "logicalLocations": [{"fullyQualifiedName": f"kubelet-{verdict.version}", "kind": "resource"}],
    }
    result: dict[str, object] = {
        "ruleId": verdict.rule.id,
        "ruleIndex": number,
        "kind": "fail",
        "level": "note" if verdict.known else level,
        "message": {"text": text},
        "locations": [location],
        # The observation differs from run to run; the alert is the same.
        "partialFingerprints": {"ruleAndVersion/v1": _digest(f"{verdict.rule.id} {verdict.version}")},
    }
    if verdict.known:
        result["suppressions"] = [{"kind": "external", "justification": verdict.reason or "in the baseline"}]
    return result


def _project_file(command: str) -> str:
    """The first file of the project in this directory, or the program's own name."""
    found = next((name for name in _PROJECT_FILES if Path(name).is_file()), "")
    return found or Path(command.partition(" ")[0]).name or "plugin"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
