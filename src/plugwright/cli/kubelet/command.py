"""`plugwright kubelet`: an emulated kubelet for a plugin under development, in any language."""

import asyncio
import json
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

import click

from plugwright.cli import logs
from plugwright.cli.kubelet import pod_files, view
from plugwright.cli.kubelet.program import Plan, emulate
from plugwright.errors import ConfigError
from plugwright.kubelet import Kubelet, KubeletSettings
from plugwright.kubelet.topology_manager import Policy, Scope
from plugwright.kubelet.versions import DEFAULT_VERSION
from plugwright.system.concurrency import single_error

__all__ = ["kubelet"]

_EXAMPLE = """\b
Examples:
  plugwright kubelet --root /tmp/node                      and a plugin beside it, with --kubelet-dir /tmp/node
  plugwright kubelet --root /tmp/node --pods pods/ --run   pods from a folder, their commands as local processes
  plugwright kubelet --root /tmp/node --once --strict pod.yaml    in a script: exit code 1 says that something is wrong
"""


@click.command(epilog=_EXAMPLE)
@click.argument("pods", metavar="[POD.yaml]...", nargs=-1, type=click.Path(path_type=Path))
@click.option(
    "--root",
    required=True,
    type=click.Path(path_type=Path, file_okay=False),
    help="Its directory; made where it is not there. Never a real kubelet's.",
)
@click.option(
    "--version",
    default=DEFAULT_VERSION,
    show_default=True,
    help="The kubelet to be: 1.26 to 1.37, a patch release such as 1.34.7, or `legacy`.",
)
@click.option("--numa", type=click.IntRange(1, 64), default=1, show_default=True, help="NUMA nodes of the machine.")
@click.option(
    "--policy",
    type=click.Choice([each.value for each in Policy]),
    default=Policy.NONE.value,
    show_default=True,
    help="The topology manager's policy.",
)
@click.option(
    "--scope",
    type=click.Choice([each.value for each in Scope]),
    default=Scope.CONTAINER.value,
    show_default=True,
    help="The topology manager's scope.",
)
@click.option(
    "--pods",
    "folder",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="A folder of pods in YAML: admitted, changed and removed as the files are.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    default=60.0,
    show_default=True,
    help="How long a pod waits until the node has its resources; then the kubelet gets it all the same.",
)
@click.option(
    "--once",
    is_flag=True,
    help="Admit the pods that are given, show what they got, and end: 0 if all went "
    "well, else 1. With --run their processes end first.",
)
@click.option(
    "--run",
    "starts",
    is_flag=True,
    help="Start the containers' commands as local processes, with what their devices gave them.",
)
@click.option("--strict", is_flag=True, help="Exit code 1 if there was any finding.")
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)  # fmt: skip
def kubelet(pods: tuple[Path, ...], root: Path, output: str, **values: Any) -> None:
    """Be a kubelet for device plugins, without a cluster: show every call, state and finding as it happens.

    Plugins register as on a node. Pods are admitted and given devices as the real kubelet does it; what each
    container would get is shown, and nothing is started unless --run says so.

    Ctrl-C and SIGTERM end it, SIGUSR1 restarts the kubelet, so that plugins have to register again.
    """
    logs.configure("human", "warning")
    plan = _plan(pods, root, values)
    if plan.once and not plan.pods and plan.folder is None:
        raise click.UsageError("--once needs pods to admit")
    show = view.show_json if output == "json" else view.show_text
    try:
        well = asyncio.run(emulate(plan, show, partial(_begin, output, plan.folder)))
    except BaseExceptionGroup as group:
        raise single_error(group) from None
    sys.exit(0 if well else 1)


def _plan(pods: tuple[Path, ...], root: Path, values: dict[str, Any]) -> Plan:
    try:
        settings = KubeletSettings(**{name: values.pop(name) for name in ("version", "numa", "policy", "scope")})
    except ConfigError as error:
        raise click.UsageError(str(error)) from error
    return Plan(root, settings, tuple(pod for path in pods for pod in pod_files.read(path)), **values)


def _begin(output: str, folder: Path | None, kubelet: Kubelet) -> None:
    if output == "json":
        click.echo(json.dumps(view.start_facts(kubelet, folder, os.getpid())))
        return
    for line in view.start_lines(kubelet, folder, os.getpid()):
        click.echo(line)
    click.echo()
