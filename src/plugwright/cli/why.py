"""`plugwright why`: what keeps a pod waiting, and the smallest change that would let it run."""

import json
import os
from pathlib import Path

import click
import msgspec
import yaml

from plugwright.cli.output import Dumper
from plugwright.errors import ConfigError
from plugwright.explain.explanation import Explanation, explain_pod
from plugwright.explain.reading import read_world
from plugwright.explain.world import ApiObject
from plugwright.kube import kubeconfig as kubeconfigs
from plugwright.kube.access import ClusterAccess
from plugwright.kube.api_client import BlockingClient, segment
from plugwright.text import clean

__all__ = ["why"]

_EXAMPLE = "Example:  kubectl plugwright why -n team-a train-7"


@click.command(epilog=_EXAMPLE)
@click.argument("pod")
@click.option("-n", "--namespace", help="Namespace of the pod.  [default: that of the context]")
@click.option("--kubeconfig", type=click.Path(path_type=Path), help="Default: as kubectl, or in a pod its account.")
@click.option("--context", help="Context of the kubeconfig.  [default: the current one]")
@click.option(
    "--report", "reports", type=click.Path(path_type=Path, exists=True, dir_okay=False), multiple=True,
    help="NodeReport of a node (`plugwright status -o json`), for NUMA nodes. May be repeated.",
)  # fmt: skip
@click.option("-o", "--output", type=click.Choice(["text", "wide", "json", "yaml"]), default="text", show_default=True)
def why(
    pod: str, namespace: str | None, kubeconfig: Path | None, context: str | None, reports: tuple[Path, ...],
    output: str,
) -> None:  # fmt: skip
    """Explain what keeps POD waiting, and what would have to change.

    The first line is the answer. Below it are the nodes by reason, kubectl lines to check it, and at most three
    changes, each confirmed on the state of the cluster. Reads only.
    """
    wanted = namespace or _namespace(kubeconfig, context)
    known = dict(_report(path) for path in reports)
    with BlockingClient(ClusterAccess.choose(kubeconfig, context)) as client:
        found = client.get(f"/api/v1/namespaces/{segment(wanted)}/pods/{segment(pod)}")
        explanation = explain_pod(read_world(client, wanted, known), found)
    if output in ("json", "yaml"):
        document = msgspec.to_builtins(explanation)
        click.echo(json.dumps(document) if output == "json" else yaml.dump(document, Dumper=Dumper, sort_keys=False))
        return
    for line in lines(explanation, is_wide=output == "wide"):
        click.echo(line)


def lines(explanation: Explanation, is_wide: bool = False) -> list[str]:
    """The text of an explanation."""
    text = [f"{explanation.pod} {explanation.answer}"]
    evidence = explanation.evidence if is_wide else explanation.evidence[:5]
    for group in evidence:
        more = f" and {group.count - len(group.nodes)} more" if group.count > len(group.nodes) else ""
        text.append(f"  {group.count} {'node' if group.count == 1 else 'nodes'}: {group.text}")
        text.append(f"    {', '.join(group.nodes)}{more}")
    if len(explanation.evidence) > len(evidence):
        text.append(f"  {len(explanation.evidence) - len(evidence)} more reasons: -o wide")
    if explanation.checks:
        text += ["check:", *(f"  {line}" for line in explanation.checks)]
    if explanation.cures:
        text.append("it")
        for cure in explanation.cures:
            text += [f"  {cure.text}", *(f"    {command}" for command in cure.commands)]
    elif explanation.state in ("waits", "refused"):
        text.append("no change of one or two things was found that would let it run")
    text += [f"not seen: {entry}" for entry in explanation.unseen]
    return [clean(line, limit=2000) if not line.startswith(" ") else _indented(line) for line in text]


def _indented(line: str) -> str:
    stripped = line.lstrip(" ")
    return " " * (len(line) - len(stripped)) + clean(stripped, limit=2000)


def _report(path: Path) -> tuple[str, ApiObject]:
    try:
        document = json.loads(path.read_bytes())
        return str(document["metadata"]["nodeName"]), document
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} must be a NodeReport, got {error!r}") from error


def _namespace(path: Path | None, context: str | None) -> str:
    """The namespace of the context, as kubectl chooses it."""
    files = kubeconfigs.find_files(path, os.environ, Path.home())
    if not files:
        return "default"
    document = kubeconfigs.load(files)
    wanted = context or document.get("current-context")
    entries = document.get("contexts")
    for entry in entries if isinstance(entries, list) else ():
        if entry.get("name") == wanted:
            return str((entry.get("context") or {}).get("namespace") or "default")
    return "default"
