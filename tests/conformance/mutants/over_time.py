"""Defects of a plugin that show when devices are in use, fail, recover, or are listed and served again."""

import asyncio
import json
import os
from collections.abc import AsyncGenerator, Sequence

from tests.conformance.mutants.mutant import breaks
from tests.conformance.plugin import HOST_NODES, IDS, SmallPlugin
from tests.proto import deviceplugin_v1beta1_pb2 as pb

from plugwright.errors import PeerRefused

Response = pb.ContainerAllocateResponse
KIND = "example.com/part"


class KnowsUse(SmallPlugin):
    """It counts devices as used for as long as it runs."""

    @property
    def used(self) -> set[str]:
        return {path.name.removeprefix("used-") for path in self.root.glob("used-*")}

    def answer(self, ids: list[str]) -> Response:
        answer = super().answer(ids)
        for device_id in ids:
            (self.root / f"used-{device_id}").touch()
        return answer


@breaks("ALO-18")
class DropsUsed(KnowsUse):
    """The list has the free devices."""

    def devices(self) -> list[pb.Device]:
        return [device for device in super().devices() if device.ID not in self.used]


@breaks("ALO-18")
class UsedIsUnhealthy(KnowsUse):
    def device(self, device_id: str, healthy: bool) -> pb.Device:
        return super().device(device_id, healthy and device_id not in self.used)


@breaks("LST-12")
class BeginsWithEmptyList(SmallPlugin):
    """Devices are searched again after each registration, and nothing waits for the search."""

    async def list_and_watch(self) -> AsyncGenerator[bytes, None]:
        if self.registrations > 1:
            yield pb.ListAndWatchResponse().SerializeToString()
            await asyncio.sleep(0.3)
        async for current in super().list_and_watch():
            yield current


@breaks("ALO-19")
class NodesInOrderOfStart(SmallPlugin):
    """The nodes are found in another order at each start."""

    starts = 0

    def node(self, device_id: str) -> pb.DeviceSpec:
        node = super().node(device_id)
        if not self.starts:
            self.starts = len(list(self.root.glob("started-*"))) + 1
            (self.root / f"started-{os.getpid()}").touch()
        if device_id in IDS:
            node.host_path = HOST_NODES[IDS[(IDS.index(device_id) + self.starts) % len(IDS)]]
        return node


@breaks("ALO-14")
class VariablesOfFirstDevice(SmallPlugin):
    def answer(self, ids: list[str]) -> Response:
        answer = super().answer(ids)
        answer.envs[f"USES_{min(ids).upper().replace('-', '_')}"] = "1"
        return answer


@breaks("ALO-04")
class RepeatsFirstResponse(SmallPlugin):
    """A closure has the first container of the request."""

    async def allocate(self, request: pb.AllocateRequest) -> pb.AllocateResponse:
        answer = await super().allocate(request)
        first = answer.container_responses[:1]
        return pb.AllocateResponse(container_responses=[*first] * len(answer.container_responses))


@breaks("HOT-03")
class RefusesRecovered(SmallPlugin):
    """The list is right, and Allocate looks into a set that only grows."""

    broken: frozenset[str] = frozenset()

    def devices(self) -> list[pb.Device]:
        self.broken |= self.failed()
        return super().devices()

    def check(self, ids: Sequence[str]) -> None:
        if self.broken.intersection(ids):
            raise PeerRefused("FAILED_PRECONDITION", "it has failed")
        super().check(ids)


@breaks("HOT-04")
class UpdatesWithoutTopology(SmallPlugin):
    """The list of a change is made by other code than the first one."""

    def device(self, device_id: str, healthy: bool) -> pb.Device:
        device = super().device(device_id, healthy)
        if self.failed():
            device.ClearField("topology")
        return device


class WithCdi(SmallPlugin):
    """It hands out CDI devices, whose spec it writes when it starts."""

    def answer(self, ids: list[str]) -> Response:
        answer = super().answer(ids)
        answer.cdi_devices.extend(pb.CDIDevice(name=f"{KIND}={device_id}") for device_id in sorted(ids))
        return answer

    def spec(self) -> dict[str, object]:
        devices = [{"name": device_id, "containerEdits": self.edits(device_id)} for device_id in IDS]
        return {"cdiVersion": "0.6.0", "kind": KIND, "devices": devices}

    def edits(self, device_id: str) -> dict[str, object]:
        return {"deviceNodes": [{"path": f"/dev/cdi-{device_id}", "hostPath": HOST_NODES[device_id]}]}

    def file(self) -> str:
        return "example.com-part.json"

    async def run(self) -> int:
        directory = self.root / "cdi"
        directory.mkdir(exist_ok=True)
        new = directory / f"{self.file()}.new"
        new.write_text(json.dumps(self.spec()))
        new.replace(directory / self.file())
        return await super().run()


@breaks("ANS-15")
class UnknownCdiVersion(WithCdi):
    def spec(self) -> dict[str, object]:
        return {**super().spec(), "cdiVersion": "2.0.0"}


@breaks("ANS-15")
class CdiDeviceTwice(WithCdi):
    def spec(self) -> dict[str, object]:
        made = super().spec()
        devices = made["devices"]
        assert isinstance(devices, list)
        return {**made, "devices": [*devices, devices[0]]}


@breaks("ANS-15")
class CdiWithoutEdits(WithCdi):
    def edits(self, device_id: str) -> dict[str, object]:
        return {}


@breaks("ANS-15")
class CdiNodeIsGone(WithCdi):
    def edits(self, device_id: str) -> dict[str, object]:
        return {"deviceNodes": [{"path": f"/dev/cdi-{device_id}", "hostPath": "/dev/no-such-part"}]}


@breaks("ANS-15")
class CdiMountIsGone(WithCdi):
    def edits(self, device_id: str) -> dict[str, object]:
        mount = {"hostPath": str(self.root / "no-such-file"), "containerPath": "/etc/part"}
        return {**super().edits(device_id), "mounts": [mount]}


@breaks("ANS-15")
class CdiFileForEachStart(WithCdi):
    """The file of an earlier start defines the same names."""

    def file(self) -> str:
        return f"example.com-part-{os.getpid()}.json"

    async def run(self) -> int:
        directory = self.root / "cdi"
        directory.mkdir(exist_ok=True)
        (directory / "example.com-part-1.json").write_text(json.dumps(self.spec()))
        return await super().run()


@breaks("END-10")
class RemovesCdiSpecAtEnd(WithCdi):
    async def run(self) -> int:
        try:
            return await super().run()
        finally:
            (self.root / "cdi" / self.file()).unlink()
