"""The verdicts as documents for other programs: JSON, JUnit, Markdown and annotations; SARIF is in `sarif`."""

import json
from collections.abc import Callable, Mapping, Sequence
from xml.etree import ElementTree

from plugwright.conformance.rule import Report, Rule, RuleStatus, Verdict
from plugwright.conformance.sarif import as_sarif
from plugwright.version import __version__

__all__ = ["FORMATS", "as_annotations", "as_json", "as_junit", "as_markdown", "as_sarif", "rules_page", "why_skipped"]


def as_json(report: Report) -> str:
    """One object with the counts, and one for each verdict."""
    counts = {status.value: report.count(status) for status in RuleStatus}
    document = {
        "plugwright": __version__,
        "command": report.command,
        "outcome": report.outcome,
        "failed": report.failed,
        "verified": report.verified,
        "counts": counts,
        "fixed": list(report.fixed),
        "expired": list(report.expired),
        "verdicts": [verdict.facts() for verdict in report.verdicts],
    }
    return json.dumps(document, indent=2, ensure_ascii=False)


def as_junit(report: Report) -> str:
    """A test suite for each kubelet version; a warning is a passed test with output."""
    suites = ElementTree.Element("testsuites", name="plugwright verify")
    for version in dict.fromkeys(verdict.version for verdict in report.verdicts):
        verdicts = [verdict for verdict in report.verdicts if verdict.version == version]
        suite = ElementTree.SubElement(
            suites,
            "testsuite",
            name=f"kubelet {version}",
            tests=str(len(verdicts)),
            failures=str(sum(verdict.breaks and not _is_error(verdict) for verdict in verdicts)),
            errors=str(sum(verdict.breaks and _is_error(verdict) for verdict in verdicts)),
            skipped=str(sum(_is_skipped(verdict) for verdict in verdicts)),
            time=f"{sum(verdict.seconds for verdict in verdicts):.3f}",
        )
        for verdict in verdicts:
            _add_case(suite, verdict)
    ElementTree.indent(suites)
    return ElementTree.tostring(suites, encoding="unicode", xml_declaration=True)


def _is_skipped(verdict: Verdict) -> bool:
    return verdict.status in (RuleStatus.NOT_APPLICABLE, RuleStatus.NOT_CHECKED) or verdict.known


def _is_error(verdict: Verdict) -> bool:
    return verdict.status is RuleStatus.ERROR


def _add_case(suite: ElementTree.Element, verdict: Verdict) -> None:
    name = f"{verdict.rule.id} {verdict.rule.title}"
    case = ElementTree.SubElement(
        suite, "testcase", classname=f"kubelet-{verdict.version}", name=name, time=f"{verdict.seconds:.3f}"
    )
    if verdict.breaks:
        failure = ElementTree.SubElement(
            case,
            "error" if _is_error(verdict) else "failure",
            message=_xml(f"expected {verdict.expected}; seen {verdict.seen}"),
        )
        rule = verdict.rule
        failure.text = _xml("\n".join([rule.why, rule.fix, rule.more(), *verdict.calls, *verdict.output]))
    elif _is_skipped(verdict):
        ElementTree.SubElement(case, "skipped", message=_xml(why_skipped(verdict)))
    elif verdict.status is RuleStatus.WARNING:
        ElementTree.SubElement(case, "system-out").text = _xml(
            f"warning: expected {verdict.expected}; seen {verdict.seen}"
        )


def _xml(text: str) -> str:
    """Replaces characters that XML cannot represent."""
    return "".join(
        character if character >= " " or character in "\t\n" else "\N{REPLACEMENT CHARACTER}" for character in text
    )


def why_skipped(verdict: Verdict) -> str:
    """Why a rule has no verdict that counts, briefly."""
    if verdict.known:
        return f"known: {verdict.reason or 'no reason given'}; seen {verdict.seen}"
    if verdict.depends_on:
        return f"not checked: {verdict.depends_on} failed{f' ({verdict.seen})' if verdict.seen else ''}"
    return verdict.seen


def as_markdown(report: Report) -> str:
    """The findings as a table, and the counts."""
    lines = [f"## plugwright verify: {report.outcome}", "", f"`{report.command}`", ""]
    lines += [
        "| " + " | ".join(f"{report.count(status)} {status}" for status in RuleStatus) + " |",
        "|---" * len(RuleStatus) + "|",
        "",
    ]
    shown = [verdict for verdict in report.verdicts if verdict.status.is_finding]
    if shown:
        lines += ["| rule | kubelet | verdict | expected | seen | fix |", "|---|---|---|---|---|---|"]
    lines += [_row(verdict) for verdict in shown]
    if report.fixed:
        lines += ["", f"No longer failing, to be taken out of the baseline: {', '.join(report.fixed)}"]
    if report.expired:
        lines += ["", f"Expired in the baseline: {', '.join(report.expired)}"]
    return "\n".join(lines)


def _row(verdict: Verdict) -> str:
    status = f"{verdict.status}{', known' if verdict.known else ''}"
    page = verdict.rule.page()
    name = f"[{verdict.rule.id}]({page})" if page else verdict.rule.id
    cells = (name, verdict.version, status, verdict.expected, verdict.seen, verdict.rule.fix)
    return "| " + " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in cells) + " |"


def as_annotations(report: Report) -> str:
    """A workflow command of GitHub for each unknown finding."""
    shown = [verdict for verdict in report.verdicts if verdict.status.is_finding and not verdict.known]
    return "\n".join(_annotation(verdict) for verdict in shown)


def _annotation(verdict: Verdict) -> str:
    rule, level = verdict.rule, "warning" if verdict.status is RuleStatus.WARNING else "error"
    text = f"Expected {verdict.expected}; seen {verdict.seen}\nWhy: {rule.why}\nFix: {rule.fix}\n{rule.more()}"
    title = f"{rule.id} {rule.title} (kubelet {verdict.version})"
    return f"::{level} title={_escaped(title).replace(':', '%3A').replace(',', '%2C')}::{_escaped(text)}"


def _escaped(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


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
    notes += [f"a note: only with `--rules {rule.id}`"] * rule.note
    about = "; ".join([*notes, *([f"facts {facts}"] if facts else [])])
    text = f"**{rule.title}.** {rule.why} _{rule.fix}_{f' ({about})' if about else ''}"
    return f'| <a id="{rule.id.lower()}"></a>{rule.id} | {rule.level} | {text} |'


FORMATS: Mapping[str, Callable[[Report], str]] = {
    "json": as_json,
    "junit": as_junit,
    "sarif": as_sarif,
    "markdown": as_markdown,
    "github": as_annotations,
}
