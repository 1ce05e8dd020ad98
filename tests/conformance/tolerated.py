"""Plugins and drivers that do what a kubelet tolerates: real ones do, and no rule may fail them for it.

`python tolerated.py --root DIR --variant NAME` runs one of them.
"""

import argparse
import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))  # it is run as a program of its own

from msgspec.structs import replace
from tests.conformance.driver import Document, Refused, SmallDriver
from tests.conformance.plugin import SmallPlugin

from plugwright.protocol.dra import Claim, PreparedDevice
from plugwright.protocol.dra_health import ReportedHealth


class EndsWithoutKubelet(SmallPlugin):
    """A DaemonSet starts it again."""

    async def run(self) -> int:
        return await super().run() if (self.directory / "kubelet.sock").exists() else 2


class EndsWithTheKubelet(SmallPlugin):
    """It registers once in its life, and ends with an error when the kubelet goes."""

    async def serve_once(self) -> None:
        if self.registrations:
            print("the kubelet is gone", flush=True)
            os._exit(1)
        await super().serve_once()


class NamesSocketByTheSecond(SmallPlugin):
    """As upstream's sample plugin does; a socket that is there already ends it."""

    def socket_name(self) -> str:
        name = f"dp.{int(time.time())}"
        if (self.directory / name).exists():
            print("address already in use", flush=True)
            os._exit(1)
        return name


class ComesBackAfterPause(SmallPlugin):
    """It looks for its socket every now and then."""

    async def until_removed(self, name: str) -> None:
        await super().until_removed(name)
        await asyncio.sleep(1.2)


class ServesAgain(SmallPlugin):
    """It starts its server once more, for the late event of the socket with which it has just registered."""

    async def serve_once(self) -> None:
        if self.registrations and not self.registrations % 2:
            await asyncio.sleep(1)
        await super().serve_once()

    async def until_removed(self, name: str) -> None:
        if self.registrations % 2:
            await super().until_removed(name)
        await self.streams.until(bool)  # the kubelet has connected


class OpenToReaders(SmallDriver):
    """Its sockets have the mode of the usual umask: others can read, and connecting takes the right to write."""

    socket_mode = 0o755


class OneFileForAll(SmallDriver):
    """A device has one CDI name, in one file, whichever claims have it."""

    def cdi_device(self, claim: Claim, result: Document) -> str:
        return str(result["device"])

    def spec_path(self, claim: Claim) -> Path:
        return self.cdi / f"{self.name}.json"

    def write_spec(self, claim: Claim, results: Sequence[Document]) -> None:
        super().write_spec(claim, [{"device": one["name"]} for one in self.devices()])

    def remove_spec(self, claim: Claim) -> None:
        pass


class CommonDevice(SmallDriver):
    """Every claim also gets the same CDI device, with what the containers of a node have in common."""

    def prepared(self, claim: Claim, result: Document) -> PreparedDevice:
        device = super().prepared(claim, result)
        return replace(device, cdi_devices=(*device.cdi_devices, f"{self.name}/claim=common"))

    def write_spec(self, claim: Claim, results: Sequence[Document]) -> None:
        super().write_spec(claim, results)
        common = {"name": "common", "containerEdits": {"env": ["NODE_DRIVER_VERSION=1"]}}
        spec = {"cdiVersion": "0.6.0", "kind": f"{self.name}/claim", "devices": [common]}
        (self.cdi / f"{self.name}-common.json").write_text(json.dumps(spec))


class AnswersWithoutDevices(SmallDriver):
    """It does its work in the runtime, by NRI."""

    def prepared_before(self, claim: Claim, results: Sequence[Document]) -> Sequence[PreparedDevice]:
        return ()

    async def prepare_claim(self, claim: Claim) -> Sequence[PreparedDevice]:
        await super().prepare_claim(claim)
        return ()


class RefusesDamagedState(SmallDriver):
    """It does not serve without knowing who holds its devices, and names the file."""

    def begin(self) -> None:
        super().begin()
        if self.checkpoint.exists() and '"plugwright verify"' in self.checkpoint.read_text():
            sys.exit(f"the checkpoint {self.checkpoint.name} is damaged")


class LeasesForAnHour(SmallDriver):
    """It notices the end of a stream with the next report, and holds a descriptor until then."""

    async def watch(self) -> AsyncGenerator[Sequence[ReportedHealth], None]:
        os.open("/dev/null", os.O_RDONLY)
        async with aclosing(super().watch()) as messages:
            async for reports in messages:
                yield [replace(report, timeout=3600) for report in reports]


class TrustsScheduler(SmallDriver):
    """It prepares a device for as many claims as ask for it."""

    def check_free(self, uid: str, result: Document, claims: Mapping[str, Sequence[Document]]) -> None:
        if not isinstance(result.get("device"), str):
            raise Refused("a result without a device")


PLUGINS: Mapping[str, Callable[[Path], SmallPlugin]] = {
    kind.__name__: kind
    for kind in (EndsWithoutKubelet, EndsWithTheKubelet, NamesSocketByTheSecond, ComesBackAfterPause, ServesAgain)
}
DRIVERS: Mapping[str, Callable[[Path, Path, str], SmallDriver]] = {
    kind.__name__: kind
    for kind in (
        OpenToReaders,
        OneFileForAll,
        CommonDevice,
        AnswersWithoutDevices,
        RefusesDamagedState,
        LeasesForAnHour,
        TrustsScheduler,
    )
}


async def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--variant", choices=(*PLUGINS, *DRIVERS), required=True)
    arguments = parser.parse_args()
    if arguments.variant in PLUGINS:
        return await PLUGINS[arguments.variant](arguments.root).run()
    make = DRIVERS[arguments.variant]
    return await make(arguments.root, Path(os.environ["CDI_ROOT"]), os.environ["NODE_NAME"]).run()


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
