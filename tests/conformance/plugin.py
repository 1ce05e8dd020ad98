"""A small device plugin without the SDK, which keeps every rule; with `--mutant NAME` it has one defect.

The defects are in `mutants`, each a few lines that change this plugin. Files in the root directory change its state
(kubelets up to 1.32 remove those in the device-plugins directory when they start): `fail-ID` makes a device fail,
`refuse-options` every GetDevicePluginOptions, and `hold-CALL-NAME` holds a call of example.com/NAME while it is there.
"""

import argparse
import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, suppress
from importlib import import_module
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))  # it is run as a program of its own

from tests.proto import deviceplugin_v1beta1_pb2 as pb
from tests.protobuf_methods import Method, streaming, unary

from plugwright.errors import PeerRefused, PlugwrightError
from plugwright.model import Options, PreferenceRequest
from plugwright.protocol import registration, transport
from plugwright.protocol.registration import PluginInfo, RegisterRequest
from plugwright.system import sockets
from plugwright.system.concurrency import first
from plugwright.system.inotify import Directory
from plugwright.system.latest import Latest

SERVICE = "/v1beta1.DevicePlugin"
RESOURCE = "example.com/part"
IDS = tuple(f"part-{number}" for number in range(4))
BROKEN = "part-broken"
HOST_NODES = dict(zip(IDS, ("/dev/null", "/dev/zero", "/dev/full", "/dev/random"), strict=True))
# A kubelet that starts ends the stream and removes sockets, new ones too; kubelet.sock comes last.
MOMENT = 0.1


class SmallPlugin:
    """What a kubelet asks for; every method may be replaced by a mutant's."""

    resource = RESOURCE
    version = "v1beta1"
    options = Options(pre_start=True, preference=True)
    registered_options = options
    socket_mode: int | None = 0o600
    watched = False  # registers through plugins_registry
    misses_kubelet = False  # notices neither a new kubelet.sock nor the end of a stream

    def __init__(self, root: Path) -> None:
        self.directory = root / "device-plugins"
        self.socket_directory = root / "plugins_registry" if self.watched else self.directory
        self.root = root
        self.changes, self.health = Directory(self.directory), Directory(root)
        self.stopped = Latest(False)
        self.registrations = 0
        self.announcements = 0
        self.streams = Latest(0)
        self.lost = Latest(0)  # streams that the kubelet ended

    # the list

    def failed(self) -> set[str]:
        return {path.name.removeprefix("fail-") for path in self.root.glob("fail-*")}

    def devices(self) -> list[pb.Device]:
        failed = self.failed()
        return [self.device(device_id, device_id not in failed) for device_id in IDS] + [self.device(BROKEN, False)]

    def device(self, device_id: str, healthy: bool) -> pb.Device:
        topology = pb.TopologyInfo(nodes=[pb.NUMANode(ID=0)])
        return pb.Device(ID=device_id, health="Healthy" if healthy else "Unhealthy", topology=topology)

    async def list_and_watch(self) -> AsyncGenerator[bytes, None]:
        self.streams.publish(self.streams.value + 1)
        sent = None
        try:
            async for _ in self.changes.changed.notifications():
                current = pb.ListAndWatchResponse(devices=self.devices()).SerializeToString()
                if current != sent:
                    sent = current
                    yield current
        finally:
            self.streams.publish(self.streams.value - 1)
            self.lost.publish(self.lost.value + 1)

    # the calls

    async def released(self, call: str) -> None:
        """Returns when nobody holds this call."""
        holding = self.root / f"hold-{call}-{self.resource.rpartition('/')[2]}"
        if holding.exists():
            print(f"held: {call}", flush=True)
        await self.health.changed.until(lambda: not holding.exists())

    async def get_options(self, _: pb.Empty) -> pb.DevicePluginOptions:
        if (self.root / "refuse-options").exists():
            raise PeerRefused("UNAVAILABLE", "still starting")
        await self.released("options")
        return pb.DevicePluginOptions(
            pre_start_required=self.options.pre_start,
            get_preferred_allocation_available=self.options.preference,
        )

    async def allocate(self, request: pb.AllocateRequest) -> pb.AllocateResponse:
        await self.released("allocate")
        return pb.AllocateResponse(
            container_responses=[self.answer(list(container.devices_ids)) for container in request.container_requests]
        )

    def answer(self, ids: list[str]) -> pb.ContainerAllocateResponse:
        self.check(ids)
        return pb.ContainerAllocateResponse(
            envs={"PARTS": ",".join(sorted(ids))},
            devices=[self.node(device_id) for device_id in sorted(ids)],
            mounts=[pb.Mount(host_path=str(self.settings_file()), container_path="/etc/parts", read_only=True)],
        )

    def settings_file(self) -> Path:
        """What containers of this plugin read; it stays when the program ends."""
        path = self.root / "parts.conf"
        path.touch()
        return path

    def node(self, device_id: str) -> pb.DeviceSpec:
        host = HOST_NODES.get(device_id, "/dev/null")
        return pb.DeviceSpec(host_path=host, container_path=f"/dev/{device_id}", permissions="rw")

    def check(self, ids: Sequence[str]) -> None:
        healthy = {device.ID for device in self.devices() if device.health == "Healthy"}
        if not healthy.issuperset(ids) or len(set(ids)) < len(ids):
            raise PeerRefused("INVALID_ARGUMENT", f"not healthy devices, each once: {', '.join(ids)}")

    async def prefer(self, request: pb.PreferredAllocationRequest) -> pb.PreferredAllocationResponse:
        await self.released("prefer")
        responses = [
            pb.ContainerPreferredAllocationResponse(
                deviceIDs=self.choose(
                    PreferenceRequest(
                        tuple(container.available_deviceIDs),
                        tuple(container.must_include_deviceIDs),
                        container.allocation_size,
                    )
                )
            )
            for container in request.container_requests
        ]
        return pb.PreferredAllocationResponse(container_responses=responses)

    def choose(self, request: PreferenceRequest) -> list[str]:
        others = sorted(set(request.available) - set(request.required))
        return [*request.required, *others][: request.size]

    async def pre_start(self, request: pb.PreStartContainerRequest) -> pb.PreStartContainerResponse:
        await self.released("pre-start")
        self.check(request.devices_ids)
        return pb.PreStartContainerResponse()

    def methods(self) -> list[transport.Bound]:
        return [
            unary(Method(f"{SERVICE}/GetDevicePluginOptions", pb.Empty, pb.DevicePluginOptions), self.get_options),
            streaming(Method(f"{SERVICE}/ListAndWatch", pb.Empty, pb.ListAndWatchResponse), self.list_and_watch),
            unary(Method(f"{SERVICE}/Allocate", pb.AllocateRequest, pb.AllocateResponse), self.allocate),
            unary(
                Method(
                    f"{SERVICE}/GetPreferredAllocation", pb.PreferredAllocationRequest, pb.PreferredAllocationResponse
                ),
                self.prefer,
            ),
            unary(
                Method(f"{SERVICE}/PreStartContainer", pb.PreStartContainerRequest, pb.PreStartContainerResponse),
                self.pre_start,
            ),
        ]

    # registration

    def socket_name(self) -> str:
        return f"part-{os.getpid()}-{self.registrations}.sock"

    def endpoint(self, name: str) -> str:
        return name

    def listen(self, path: Path) -> socket.socket:
        return sockets.listen(path, mode=self.socket_mode)

    async def announce(self) -> PluginInfo:
        self.announcements += 1
        if self.announcements == 1:
            raise PeerRefused("UNAVAILABLE", "still starting")  # the kubelet asks again: no rule is broken by it
        return PluginInfo(self.resource)

    async def notify(self, registered: bool, error: str) -> None:
        if not registered:
            print(f"refused: {error}", flush=True)

    def bound(self) -> list[transport.Bound]:
        if not self.watched:
            return self.methods()
        return [*self.methods(), *registration.announcement_methods(self)]

    async def register(self, name: str) -> None:
        request = RegisterRequest(self.resource, self.endpoint(name), self.registered_options, self.version)
        async with registration.connect(self.directory / "kubelet.sock") as client:
            await client.register(request, 15)

    async def serve_once(self) -> None:
        """One registration, until the kubelet, the stream or the socket is gone."""
        identity = await self.changes.appears("kubelet.sock")
        self.registrations += 1
        name = self.socket_name()
        path = self.socket_directory / name
        path.parent.mkdir(exist_ok=True)
        lost = self.lost.value
        async with transport.serve(path, self.bound(), listening_on=self.listen):
            await self.announced(name)
            notices = [self.until_removed(name)]
            if not self.misses_kubelet:
                notices += [self.changes.changes_from("kubelet.sock", identity), self.until_lost(lost)]
            await first(*notices)

    async def announced(self, name: str) -> None:
        if not self.watched:
            await self.released("register")
            await self.register(name)

    async def until_removed(self, name: str) -> None:
        if self.watched:
            await asyncio.Event().wait()
        await self.changes.changed.until(lambda: self.changes.identity(name) is None)
        await asyncio.sleep(MOMENT)

    async def until_lost(self, lost: int) -> None:
        """Returns when the kubelet has ended the only stream."""
        while True:
            await self.lost.until(lambda count: count > lost)  # noqa: B023
            lost = self.lost.value
            if self.streams.value == 0:
                await asyncio.sleep(MOMENT)
                return

    async def serve(self) -> None:
        wait = 0.05
        while True:
            try:
                await self.serve_once()
                wait = 0.05
            except (PlugwrightError, OSError) as error:
                print(error, flush=True)
                await self.refused()
                await asyncio.sleep(wait)  # before another attempt
                wait = min(wait * 2, 2.0)

    async def refused(self) -> None:
        """After an attempt that failed."""

    def on_signal(self) -> None:
        self.stopped.publish(True)

    def exit_code(self) -> int:
        return 0

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self.on_signal)
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self.changes.watching())
            await stack.enter_async_context(self.health.watching())
            stack.callback(self.health.changed.subscribe(self.changes.changed.notify))
            serving = asyncio.create_task(self.serve())
            try:
                await self.stopped.until(bool)
            finally:
                serving.cancel()
                with suppress(asyncio.CancelledError):
                    await serving
        return self.exit_code()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--mutant", default="")
    parser.add_argument("--resource", default="")
    parser.add_argument("--watched", action="store_true", help="register through plugins_registry")
    parser.add_argument("--misses-kubelet", action="store_true", help="notice only that the own socket is removed")
    arguments = parser.parse_args()
    kind: type[SmallPlugin] = SmallPlugin
    if arguments.mutant:
        kind = import_module("tests.conformance.mutants").MUTANTS[arguments.mutant].plugin
    kind.watched = kind.watched or arguments.watched
    kind.misses_kubelet = arguments.misses_kubelet
    kind.resource = arguments.resource or kind.resource
    sys.exit(asyncio.run(kind(arguments.root).run()))


if __name__ == "__main__":
    main()
