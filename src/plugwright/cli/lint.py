"""`plugwright lint`: mistakes in claims, templates and classes, found with the devices of a cluster."""

from collections.abc import Iterator
from pathlib import Path

import click

from plugwright.cli.cluster_question import AskedCluster, cluster_options, read_objects
from plugwright.cli.output import document_printed, echo_wrapped
from plugwright.explain.claim_lint import LintFinding, LintReport, lint_objects
from plugwright.explain.fitting import in_namespace, with_objects
from plugwright.text import clean

__all__ = ["lint"]

_EXAMPLE = """\b
Examples:
  kubectl plugwright lint -f claims.yaml
  kubectl plugwright lint                    the cluster's own classes
"""
_COLORS = {"error": "red", "warning": "yellow"}


@click.command(epilog=_EXAMPLE)
@click.option(
    "-f", "--filename", type=click.Path(path_type=Path, allow_dash=True),
    help="YAML or JSON with ResourceClaims, ResourceClaimTemplates and DeviceClasses; - is the standard input. "
    " [default: the DeviceClasses of the cluster, and the templates of the namespace]",
)  # fmt: skip
@cluster_options(all_namespaces=True)
@click.pass_context
def lint(click_context: click.Context, filename: Path | None, cluster: AskedCluster, output: str) -> None:
    """Check claims, templates and classes against the devices that the cluster's drivers publish.

    Reports selectors that fail on any device, which keeps pods waiting on every node, selectors that match no device,
    attributes and capacities that no driver publishes, missing classes, and requests that could never be satisfied.
    Exits with 1 if there is an error.
    """
    if filename is not None and not cluster.namespace:
        raise click.UsageError("--all-namespaces is for the templates of the cluster: not with --filename")
    objects = read_objects(filename) if filename else []
    world = cluster.world()
    if filename is None:
        objects = [{"kind": "DeviceClass", **entry} for entry in world.classes]
        objects += [{"kind": "ResourceClaimTemplate", **entry} for entry in world.templates]
    scoped = [in_namespace(entry, cluster.namespace) for entry in objects]
    report = lint_objects(with_objects(world, scoped, cluster.namespace), scoped)
    if not document_printed(report, output):
        echo_wrapped(_lines(report, is_wide=output == "wide"))
    if any(finding.level == "error" for finding in report.findings):
        click_context.exit(1)


def _lines(report: LintReport, is_wide: bool) -> Iterator[str]:
    has_namespace = is_wide or len({finding.namespace for finding in report.findings if finding.namespace}) > 1
    for finding in report.findings:
        level = click.style(finding.level, fg=_COLORS[finding.level])
        yield f"{_title(finding, has_namespace)}: {level}: {finding.text}"
        yield f"    {clean(finding.path, limit=500)}  [{finding.code}]"
    if not report.findings:
        yield f"{report.checked} objects, nothing found"
    yield from (f"not seen: {entry}" for entry in report.unseen)


def _title(finding: LintFinding, has_namespace: bool) -> str:
    namespace = f"{finding.namespace}/" if has_namespace and finding.namespace else ""
    return clean(f"{finding.kind} {namespace}{finding.name}", limit=300)
