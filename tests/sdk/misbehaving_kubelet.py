"""A kubelet that refuses registrations, or accepts them and asks for no list: what the emulated one never does.

It takes the place of the emulated kubelet's kubelet.sock, records every request, and forwards those that it does not
spoil, so that a plugin meets the emulated kubelet as soon as the misbehaviour is over.
"""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from tests.observed_kubelet import ObservedKubelet

from plugwright.errors import PeerRefused
from plugwright.protocol import device_plugin, registration
from plugwright.protocol.registration import RegisterRequest

__all__ = ["MisbehavingKubelet", "misbehaving_kubelet"]


class MisbehavingKubelet(ObservedKubelet):
    """Start it before the plugin: until its own socket is there, the emulated kubelet's is."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.requests: list[RegisterRequest] = []  # every registration, also those that were refused
        self.refuse = ""  # the answer to the next registrations, empty to forward them
        self.watch_lists = True
        self._emulated = root / "emulated.sock"
        self._stack = AsyncExitStack()

    async def start(self) -> None:
        await super().start()
        self.paths.kubelet_socket.rename(self._emulated)
        await self._stack.enter_async_context(registration.serve(self, self.paths.kubelet_socket))

    async def stop(self) -> None:
        await self._stack.aclose()
        await super().stop()

    async def register(self, request: RegisterRequest) -> None:
        self.requests.append(request)
        self.wake()
        if self.refuse:
            raise PeerRefused("UNKNOWN", self.refuse)
        if self.watch_lists:
            async with registration.connect(self._emulated) as emulated:
                await emulated.register(request)
        else:
            async with device_plugin.connect(self.paths.device_plugins / request.endpoint) as plugin:
                await plugin.options()


@asynccontextmanager
async def misbehaving_kubelet(root: Path) -> AsyncIterator[MisbehavingKubelet]:
    kubelet = MisbehavingKubelet(root)
    await kubelet.start()
    try:
        yield kubelet
    finally:
        await kubelet.stop()
