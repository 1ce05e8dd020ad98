"""A plugin that does what a test tells it and remembers what a kubelet asked: the same for a real one and for ours."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.kubelet.actors import PluginCall
from tests.proto import deviceplugin_v1beta1_pb2 as pb

from plugwright.errors import PeerRefused
from plugwright.model import Allocation, Device, Options, PreferenceRequest, natural_order
from plugwright.protocol import device_plugin, messages, registration
from plugwright.protocol.paths import KubeletPaths
from plugwright.protocol.registration import RegisterRequest

__all__ = ["Scripted", "serving"]


@dataclass
class Scripted:
    """Prefers the last devices in natural order, so that no choice is left to chance."""

    resource: str
    devices: list[Device]
    options_: Options = field(default_factory=lambda: Options(pre_start=True, preference=True))
    errors: dict[str, str] = field(default_factory=dict)  # by method: the refusal's text
    answers_nothing: bool = False
    env: dict[str, str] = field(default_factory=dict)
    emptied: set[str] = field(default_factory=set)  # ids listed with a topology that has no nodes
    calls: list[PluginCall] = field(default_factory=list)
    streams: int = 0

    def __post_init__(self) -> None:
        self._changed = asyncio.Event()

    def send(self, devices: list[Device]) -> None:
        self.devices = devices
        self._changed.set()

    async def options(self) -> Options:
        self._note(PluginCall("GetDevicePluginOptions"))
        return self.options_

    async def list_and_watch(self) -> AsyncGenerator[bytes, None]:
        self._note(PluginCall("ListAndWatch"))
        self.streams += 1
        try:
            while True:
                self._changed.clear()
                yield self._listed()
                await self._changed.wait()
        finally:
            self.streams -= 1

    def _listed(self) -> bytes:
        sound = messages.encode_devices(self.resource, self.devices)
        if not self.emptied:
            return sound
        message = pb.ListAndWatchResponse.FromString(sound)
        for device in message.devices:
            if device.ID in self.emptied:
                device.topology.ClearField("nodes")
        return message.SerializeToString()

    async def prefer(self, requests: Sequence[PreferenceRequest]) -> list[list[str]]:
        request = requests[0]
        available, required = tuple(sorted(request.available)), tuple(sorted(request.required))
        self._note(PluginCall("GetPreferredAllocation", available, required, request.size))
        free = sorted(set(available) - set(required), key=natural_order, reverse=True)
        return [[*required, *free][: request.size]]

    async def allocate(self, containers: Sequence[Sequence[str]]) -> bytes:
        ids = tuple(sorted(containers[0]))
        self._note(PluginCall("Allocate", ids))
        given = [] if self.answers_nothing else [Allocation(env={**self.env, "GIVEN": ",".join(ids)})]
        return messages.encode_allocations(given)

    async def pre_start(self, device_ids: Sequence[str]) -> None:
        self._note(PluginCall("PreStartContainer", tuple(sorted(device_ids))))

    def _note(self, seen: PluginCall) -> None:
        if seen.method not in self.errors or self.calls[-1:] != [seen]:  # what fails is tried again, later and later
            self.calls.append(seen)
        if seen.method in self.errors:
            raise PeerRefused("UNKNOWN", self.errors[seen.method])


@asynccontextmanager
async def serving(plugin: Scripted, paths: KubeletPaths, name: str = "scripted.sock") -> AsyncIterator[Path]:
    """On a socket beside the kubelet's, registered with it."""
    async with device_plugin.serve(plugin, paths.device_plugins / name) as served:
        async with registration.connect(paths.kubelet_socket) as kubelet:
            await kubelet.register(RegisterRequest(plugin.resource, name), timeout=15)
        yield served.path
