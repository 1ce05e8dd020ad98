"""An emulated kubelet as a program: until a signal ends it, or until the pods it was given are through.

Its pods are `emulated_node`'s; how everything looks is `kubelet_view`'s.
"""

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from plugwright.cli.emulated_node import Node, Plan
from plugwright.cli.kubelet_view import Show
from plugwright.cli.pod_files import Folder
from plugwright.kubelet import Kubelet
from plugwright.sdk.directory import Directory

__all__ = ["emulate"]

_SETTLE = 0.1  # an editor needs more than one step to write a file
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


async def emulate(plan: Plan, show: Show, begin: Callable[[Kubelet], None]) -> bool:
    """Until a signal, or until the pods are through; whether everything went well."""
    async with asyncio.TaskGroup() as followers, Kubelet(plan.root, plan.settings) as kubelet:
        begin(kubelet)
        async with asyncio.TaskGroup() as tasks:
            node = Node(kubelet, plan, show, tasks)
            followers.create_task(node.follow())  # ends with the kubelet, when all has been shown
            well = await _live(node, plan, tasks)
    return well and not (plan.strict and kubelet.findings)


async def _live(node: Node, plan: Plan, tasks: asyncio.TaskGroup) -> bool:
    stop = asyncio.Event()
    restarts: list[asyncio.Task[None]] = []
    with _signals(stop, lambda: restarts.append(tasks.create_task(node.restart()))):
        for number, pod in enumerate(plan.pods):
            node.add(f"#{number}", pod)
        folder = Folder(plan.folder) if plan.folder is not None else None
        if folder is not None:
            await node.apply(folder.look())
        work = tasks.create_task(node.through() if plan.once else _watch(node, plan.folder, folder))
        ended = tasks.create_task(stop.wait())
        await asyncio.wait({ended, work}, return_when=asyncio.FIRST_COMPLETED)
        well = not plan.once or node.went_well
        for task in (ended, work, *restarts):
            task.cancel()  # a plugin may hang, and with it what asks it
        await node.end()
    return well


async def _watch(node: Node, path: Path | None, folder: Folder | None) -> None:
    """For ever."""
    if path is None or folder is None:
        await asyncio.Event().wait()
        return
    directory = Directory(path, writes=True)
    async with directory.watching():
        async for _ in directory.ticks.changes():
            await asyncio.sleep(_SETTLE)
            await node.apply(folder.look())


@contextmanager
def _signals(stop: asyncio.Event, restart: Callable[[], object]) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    wanted: dict[signal.Signals, Callable[[], object]] = {**dict.fromkeys(_ENDING, stop.set), signal.SIGUSR1: restart}
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        del wanted[signal.SIGHUP]  # nohup: it is to outlive its terminal
    for number, heed in wanted.items():
        loop.add_signal_handler(number, heed)
    try:
        yield
    finally:
        for number in wanted:
            loop.remove_signal_handler(number)
