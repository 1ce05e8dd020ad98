"""The kubelet's pod-resources API of a node without pods: a daemon offers no hardware before it knows who holds it."""

import asyncio
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from plugwright.errors import PlugwrightError
from plugwright.protocol import pod_resources
from plugwright.protocol.pod_resources import AllocatableDevice, PodResources

__all__ = ["empty_node"]


class _NoPods:
    async def pods(self) -> Sequence[PodResources]:
        return ()

    async def allocatable(self) -> Sequence[AllocatableDevice]:
        return ()

    async def pod(self, name: str, namespace: str) -> PodResources:
        raise PlugwrightError(f"pod {namespace}/{name} not found")

    async def alpha_pods(self) -> Sequence[PodResources]:
        return ()


@contextmanager
def empty_node(socket: Path) -> Iterator[None]:
    """Serves the API in a thread while inside."""
    socket.parent.mkdir(exist_ok=True)
    loop, served, ended = asyncio.new_event_loop(), threading.Event(), asyncio.Event()

    async def serve() -> None:
        async with pod_resources.serve(_NoPods(), socket):
            served.set()
            await ended.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),), name="pod-resources")
    thread.start()
    try:
        served.wait(10)
        yield
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join()
        loop.close()
