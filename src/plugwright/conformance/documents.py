"""The verdicts as documents that travel: JSON, JUnit, SARIF and Markdown."""

import json
from collections.abc import Mapping, Sequence
from xml.etree import ElementTree

from plugwright.conformance.rule import Level, Report, Rule, RuleStatus, Verdict
from plugwright.version import __version__

__all__ = ["FORMATS", "as_json", "as_junit", "as_markdown", "as_sarif", "rules_page"]

_SARIF_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_SARIF_LEVELS = {Level.MUST: "error", Level.SHOULD: "warning"}
_SARIF_KINDS = {RuleStatus.PASS: "pass", RuleStatus.NOT_APPLICABLE: "notApplicable"}


def as_json(report: Report) -> str:
    """One object with the counts, and one for each verdict."""
    counts = {status.value: report.count(status) for status in RuleStatus}
    document = {
        "plugwright": __version__,
        "command": report.command,
        "failed": report.failed,
        "counts": counts,
        "fixed": list(report.fixed),
        "verdicts": [verdict.facts() for verdict in report.verdicts],
    }
    return json.dumps(document, indent=2, ensure_ascii=False)


def as_junit(report: Report) -> str:
    """A test suite for each kubelet version; a warning is a test that passed and has output."""
    suites = ElementTree.Element("testsuites", name="plugwright verify")
    for version in dict.fromkeys(verdict.version for verdict in report.verdicts):
        verdicts = [verdict for verdict in report.verdicts if verdict.version == version]
        suite = ElementTree.SubElement(
            suites,
            "testsuite",
            name=f"kubelet {version}",
            tests=str(len(verdicts)),
            failures=str(sum(verdict.breaks for verdict in verdicts)),
            skipped=str(sum(_is_skipped(verdict) for verdict in verdicts)),
            time=f"{sum(verdict.seconds for verdict in verdicts):.3f}",
        )
        for verdict in verdicts:
            _add_case(suite, verdict)
    ElementTree.indent(suites)
    return ElementTree.tostring(suites, encoding="unicode", xml_declaration=True)


def _is_skipped(verdict: Verdict) -> bool:
    return verdict.status is RuleStatus.NOT_APPLICABLE or verdict.known


def _add_case(suite: ElementTree.Element, verdict: Verdict) -> None:
    name = f"{verdict.rule.id} {verdict.rule.title}"
    case = ElementTree.SubElement(
        suite, "testcase", classname=f"kubelet-{verdict.version}", name=name, time=f"{verdict.seconds:.3f}"
    )
    if verdict.breaks:
        failure = ElementTree.SubElement(
            case, "failure", message=_xml(f"expected {verdict.expected}; seen {verdict.seen}")
        )
        failure.text = _xml("\n".join([verdict.rule.why, verdict.rule.fix, *verdict.calls]))
    elif _is_skipped(verdict):
        ElementTree.SubElement(case, "skipped", message=_xml(verdict.seen))
    elif verdict.status is RuleStatus.WARNING:
        ElementTree.SubElement(case, "system-out").text = _xml(
            f"warning: expected {verdict.expected}; seen {verdict.seen}"
        )


def _xml(text: str) -> str:
    """Without the characters that XML has no way to write."""
    return "".join(
        character if character >= " " or character in "\t\n" else "\N{REPLACEMENT CHARACTER}" for character in text
    )


def as_sarif(report: Report) -> str:
    rules = list(dict.fromkeys(verdict.rule for verdict in report.verdicts))
    run = {
        "tool": {
            "driver": {
                "name": "plugwright verify",
                "version": __version__,
                "rules": [_sarif_rule(rule) for rule in rules],
            }
        },
        "results": [_sarif_result(verdict) for verdict in report.verdicts],
    }
    return json.dumps({"$schema": _SARIF_SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2, ensure_ascii=False)


def _sarif_rule(rule: type[Rule]) -> Mapping[str, object]:
    return {
        "id": rule.id,
        "name": rule.__name__,
        "shortDescription": {"text": rule.title},
        "fullDescription": {"text": rule.why},
        "help": {"text": f"{rule.fix} See {rule.page()}"},
        "defaultConfiguration": {"level": _SARIF_LEVELS[rule.level]},
    }


def _sarif_result(verdict: Verdict) -> Mapping[str, object]:
    kind = _SARIF_KINDS.get(verdict.status, "fail")
    result: dict[str, object] = {
        "ruleId": verdict.rule.id,
        "kind": kind,
        "level": _SARIF_LEVELS[verdict.rule.level] if kind == "fail" else "none",
        "message": {"text": f"kubelet {verdict.version}: {_sentence(verdict)}"},
        # There is no line of code to point at: a program is verified, not its source.
        "locations": [{"logicalLocations": [{"fullyQualifiedName": f"kubelet-{verdict.version}", "kind": "resource"}]}],
    }
    if verdict.known:
        result["suppressions"] = [{"kind": "external", "justification": "in the baseline"}]
    return result


def _sentence(verdict: Verdict) -> str:
    if verdict.status in (RuleStatus.FAIL, RuleStatus.WARNING):
        return f"{verdict.rule.title}. Expected {verdict.expected}; seen {verdict.seen}"
    return verdict.seen or verdict.rule.title


def as_markdown(report: Report) -> str:
    """What did not pass as a table, and the counts."""
    lines = [f"## plugwright verify: {'failed' if report.failed else 'passed'}", "", f"`{report.command}`", ""]
    lines += [
        "| " + " | ".join(f"{report.count(status)} {status}" for status in RuleStatus) + " |",
        "|---|---|---|---|",
        "",
    ]
    shown = [verdict for verdict in report.verdicts if verdict.status in (RuleStatus.FAIL, RuleStatus.WARNING)]
    if shown:
        lines += ["| rule | kubelet | verdict | expected | seen | fix |", "|---|---|---|---|---|---|"]
    lines += [_row(verdict) for verdict in shown]
    if report.fixed:
        lines += ["", f"No longer failing, to be taken out of the baseline: {', '.join(report.fixed)}"]
    return "\n".join(lines)


def _row(verdict: Verdict) -> str:
    status = f"{verdict.status}{', known' if verdict.known else ''}"
    cells = (verdict.rule.id, verdict.version, status, verdict.expected, verdict.seen, verdict.rule.fix)
    return "| " + " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in cells) + " |"


def rules_page(groups: Mapping[str, Sequence[type[Rule]]]) -> str:
    """Every rule with its reason, for docs/verify.md."""
    lines = []
    for group, rules in groups.items():
        lines += [f"### {group}", "", "| rule | | what, why and how to fix it |", "|---|---|---|"]
        lines += [_rule_row(rule) for rule in rules]
        lines.append("")
    return "\n".join(lines)


def _rule_row(rule: type[Rule]) -> str:
    facts = ", ".join(f"[{fact}](kubelet-behaviour.md#{fact})" for fact in rule.facts)
    notes = [f"kubelets {rule.versions()}"] * bool(rule.since or rule.until) + ["with `--thorough`"] * rule.thorough
    about = "; ".join([*notes, *([f"facts {facts}"] if facts else [])])
    text = f"**{rule.title}.** {rule.why} _{rule.fix}_{f' ({about})' if about else ''}"
    return f'| <a id="{rule.id.lower()}"></a>{rule.id} | {rule.level} | {text} |'


FORMATS = {"json": as_json, "junit": as_junit, "sarif": as_sarif, "markdown": as_markdown}
