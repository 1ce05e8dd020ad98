"""`plugwright kubelet`: an emulated kubelet for a plugin under development, in any language."""

import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

import click

from plugwright.cli import kubelet_view as view
from plugwright.cli import logs
from plugwright.cli.options import optional_duration
from plugwright.cli.output import output_option, print_in_stream
from plugwright.cluster.standalone.pod_changes import PodSource
from plugwright.cluster.standalone.program import KubeletOptions, run
from plugwright.config import pod_files
from plugwright.config.pod_files import PodFolder
from plugwright.errors import ConfigError
from plugwright.kubelet import Kubelet, KubeletSettings
from plugwright.kubelet.topology_manager import TopologyPolicy, TopologyScope
from plugwright.kubelet.versions import DEFAULT_VERSION, LEGACY, SUPPORTED_VERSIONS
from plugwright.sdk import cdi

__all__ = ["kubelet", "kubelet_options"]

_EXAMPLE = """\b
Examples:
  plugwright kubelet --root /tmp/node            for plugins in /tmp/node
  plugwright kubelet --root /tmp/node --pods pods/ --run
  plugwright kubelet --root /tmp/node --once --strict pod.yaml   for scripts
  plugwright kubelet --root /tmp/node --api pod.yaml         for a DRA driver
"""


@click.command(epilog=_EXAMPLE)
@click.argument("pods", metavar="[POD.yaml]...", nargs=-1, type=click.Path(path_type=Path))
@click.option(
    "--root",
    required=True,
    type=click.Path(path_type=Path, file_okay=False),
    help="Directory of the emulated kubelet; created if missing. A real kubelet's directory is refused.",
)
@click.option(
    "--version",
    default=DEFAULT_VERSION,
    show_default=True,
    help=f"Kubelet version to emulate: {SUPPORTED_VERSIONS}, a patch release such as 1.34.7, or `{LEGACY}`.",
)
@click.option(
    "--numa",
    type=click.IntRange(1, 64),
    default=1,
    show_default=True,
    metavar="COUNT",
    help="NUMA nodes of the machine.",
)
@click.option(
    "--policy",
    type=click.Choice([policy.value for policy in TopologyPolicy]),
    default=TopologyPolicy.NONE.value,
    show_default=True,
    help="Topology manager policy.",
)
@click.option(
    "--scope",
    type=click.Choice([scope.value for scope in TopologyScope]),
    default=TopologyScope.CONTAINER.value,
    show_default=True,
    help="Topology manager scope.",
)
@click.option(
    "--pods",
    "folder",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Folder of pods in YAML, admitted and removed as files are added, changed and deleted.",
)
@click.option(
    "--timeout",
    type=optional_duration,
    metavar="TIME",
    default="60s",
    show_default=True,
    help="How long a pod waits for the node to have its resources; then it is submitted anyway.",
)
@click.option(
    "--once",
    is_flag=True,
    help="Admit the given pods, show what they got, and exit: 0 if all succeeded, else 1. With --run, wait for their "
    "processes first.",
)
@click.option(
    "--run",
    "starts",
    is_flag=True,
    help="Run the containers' commands as local processes, with the environment, mounts and device nodes of their "
    "devices.",
)
@click.option(
    "--cdi-dir",
    "cdi_dirs",
    type=click.Path(path_type=Path, file_okay=False),
    multiple=True,
    default=[str(cdi.STATIC), str(cdi.DYNAMIC)],
    show_default=True,
    help="Directory of CDI specs, for --run; may be repeated.",
)
@click.option(
    "--api",
    is_flag=True,
    help="Serve an API with the node, ResourceSlices and the files' ResourceClaims for a DRA driver, and write its "
    "kubeconfig into the root. ResourceClaims in files named here imply it.",
)
@click.option("--node-name", default="node", show_default=True, help="Name of the node in that API.")
@click.option("--strict", is_flag=True, help="Exit with code 1 if there was any finding.")
@output_option("json and yaml are a stream of documents.")
def kubelet(pods: tuple[Path, ...], root: Path, output: str, **values: Any) -> None:
    """Run an emulated kubelet, without a cluster.

    Plugins register as on a node. Pods are admitted and get devices as from the real kubelet. The output contains every
    call, state change and finding, and the settings of each container; no container is started without --run.

    A DRA driver registers in the same way. Its claims are ResourceClaims in the files of pods, whose status.allocation
    names the devices; see --api.

    Ctrl-C and SIGTERM stop it. SIGUSR1 restarts the kubelet, and plugins have to register again.
    """
    logs.configure("human", "warning")
    options = kubelet_options(pods, root, values)
    if options.once and not options.pods and options.folder is None:
        raise click.UsageError("--once needs pods to admit")
    show = partial(view.show_document, output) if output in ("json", "yaml") else view.show_text
    sys.exit(0 if run(options, show, partial(_show_start, output, options.folder)) else 1)


def kubelet_options(pods: tuple[Path, ...], root: Path, values: dict[str, Any]) -> KubeletOptions:
    """The options of the command line, with the pods of its files; `values` are the flags by name."""
    try:
        machine = {name: values.pop(name) for name in ("version", "numa", "policy", "scope")}
        # A process gets the paths of this machine, so they must exist; without --run the devices can be elsewhere.
        settings = KubeletSettings(**machine, host_root="/" if values["starts"] else None)
    except ConfigError as error:
        raise click.UsageError(str(error)) from error
    folder = values.pop("folder")
    values["folder"] = PodFolder(folder) if folder is not None else None
    read = [pod_files.read(path) for path in pods]
    claims = tuple(claim for file in read for claim in file.claims)
    values["api"] = values.get("api", False) or bool(claims)
    return KubeletOptions(root, settings, tuple(pod for file in read for pod in file.pods), claims=claims, **values)


def _show_start(output: str, folder: PodSource | None, kubelet: Kubelet, kubeconfig: Path | None) -> None:
    path = folder.path if folder is not None else None
    if output in ("json", "yaml"):
        facts = view.start_facts(kubelet, path, os.getpid())
        print_in_stream({**facts, "kubeconfig": str(kubeconfig) if kubeconfig else None}, output)
        return
    for line in view.start_lines(kubelet, path, os.getpid()):
        click.echo(line)
    if kubeconfig is not None:
        click.echo(f"A DRA driver finds its claims by KUBECONFIG={kubeconfig}")
    click.echo()
