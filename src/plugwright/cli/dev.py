"""`plugwright dev`: a plugin under development beside an emulated kubelet, started again whenever its file is saved.

The plugin is a process of its own, as in production. A save that cannot be loaded is shown and changes nothing: the
plugin that runs goes on. The kubelet, and what pods hold, outlive every reload.
"""

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
from plugwright.cluster.standalone.development import Development
from plugwright.errors import ConfigError
from plugwright.kubelet import Kubelet

__all__ = ["dev"]

_SHARED = ("version", "numa", "policy", "scope", "folder", "starts", "cdi_dirs")
_EXAMPLES = """\b
Examples:
  plugwright dev tape.py                            save the file, and the plugin starts again
  plugwright dev tape.py:Tape pod.yaml --run        with a pod whose command runs as a local process
"""


@click.command(epilog=_EXAMPLES)
@click.argument("target", metavar="FILE.py[:CLASS]")
@click.argument("pods", metavar="[POD.yaml]...", nargs=-1, type=click.Path(path_type=Path))
@click.option("--root", type=click.Path(path_type=Path, file_okay=False),
              help="Directory of the emulated kubelet, kept afterwards.  [default: a temporary one]")  # fmt: skip
def dev(target: str, pods: tuple[Path, ...], root: Path | None, **values: Any) -> None:
    """Run a plugin beside an emulated kubelet, and start it again whenever its file is saved.

    The output has every call, state change and finding as it happens, and the plugin's own lines. A save that cannot be
    loaded is shown, and the plugin before it goes on. Neither root nor a cluster is needed. Ctrl-C ends all of it.
    """
    file = Path(target.partition(":")[0])
    if not file.is_file() or file.suffix != ".py":
        raise ConfigError(f"plugin must be FILE.py or FILE.py:CLASS, got {target!r}, which is no such file")
    logs.configure("human", "warning")
    with nullcontext(root) if root is not None else _temporary_root() as directory:
        options = kubelet_options(pods, directory, values)
        development = Development(target, file, directory, view.show_text)
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
        f"  plugin         {development.target}: started again when a .py file in {directory} is saved",
        f"  status         plugwright status --control-socket {development.control}",
        "Ctrl-C ends both.",
        "",
    ]
