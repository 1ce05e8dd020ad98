"""Defects that look right in a review, and show on the second device, call, list or registration."""

import asyncio
import os
from collections.abc import Sequence

from tests.conformance.mutants.mutant import breaks
from tests.conformance.plugin import HOST_NODES, IDS, SmallPlugin
from tests.proto import deviceplugin_v1beta1_pb2 as pb

from plugwright.errors import PeerRefused
from plugwright.model import PreferenceRequest

Response = pb.ContainerAllocateResponse


@breaks("PRF-03")
class PrefersPairs(SmallPlugin):
    """Linked devices go together, whether both are free or not."""

    def choose(self, request: PreferenceRequest) -> list[str]:
        chosen = super().choose(request)
        if request.size == 2 and not request.required and IDS[0] in request.available:
            return [IDS[0], IDS[1]]
        return chosen


@breaks("PRF-04")
class TakesOneRequired(SmallPlugin):
    def choose(self, request: PreferenceRequest) -> list[str]:
        others = sorted(set(request.available) - set(request.required))
        return [*request.required[:1], *others][: request.size]


@breaks("PRF-02")
class PrefersWithinGroup(SmallPlugin):
    """Two devices are behind one switch, and it never chooses from two switches."""

    def choose(self, request: PreferenceRequest) -> list[str]:
        chosen = super().choose(request)
        return chosen if request.size == len(request.available) else chosen[:2]


@breaks("PRF-05")
class CountsRequiredTwice(SmallPlugin):
    """The required devices are among the available ones, too."""

    def choose(self, request: PreferenceRequest) -> list[str]:
        if request.size == len(request.available):
            return sorted(request.available)
        return [*request.required, *sorted(request.available)][: request.size]


@breaks("PRF-01")
class PrefersPowersOfTwo(SmallPlugin):
    def choose(self, request: PreferenceRequest) -> list[str]:
        if request.size == 3:
            raise PeerRefused("INVALID_ARGUMENT", "no topology for 3 devices")
        return super().choose(request)


@breaks("REG-26")
class AnswersOptionsOnce(SmallPlugin):
    async def get_options(self, request: pb.Empty) -> pb.DevicePluginOptions:
        answer = await super().get_options(request)
        return answer if self.registrations < 2 else pb.DevicePluginOptions()


@breaks("LST-07")
class UnknownNodeAsByte(SmallPlugin):
    """The -1 of sysfs for no node, in a byte."""

    def device(self, device_id: str, healthy: bool) -> pb.Device:
        device = super().device(device_id, healthy)
        device.topology.nodes[0].ID = 255
        return device


@breaks("RES-07")
class RefusalsLeakDescriptors(SmallPlugin):
    def answer(self, ids: list[str]) -> Response:
        opened = os.open("/dev/null", os.O_RDONLY)
        response = super().answer(ids)
        os.close(opened)
        return response


@breaks("LST-12")
class FailsAfterRestart(SmallPlugin):
    """A closed channel reads as a failure of every device."""

    def failed(self) -> set[str]:
        return super().failed() if self.registrations < 2 else set(IDS[1:])


TWELVE = tuple(f"part-{number}" for number in range(12))


@breaks("ALO-17")
class ReadsOneDigit(SmallPlugin):
    """Takes part-1 for part-10 and part-11."""

    def devices(self) -> list[pb.Device]:
        failed = self.failed()
        others = [self.device(device_id, device_id not in failed) for device_id in TWELVE[len(IDS) :]]
        return [*super().devices(), *others]

    def node(self, device_id: str) -> pb.DeviceSpec:
        return super().node(device_id[: len("part-0")])


@breaks("HOT-09")
class AppendsChanges(SmallPlugin):
    """A device that changes is listed a second time."""

    def devices(self) -> list[pb.Device]:
        return [*(self.device(device_id, True) for device_id in IDS), *self.changed()]

    def check(self, ids: Sequence[str]) -> None:
        if self.failed() & set(ids):
            raise PeerRefused("INVALID_ARGUMENT", "not healthy")
        super().check(ids)

    def changed(self) -> list[pb.Device]:
        return [self.device(device_id, False) for device_id in sorted(self.failed())]


@breaks("PST-05")
class StartsOneDevice(SmallPlugin):
    async def pre_start(self, request: pb.PreStartContainerRequest) -> pb.PreStartContainerResponse:
        if len(request.devices_ids) > 1:
            raise PeerRefused("INVALID_ARGUMENT", "one device")
        return await super().pre_start(request)


@breaks("ANS-14")
class AnnotatesMissingCdi(SmallPlugin):
    """CDI devices by annotations, as plugins of kubelets before 1.28 do; the spec was never written."""

    def answer(self, ids: list[str]) -> Response:
        response = super().answer(ids)
        response.annotations["cdi.k8s.io/part"] = ",".join(f"example.com/part={device_id}" for device_id in ids)
        return response


@breaks("ANS-11")
class SamePathForAll(SmallPlugin):
    """Two devices have one path in the container, so that the second one hides the first."""

    def node(self, device_id: str) -> pb.DeviceSpec:
        host = HOST_NODES.get(device_id, "/dev/null")
        return pb.DeviceSpec(host_path=host, container_path="/dev/part", permissions="rw")


@breaks("HOT-10")
class NoticesFirstFailure(SmallPlugin):
    """What waits for a failure ends with the first one."""

    noticed: set[str]
    over = False

    def failed(self) -> set[str]:
        failed = super().failed()
        self.noticed = getattr(self, "noticed", set()) or set(failed)
        self.over = self.over or bool(self.noticed - failed)
        return set() if self.over else failed


@breaks("HOT-04")
class SendsChangesOnly(SmallPlugin):
    began = False

    def devices(self) -> list[pb.Device]:
        failed = self.failed()
        return super().devices() if not failed else [self.device(device_id, False) for device_id in sorted(failed)]


@breaks("ALO-13")
class ShiftsAfterRestart(SmallPlugin):
    """Ids are places in a list that is read again for each registration, in another order."""

    def node(self, device_id: str) -> pb.DeviceSpec:
        node = super().node(device_id)
        if self.registrations > 1 and device_id in IDS:
            node.host_path = HOST_NODES[IDS[IDS.index(device_id) - 1]]
        return node


@breaks("HOT-04")
class CountsHealthyDevices(SmallPlugin):
    """Ids are places among the healthy devices: those after one that fails mean the next device."""

    def node(self, device_id: str) -> pb.DeviceSpec:
        node, healthy = super().node(device_id), [known for known in IDS if known not in self.failed()]
        if device_id in healthy:
            node.host_path = HOST_NODES[IDS[healthy.index(device_id)]]
        return node


@breaks("ALO-14")
class RoomForTwo(SmallPlugin):
    def answer(self, ids: list[str]) -> Response:
        if len(ids) > 2:
            raise PeerRefused("INTERNAL", "index out of range [2] with length 2")
        return super().answer(ids)


@breaks("ALO-15")
class StaysInReset(SmallPlugin):
    """A device is being reset until PreStartContainer is answered."""

    async def pre_start(self, request: pb.PreStartContainerRequest) -> pb.PreStartContainerResponse:
        resetting: set[str] = self.__dict__.setdefault("resetting", set())
        if resetting & set(request.devices_ids):
            raise PeerRefused("FAILED_PRECONDITION", "it is being reset")
        resetting |= set(request.devices_ids)
        answer = await super().pre_start(request)
        resetting -= set(request.devices_ids)
        return answer


@breaks("LST-12")
class NodesInFirstList(SmallPlugin):
    """NUMA nodes are read once, and sent once."""

    def device(self, device_id: str, healthy: bool) -> pb.Device:
        device = super().device(device_id, healthy)
        if self.registrations > 1:
            device.ClearField("topology")
        return device


@breaks("REG-25")
class LooksFiveTimes(SmallPlugin):
    """Looks for kubelet.sock each second, and ends after the fifth time."""

    async def serve_once(self) -> None:
        for _ in range(5 if self.registrations else 0):
            if (self.directory / "kubelet.sock").exists():
                break
            await asyncio.sleep(1)
        else:
            self.stopped.publish(self.registrations > 0)
        await super().serve_once()


@breaks("RES-07")
class PreferenceLeaksDescriptors(SmallPlugin):
    async def prefer(self, request: pb.PreferredAllocationRequest) -> pb.PreferredAllocationResponse:
        os.open("/dev/null", os.O_RDONLY)
        return await super().prefer(request)


@breaks("RES-07")
class RefusalsKeepTheirTurn(SmallPlugin):
    """Sixteen Allocate calls at once have a turn; one that is refused does not give it back."""

    turns = 16

    async def allocate(self, request: pb.AllocateRequest) -> pb.AllocateResponse:
        await self.lost.until(lambda _: self.turns > 0)
        self.turns -= 1
        answer = await super().allocate(request)
        self.turns += 1
        return answer
