"""`plugwright verify`: the contract test for a device plugin, or a DRA driver, in any language."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from plugwright.apiserver.extra import check_installed
from plugwright.cli import logs
from plugwright.conformance import baseline, catalogue, documents, runner
from plugwright.conformance.dra.driver_session import NODE
from plugwright.conformance.program import Target
from plugwright.conformance.rule import Report, Rule, RuleStatus, Verdict
from plugwright.conformance.session import TimeLimits
from plugwright.conformance.verifier import VerifyOptions
from plugwright.errors import PlugwrightError
from plugwright.kubelet.versions import DEFAULT_VERSION, SUPPORTED_VERSIONS, profile

__all__ = ["verify"]

_VERSIONS = [f"1.{minor}" for minor in range(26, 38)]
_DRIVER_VERSIONS = [f"1.{minor}" for minor in range(34, 38)]  # earlier kubelets call no DRA driver
_COLOURS = {RuleStatus.PASS: "green", RuleStatus.FAIL: "red", RuleStatus.WARNING: "yellow"}
_EXAMPLE = """\b
Examples:
  plugwright verify -- ./my-plugin --plugin-dir {dir}         every rule, against the kubelet of 1.36
  plugwright verify --kubelet all -- ./my-plugin --socket {socket}
  plugwright verify -- ./my-plugin                            it has the kubelet's paths built in
  plugwright verify --rules REG --rules LST-03 --output junit -- ./my-plugin --plugin-dir {dir}
  plugwright verify --dra -- ./my-driver --kubelet-dir {root}   a DRA driver; it has KUBECONFIG and NODE_NAME
  plugwright verify --explain ALO-03
"""


@click.command(epilog=_EXAMPLE)
@click.argument("command", metavar="-- CMD...", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--kubelet",
    "versions",
    multiple=True,
    metavar="VERSION",
    help=f"Kubelet version: {SUPPORTED_VERSIONS}, a patch release, or `all`; repeatable.  [default: {DEFAULT_VERSION}]",
)
@click.option(
    "--rules", multiple=True, metavar="PATTERN", help="Check these only: an id, a group such as REG, or ANS-*."
)
@click.option("--dra", is_flag=True, help="The program is a DRA driver: an API server is beside the kubelet.")
@click.option("--list", "lists", is_flag=True, help="List the rules and exit.")
@click.option("--explain", metavar="ID", help="Explain one rule and exit.")
@click.option(
    "--attach",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Verify a program that is started by others, and has DIR for the kubelet's directory. No CMD then.",
)
@click.option(
    "-o",
    "--output",
    type=click.Choice(["text", *documents.FORMATS]),
    default="text",
    show_default=True,
    help="Format of the report, on the standard output.",
)
@click.option("--baseline", "baseline_file", type=click.Path(path_type=Path), help="File with failures that are known.")
@click.option("--write-baseline", type=click.Path(path_type=Path), help="Write what fails now to such a file.")
@click.option("--thorough", is_flag=True, help="Rules of endurance too: hundreds of restarts, which take minutes.")
@click.option(
    "--device-plugins-dir-flag",
    "directory_flag",
    default="",
    metavar="FLAG",
    help="The program's own flag for the directory; FLAG and {dir} are appended, as one word if FLAG ends with `=`.",
)
@click.option(
    "--env", "variables", multiple=True, metavar="NAME=VALUE", help="A variable for the program; {dir} is filled in."
)
@click.option("--fail-command", default="", metavar="SH", help="Shell command that makes the device {id} fail.")
@click.option("--recover-command", default="", metavar="SH", help="Shell command that makes it recover.")
@click.option(
    "--host-root",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    default=Path("/"),
    help="Where device nodes and mounts are looked for.",
)
@click.option(
    "--cdi-dir", "cdi_dirs", multiple=True, type=click.Path(path_type=Path), help="Where CDI specs are looked for."
)
@click.option(
    "--timeout", type=click.FloatRange(min=0.1), default=30.0, show_default=True, help="Seconds for a registration."
)
@click.option("--jobs", type=click.IntRange(1, 64), default=1, show_default=True, help="Versions to verify at once.")
def verify(command: tuple[str, ...], output: str, **values: Any) -> None:
    """Verify that a device plugin or a DRA driver keeps the contract with the kubelet.

    The program is started beside emulated kubelets, in a directory of its own, and every rule gives a verdict: what was
    expected, what was seen, why it matters on a node, and how to fix it. {dir} in the command and in --env is the
    device-plugins directory, {root} the one above it, {socket} is kubelet.sock. A program that has these paths built in
    gets a mount namespace where that is allowed.

    With --dra the program is a DRA driver. {dir} is the kubelet's plugins directory then, {registry} plugins_registry,
    {cdi} a directory for CDI specs, {kubeconfig} leads to an API server with one node, {node}.

    Exit codes: 0, 1 if a MUST rule failed, 2 if nothing could be verified.
    """
    logs.configure("human", "critical")
    if values["lists"]:
        _list_rules(catalogue.DRIVER_GROUPS if values["dra"] else catalogue.GROUPS)
        return
    try:
        if values["explain"]:
            _explain(catalogue.find(values["explain"]))
            return
        report = _report(command, output, values)
    except PlugwrightError as error:
        raise click.UsageError(str(error)) from error
    click.echo(documents.FORMATS[output](report)) if output != "text" else _show_summary(report)
    sys.exit(1 if report.failed else 0)


def _report(command: tuple[str, ...], output: str, values: dict[str, Any]) -> Report:
    target = _target(command, values)
    known = baseline.read_baseline(values["baseline_file"]) if values["baseline_file"] else baseline.Baseline()
    rules, options = catalogue.select(values["rules"], dra=values["dra"]), _options(values)
    versions = _versions(values["versions"], _DRIVER_VERSIONS if values["dra"] else _VERSIONS)
    if values["dra"] and values["attach"]:
        _announce_api(values["attach"], versions)
    seen: Callable[[Verdict], None] = _show if output == "text" else _show_progress
    every = [replace(options, version=version) for version in versions]
    verdicts = runner.run(target, rules, every, seen, values["jobs"])
    if verdicts is None:
        raise click.Abort
    if values["write_baseline"]:
        values["write_baseline"].write_text(baseline.baseline_text(verdicts))
    return known.report(str(target), verdicts)


def _announce_api(directory: Path, versions: Sequence[str]) -> None:
    """Tells who starts the driver what it needs; it may run already, and wait for the file."""
    if len(versions) > 1:
        raise click.UsageError("--attach with --dra takes one --kubelet: each has an API server of its own")
    variables = {"KUBECONFIG": directory / "kubeconfig", "NODE_NAME": NODE, "CDI_ROOT": directory / "cdi"}
    words = " ".join(f"{name}={value}" for name, value in variables.items())
    click.echo(f"waiting for a driver with {words}", err=True)


def _target(command: tuple[str, ...], values: dict[str, Any]) -> Target:
    if bool(command) == bool(values["attach"]):
        raise click.UsageError("give the command of the program after --, or --attach DIR")
    variables = [text.partition("=") for text in values["variables"]]
    if wrong := [name for name, equals, _ in variables if not name or not equals]:
        raise click.UsageError(f"--env must be NAME=VALUE, got {wrong[0]!r}")
    environment = {name: value for name, _, value in variables}
    target = Target(command, environment, values["directory_flag"], attached=bool(values["attach"]))
    if command:
        target.check()
    return target


def _options(values: dict[str, Any]) -> VerifyOptions:
    if bool(values["fail_command"]) != bool(values["recover_command"]):
        raise click.UsageError("--fail-command and --recover-command need each other")
    if values["dra"]:
        check_installed("plugwright verify --dra")
    limit = values["timeout"]
    limits = TimeLimits(start=limit, register=limit)
    options = VerifyOptions(
        limits=limits,
        fail=values["fail_command"],
        recover=values["recover_command"],
        thorough=values["thorough"],
        directory=values["attach"],
        host_root=values["host_root"],
        dra=values["dra"],
    )
    return replace(options, cdi_dirs=values["cdi_dirs"]) if values["cdi_dirs"] else options


def _versions(chosen: Sequence[str], every: Sequence[str]) -> list[str]:
    versions = [version for text in chosen or [DEFAULT_VERSION] for version in (every if text == "all" else [text])]
    return [profile(version).name for version in dict.fromkeys(versions)]


def _show(verdict: Verdict) -> None:
    if verdict.status is RuleStatus.NOT_APPLICABLE or (verdict.status is RuleStatus.PASS and not sys.stdout.isatty()):
        return  # the former are in the summary
    word = click.style(f"{verdict.status!s:<7}", fg=_COLOURS[verdict.status])
    click.echo(f"{verdict.version:<6} {verdict.rule.id}  {word} {verdict.rule.title}")
    for name, text in _details(verdict):
        click.echo(f"{'':<15} {click.style(f'{name:<9}', dim=True)} {text}")


def _details(verdict: Verdict) -> list[tuple[str, str]]:
    if verdict.status is RuleStatus.PASS:
        return []
    rule = verdict.rule
    calls = [("" if number else "calls", line) for number, line in enumerate(verdict.calls)]
    return [
        ("expected", verdict.expected),
        ("seen", verdict.seen),
        *calls,
        ("why", rule.why),
        ("fix", rule.fix),
        ("level", f"{rule.level}, kubelet versions: {rule.versions()}, {rule.page()}"),
    ]


def _show_progress(verdict: Verdict) -> None:
    if sys.stderr.isatty():
        click.echo(f"\r\033[K{verdict.version} {verdict.rule.id} {verdict.status}", nl=False, err=True)


def _show_summary(report: Report) -> None:
    counts = ", ".join(f"{report.count(status)} {status}" for status in RuleStatus)
    known = sum(verdict.known for verdict in report.verdicts)
    for reason, ids in _not_applicable(report).items():
        click.echo(click.style(f"not applicable: {', '.join(ids)}: {reason}", dim=True))
    click.echo(f"{counts}{f', {known} of them known' if known else ''}")
    if report.fixed:
        click.echo(f"no longer failing, to be taken out of the baseline: {', '.join(report.fixed)}")
    click.echo(click.style("failed", fg="red") if report.failed else click.style("passed", fg="green"))


def _not_applicable(report: Report) -> dict[str, list[str]]:
    """The rules that were not checked, by the reason."""
    reasons: dict[str, list[str]] = {}
    for verdict in report.verdicts:
        if verdict.status is RuleStatus.NOT_APPLICABLE and verdict.rule.id not in reasons.setdefault(verdict.seen, []):
            reasons[verdict.seen].append(verdict.rule.id)
    return reasons


def _list_rules(groups: Mapping[str, Sequence[type[Rule]]]) -> None:
    for group, rules in groups.items():
        click.echo(click.style(group, bold=True))
        for rule in rules:
            notes = [
                note
                for note in (rule.versions() if rule.since or rule.until else "", "thorough" * rule.thorough)
                if note
            ]
            click.echo(f"  {rule.id}  {rule.level:<6}  {rule.title}{f' ({chr(44).join(notes)})' if notes else ''}")


def _explain(rule: type[Rule]) -> None:
    click.echo(f"{click.style(rule.id, bold=True)} ({rule.level}): {rule.title}")
    facts = ", ".join(f"docs/kubelet-behaviour.md#{fact}" for fact in rule.facts) or "none"
    for name, text in (("why", rule.why), ("fix", rule.fix), ("versions", rule.versions()), ("facts", facts)):
        click.echo(f"  {name:<9} {text}")
    click.echo(f"  {'page':<9} {rule.page()}")
