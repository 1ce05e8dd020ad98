"""`plugwright dev`: runs a plugin under development beside an emulated kubelet, and restarts it after every save."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click

from plugwright.cli import kubelet_view as view
from plugwright.cli import logs
from plugwright.cli.kubelet import kubelet as kubelet_command
from plugwright.cli.kubelet import kubelet_options
from plugwright.cli.output import wrapped
from plugwright.cluster.standalone.development import Development
from plugwright.errors import ConfigError
from plugwright.kubelet import Kubelet
from plugwright.system.program_name import program_name

__all__ = ["dev"]

_INDENT = 17
_SHARED = ("version", "numa", "policy", "scope", "folder", "starts", "cdi_dirs")
_EXAMPLES = """\b
Examples:
  plugwright dev tape.py                 a pod requests one device
  plugwright dev tape.py pod.yaml --run  the pod's command is a local process
"""


@click.command(epilog=_EXAMPLES)
@click.argument("target", metavar="FILE.py[:CLASS]")
@click.argument("pods", metavar="[POD.yaml]...", nargs=-1, type=click.Path(path_type=Path))
@click.option("--root", type=click.Path(path_type=Path, file_okay=False),
              help="Directory of the emulated kubelet, kept afterwards.  [default: a temporary one]")  # fmt: skip
@click.option("--request", "requests", type=click.IntRange(min=0), default=1, show_default=True, metavar="COUNT",
              help="Devices of each resource that a pod requests if no pods are given; 0 for no pod.")  # fmt: skip
@click.option("-v", "--verbose", is_flag=True, help="Show every call of each reload, not only its result.")
def dev(target: str, pods: tuple[Path, ...], root: Path | None, requests: int, verbose: bool, **values: Any) -> None:
    """Run a plugin beside an emulated kubelet, and restart it whenever its file is saved.

    Without POD.yaml, a pod requests one device of each resource, so that allocate() is called. After each save, that
    pod and all pods that were refused or have ended are submitted again.

    The output shows every call, state change and finding as it happens, and the plugin's own output. A save that cannot
    be loaded is reported, and the previous version keeps running. Neither root nor a cluster is needed. Ctrl-C stops
    the plugin and the kubelet.
    """
    file = Path(target.partition(":")[0])
    if file.suffix != ".py":
        raise ConfigError(f"plugin must be FILE.py or FILE.py:CLASS, got {target!r}")
    if not file.is_file():
        raise ConfigError(f"no such file: {file}")
    logs.configure("human", "warning")
    with nullcontext(root) if root is not None else _temporary_root() as directory:
        options = kubelet_options(pods, directory, values)
        development = Development(target, file, directory, view.show_text, requests, verbose)
        development.run(options, lambda kubelet: click.echo("\n".join(_start_lines(kubelet, development))))


dev.params.extend(option for option in kubelet_command.params if option.name in _SHARED)


@contextmanager
def _temporary_root() -> Iterator[Path]:
    with TemporaryDirectory(prefix="plugwright-dev-", ignore_cleanup_errors=True) as directory:
        yield Path(directory) / "kubelet"


def _start_lines(kubelet: Kubelet, development: Development) -> list[str]:
    directory = development.file.parent.absolute()
    return [
        f"{click.style(f'kubelet {kubelet.settings.version}', bold=True)} in {kubelet.paths.root}",
        wrapped(f"  plugin         {development.target}, restarted when you save a .py file in {directory}", _INDENT),
        f"  status         {program_name()} status --control-socket {development.control}",
        "Ctrl-C stops both.",
        "",
    ]
