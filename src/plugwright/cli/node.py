"""`plugwright node`: the extended resources of a cluster's nodes, looked at, added and removed through its API."""

import json
import re
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

import click
import yaml

from plugwright.cli.options import duration
from plugwright.errors import InvalidValue
from plugwright.extended_resources import changes, removal, report, survey
from plugwright.extended_resources.changes import Outcome, Plan, Site, Target
from plugwright.extended_resources.report import cluster_role
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
_MOST = 2**63 - 1
_SAY_AGAIN = 30.0


def _counted(text: str) -> tuple[str, int]:
    name, _, number = text.partition("=")
    try:
        Resource(name)
    except InvalidValue as error:
        raise click.BadParameter(str(error)) from error
    if not re.fullmatch(r"[0-9]{1,19}", number) or int(number) > _MOST:
        raise click.BadParameter(f"{text!r} has no whole number, as in example.com/dongle=4")
    return name, int(number)


def _options(*options: Callable[[F], F]) -> Callable[[F], F]:
    def given(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return given


_cluster = _options(
    click.option(
        "--kubeconfig",
        type=click.Path(path_type=Path),
        help="Else KUBECONFIG, ~/.kube/config, or the service account of the pod that this runs in.",
    ),
    click.option("--context", help="The context of the kubeconfig; its current one where not given."),
    click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True),
    click.option("--rbac", is_flag=True, help="Only print the ClusterRole that this call takes."),
)
_changing = _options(
    click.option("--dry-run", is_flag=True, help="Change nothing; say what would be changed."),
    click.option("--force", is_flag=True, help="Also what a plugin serves or pods hold; with --stale, what pods hold."),
    click.option("--wait", is_flag=True, help="Wait for the right moment, and look again before it is done."),
    click.option(
        "--timeout", type=duration, default="10m", metavar="TIME", show_default=True, help="The longest to wait."
    ),
    click.option(
        "--round",
        type=duration,
        default="10s",
        metavar="TIME",
        show_default=True,
        help="How often the kubelet reports the node's status: its nodeStatusUpdateFrequency.",
    ),
)
_kubelet_dir = click.option(
    "--kubelet-dir",
    type=click.Path(path_type=Path),
    help="Where this runs on the node: its kubelet's directory (/var/lib/kubelet), which tells more than the API.",
)


@click.group(epilog="Example:  plugwright node remove --stale --all-nodes --wait")
def node() -> None:
    """Extended resources of nodes: who backs them, who holds them; add by hand, remove what is left over."""


@node.command(epilog="Example:  plugwright node resources --output json | jq '.nodes[].resources[]'")
@click.argument("name", metavar="[NODE]", default="")
@_kubelet_dir
@_cluster
def resources(name: str, kubelet_dir: Path | None, output: str, rbac: bool, **account: Any) -> None:
    """Every extended resource of every node, or of one: counts, the pods that hold it, and who backs it.

    \b
    plugin    a device plugin that lives            stale     nobody any more
    dra       a DeviceClass names it                unknown   cannot be told from here
    manual    somebody set it through the API
    """
    names = [name] if name else []
    if rbac:
        return _print_role("resources", names, patch=False)
    with _connected(**account) as api:
        nodes = survey.nodes_named(api, names)
        rows = survey.survey(api, nodes, survey.worldly(api, nodes, _paths(kubelet_dir))())
    if output == "json":
        click.echo(json.dumps({"nodes": report.nodes_report(nodes, rows)}))
    else:
        click.echo("\n".join(report.table(rows, _coloured)) if rows else "no extended resources")
    return None


@node.command(epilog="Example:  plugwright node add worker-1 example.com/dongle=4 --wait")
@click.argument("name", metavar="NODE")
@click.argument("counts", metavar="RESOURCE=COUNT...", type=_counted, nargs=-1)
@_changing
@_cluster
def add(name: str, counts: Sequence[tuple[str, int]], output: str, rbac: bool, **options: Any) -> None:
    """Offer a resource that no plugin serves; or change how many of it there are.

    Refused where the kubelet would set it back, where a DeviceClass serves it, and below what pods hold.
    """
    if rbac:
        return _print_role("add", [name], patch=True)
    if not counts:
        raise click.UsageError("what is to be added? RESOURCE=COUNT, as in example.com/dongle=4")
    with _connected(options.pop("kubeconfig"), options.pop("context")) as api:
        nodes = survey.nodes_named(api, [name])
        site = Site(api, survey.worldly(api, nodes), say=_Progress(output).say)
        outcomes = changes.add(site, name, dict(counts), Plan(**options))
    return _finish(outcomes, output)


@node.command(
    epilog="""\b
Examples:  plugwright node remove worker-1 mock/gpu --wait
           plugwright node remove --stale --all-nodes --wait --resource mock/gpu"""
)
@click.argument("names", metavar="NODE [RESOURCE... | NODE...]", nargs=-1)
@click.option("--stale", is_flag=True, help="Of these nodes, whatever nobody serves any more.")
@click.option("--all-nodes", is_flag=True, help="With --stale: of every node.")
@click.option("--resource", "only", multiple=True, metavar="RESOURCE", help="With --stale: of these alone.")
@_kubelet_dir
@_changing
@_cluster
def remove(
    names: Sequence[str],
    stale: bool,
    all_nodes: bool,
    only: Sequence[str],
    kubelet_dir: Path | None,
    output: str,
    rbac: bool,
    **options: Any,
) -> None:
    """Remove resources by name, or with --stale what nobody serves any more.

    The kubelet puts a key back for as long as its plugin lives, and for five minutes more: --wait waits for that,
    removes it, and looks again. What a live plugin serves or pods hold is left alone.
    """
    nodes_meant = names if stale else names[:1]
    _check_call(names, stale, all_nodes, only)
    if rbac:
        return _print_role("remove", nodes_meant, patch=True)
    with _connected(options.pop("kubeconfig"), options.pop("context")) as api:
        plan = Plan(stale=stale, named=bool(only) or not stale, **options)
        nodes = survey.nodes_named(api, nodes_meant)
        site = Site(api, survey.worldly(api, nodes, _paths(kubelet_dir)), say=_Progress(output).say)
        if stale:
            targets = survey.find_stale(nodes, site.world(), plan, only)
        else:
            targets = survey.targets_named(nodes[0], names[1:])
        outcomes = removal.remove(site, targets, plan)
    return _finish(outcomes, output)


def _check_call(names: Sequence[str], stale: bool, all_nodes: bool, only: Sequence[str]) -> None:
    if stale and bool(names) == all_nodes:
        raise click.UsageError("--stale takes either nodes or --all-nodes")
    if not stale and (all_nodes or only):
        raise click.UsageError("--all-nodes and --resource go with --stale")
    if not stale and len(names) < 2:
        raise click.UsageError("a node and at least one resource are needed, or --stale")


def _connected(kubeconfig: Path | None, context: str | None) -> AbstractContextManager[Any]:
    """Loaded only now: it takes an extra, and a third of a second."""
    cluster = import_module("plugwright.extended_resources.client")
    connection: AbstractContextManager[Any] = cluster.connect(cluster.Account(kubeconfig, context))
    return connection


def _paths(kubelet_dir: Path | None) -> KubeletPaths | None:
    return KubeletPaths.under(kubelet_dir) if kubelet_dir else None


def _print_role(command: str, nodes: Sequence[str], patch: bool) -> None:
    click.echo(yaml.safe_dump(cluster_role(command, nodes, patch), sort_keys=False), nl=False)


class _Progress:
    """Says on stderr how each target stands, when that changes and every half minute."""

    def __init__(self, output: str) -> None:
        self._quiet, self._start = output == "json", time.monotonic()
        self._said: dict[Target, tuple[str, float]] = {}

    def say(self, target: Target, progress: str) -> None:
        now = time.monotonic()
        text, at = self._said.get(target, ("", 0.0))
        if not self._quiet and (text != progress or now - at >= _SAY_AGAIN):
            self._said[target] = (progress, now)
            click.echo(f"{now - self._start:4.0f} s  {target}: {progress}", err=True)


def _finish(outcomes: Sequence[Outcome], output: str) -> None:
    if output == "json":
        click.echo(json.dumps({"changes": report.changes_report(outcomes)}))
    elif not outcomes:
        click.echo("nothing is stale")
    else:
        for outcome in outcomes:
            click.echo(f"{outcome.target}: {_coloured(outcome.result)}: {outcome.detail}")
    if any(outcome.result.bad for outcome in outcomes):
        sys.exit(1)


def _coloured(word: str) -> str:
    colour = _COLOURS.get(word)
    return click.style(word, fg=colour) if colour else word
