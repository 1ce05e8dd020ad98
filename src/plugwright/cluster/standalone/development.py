"""A plugin under development beside an emulated kubelet, started again whenever its file is saved.

The plugin is a process of its own, as in production. A save that cannot be loaded is reported and changes nothing: the
running plugin goes on. The kubelet, and the devices that pods hold, outlive every reload.
"""

import asyncio
import os
import sys
from collections.abc import Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from pathlib import Path

from plugwright.cluster.standalone.program import KubeletOptions, Show, emulate
from plugwright.kubelet import Kubelet
from plugwright.kubelet.events import StateChange
from plugwright.kubelet.processes import Output
from plugwright.system import processes
from plugwright.system.concurrency import single_error
from plugwright.system.inotify import settled_changes

__all__ = ["Development"]

_STOP_GRACE = 5.0  # seconds from SIGTERM to SIGKILL
_MAX_LINE = 2**20


@dataclass(slots=True)
class Development:
    """The plugin's process, from save to save."""

    target: str
    file: Path
    root: Path
    show: Show
    _process: asyncio.subprocess.Process | None = None
    _saved: dict[Path, tuple[int, int]] = field(default_factory=dict)

    @property
    def control(self) -> Path:
        return self.root / "control.sock"

    def run(self, options: KubeletOptions, begin: Callable[[Kubelet], None]) -> None:
        """Runs the kubelet and the plugin until a signal; calls `begin` once."""
        try:
            asyncio.run(self._run(options, begin))
        except BaseExceptionGroup as group:
            raise single_error(group) from None

    async def _run(self, options: KubeletOptions, begin: Callable[[Kubelet], None]) -> None:
        ready = asyncio.Event()

        def begun(kubelet: Kubelet, _kubeconfig: Path | None) -> None:
            begin(kubelet)
            ready.set()

        async with asyncio.TaskGroup() as tasks:
            working = tasks.create_task(self._follow_saves(ready))
            await emulate(options, self.show, begun)
            working.cancel()

    async def _follow_saves(self, ready: asyncio.Event) -> None:
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
            self._show(StateChange("not loaded", self.target, f"{lines[-1].removeprefix('plugwright: ')}; {kept}"))
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
        self._show(StateChange("loaded", self.target, f"pid {self._process.pid}"))
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
                self._show(Output("plugin", line.decode(errors="replace").rstrip()))
        status = await process.wait()
        if process is self._process:  # it was not we who stopped it
            self._show(StateChange("ended", self.target, f"status {status}; save the file to start it again"))

    def _show(self, event: StateChange | Output) -> None:
        self.show(event, None)

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
