"""`plugwright verify`: the contract test for a device plugin or a DRA driver, in any language."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from plugwright.apiserver.extra import check_installed
from plugwright.cli import logs
from plugwright.cli.completing import complete_rule
from plugwright.cli.counting_line import CountingLine
from plugwright.cli.options import duration
from plugwright.cli.output import wrapped
from plugwright.conformance import baseline, catalogue, documents, namespace, runner
from plugwright.conformance.dra.claim_parameters import read_parameters
from plugwright.conformance.dra.driver_session import NODE
from plugwright.conformance.program import Target
from plugwright.conformance.progress import Slow, slow_text
from plugwright.conformance.rule import Report, Rule, RuleStatus, Verdict, documentation_url
from plugwright.conformance.runner import Watcher
from plugwright.conformance.session import TimeLimits
from plugwright.conformance.verifier import VerifyOptions
from plugwright.errors import ConfigError, PlugwrightError
from plugwright.kubelet.versions import DEFAULT_VERSION, SUPPORTED_VERSIONS, profile

__all__ = ["verify"]

_VERSIONS = [f"1.{minor}" for minor in range(26, 38)]
_DRIVER_VERSIONS = [f"1.{minor}" for minor in range(34, 38)]  # earlier kubelets do not call DRA drivers
_COLOURS = {
    RuleStatus.PASS: "green",
    RuleStatus.FAIL: "red",
    RuleStatus.ERROR: "red",
    RuleStatus.WARNING: "yellow",
}
_DETAIL_INDENT, _SUMMARY_INDENT = 26, 2
_FACTS = "(docs/kubelet-behaviour.md in plugwright's source)"
_EXAMPLE = """\b
Examples:
  plugwright verify -- ./my-plugin --plugin-dir {dir}
  plugwright verify --kubelet all -- ./my-plugin --socket {socket}
  plugwright verify -- ./my-plugin          the kubelet's paths are built in
  plugwright verify --rules REG --exclude REG-13 -- ./my-plugin
  plugwright verify --report junit=verify.xml -- ./my-plugin
  plugwright verify --bind fake/dev:/dev --bind fake/sys:/sys -- ./my-plugin
  plugwright verify --dra -- ./my-driver --kubelet-dir {root}
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
    "--rules",
    multiple=True,
    metavar="PATTERN",
    shell_complete=complete_rule,
    help="Check only these rules: an id, a group such as REG, or ANS-*; separate several by commas.",
)
@click.option(
    "--exclude",
    multiple=True,
    metavar="PATTERN",
    help="Skip these rules: an id, a group or a pattern.",
    shell_complete=complete_rule,
)
@click.option("--notes", is_flag=True, help="Also check notes: rules that matter on few nodes, or for rare calls.")
@click.option("--dra", is_flag=True, help="The program is a DRA driver; also run an API server.")
@click.option("--list", "lists", is_flag=True, help="List the rules and exit.")
@click.option("--explain", metavar="ID", help="Explain one rule and exit.", shell_complete=complete_rule)
@click.option(
    "--attach",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Verify a program started elsewhere that uses DIR as the kubelet's directory; without CMD.",
)
@click.option(
    "-o",
    "--output",
    type=click.Choice(["text", *documents.FORMATS]),
    default="text",
    show_default=True,
    help="Format of the report on the standard output; except for text, progress is on the error output.",
)
@click.option(
    "--report",
    "reports",
    multiple=True,
    metavar="FORMAT=FILE",
    help=f"Write a report to a file as well: {', '.join(documents.FORMATS)}; repeatable.",
)
@click.option(
    "--source",
    default="",
    metavar="FILE",
    help="File of your repository at which SARIF shows findings.  [default: go.mod, pyproject.toml or the like]",
)
@click.option(
    "--baseline",
    "baseline_file",
    type=click.Path(path_type=Path),
    help="File with known findings: RULE[@VERSION] [until YYYY-MM-DD]  # reason.",
)
@click.option(
    "--write-baseline",
    type=click.Path(path_type=Path),
    help="Write the findings of this run to a file of known findings.",
)
@click.option("--thorough", is_flag=True, help="Also check endurance rules: hundreds of restarts, which take minutes.")
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
@click.option(
    "--bind",
    "binds",
    multiple=True,
    metavar="SRC:DST",
    help="Let the program see SRC as DST, such as a fake /sys or /dev, in its mount namespace; repeatable.",
)
@click.option(
    "--parameters",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="FILE",
    help="With --dra: the driver's own parameters for claims, one object in JSON or YAML.",
)
@click.option("--fail-command", default="", metavar="SH", help="Shell command that makes the device {id} fail.")
@click.option("--recover-command", default="", metavar="SH", help="Shell command that makes the device {id} recover.")
@click.option(
    "--host-root",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    default=Path("/"),
    help="Directory below which device nodes and mounts must exist.",
)
@click.option(
    "--cdi-dir", "cdi_dirs", multiple=True, type=click.Path(path_type=Path), help="Directory of the CDI specs."
)
@click.option(
    "--timeout",
    type=duration,
    metavar="TIME",
    default="30s",
    show_default=True,
    help="Longest time until a registration.",
)
@click.option(
    "--jobs",
    type=click.IntRange(1, 64),
    metavar="COUNT",
    default=1,
    show_default=True,
    help="Number of versions to verify in parallel.",
)
@click.option(
    "--instances",
    type=click.IntRange(1, 16),
    metavar="COUNT",
    default=VerifyOptions().instances,
    show_default=True,
    help="Number of parallel instances of the program, each with its own kubelet, so that waits overlap.",
)
def verify(command: tuple[str, ...], output: str, **values: Any) -> None:
    """Verify that a device plugin or a DRA driver keeps the contract with the kubelet.

    The program is started beside emulated kubelets, in a separate directory, and every rule gives a verdict: the
    expected and the observed behaviour, why it matters on a node, and how to fix it. {dir} in the command and in --env
    is the device-plugins directory, {root} its parent, {socket} is kubelet.sock. A program with built-in paths runs in
    a mount namespace, if the system allows it.

    With --dra the program is a DRA driver. {dir} is then the kubelet's plugins directory, {registry} plugins_registry,
    {cdi} a directory for CDI specs, {kubeconfig} leads to an API server with one node, {node}.

    Verdicts: pass, fail (a MUST), warning (a SHOULD), error (the program crashed or stopped listening), not checked
    (another rule failed), not applicable. Exit codes: 0, 1 after a failure or an error, 2 if nothing was verified.
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
    sys.exit(report.exit_code)


def _report(command: tuple[str, ...], output: str, values: dict[str, Any]) -> Report:
    target, files = _target(command, values), _report_files(values["reports"])
    known = baseline.read_baseline(values["baseline_file"]) if values["baseline_file"] else baseline.Baseline()
    rules = catalogue.select(values["rules"], dra=values["dra"], exclude=values["exclude"], notes=values["notes"])
    options = _options(values)
    versions = _versions(values["versions"], _DRIVER_VERSIONS if values["dra"] else _VERSIONS)
    if values["dra"] and values["attach"]:
        _announce_api(values["attach"], versions)
    every = [replace(options, version=version) for version in versions]
    line = CountingLine("rules", len(rules) * len(versions))
    shown: list[Verdict] = []

    def slow(version: str, found: Sequence[Slow]) -> None:
        line.erase()
        click.echo(f"{version:<6} {slow_text(found)}", err=True)

    def seen(verdict: Verdict) -> None:
        shown.append(verdict)
        line.erase()
        _show(verdict, err=output != "text")
        if sys.stderr.isatty():  # elsewhere each rule has its own line
            line.show(len(shown))

    with line:
        verdicts = runner.run(target, rules, every, Watcher(seen, slow), values["jobs"])
    if verdicts is None:
        raise click.Abort
    if values["write_baseline"]:
        _write(values["write_baseline"], baseline.baseline_text(verdicts, known))
    report = replace(known.report(str(target), verdicts), source=values["source"])
    for path, kind in files:
        _write(path, documents.FORMATS[kind](report) + "\n")
    return report


def _report_files(texts: Sequence[str]) -> list[tuple[Path, str]]:
    parts = [text.partition("=") for text in texts]
    for kind, _, name in parts:
        if kind not in documents.FORMATS or not name:
            raise click.UsageError(f"--report must be FORMAT=FILE with {', '.join(documents.FORMATS)}, got {kind!r}")
        if not Path(name).absolute().parent.is_dir():
            raise click.UsageError(f"--report: no such directory: {Path(name).parent}")
    return [(Path(name), kind) for kind, _, name in parts]


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from error


def _announce_api(directory: Path, versions: Sequence[str]) -> None:
    """Prints the data that the driver needs: its starter can have started it already, waiting for the file."""
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
    binds = tuple(map(namespace.parse_bind, values["binds"]))
    if binds and values["attach"]:
        raise click.UsageError("--bind is for a program that is started here, and not for --attach")
    target = Target(command, environment, values["directory_flag"], bool(values["attach"]), binds)
    if command:
        target.check()
    return target


def _options(values: dict[str, Any]) -> VerifyOptions:
    if bool(values["fail_command"]) != bool(values["recover_command"]):
        raise click.UsageError("--fail-command and --recover-command need each other")
    if values["dra"]:
        check_installed("plugwright verify --dra")
    elif values["parameters"]:
        raise click.UsageError("--parameters is for DRA drivers: use it with --dra")
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
        parameters=read_parameters(values["parameters"]) if values["parameters"] else None,
        instances=values["instances"],
    )
    return replace(options, cdi_dirs=values["cdi_dirs"]) if values["cdi_dirs"] else options


def _versions(chosen: Sequence[str], every: Sequence[str]) -> list[str]:
    versions = [version for text in chosen or [DEFAULT_VERSION] for version in (every if text == "all" else [text])]
    return [profile(version).name for version in dict.fromkeys(versions)]


def _show(verdict: Verdict, *, err: bool) -> None:
    """One line for each rule as it ends, with its time, and the details of a finding.

    On a terminal not for rules that were not checked: the summary names them, and the finding before stays in sight.
    """
    if verdict.status is RuleStatus.NOT_CHECKED and sys.stdout.isatty():
        return
    word = click.style(f"{verdict.status!s:<14}", fg=_COLOURS.get(verdict.status))
    took = f"{verdict.seconds:6.2f} s"
    line = f"{verdict.version:<6} {verdict.rule.id}  {word} {took}  {verdict.rule.title}"
    click.echo(wrapped(line, _DETAIL_INDENT), err=err)
    for name, text in _details(verdict):
        detail = f"{'':<15} {click.style(f'{name:<9}', dim=True)} {text}"
        click.echo(wrapped(detail, _DETAIL_INDENT), err=err)


def _details(verdict: Verdict) -> list[tuple[str, str]]:
    if not verdict.status.is_finding:
        return []
    rule = verdict.rule
    return [
        ("expected", verdict.expected),
        ("seen", verdict.seen),
        *_block("calls", verdict.calls),
        *_block("output", verdict.output),
        ("why", rule.why),
        ("fix", rule.fix),
        ("level", f"{rule.level}, kubelet versions: {rule.versions()}"),
        ("more", rule.more()),
    ]


def _block(name: str, lines: Sequence[str]) -> list[tuple[str, str]]:
    return [("" if number else name, line) for number, line in enumerate(lines)]


def _show_summary(report: Report) -> None:
    counts = ", ".join(f"{report.count(status)} {status}" for status in RuleStatus)
    known = sum(verdict.known for verdict in report.verdicts)
    for reason, ids in _unproven(report).items():
        click.echo(click.style(wrapped(f"{reason}: {', '.join(ids)}", _SUMMARY_INDENT), dim=True))
    click.echo(f"{counts}{f', {known} of them known' if known else ''}")
    if report.fixed:
        click.echo(f"no longer failing, to be taken out of the baseline: {', '.join(report.fixed)}")
    if report.expired:
        click.echo(f"expired in the baseline: {', '.join(report.expired)}")
    click.echo(click.style(report.outcome, fg="red" if report.exit_code else "green"))


def _unproven(report: Report) -> dict[str, list[str]]:
    """The unproven rules, by reason."""
    reasons: dict[str, list[str]] = {}
    for verdict in report.verdicts:
        if verdict.status.is_proof:
            continue
        cause = f"{verdict.depends_on} failed" if verdict.depends_on else verdict.seen
        ids = reasons.setdefault(f"{verdict.status}, {cause}", [])
        if verdict.rule.id not in ids:
            ids.append(verdict.rule.id)
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
    url = documentation_url()
    numbers = [f"{url}/kubelet-behaviour.md#{fact}" if url else fact for fact in rule.facts]
    facts = (", ".join(numbers) + ("" if url else f" {_FACTS}")) if numbers else "none"
    for name, text in (("why", rule.why), ("fix", rule.fix), ("versions", rule.versions()), ("facts", facts)):
        click.echo(f"  {name:<9} {text}")
    if url:
        click.echo(f"  {'page':<9} {rule.page()}")
