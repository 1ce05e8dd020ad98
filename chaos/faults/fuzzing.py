"""Fuzzed messages: at the decoders and the services in this process, and over the sockets of a daemon.

Nothing but an error of ours may come of any bytes: an exception of a library or of Python's own is a hole.
"""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from chaos.experiment import NOT_ASKED, Cell, Experiment, Plan, Row, lost_cell
from chaos.node import FACTS
from chaos.rig import Rig, emulated_rig
from grpclib.client import Channel, UnaryUnaryMethod
from grpclib.encoding.base import CodecBase
from grpclib.exceptions import GRPCError, ProtocolError, StreamTerminatedError
from tests.proto import deviceplugin_v1beta1_pb2 as pb
from tests.proto import podresources_v1_pb2 as pod_pb

from plugwright.errors import PlugwrightError
from plugwright.plugins.mock import Mock
from plugwright.protocol import checkpoint, device_plugin, messages, pod_resources
from plugwright.protocol.transport import Unary
from plugwright.sdk.run import serving
from plugwright.sdk.settings import Settings

__all__ = ["EXPERIMENTS", "mutated"]

_FULL, _QUICK = 1_000_000, 20_000
_OVER_SOCKETS = 50  # one of so many goes over a socket
_IDS = ("mock-0", "mock-1")
_TITLE = "fuzzed messages at the decoders, the services and the sockets"
_METHODS = ("GetDevicePluginOptions", "GetPreferredAllocation", "Allocate", "PreStartContainer", "NoSuchMethod")

Target = Callable[[bytes], Awaitable[None]]


class _Raw(CodecBase):
    """Bytes as they are."""

    __content_subtype__ = "proto"

    def encode(self, message: Any, message_type: Any) -> bytes:
        return bytes(message)

    def decode(self, data: bytes, message_type: Any) -> bytes:
        return data


def mutated(chance: random.Random, seed: bytes) -> bytes:
    """The seed with some of it changed, cut, repeated or replaced; now and then nothing of it is left."""
    data = bytearray(seed)
    for _ in range(chance.randint(1, 6)):
        kind, at = chance.randrange(6), chance.randrange(len(data) + 1)
        if kind == 0 and data:
            data[at % len(data)] ^= 1 << chance.randrange(8)
        elif kind == 1:
            del data[at:]
        elif kind == 2:
            data[at:at] = chance.randbytes(chance.randint(1, 12))
        elif kind == 3:
            data[at:at] = data[: chance.randint(0, 40)]
        elif kind == 4 and data:
            data[at % len(data)] = chance.choice((0, 0x7F, 0x80, 0xFF))
        else:
            data[at : at + chance.randint(0, 8)] = b"\xff" * chance.randint(0, 10)
    return bytes(data)


def _seeds() -> dict[str, bytes]:
    """Good messages, which fuzzed ones are made from."""
    container = pb.ContainerAllocateResponse(
        envs={"A": "b"}, annotations={"c": "d"}, mounts=[pb.Mount(host_path="/a", container_path="/b")],
        devices=[pb.DeviceSpec(host_path="/dev/a", container_path="/dev/b", permissions="rw")],
    )  # fmt: skip
    requests = [pb.ContainerAllocateRequest(devices_ids=_IDS)]
    preference = pb.ContainerPreferredAllocationRequest(
        available_deviceIDs=_IDS, must_include_deviceIDs=_IDS[:1], allocation_size=2
    )
    listed = [
        pb.Device(ID=name, health="Healthy", topology=pb.TopologyInfo(nodes=[pb.NUMANode(ID=1)])) for name in _IDS
    ]
    devices = [pod_pb.ContainerDevices(resource_name="mock/gpu", device_ids=_IDS)]
    pods = [pod_pb.PodResources(name="p", containers=[pod_pb.ContainerResources(name="c", devices=devices)])]
    return {
        "response": container.SerializeToString(),
        "list": pb.ListAndWatchResponse(devices=listed).SerializeToString(),
        "Allocate": pb.AllocateRequest(container_requests=requests).SerializeToString(),
        "GetPreferredAllocation": pb.PreferredAllocationRequest(container_requests=[preference]).SerializeToString(),
        "PreStartContainer": pb.PreStartContainerRequest(devices_ids=_IDS).SerializeToString(),
        "pods": pod_pb.ListPodResourcesResponse(pod_resources=pods).SerializeToString(),
        "checkpoint": checkpoint.encode(_checkpoint(container.SerializeToString())),
    }


def _checkpoint(response: bytes) -> checkpoint.Checkpoint:
    entry = checkpoint.PodDevicesEntry("uid", "main", "mock/gpu", {0: _IDS}, response)
    return checkpoint.Checkpoint((entry,), {"mock/gpu": _IDS})


def _decoders() -> dict[str, Target]:
    async def response(data: bytes) -> None:
        messages.decode(data)

    async def listed(data: bytes) -> None:
        messages.decode_devices(data)

    async def pods(data: bytes) -> None:
        pod_resources.decode_pods(data)

    async def stored(data: bytes) -> None:
        checkpoint.read(data)

    return {"response": response, "list": listed, "pods": pods, "checkpoint": stored}


@asynccontextmanager
async def _services() -> AsyncIterator[dict[str, Target]]:
    """The methods of a served plugin, behind the socket: what the wire hands over goes in here."""
    with TemporaryDirectory(prefix="chaos-", dir="/tmp") as directory:
        settings = Settings(kubelet_dir=Path(directory), state_dir=None, control_socket=None)
        async with serving(Mock("mock/gpu"), settings=settings) as daemon:
            methods = device_plugin.methods(daemon.resource("mock/gpu").service)
            bound = [method for method in methods if isinstance(method, Unary)]
            yield {method.path.rpartition("/")[2]: _target(method) for method in bound}


def _target(method: Unary) -> Target:
    async def call(data: bytes) -> None:
        await method.reply(data)

    return call


async def _in_process(count: int, chance: random.Random) -> Counter[str]:
    """What came of fuzzed messages that must not."""
    holes: Counter[str] = Counter()
    async with _services() as services:
        seeds, targets = _seeds(), {**_decoders(), **services}
        names = sorted(targets.keys() & seeds.keys())
        for number in range(count):
            name = names[number % len(names)]
            try:
                await targets[name](mutated(chance, seeds[name]))
            except PlugwrightError:
                continue
            except Exception as error:  # noqa: BLE001  this is what is looked for
                holes[f"{name}: {type(error).__name__}: {error}"[:120]] += 1
    return holes


async def _over_sockets(rig: Rig, count: int, chance: random.Random) -> Counter[str]:
    """The answers of a daemon by status; `UNKNOWN` is an exception that nobody expected."""
    status = await rig.daemon.status()
    assert status is not None
    endpoint = next(found["endpoint"] for found in status["resources"] if found["name"] == FACTS)
    seeds, answers = _seeds(), Counter[str]()
    channel = Channel(path=str(rig.node.paths.device_plugins / endpoint), codec=_Raw())
    try:
        for name in _chosen(chance, count):
            method = UnaryUnaryMethod(channel, f"/v1beta1.DevicePlugin/{name}", bytes, bytes)
            answers[await _status(method, mutated(chance, seeds.get(name, b"\x0a\x01a")))] += 1
    finally:
        channel.close()
    return answers


def _chosen(chance: random.Random, count: int) -> Iterator[str]:
    for _ in range(count):
        yield chance.choice(_METHODS)


async def _status(method: "UnaryUnaryMethod[bytes, bytes]", data: bytes) -> str:
    try:
        async with asyncio.timeout(5):
            await method(data)
    except GRPCError as error:
        return error.status.name
    except (OSError, TimeoutError, ProtocolError, StreamTerminatedError) as error:
        return f"no answer: {type(error).__name__}"
    return "OK"


async def _fuzz(plan: Plan) -> Row:
    chance = random.Random(plan.seed)
    count = plan.choose(_FULL, _QUICK)
    holes = await _in_process(count - count // _OVER_SOCKETS, chance)
    async with emulated_rig() as rig:
        before = await rig.baseline()
        async with rig.serving() as calls:
            answers = await _over_sockets(rig, count // _OVER_SOCKETS, chance)
        taken, complaint = await rig.recovery(5)
        rig.broken += [f"{number} x {text}" for text, number in holes.most_common(3)]
        rig.broken += _unexpected(answers)
        lost = await lost_cell(rig, before)
    failures = "; ".join(f"{number} x {text}" for text, number in calls.failures.items())
    served = Cell(failures or f"{calls.answered} of {calls.answered}", not failures)
    recovered = Cell(complaint or f"{count:,} messages (seed {plan.seed}), {taken:.1f} s", not complaint)
    return Row("fuzz", _TITLE, served, NOT_ASKED, recovered, lost)


def _unexpected(answers: Mapping[str, int]) -> list[str]:
    wrong = {text: count for text, count in answers.items() if text == "UNKNOWN" or text.startswith("no answer")}
    return [f"{count} x {text} over the socket" for text, count in wrong.items()]


EXPERIMENTS = (Experiment("fuzz", _TITLE, _fuzz, limit=3600),)
