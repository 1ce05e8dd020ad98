"""`plugwright node`: the extended resources of a cluster's nodes, listed, added and removed through the API server."""

import os
import re
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click
import yaml

from plugwright.cli.completing import complete_node
from plugwright.cli.options import duration
from plugwright.cli.output import Cell, document_printed, output_option, print_table, wrapped
from plugwright.errors import ConfigError, InvalidValue
from plugwright.extended_resources import changes, removal, report, survey, uninstall
from plugwright.extended_resources.changes import ChangeContext, ChangeOptions, ChangeOutcome, ChangeTarget
from plugwright.extended_resources.client import connect
from plugwright.extended_resources.resources import NodeResource
from plugwright.kube.access import ClusterAccess
from plugwright.kube.api_client import BlockingClient
from plugwright.model import Resource
from plugwright.protocol.paths import KubeletPaths

__all__ = ["node"]

F = TypeVar("F", bound=Callable[..., Any])
_COLOURS = {
    "plugin": "green",
    "dra": "green",
    "stale": "red",
    "unknown": "yellow",
    "refused": "red",
    "timed out": "red",
}
_LARGEST_COUNT = 2**63 - 1
_REPEAT_PROGRESS = 30.0  # seconds


def _resource(text: str) -> str:
    try:
        return str(Resource(text))
    except InvalidValue as error:
        raise click.BadParameter(str(error)) from error


def _resource_count(text: str) -> tuple[str, int]:
    name, _, number = text.partition("=")
    _resource(name)
    if not re.fullmatch(r"[0-9]{1,19}", number) or int(number) > _LARGEST_COUNT:
        raise click.BadParameter(f"must be RESOURCE=COUNT, as in example.com/dongle=4, got {text!r}")
    return name, int(number)


def _pattern(text: str) -> str:
    try:
        return survey.check_pattern(text)
    except ConfigError as error:
        raise click.BadParameter(str(error)) from error


def _options(*options: Callable[[F], F]) -> Callable[[F], F]:
    def decorate(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


_cluster_options = _options(
    click.option(
        "--kubeconfig",
        type=click.Path(path_type=Path),
        help="Kubeconfig of the cluster.  [default: KUBECONFIG, ~/.kube/config, or in a pod its service account]",
    ),
    click.option("--context", help="Context of the kubeconfig.  [default: the current one]"),
    output_option(),
    click.option("--rbac", is_flag=True, help="Only print the ClusterRole that this call needs."),
)
_change_options = _options(
    click.option("--dry-run", is_flag=True, help="Change nothing; print what would be changed."),
    click.option("--force", is_flag=True, help="Override live plugins and pods; with --stale, pods only."),
    click.option("--wait", is_flag=True, help="Wait until the change lasts, and verify that it does."),
    click.option(
        "--timeout", type=duration, default="10m", metavar="TIME", show_default=True, help="Longest time to wait."
    ),
    click.option(
        "--round",
        type=duration,
        default="10s",
        metavar="TIME",
        show_default=True,
        help="The kubelet's nodeStatusUpdateFrequency.",
    ),
)
_kubelet_dir_option = click.option(
    "--kubelet-dir",
    type=click.Path(path_type=Path),
    help="When run on the node: its kubelet's directory (/var/lib/kubelet), which shows more than the API.",
)


@click.group(epilog="Example:  plugwright node remove --stale --all-nodes --wait")
def node() -> None:
    """List extended resources of nodes with their backing and pods, add them by hand, remove stale ones."""


@node.command(epilog="Example:  plugwright node resources --output json | jq '.nodes[].resources[]'")
@click.argument("name", metavar="[NODE]", default="", shell_complete=complete_node)
@_kubelet_dir_option
@_cluster_options
def resources(name: str, kubelet_dir: Path | None, output: str, rbac: bool, **access: Any) -> None:
    """List extended resources with counts, pods and backing.

    All nodes are listed, or NODE alone.

    \b
    plugin    a live device plugin
    dra       a DeviceClass names it
    manual    capacity set through the API
    stale     nothing: its plugin was removed
    unknown   cannot be determined from here
    """
    names = [name] if name else []
    if rbac:
        return _print_role("resources", names, patch=False)
    with connect(**access) as api:
        nodes = survey.nodes_named(api, names)
        listed = survey.list_resources(api, nodes, survey.cluster_context(api, nodes, _paths(kubelet_dir))())
    if document_printed({"nodes": report.nodes_report(nodes, listed)}, output):
        pass
    elif listed:
        evidence = [resource.assessment.evidence for resource in listed]
        print_table(report.COLUMNS, [_table_row(resource) for resource in listed], evidence)
    else:
        click.echo("no extended resources")
    return None


@node.command(epilog="Example:  plugwright node add worker-1 example.com/dongle=4 --wait")
@click.argument("name", metavar="NODE", shell_complete=complete_node)
@click.argument("counts", metavar="RESOURCE=COUNT...", type=_resource_count, nargs=-1)
@_change_options
@_cluster_options
def add(name: str, counts: Sequence[tuple[str, int]], output: str, rbac: bool, **options: Any) -> None:
    """Offer a resource that no plugin serves, or change its count.

    Refused if the kubelet would reset it, if a DeviceClass serves it, or below the requests of pods.
    """
    if rbac:
        return _print_role("add", [name], patch=True)
    if not counts:
        raise click.UsageError("at least one RESOURCE=COUNT is needed, as in example.com/dongle=4")
    with connect(options.pop("kubeconfig"), options.pop("context")) as api:
        nodes = survey.nodes_named(api, [name])
        context = ChangeContext(api, survey.cluster_context(api, nodes), report_progress=_Progress(output).report)
        outcomes = changes.add(context, name, dict(counts), ChangeOptions(**options))
    return _finish(outcomes, output)


@node.command(
    epilog="""\b
Examples:
  plugwright node remove worker-1 mock/gpu --wait
  plugwright node remove --stale --all-nodes --wait --resource mock/gpu"""
)
@click.argument("names", metavar="NODE [RESOURCE... | NODE...]", nargs=-1)
@click.option("--stale", is_flag=True, help="Remove every resource of these nodes without a plugin.")
@click.option("--all-nodes", is_flag=True, help="With --stale: on every node.")
@click.option(
    "--resource", "only", type=_resource, multiple=True, metavar="RESOURCE", help="With --stale: only these resources."
)
@click.option(
    "--resource-pattern",
    "patterns",
    type=_pattern,
    multiple=True,
    metavar="PATTERN",
    help="With --stale: only those that match, as in 'nvidia.com/mig-*'.",
)
@_kubelet_dir_option
@_change_options
@_cluster_options
def remove(
    names: Sequence[str],
    stale: bool,
    all_nodes: bool,
    only: Sequence[str],
    patterns: Sequence[str],
    kubelet_dir: Path | None,
    output: str,
    rbac: bool,
    **options: Any,
) -> None:
    """Remove resources by name, or all stale ones with --stale.

    The kubelet restores a resource while its plugin runs, and for a grace period after it has stopped: --wait waits for
    that, removes the resource, and checks that it does not return. Resources that a live plugin serves or pods hold are
    left alone.
    """
    node_names, only = names if stale else names[:1], (*only, *patterns)
    _check_call(names, stale, all_nodes, only)
    if rbac:
        return _print_role("remove", node_names, patch=True)
    with connect(options.pop("kubeconfig"), options.pop("context")) as api:
        change = ChangeOptions(stale=stale, named=bool(only) or not stale, **options)
        nodes = survey.nodes_named(api, node_names)
        cluster_context = survey.cluster_context(api, nodes, _paths(kubelet_dir))
        context = ChangeContext(api, cluster_context, report_progress=_Progress(output).report)
        if stale:
            targets = survey.find_stale(nodes, cluster_context(), change, only)
        else:
            targets = survey.targets_named(nodes[0], names[1:])
        outcomes = removal.remove(context, targets, change)
    return _finish(outcomes, output)


@node.command(
    "clean-up",
    hidden=True,
    epilog="Example:  plugwright node clean-up --namespace devices --name gone --cluster-role gone --resource mock/gpu",
)
@click.option("--namespace", required=True)
@click.option("--name", required=True, help="Name of the CronJob, the ServiceAccount, the Role and its binding.")
@click.option("--cluster-role", required=True, help="Name of the ClusterRole and of its binding.")
@click.option(
    "--daemon-set",
    "daemon_sets",
    multiple=True,
    help="DaemonSet of the release; if it exists again, nothing is removed.",
)
@click.option("--resource", "only", type=_resource, multiple=True)
@click.option("--resource-pattern", "patterns", type=_pattern, multiple=True)
@click.option("--give-up-after", type=duration, default="24h", show_default=True)
def clean_up(only: Sequence[str], patterns: Sequence[str], **names: Any) -> None:
    """Remove the resources that a release left on the nodes, then the rights to do so: for the chart's CronJob."""
    if not only and not patterns:
        raise click.UsageError("at least one --resource or --resource-pattern is needed")
    access = ClusterAccess.in_cluster(os.environ)
    if access is None:
        raise ConfigError("clean-up runs in a pod, with a service account")
    release = uninstall.Release(resources=(*only, *patterns), **names)
    with BlockingClient(access) as client:
        is_done = uninstall.clean_up(client, release, _Progress("text").report)
    if not is_done:
        sys.exit(1)


def _table_row(resource: NodeResource) -> list[Cell]:
    *cells, backing, pods = report.table_cells(resource)
    return [*cells, (backing, _COLOURS.get(backing, "")), pods]


def _check_call(names: Sequence[str], stale: bool, all_nodes: bool, only: Sequence[str]) -> None:
    if stale and bool(names) == all_nodes:
        raise click.UsageError("--stale takes either nodes or --all-nodes")
    if not stale and (all_nodes or only):
        raise click.UsageError("--all-nodes, --resource and --resource-pattern need --stale")
    if not stale and len(names) < 2:
        raise click.UsageError("a node and at least one resource are needed, or --stale")


def _paths(kubelet_dir: Path | None) -> KubeletPaths | None:
    return KubeletPaths.under(kubelet_dir) if kubelet_dir else None


def _print_role(command: str, nodes: Sequence[str], patch: bool) -> None:
    click.echo(yaml.safe_dump(report.cluster_role(command, nodes, patch), sort_keys=False), nl=False)


class _Progress:
    """Prints the progress of every target to stderr, when it changes and every half minute."""

    def __init__(self, output: str) -> None:
        self._quiet, self._start = output in ("json", "yaml"), time.monotonic()
        self._printed: dict[ChangeTarget, tuple[str, float]] = {}

    def report(self, target: ChangeTarget, progress: str) -> None:
        now = time.monotonic()
        text, at = self._printed.get(target, ("", 0.0))
        if not self._quiet and (text != progress or now - at >= _REPEAT_PROGRESS):
            self._printed[target] = (progress, now)
            click.echo(wrapped(f"{now - self._start:4.0f} s  {target}: {progress}", 8), err=True)


def _finish(outcomes: Sequence[ChangeOutcome], output: str) -> None:
    if document_printed({"changes": report.changes_report(outcomes)}, output):
        pass
    elif not outcomes:
        click.echo("nothing is stale")
    else:
        for outcome in outcomes:
            click.echo(wrapped(f"{outcome.target}: {_coloured_result(outcome.result)}: {outcome.detail}", 2))
    if any(outcome.result.failed for outcome in outcomes):
        sys.exit(1)


def _coloured_result(result: str) -> str:
    colour = _COLOURS.get(result)
    return click.style(result, fg=colour) if colour else result
