"""`plugwright fit`: tells whether the pods of a file would run now, how many of them, and where."""

from collections.abc import Iterator
from pathlib import Path

import click
from msgspec.structs import replace

from plugwright.cli.cluster_question import (
    AskedCluster,
    AskedReports,
    cluster_options,
    read_objects,
    report_options,
    with_reports,
)
from plugwright.cli.output import document_printed, echo_wrapped
from plugwright.cli.why import explanation_lines
from plugwright.errors import ConfigError
from plugwright.explain.explanation import counted_nodes
from plugwright.explain.fitting import FitReport, fit_pod, with_objects, workloads

__all__ = ["fit"]

_EXAMPLE = """\b
Examples:
  kubectl plugwright fit -f train.yaml
  kubectl plugwright fit -f pod.yaml --replicas 16
"""
_MOST_REPLICAS = 10_000


@click.command(epilog=_EXAMPLE)
@click.option(
    "-f", "--filename", type=click.Path(path_type=Path, allow_dash=True), required=True,
    help="YAML or JSON with a pod or workload, its claims, templates and classes; - is the standard input.",
)  # fmt: skip
@click.option(
    "--replicas",
    type=click.IntRange(1, _MOST_REPLICAS),
    metavar="COUNT",
    help="Number of pods.  [default: that of the workload]",
)
@report_options
@cluster_options()
@click.pass_context
def fit(
    click_context: click.Context, filename: Path, replicas: int | None, reports: AskedReports, cluster: AskedCluster,
    output: str,
) -> None:  # fmt: skip
    """Predict whether the pod or workload of a file would run now, how many of its pods, and on which nodes.

    The objects need not exist in the cluster, and nothing is created. If a pod would wait, `fit` explains
    the first such pod as `why` does, and exits with 1.
    """
    objects = read_objects(filename)
    found = list(workloads(objects, cluster.namespace))
    if not found:
        raise ConfigError(f"{filename} must contain a Pod, Deployment, ReplicaSet, StatefulSet, Job or CronJob")
    if len(found) > 1:
        raise ConfigError(f"{filename} must contain one pod or workload, got {len(found)}")
    pod, count = found[0]
    of_pod = str(pod["metadata"]["namespace"])
    world = with_reports(replace(cluster, namespace=of_pod).world(), cluster, reports, [pod])
    world = with_objects(world, objects, of_pod)
    report = fit_pod(world, pod, min(replicas or count, _MOST_REPLICAS))
    if not document_printed(report, output):
        echo_wrapped(_lines(report, is_wide=output == "wide"))
    if report.placed < report.wanted:
        click_context.exit(1)


def _lines(report: FitReport, is_wide: bool) -> Iterator[str]:
    nodes = [f"{count} on {node}" for node, count in report.nodes.items()]
    shown = nodes if is_wide else nodes[:5]
    more = f" and {counted_nodes(len(nodes) - len(shown))}" if len(nodes) > len(shown) else ""
    where = f": {', '.join(shown)}{more}" if nodes else ""
    yield f"{report.pod} fits {report.placed} of {report.wanted} times{where}"
    if report.explanation is not None:
        yield from explanation_lines(report.explanation, is_wide)
    else:
        yield from (f"counted: {entry}" for entry in report.counted)
        yield from (f"not seen: {entry}" for entry in report.unseen)
