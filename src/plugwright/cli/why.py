"""`plugwright why`: what keeps a pod or claim waiting, and the smallest change that would let it run."""

from pathlib import Path

import click

from plugwright.cli.cluster_question import cluster_options, read_reports, wanted_namespace
from plugwright.cli.output import document_printed
from plugwright.errors import ConfigError, PeerRefused
from plugwright.explain import Explanation, World, explain_claim, explain_pod, read_world
from plugwright.kube.access import ClusterAccess
from plugwright.kube.api_client import BlockingClient, segment
from plugwright.text import clean

__all__ = ["explanation_lines", "why"]

_EXAMPLE = """\b
Examples:
  kubectl plugwright why -n team-a train-7
  kubectl plugwright why claim/shared-gpu -o json
"""
_CLAIM_KINDS = ("claim", "claims", "resourceclaim", "resourceclaims")
_POD_KINDS = ("pod", "pods", "po")


@click.command(epilog=_EXAMPLE)
@click.argument("what", metavar="POD|claim/NAME")
@click.option(
    "--report", "reports", type=click.Path(path_type=Path, exists=True, dir_okay=False), multiple=True,
    help="NodeReport of a node (`plugwright status -o json`), for NUMA nodes. May be repeated.",
)  # fmt: skip
@cluster_options
def why(
    what: str, namespace: str | None, kubeconfig: Path | None, context: str | None, reports: tuple[Path, ...],
    output: str,
) -> None:  # fmt: skip
    """Explain what keeps a pod or claim waiting, and what would have to change.

    The first line is the answer. Below it are the nodes by reason, kubectl lines to check it, and at most three
    changes, each confirmed on the state of the cluster. Reads only. A name without a kind is that of a pod, or of a
    claim if there is no such pod.
    """
    kind, _, name = what.rpartition("/")
    if kind and kind not in (*_CLAIM_KINDS, *_POD_KINDS):
        raise ConfigError(f"the kind must be pod or claim, got {kind!r}")
    wanted, known = wanted_namespace(namespace, kubeconfig, context), read_reports(reports)
    with BlockingClient(ClusterAccess.choose(kubeconfig, context)) as client:
        found = None if kind in _CLAIM_KINDS else _object(client, f"/api/v1/namespaces/{segment(wanted)}/pods", name)
        claim = None
        if found is None and kind not in _POD_KINDS:
            claim = _object(client, f"/apis/resource.k8s.io/v1/namespaces/{segment(wanted)}/resourceclaims", name)
        if found is None and claim is None:
            kinds = "claim" if kind in _CLAIM_KINDS else "pod" if kind else "pod or claim"
            raise PeerRefused("NotFound", f"namespace {wanted} has no {kinds} {name}")
        world: World = read_world(client, wanted, known, found or claim)
    explanation = explain_pod(world, found) if found is not None else explain_claim(world, claim or {})
    if not document_printed(explanation, output):
        click.echo("\n".join(explanation_lines(explanation, is_wide=output == "wide")))


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
    elif explanation.state in ("waits", "refused") and explanation.evidence:
        text.append("no change of one or two things was found that would let it run")
    text += [f"not seen: {entry}" for entry in explanation.unseen]
    return [clean(line, limit=2000) if not line.startswith(" ") else _indented(line) for line in text]


def _indented(line: str) -> str:
    stripped = line.lstrip(" ")
    return " " * (len(line) - len(stripped)) + clean(stripped, limit=2000)
