"""`plugwright dev`: a plugin under development beside an emulated kubelet, started again whenever its file is saved.

The plugin is a process of its own, as in production. A save that cannot be loaded is shown and changes nothing: the
plugin that runs goes on. The kubelet, and what pods hold, outlive every reload.
"""

import asyncio
import os
import sys
from collections.abc import Iterator
from contextlib import aclosing, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click

from plugwright.cli import logs
from plugwright.cli.kubelet import view
from plugwright.cli.kubelet.command import kubelet as kubelet_command
from plugwright.cli.kubelet.command import kubelet_options
from plugwright.cli.kubelet.program import KubeletOptions, emulate
from plugwright.errors import ConfigError
from plugwright.kubelet import Kubelet
from plugwright.kubelet.events import StateChange
from plugwright.kubelet.processes import Output
from plugwright.system import processes
from plugwright.system.concurrency import single_error
from plugwright.system.inotify import settled_changes

__all__ = ["dev"]

_SHARED = ("version", "numa", "policy", "scope", "folder", "starts", "cdi_dirs")
_STOP_GRACE = 5.0  # seconds from SIGTERM to SIGKILL
_MAX_LINE = 2**20
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
        try:
            asyncio.run(_run(_Development(target, file, directory), options))
        except BaseExceptionGroup as group:
            raise single_error(group) from None


dev.params.extend(option for option in kubelet_command.params if option.name in _SHARED)


@contextmanager
def _temporary_root() -> Iterator[Path]:
    with TemporaryDirectory(prefix="plugwright-dev-", ignore_cleanup_errors=True) as directory:
        yield Path(directory) / "kubelet"


async def _run(development: "_Development", options: KubeletOptions) -> None:
    """Until a signal ends the kubelet."""
    ready = asyncio.Event()

    def begin(kubelet: Kubelet, _kubeconfig: Path | None) -> None:
        for line in _start_lines(kubelet, development):
            click.echo(line)
        ready.set()

    async with asyncio.TaskGroup() as tasks:
        working = tasks.create_task(development.run(ready))
        await emulate(options, view.show_text, begin)
        working.cancel()


def _start_lines(kubelet: Kubelet, development: "_Development") -> list[str]:
    directory = development.file.parent.absolute()
    return [
        f"{click.style(f'kubelet {kubelet.settings.version}', bold=True)} in {kubelet.paths.root}",
        f"  plugin         {development.target}: started again when a .py file in {directory} is saved",
        f"  status         plugwright status --control-socket {development.control}",
        "Ctrl-C ends both.",
        "",
    ]


@dataclass(slots=True)
class _Development:
    """The plugin's process, from save to save."""

    target: str
    file: Path
    root: Path
    _process: asyncio.subprocess.Process | None = None
    _saved: dict[Path, tuple[int, int]] = field(default_factory=dict)

    @property
    def control(self) -> Path:
        return self.root / "control.sock"

    async def run(self, ready: asyncio.Event) -> None:
        """Starts the plugin, and again after each save that can be loaded; until cancelled."""
        await ready.wait()
        async with asyncio.TaskGroup() as tasks:
            try:
                async with aclosing(settled_changes(self.file.absolute().parent)) as changes:
                    async for _ in changes:
                        saved = _python_files(self.file.absolute().parent)
                        if saved != self._saved:
                            self._saved = saved
                            await self._reload(tasks)
            finally:
                await self._stop()

    async def _reload(self, tasks: asyncio.TaskGroup) -> None:
        status, output = await processes.run([*self._command(), "--check"])
        if status:
            kept = "the plugin before it goes on" if self._is_running else "save it again to start it"
            lines = output.strip().splitlines() or [f"status {status}"]
            _show(StateChange("not loaded", self.target, f"{lines[-1].removeprefix('plugwright: ')}; {kept}"))
            return
        await self._stop()
        self._process = await asyncio.create_subprocess_exec(
            *self._command(),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            limit=_MAX_LINE,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            start_new_session=True,  # Ctrl-C is ours: the plugin ends when the kubelet does
        )
        _show(StateChange("loaded", self.target, f"pid {self._process.pid}"))
        tasks.create_task(self._follow(self._process))

    @property
    def _is_running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def _stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            await processes.end(process, _STOP_GRACE)

    async def _follow(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        with suppress(ValueError):  # a line of more than a megabyte
            async for line in process.stdout:
                _show(Output("plugin", line.decode(errors="replace").rstrip()))
        status = await process.wait()
        if process is self._process:  # it was not we who stopped it
            _show(StateChange("ended", self.target, f"status {status}; save the file to start it again"))

    def _command(self) -> list[str]:
        places = ["--kubelet-dir", str(self.root), "--control-socket", str(self.control)]
        return [
            sys.executable,
            "-m",
            "plugwright",
            "run",
            self.target,
            *places,
            "--state-dir",
            str(self.root / "state"),
        ]


def _python_files(directory: Path) -> dict[Path, tuple[int, int]]:
    """Their times and sizes: what else changes in the directory is no reason to reload."""
    found = {}
    for path in sorted(directory.glob("*.py")):
        with suppress(OSError):  # an editor replaces files
            found[path] = path.stat().st_mtime_ns, path.stat().st_size
    return found


def _show(event: StateChange | Output) -> None:
    view.show_text(event, None)
