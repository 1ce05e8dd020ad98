"""Defects of Allocate, PreStartContainer and GetPreferredAllocation."""

import asyncio
import random

from tests.conformance.mutants.listing import DropsFailed
from tests.conformance.mutants.mutant import breaks
from tests.conformance.plugin import IDS, SmallPlugin
from tests.proto import deviceplugin_v1beta1_pb2 as pb

from plugwright.errors import PeerRefused
from plugwright.model import PreferenceRequest
from plugwright.protocol import transport

Response = pb.ContainerAllocateResponse


@breaks("ALO-01")
class RefusesOneDevice(SmallPlugin):
    def check(self, ids: list[str]) -> None:  # type: ignore[override]
        if IDS[3] in ids:
            raise PeerRefused("INTERNAL", "it is not there")
        super().check(ids)


@breaks("ALO-02")
class EmptyAnswer(SmallPlugin):
    async def allocate(self, request: pb.AllocateRequest) -> pb.AllocateResponse:
        return pb.AllocateResponse()


@breaks("ALO-03")
class ResponsePerDevice(SmallPlugin):
    async def allocate(self, request: pb.AllocateRequest) -> pb.AllocateResponse:
        ids = [device_id for container in request.container_requests for device_id in container.devices_ids]
        return pb.AllocateResponse(container_responses=[self.answer([device_id]) for device_id in ids])


@breaks("ALO-03")
class FirstContainerOnly(SmallPlugin):
    async def allocate(self, request: pb.AllocateRequest) -> pb.AllocateResponse:
        response = await super().allocate(request)
        return pb.AllocateResponse(container_responses=response.container_responses[:1])


@breaks("ALO-04")
class ResponsesReversed(SmallPlugin):
    async def allocate(self, request: pb.AllocateRequest) -> pb.AllocateResponse:
        response = await super().allocate(request)
        return pb.AllocateResponse(container_responses=response.container_responses[::-1])


@breaks("ALO-05")
class AllocatesUnknown(DropsFailed):
    def check(self, ids: list[str]) -> None:  # type: ignore[override]
        listed = {device.ID for device in self.devices()}
        super().check([device_id for device_id in ids if device_id in listed])


@breaks("ALO-06")
class AllocatesUnhealthy(SmallPlugin):
    def check(self, ids: list[str]) -> None:  # type: ignore[override]
        unhealthy = {device.ID for device in self.devices() if device.health == "Unhealthy"}
        super().check([device_id for device_id in ids if device_id not in unhealthy])


@breaks("ALO-07")
class AllocatesTwice(SmallPlugin):
    def check(self, ids: list[str]) -> None:  # type: ignore[override]
        super().check(sorted(set(ids)))


@breaks("ALO-08")
class AllocatesOnce(SmallPlugin):
    taken = 0

    def check(self, ids: list[str]) -> None:  # type: ignore[override]
        super().check(ids)
        self.taken += 1
        if self.taken > 2:
            raise PeerRefused("RESOURCE_EXHAUSTED", "it is in use")


@breaks("ALO-09")
class RandomAnswer(SmallPlugin):
    def answer(self, ids: list[str]) -> Response:
        response = super().answer(ids)
        response.envs["TICKET"] = str(random.random())
        return response


@breaks("ALO-10")
class NeedsOrder(SmallPlugin):
    def check(self, ids: list[str]) -> None:  # type: ignore[override]
        super().check(ids)
        if list(ids) != sorted(ids):
            raise PeerRefused("INTERNAL", "not in order")


@breaks("ALO-11")
class SharesState(SmallPlugin):
    latest: list[str]

    async def allocate(self, request: pb.AllocateRequest) -> pb.AllocateResponse:
        self.latest = list(request.container_requests[0].devices_ids)
        await asyncio.sleep(0.02)
        return pb.AllocateResponse(container_responses=[self.answer(self.latest)])


@breaks("ALO-12")
class AllocatesSlowly(SmallPlugin):
    async def allocate(self, request: pb.AllocateRequest) -> pb.AllocateResponse:
        await asyncio.sleep(1.5)
        return await super().allocate(request)


@breaks("ALO-13")
class ForgetsAfterRestart(SmallPlugin):
    holder: dict[str, int]

    def check(self, ids: list[str]) -> None:  # type: ignore[override]
        super().check(ids)
        self.holder = getattr(self, "holder", {})
        for device_id in ids:
            if self.holder.setdefault(device_id, self.registrations) != self.registrations:
                raise PeerRefused("INTERNAL", "it belongs to the last kubelet")


@breaks("PST-01")
class WithoutPreStart(SmallPlugin):
    def methods(self) -> list[transport.Bound]:
        return [method for method in super().methods() if "PreStart" not in method.path]


@breaks("PST-02")
class StartsOnce(SmallPlugin):
    starts = 0

    async def pre_start(self, request: pb.PreStartContainerRequest) -> pb.PreStartContainerResponse:
        self.starts += 1
        if self.starts > 2:
            raise PeerRefused("INTERNAL", "it was started before")
        return await super().pre_start(request)


@breaks("PST-03")
class StartsSlowly(SmallPlugin):
    async def pre_start(self, request: pb.PreStartContainerRequest) -> pb.PreStartContainerResponse:
        await asyncio.sleep(2)
        return await super().pre_start(request)


@breaks("PST-04")
class StartsUnknown(DropsFailed):
    async def pre_start(self, request: pb.PreStartContainerRequest) -> pb.PreStartContainerResponse:
        await self.released("pre-start")
        return pb.PreStartContainerResponse()


@breaks("PRF-01")
class WithoutPreference(SmallPlugin):
    def methods(self) -> list[transport.Bound]:
        return [method for method in super().methods() if "Preferred" not in method.path]


@breaks("PRF-02")
class PrefersTooFew(SmallPlugin):
    def choose(self, request: PreferenceRequest) -> list[str]:
        return super().choose(request)[:-1] if request.size > 1 else super().choose(request)


@breaks("PRF-03")
class PrefersTaken(SmallPlugin):
    def choose(self, request: PreferenceRequest) -> list[str]:
        return [*request.required, *(device_id for device_id in IDS if device_id not in request.required)][
            : request.size
        ]


@breaks("PRF-04")
class IgnoresRequired(SmallPlugin):
    def choose(self, request: PreferenceRequest) -> list[str]:
        return sorted(set(request.available) - set(request.required))[: request.size]


@breaks("PRF-05")
class PrefersOneTwice(SmallPlugin):
    def choose(self, request: PreferenceRequest) -> list[str]:
        return (super().choose(request)[:1] * request.size)[: request.size]


@breaks("PRF-06")
class PrefersAtRandom(SmallPlugin):
    def choose(self, request: PreferenceRequest) -> list[str]:
        others = [device_id for device_id in request.available if device_id not in request.required]
        random.shuffle(others)
        return [*request.required, *others][: request.size]


@breaks("PRF-07")
class PrefersFirst(SmallPlugin):
    def choose(self, request: PreferenceRequest) -> list[str]:
        others = [device_id for device_id in request.available if device_id not in request.required]
        return [*request.required, *others][: request.size]


@breaks("PRF-08")
class OnePreference(SmallPlugin):
    async def prefer(self, request: pb.PreferredAllocationRequest) -> pb.PreferredAllocationResponse:
        response = await super().prefer(request)
        return pb.PreferredAllocationResponse(container_responses=response.container_responses[:1])


@breaks("PRF-09")
class NeedsChoice(SmallPlugin):
    def choose(self, request: PreferenceRequest) -> list[str]:
        if request.size >= len(request.available):
            raise PeerRefused("INTERNAL", "nothing to choose")
        return super().choose(request)


@breaks("PRF-10")
class PrefersSlowly(SmallPlugin):
    async def prefer(self, request: pb.PreferredAllocationRequest) -> pb.PreferredAllocationResponse:
        await asyncio.sleep(1.5)
        return await super().prefer(request)
