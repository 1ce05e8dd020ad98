"""The small plugin with a defect that several rules stumble over, for the tests of findings."""

import argparse
import asyncio
import os
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))  # it is run as a program of its own

from tests.conformance.plugin import IDS, SmallPlugin
from tests.proto import deviceplugin_v1beta1_pb2 as pb

from plugwright.errors import PeerRefused


class PanicsInAllocate(SmallPlugin):
    async def allocate(self, request: pb.AllocateRequest) -> pb.AllocateResponse:
        print("panic: close of closed channel\n\ngoroutine 41 [running]:", flush=True)
        os._exit(2)


class PanicsInStreams(SmallPlugin):
    """A second stream that its client cancels closes a channel again."""

    async def list_and_watch(self) -> AsyncGenerator[bytes, None]:
        second = self.streams.value > 0
        async with aclosing(super().list_and_watch()) as lists:
            try:
                async for devices in lists:
                    yield devices
            finally:
                if second:
                    os.write(1, b"panic: close of closed channel\n")
                    os._exit(2)


class StopsListening(SmallPlugin):
    """A request that it does not expect closes its listener, and the program runs on."""

    def check(self, ids: Sequence[str]) -> None:
        if not set(ids) <= set(IDS):
            asyncio.get_running_loop().call_soon(self.close)
        super().check(ids)

    def close(self) -> None:
        for path in self.directory.glob(f"part-{os.getpid()}-*"):
            path.unlink()

    async def until_removed(self, name: str) -> None:
        await asyncio.Event().wait()


class StopsListeningLate(StopsListening):
    """Its listener closes only after the next call was answered, as on a machine where the close has to wait."""

    late = False

    def check(self, ids: Sequence[str]) -> None:
        self.late = self.late or not set(ids) <= set(IDS)
        SmallPlugin.check(self, ids)

    async def get_options(self, _: pb.Empty) -> pb.DevicePluginOptions:
        if self.late:
            self.close()
        return await super().get_options(_)


class RefusesDevice(SmallPlugin):
    def check(self, ids: Sequence[str]) -> None:
        super().check(ids)
        if IDS[-1] in ids:
            raise PeerRefused("INTERNAL", f"open /dev/{IDS[-1]}: no such device")


class RefusesEveryDevice(SmallPlugin):
    def check(self, ids: Sequence[str]) -> None:
        raise PeerRefused("INTERNAL", "open /dev/parts: no such device")


class HasNoDevices(SmallPlugin):
    def devices(self) -> list[pb.Device]:
        return []


DEFECTS = {
    "panics-in-allocate": PanicsInAllocate,
    "panics-in-streams": PanicsInStreams,
    "stops-listening": StopsListening,
    "stops-listening-late": StopsListeningLate,
    "refuses-a-device": RefusesDevice,
    "refuses-every-device": RefusesEveryDevice,
    "has-no-devices": HasNoDevices,
}

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--defect", choices=DEFECTS, required=True)
    arguments = parser.parse_args()
    sys.exit(asyncio.run(DEFECTS[arguments.defect](arguments.root).run()))
