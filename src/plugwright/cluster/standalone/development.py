"""A plugin under development beside an emulated kubelet, restarted after every save of its file.

The plugin is a separate process, as in production. If a save cannot be loaded, this is reported and changes nothing:
the running plugin continues. The kubelet and the pods survive every reload; refused and ended pods are submitted again,
and so is the pod created by `dev` for each resource if none was given.
"""

import asyncio
import os
import re
import sys
from collections.abc import Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from pathlib import Path

from plugwright.cluster.standalone.program import KubeletOptions, PodRunner, Show, Shown, emulate
from plugwright.kubelet import ContainerSpec, Kubelet, PodSpec
from plugwright.kubelet.events import Call, StateChange
from plugwright.kubelet.pod_table import RunContainerOptions
from plugwright.kubelet.processes import Output
from plugwright.system import processes
from plugwright.system.concurrency import single_error
from plugwright.system.inotify import settled_changes

__all__ = ["Development"]

_STOP_GRACE = 5.0  # seconds from SIGTERM to SIGKILL
_MAX_LINE = 2**20
# Every reload repeats the same calls and lines, so it is shown as one line.
_RELOAD_CALLS = ("GetDevicePluginOptions", "ListAndWatch", "Register")
_RELOAD_CHANGES = ("loaded", "registered", "stopped")
_RELOAD_OUTPUT = re.compile(r"[\d:]+ info +(starting|registered|stopped)(  |$)")


@dataclass(slots=True)
class Development:
    """The plugin's process, across saves."""

    target: str
    file: Path
    root: Path
    show: Show
    requests: int = 1  # devices of each resource requested by our pod, unless the user gave pods
    verbose: bool = False  # show every call of a reload
    _process: asyncio.subprocess.Process | None = None
    _saved: dict[Path, tuple[int, int]] = field(default_factory=dict)
    _runner: PodRunner | None = None
    _lists: dict[str, str] = field(default_factory=dict)  # the last list of each resource, as text
    _loads: int = 0
    _listed: set[str] = field(default_factory=set)  # resources listed since the last load

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

        def attach(runner: PodRunner) -> None:
            self._runner = runner

        if options.pods or options.folder is not None:
            self.requests = 0
        async with asyncio.TaskGroup() as tasks:
            lists: asyncio.Queue[str] = asyncio.Queue()  # resources, as the kubelet gets their first list after a load

            def show(event: Shown, granted: RunContainerOptions | None) -> None:
                self._on_event(event, granted, lists)

            working = [tasks.create_task(self._follow_saves(ready)), tasks.create_task(self._submit_pods(lists))]
            await emulate(options, show, begun, attach)
            for task in working:
                task.cancel()

    def _on_event(self, event: Shown, granted: RunContainerOptions | None, lists: asyncio.Queue[str]) -> None:
        """Shows the event, or only the result of a reload; notes the first list of each resource after a load."""
        first_list = isinstance(event, StateChange) and event.kind == "list" and event.about not in self._listed
        if isinstance(event, StateChange) and first_list:
            before, self._lists[event.about] = self._lists.get(event.about), event.text
            self._listed.add(event.about)
            lists.put_nowait(event.about)
            if self._loads > 1 and not self.verbose:
                change = ", as before" if before == event.text else f" (was: {before})" if before else ""
                event = StateChange("reloaded", self.target, f"{event.about}: {event.text}{change}")
        elif self._is_routine(event):
            return
        self.show(event, granted)

    def _is_routine(self, event: Shown) -> bool:
        """Whether the event occurs in the same way at each reload."""
        if self.verbose or self._loads < 2:
            return False
        if isinstance(event, Call):
            return event.method in _RELOAD_CALLS and event.outcome in ("OK", "open")
        if isinstance(event, StateChange):
            return event.kind in _RELOAD_CHANGES
        return isinstance(event, Output) and event.about == "plugin" and bool(_RELOAD_OUTPUT.match(event.text))

    async def _submit_pods(self, lists: asyncio.Queue[str]) -> None:
        """Submits pods without success under the previous plugin, once the plugin has listed its devices."""
        while True:
            resource = await lists.get()
            assert self._runner is not None
            ours = f"dev {resource}"
            again = self._runner.ended if self._loads > 1 else ()
            if ours in self._runner.handles:
                again = (*(handle for handle in again if handle != ours), ours)
            elif self.requests:
                self._runner.add(ours, _pod(resource, self.requests))
            for handle in again:
                await self._runner.resubmit(handle)

    async def _follow_saves(self, ready: asyncio.Event) -> None:
        """Starts the plugin, and restarts it after each loadable save; until cancelled."""
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
            kept = "the previous version keeps running" if self._is_running else "save it again to start it"
            lines = output.strip().splitlines() or [f"status {status}"]
            self._show(StateChange("not loaded", self.target, f"{lines[-1].removeprefix('plugwright: ')}; {kept}"))
            return
        self._loads += 1
        self._listed.clear()
        await self._stop()
        self._process = await asyncio.create_subprocess_exec(
            *self._command(),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            limit=_MAX_LINE,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            start_new_session=True,  # we handle Ctrl-C: the plugin ends when the kubelet does
        )
        if self._loads == 1 or self.verbose:
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
                output = Output("plugin", line.decode(errors="replace").rstrip())
                if not self._is_routine(output):
                    self._show(output)
        status = await process.wait()
        if process is self._process:  # it was not stopped by us
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


def _pod(resource: str, count: int) -> PodSpec:
    """A pod with devices of the resource, for a call of its plugin's allocate()."""
    name = re.sub(r"[^a-z0-9]+", "-", resource.rpartition("/")[2].lower()).strip("-")
    container = ContainerSpec("main", limits={resource: str(count)}, command=("sleep", "infinity"))
    return PodSpec(f"dev-{name}", (container,))


def _python_files(directory: Path) -> dict[Path, tuple[int, int]]:
    """Modification times and sizes of the Python files; other changes in the directory cause no reload."""
    found = {}
    for path in sorted(directory.glob("*.py")):
        with suppress(OSError):  # an editor replaces files
            found[path] = path.stat().st_mtime_ns, path.stat().st_size
    return found
