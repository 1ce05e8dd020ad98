"""`plugwright why`: explains why a pod or claim waits, and the smallest change that would let it run."""

import re
from collections.abc import Collection

import click

from plugwright.cli.cluster_question import (
    AskedCluster,
    AskedReports,
    cluster_options,
    report_options,
    with_reports,
)
from plugwright.cli.completing import complete_why
from plugwright.cli.output import Cell, document_printed, echo_wrapped, table_lines
from plugwright.errors import ConfigError, PeerRefused
from plugwright.explain.claim_answers import explain_claim
from plugwright.explain.explanation import Explanation, explain_pod
from plugwright.explain.reading import read_world
from plugwright.explain.waiting import WaitingList, waiting_pods
from plugwright.kube.api_client import BlockingClient, segment
from plugwright.model import some
from plugwright.text import clean

__all__ = ["explanation_lines", "waiting_lines", "why"]

_EXAMPLE = """\b
Examples:
  kubectl plugwright why -A                  every waiting pod of the cluster
  kubectl plugwright why -n team-a train-7
  kubectl plugwright why claim/shared-gpu -o json
"""
_UNKNOWN = re.compile(r"cannot be (judged|read)")
_CLAIM_KINDS = ("claim", "claims", "resourceclaim", "resourceclaims")
_POD_KINDS = ("pod", "pods", "po")


@click.command(epilog=_EXAMPLE)
@click.argument("what", metavar="[POD|claim/NAME]", default="", shell_complete=complete_why)
@report_options
@cluster_options(all_namespaces=True)
def why(what: str, reports: AskedReports, cluster: AskedCluster, output: str) -> None:
    """Explain what keeps a pod or claim waiting, and which changes would let it run.

    The first line is the answer. Below it are the nodes by reason, kubectl commands to check it, and at most
    three changes, each confirmed on a copy of the cluster's state. Only reads. A name without a kind is a pod, or a
    claim if there is no such pod. Without a name, lists every waiting pod of the namespace with its first line.
    """
    if not what:
        _list(cluster, reports, output)
        return
    if not cluster.namespace:
        raise click.UsageError("--all-namespaces lists the waiting pods: not with a name")
    explanation = _explained(what, cluster, reports)
    if not document_printed(explanation, output):
        echo_wrapped(explanation_lines(explanation, is_wide=output == "wide"))


def _list(cluster: AskedCluster, reports: AskedReports, output: str) -> None:
    world = cluster.world()
    waiting = [pod for pod in world.pods if not (pod.get("spec") or {}).get("nodeName")]
    found = waiting_pods(with_reports(world, cluster, reports, waiting), cluster.namespace)
    if not document_printed(found, output):
        lines = waiting_lines(found, world.hidden, has_namespace=not cluster.namespace, is_wide=output == "wide")
        echo_wrapped(lines)


def waiting_lines(found: WaitingList, hidden: Collection[str], *, has_namespace: bool, is_wide: bool) -> list[str]:
    """The text of a list. `hidden` are the kinds that cannot be read, as in a `World`."""
    columns = [*(["NAMESPACE"] if has_namespace else []), "POD", *(["REASON"] if is_wide else []), "WHY"]
    rows: list[list[Cell]] = [
        [
            *([entry.namespace] if has_namespace else []),
            entry.pod,
            *([entry.reason] if is_wide else []),
            clean(entry.answer, limit=2000),
        ]
        for entry in found.pods
    ]
    is_unknown = ("pods" if has_namespace else "own pods") in hidden
    nothing = "unknown which pods wait: they cannot be read" if is_unknown else "no pod waits"
    lines = table_lines(columns, rows) if rows else [nothing]
    return [*lines, *(f"not seen: {clean(entry, limit=2000)}" for entry in found.unseen)]


def _explained(what: str, cluster: AskedCluster, reports: AskedReports) -> Explanation:
    kind, _, name = what.rpartition("/")
    if kind and kind not in (*_CLAIM_KINDS, *_POD_KINDS):
        raise ConfigError(f"the kind must be pod or claim, got {kind!r}")
    wanted, pod, claim = cluster.namespace, None, None
    with BlockingClient(cluster.access) as client:
        if kind not in _CLAIM_KINDS:
            pod = _object(client, f"/api/v1/namespaces/{segment(wanted)}/pods", name)
        if pod is None and kind not in _POD_KINDS:
            claim = _object(client, f"/apis/resource.k8s.io/v1/namespaces/{segment(wanted)}/resourceclaims", name)
        if pod is None and claim is None:
            kinds = "claim" if kind in _CLAIM_KINDS else "pod" if kind else "pod or claim"
            raise PeerRefused("NotFound", f"namespace {wanted} has no {kinds} {name}")
        world = read_world(client, wanted, subject=pod or claim)
    if pod is None:
        return explain_claim(world, claim or {})
    return explain_pod(with_reports(world, cluster, reports, [pod]), pod)


def _object(client: BlockingClient, path: str, name: str) -> dict[str, object] | None:
    try:
        return client.get(f"{path}/{segment(name)}")
    except PeerRefused as error:
        if error.code == "NotFound":
            return None
        raise


def explanation_lines(explanation: Explanation, is_wide: bool = False) -> list[str]:
    """The text of an explanation."""
    title = f"claim {explanation.claim}" if explanation.claim else explanation.pod
    if explanation.claim and explanation.pod:
        title += f" of pod {explanation.pod}"
    text = [f"{title} {explanation.answer}"]
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
    elif explanation.state in ("waits", "refused") and explanation.evidence and not _UNKNOWN.search(explanation.answer):
        text.append("no change of one or two things was found that would let it run")
    if explanation.sources:
        text.append(f"read: NodeReports of {some(explanation.sources, 5)}")
    text += [f"counted: {entry}" for entry in explanation.counted]
    text += [f"not seen: {entry}" for entry in explanation.unseen]
    return [clean(line, limit=2000) if not line.startswith(" ") else _indented(line) for line in text]


def _indented(line: str) -> str:
    stripped = line.lstrip(" ")
    return " " * (len(line) - len(stripped)) + clean(stripped, limit=2000)
