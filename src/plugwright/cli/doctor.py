"""`plugwright doctor`: the problems of a node, why they matter, and the commands that fix them."""

import os
import sys
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import msgspec

from plugwright.cli.completing import complete_node
from plugwright.cli.control import control_socket
from plugwright.cli.fleet_options import cluster_options
from plugwright.cli.output import document_printed, output_option, wrapped
from plugwright.doctor.cluster_checks import ClusterView, report_without_daemon, with_cluster_checks
from plugwright.doctor.diagnosis import diagnose
from plugwright.doctor.doctor_report import DoctorCheck, DoctorReport
from plugwright.doctor.examined_node import DoctorTarget
from plugwright.errors import ConfigError, MalformedMessage, PeerRefused, PlugwrightError
from plugwright.fleet.daemons import CONTROL_SOCKET, DaemonChoice, cluster_access, find_daemon
from plugwright.kube.api_client import BlockingClient, segment
from plugwright.kube.remote_daemon import RemoteDaemon, daemon_pods
from plugwright.protocol.paths import KubeletPaths
from plugwright.sdk.node_report import NodeReport
from plugwright.text import clean

__all__ = ["doctor"]

_EXAMPLES = """\b
Examples:
  plugwright doctor
  plugwright doctor worker-1 -o json
  plugwright doctor --root /host
"""
_CODES = {"healthy": 0, "findings": 1, "unknown": 2}
_INDENT = 8  # of a text: its mark and the gaps between columns
_MARKS = {"finding": ("FAIL", "red"), "unknown": ("?", "yellow"), "ok": ("ok", "green")}


@click.command(epilog=_EXAMPLES)
@click.argument("node", metavar="[NODE]", default="", shell_complete=complete_node)
@click.option("--root", type=click.Path(path_type=Path), default="/", show_default=True,
              help="Mount point of the node's file system, in a pod; other paths are below it.")  # fmt: skip
@click.option("--kubelet-dir", type=click.Path(path_type=Path), envvar="PLUGWRIGHT_KUBELET_DIR",
              help="The kubelet's directory.  [default: as the daemon uses it]")  # fmt: skip
@click.option("--device-plugins-dir", type=click.Path(path_type=Path), envvar="PLUGWRIGHT_DEVICE_PLUGINS_DIR",
              help="The kubelet's device-plugins directory.  [default: under --kubelet-dir]")  # fmt: skip
@click.option("--state-dir", type=click.Path(path_type=Path), envvar="PLUGWRIGHT_STATE_DIR",
              default="/var/lib/plugwright", show_default=True, help="State directory of the daemon.")  # fmt: skip
@click.option("--node-dir", type=click.Path(path_type=Path), envvar="PLUGWRIGHT_NODE_DIR",
              help="Directory of cordons and owners.  [default: as in the chart, or --state-dir]")  # fmt: skip
@output_option("json and yaml are a DoctorReport: docs/doctor.md.")
@cluster_options
@control_socket
def doctor(cluster: DaemonChoice, output: str, **options: Any) -> None:
    """Find out why a resource is 0, a pod is refused, a plugin is missing or a GPU is lost.

    Prints one line for each check: a finding with its consequences and the command that fixes it, or a passed check.
    Changes nothing. Without NODE it examines this machine; with NODE it runs in the daemon's pod there, which sees less
    than the node itself, and asks the API server. Exit code: 0 healthy, 1 findings, 2 nothing could be checked.
    """
    report = _examined_there(cluster) if cluster.node else diagnose(_target(**options))
    if not document_printed(report, output):
        click.echo("\n".join(_lines(report)))
    sys.exit(_CODES[report.result])


def _examined_there(cluster: DaemonChoice) -> DoctorReport:
    """By the daemon's pod and the API server, or by the latter alone if that explains why no daemon answers."""
    try:
        daemon = find_daemon(cluster)
        if isinstance(daemon, RemoteDaemon):
            report, served = _asked(daemon)
            return with_cluster_checks(report, _cluster_view(cluster, served))
    except (PlugwrightError, OSError) as error:
        view = _cluster_view(cluster, None)
        outside = report_without_daemon(view)
        if view.node is None or outside.result != "findings":
            raise error from None
        return outside
    raise ConfigError(f"NODE must be a real node, got {cluster.node!r}, which `plugwright up` emulates")


def _asked(daemon: RemoteDaemon) -> tuple[DoctorReport, NodeReport | None]:
    """What the daemon's pod finds, and what the daemon serves if it answers."""
    try:
        report = msgspec.json.decode(daemon.document("doctor", "--output", "json"), type=DoctorReport)
    except (msgspec.DecodeError, RecursionError) as error:
        raise MalformedMessage(f"{daemon} must answer with a DoctorReport of this version: {error!s:.200}") from None
    try:
        return report, msgspec.convert(daemon.ask({"do": "report"}), NodeReport)
    except (PlugwrightError, msgspec.ValidationError):
        return report, None  # which is a finding of the report


def _cluster_view(cluster: DaemonChoice, served: NodeReport | None) -> ClusterView:
    now, node, problem = datetime.now(UTC), None, ""
    with BlockingClient(cluster_access(cluster, node=cluster.node)) as client:
        try:
            node = client.get(f"/api/v1/nodes/{segment(cluster.node)}")
        except PeerRefused as error:
            problem = f"the Node cannot be read: {error}"
        pods = daemon_pods(client, cluster.selector, cluster.namespace, cluster.node, running=False)
    return ClusterView(name=cluster.node, node=node, problem=problem, pods=pods, served=served, now=now)


def _target(
    root: Path, kubelet_dir: Path | None, device_plugins_dir: Path | None, control_socket: Path | None, **others: Any
) -> DoctorTarget:
    if not root.is_dir():
        raise ConfigError(f"--root must be a directory, got {str(root)!r}")
    given = kubelet_dir or device_plugins_dir
    return DoctorTarget(
        root=root.resolve(),
        kubelet=KubeletPaths.under(kubelet_dir, device_plugins_dir) if given else None,
        control_socket=control_socket or CONTROL_SOCKET,
        in_pod=root == Path("/") and "KUBERNETES_SERVICE_HOST" in os.environ,
        node_name=os.environ.get("NODE_NAME", ""),
        **others,
    )


def _lines(report: DoctorReport) -> Iterator[str]:
    """Findings first, then passed checks, then those that were impossible."""
    order = ["finding", "ok", "unknown"]
    width = max((len(check.name) for check in report.checks), default=0)
    for check in sorted(report.checks, key=lambda check: order.index(check.state)):
        mark, color = _MARKS[check.state]
        line = f"{click.style(f'{mark:<4}', fg=color)}  {clean(check.name):<{width}}  {clean(_text(check))}"
        yield wrapped(line, width + _INDENT)
    count = Counter(check.state for check in report.checks)
    yield ""
    found = "1 finding" if count["finding"] == 1 else f"{count['finding']} findings"
    result = "" if count["finding"] else f"{clean(report.result)}: "
    yield f"{result}{found}, {count['ok']} ok, {count['unknown']} not checked"


def _text(check: DoctorCheck) -> str:
    if check.state == "ok":
        return check.found
    return f"{check.found}; {check.why}; fix: {check.fix}" if check.state == "finding" else check.why
