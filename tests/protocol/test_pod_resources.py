"""Who holds what, as the kubelet tells it; the bytes below were written by hand from the field numbers of the API."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from plugwright.errors import MalformedMessage, PeerGone, PeerRefused
from plugwright.protocol import pod_resources, transport
from plugwright.protocol.pod_resources import Holding
from plugwright.protocol.podresources.v1 import podresources_pb2 as pb
from plugwright.protocol.transport import Method, Unary

LIST = Method("/v1.PodResourcesLister/List", pb.ListPodResourcesRequest, pb.ListPodResourcesResponse)
DEVICE = b"\x0a\x03a/b\x12\x03st0"  # resource_name, device_ids
ON_NODE_ONE = DEVICE + b"\x1a\x04\x0a\x02\x08\x01"  # topology: one node
CPUS = b"\x1a\x02\x03\x04"
CONTAINER = b"\x0a\x01c" + b"\x12\x0a" + DEVICE + b"\x12\x10" + ON_NODE_ONE + CPUS
POD = b"\x0a\x01p\x12\x01n\x1a" + bytes([len(CONTAINER)]) + CONTAINER
IDLE_POD = b"\x0a\x04idle\x12\x01n\x1a\x03\x0a\x01c"
WRITTEN = b"\x0a" + bytes([len(POD)]) + POD + b"\x0a" + bytes([len(IDLE_POD)]) + IDLE_POD


class Node:
    def __init__(self, *holdings: Holding) -> None:
        self.held = holdings

    async def holdings(self) -> Sequence[Holding]:
        return self.held


def answering(answer: bytes) -> Unary[pb.ListPodResourcesRequest, pb.ListPodResourcesResponse]:
    async def reply(_: pb.ListPodResourcesRequest) -> pb.ListPodResourcesResponse:
        return answer  # type: ignore[return-value]  # bytes pass as they are

    return Unary(LIST, reply)


async def test_a_device_on_two_numa_nodes_is_held_once_and_idle_pods_hold_nothing(root: Path) -> None:
    async with transport.serve(root / "s", [answering(WRITTEN)]), pod_resources.connect(root / "s") as kubelet:
        assert await kubelet.holdings() == [Holding("a/b", "st0", "n", "p", "c")]


async def test_holdings_come_back_sorted(root: Path) -> None:
    first, second = Holding("a/b", "st0", "ns", "p1", "c"), Holding("a/b", "st1", "ns", "p0", "c")
    async with pod_resources.serve(Node(second, first), root / "s"), pod_resources.connect(root / "s") as kubelet:
        assert await kubelet.holdings() == [first, second]


async def test_a_node_without_pods_holds_nothing(root: Path) -> None:
    async with pod_resources.serve(Node(), root / "s"), pod_resources.connect(root / "s") as kubelet:
        assert await kubelet.holdings() == []


async def test_an_answer_of_more_than_4_mib_is_read(root: Path) -> None:
    many = [Holding("example.com/tape", f"{number:063}", "n" * 63, "p" * 63, "c") for number in range(25_000)]
    async with pod_resources.serve(Node(*many), root / "s"), pod_resources.connect(root / "s") as kubelet:
        assert await kubelet.holdings() == many


async def test_a_kubelet_that_refuses_says_so(root: Path) -> None:
    class Limited:
        async def holdings(self) -> Sequence[Holding]:
            raise PeerRefused("RESOURCE_EXHAUSTED", "rejected by rate limit")

    async with pod_resources.serve(Limited(), root / "s"), pod_resources.connect(root / "s") as kubelet:
        with pytest.raises(PeerRefused, match="rejected by rate limit"):
            await kubelet.holdings()


async def test_a_kubelet_without_the_service_refuses(root: Path) -> None:
    async with transport.serve(root / "s", []), pod_resources.connect(root / "s") as kubelet:
        with pytest.raises(PeerRefused):
            await kubelet.holdings()


async def test_a_kubelet_that_does_not_answer_is_gone(root: Path) -> None:
    class Deaf:
        async def holdings(self) -> Sequence[Holding]:
            await asyncio.Event().wait()
            return ()

    async with pod_resources.serve(Deaf(), root / "s"), pod_resources.connect(root / "s") as kubelet:
        with pytest.raises(PeerGone):
            await kubelet.holdings(timeout=0.05)


@pytest.mark.parametrize("answer", [b"\x0a\xff", b"\xff", b"\x0a\x03\x0a\x01\xff"])
async def test_an_answer_that_is_no_message_is_an_error_of_ours(answer: bytes, root: Path) -> None:
    async with transport.serve(root / "s", [answering(answer)]), pod_resources.connect(root / "s") as kubelet:
        with pytest.raises(MalformedMessage, match="s did not answer with a message of this method"):
            await kubelet.holdings()
