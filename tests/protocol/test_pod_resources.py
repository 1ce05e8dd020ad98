"""Who holds what, as the kubelet tells it; the bytes below were written by hand from the field numbers of the API."""

import asyncio
import os
import stat
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.proto import podresources_v1_pb2 as pb
from tests.protobuf_methods import Method, call
from tests.protocol.held_devices import serve_held_devices

from plugwright.errors import MalformedMessage, PeerGone, PeerRefused
from plugwright.protocol import pod_resources, registration, transport
from plugwright.protocol.pod_resources import (
    AllocatableDevice,
    ClaimDevice,
    ContainerDevices,
    ContainerResources,
    DynamicResource,
    HeldClaimDevice,
    HeldDevice,
    PodResources,
)
from plugwright.protocol.registration import RegisterRequest
from plugwright.protocol.transport import Unary
from plugwright.system import sockets

LIST = "/v1.PodResourcesLister/List"
DEVICE = b"\x0a\x03a/b\x12\x03st0"  # resource_name, device_ids
ON_NODE_ONE = DEVICE + b"\x1a\x04\x0a\x02\x08\x01"  # topology: one node
CPUS = b"\x1a\x02\x03\x04"
CONTAINER = b"\x0a\x01c" + b"\x12\x0a" + DEVICE + b"\x12\x10" + ON_NODE_ONE + CPUS
POD = b"\x0a\x01p\x12\x01n\x1a" + bytes([len(CONTAINER)]) + CONTAINER
IDLE_POD = b"\x0a\x04idle\x12\x01n\x1a\x03\x0a\x01c"
WRITTEN = b"\x0a" + bytes([len(POD)]) + POD + b"\x0a" + bytes([len(IDLE_POD)]) + IDLE_POD


class Node:
    def __init__(self, *holdings: HeldDevice) -> None:
        self.held = holdings

    async def held_devices(self) -> Sequence[HeldDevice]:
        return self.held


def answering(answer: bytes) -> Unary:
    async def reply(_: bytes) -> bytes:
        return answer

    return Unary(LIST, reply)


async def test_a_device_on_two_numa_nodes_is_held_once_and_idle_pods_hold_nothing(root: Path) -> None:
    async with transport.serve(root / "s", [answering(WRITTEN)]), pod_resources.connect(root / "s") as kubelet:
        assert await kubelet.held_devices() == [HeldDevice("a/b", "st0", "n", "p", "c")]


async def test_held_devices_are_sorted(root: Path) -> None:
    first, second = HeldDevice("a/b", "st0", "ns", "p1", "c"), HeldDevice("a/b", "st1", "ns", "p0", "c")
    async with serve_held_devices(Node(second, first), root / "s"), pod_resources.connect(root / "s") as kubelet:
        assert await kubelet.held_devices() == [first, second]


async def test_a_node_without_pods_holds_nothing(root: Path) -> None:
    async with serve_held_devices(Node(), root / "s"), pod_resources.connect(root / "s") as kubelet:
        assert await kubelet.held_devices() == []


async def test_an_answer_of_more_than_4_mib_is_read(root: Path) -> None:
    many = [HeldDevice("example.com/tape", f"{number:063}", "n" * 63, "p" * 63, "c") for number in range(25_000)]
    async with serve_held_devices(Node(*many), root / "s"), pod_resources.connect(root / "s") as kubelet:
        assert await kubelet.held_devices() == many


async def test_a_kubelet_that_refuses_says_so(root: Path) -> None:
    class Limited:
        async def held_devices(self) -> Sequence[HeldDevice]:
            raise PeerRefused("RESOURCE_EXHAUSTED", "rejected by rate limit")

    async with serve_held_devices(Limited(), root / "s"), pod_resources.connect(root / "s") as kubelet:
        with pytest.raises(PeerRefused, match="rejected by rate limit"):
            await kubelet.held_devices()


async def test_a_kubelet_without_the_service_refuses(root: Path) -> None:
    async with transport.serve(root / "s", []), pod_resources.connect(root / "s") as kubelet:
        with pytest.raises(PeerRefused):
            await kubelet.held_devices()


async def test_a_kubelet_that_does_not_answer_is_gone(root: Path) -> None:
    class Deaf:
        async def held_devices(self) -> Sequence[HeldDevice]:
            await asyncio.Event().wait()
            return ()

    async with serve_held_devices(Deaf(), root / "s"), pod_resources.connect(root / "s") as kubelet:
        with pytest.raises(PeerGone):
            await kubelet.held_devices(timeout=0.05)


@pytest.mark.parametrize("answer", [b"\x0a\xff", b"\xff", b"\x0a\x03\x0a\x01\xff"])
async def test_an_answer_that_is_no_message_is_an_error_of_ours(answer: bytes, root: Path) -> None:
    async with transport.serve(root / "s", [answering(answer)]), pod_resources.connect(root / "s") as kubelet:
        with pytest.raises(MalformedMessage, match="s did not answer with a message of this method"):
            await kubelet.held_devices()


HOLDING = ContainerDevices("a/b", "st0", 1)
POD_P = PodResources("p", "n", (ContainerResources("c", (ContainerDevices("a/b", "st0"), HOLDING)),))
IDLE = PodResources("idle", "n", (ContainerResources("c"),))


class Lister:
    """Answers with what it was made of, and knows one pod by name."""

    def __init__(self, *pods: PodResources, devices: Sequence[AllocatableDevice] = ()) -> None:
        self.told, self.devices = pods, devices

    async def pods(self) -> Sequence[PodResources]:
        return self.told

    async def allocatable(self) -> Sequence[AllocatableDevice]:
        return self.devices

    async def pod(self, name: str, namespace: str) -> PodResources:
        for pod in self.told:
            if (pod.name, pod.namespace) == (name, namespace):
                return pod
        raise PeerRefused("UNKNOWN", f"pod {name} in namespace {namespace} not found")

    async def alpha_pods(self) -> Sequence[PodResources]:
        return self.told


async def test_the_bytes_of_a_kubelet_are_decoded(root: Path) -> None:  # 6.5, 6.7: an id and a node at a time
    async with transport.serve(root / "s", [answering(WRITTEN)]), pod_resources.connect(root / "s") as kubelet:
        assert await kubelet.pods() == [POD_P, IDLE]


async def test_pods_are_served_as_the_bytes_of_the_api(root: Path) -> None:  # Appendix A, 6.7
    container = CONTAINER.removesuffix(CPUS)
    pod = b"\x0a\x01p\x12\x01n\x1a" + bytes([len(container)]) + container
    async with pod_resources.serve(Lister(POD_P), root / "s"), transport.connect(root / "s") as kubelet:
        assert await kubelet.call_encoded(LIST, b"") == b"\x0a" + bytes([len(pod)]) + pod


CLAIM_DEVICE = ClaimDevice("gpu.example.com", "n1", "gpu-0", ("example.com/gpu=0", "example.com/all=1"), "s-1")
BARE_DEVICE = ClaimDevice("nic.example.com", "n1", "nic-0")
CLAIMING = PodResources(
    "p",
    "n",
    (
        ContainerResources("c", (HOLDING,), (DynamicResource("n", "one", (CLAIM_DEVICE, BARE_DEVICE)),)),
        ContainerResources("d", (), (DynamicResource("n", "two"),)),
    ),
)


async def test_claims_are_served_as_the_bytes_of_the_api_and_read_again(root: Path) -> None:  # 11.27
    method = Method(LIST, pb.ListPodResourcesRequest, pb.ListPodResourcesResponse)
    async with pod_resources.serve(Lister(CLAIMING), root / "s"):
        async with transport.connect(root / "s") as kubelet:
            reply = await call(kubelet, method, pb.ListPodResourcesRequest())
        first, second = (container.dynamic_resources[0] for container in reply.pod_resources[0].containers)
        assert (first.claim_namespace, first.claim_name, second.claim_name) == ("n", "one", "two")
        shared, bare = first.claim_resources
        assert (shared.driver_name, shared.pool_name, shared.device_name) == ("gpu.example.com", "n1", "gpu-0")
        assert [name.name for name in shared.cdi_devices] == ["example.com/gpu=0", "example.com/all=1"]
        assert (shared.share_id, bare.HasField("share_id")) == ("s-1", False)
        async with pod_resources.connect(root / "s") as client:
            assert await client.pods() == [CLAIMING]
            assert [container.claims for container in (await client.alpha_pods())[0].containers] == [(), ()]


async def test_devices_of_claims_are_held_apart_from_those_of_plugins(root: Path) -> None:
    async with pod_resources.serve(Lister(CLAIMING), root / "s"):
        assert await pod_resources.held_devices(root / "s", 5) == [HeldDevice("a/b", "st0", "n", "p", "c")]
        assert await pod_resources.held_claims(root / "s", 5) == [
            HeldClaimDevice("gpu.example.com", "n1", "gpu-0", "n", "one", "p", "c", "s-1"),
            HeldClaimDevice("nic.example.com", "n1", "nic-0", "n", "one", "p", "c"),
        ]


async def test_one_pod_is_got_by_its_name(root: Path) -> None:  # 6.12
    async with (
        pod_resources.serve(Lister(POD_P, IDLE), root / "s"),
        pod_resources.connect(root / "s") as kubelet,
    ):
        assert await kubelet.pod("p", "n") == POD_P
        with pytest.raises(PeerRefused, match="pod p in namespace other not found") as refused:
            await kubelet.pod("p", "other")
        assert refused.value.code == "UNKNOWN"


async def test_the_first_version_of_the_service_has_no_nodes(root: Path) -> None:  # 6.13
    async with pod_resources.serve(Lister(POD_P), root / "s"), pod_resources.connect(root / "s") as kubelet:
        device = ContainerDevices("a/b", "st0")
        assert await kubelet.alpha_pods() == [PodResources("p", "n", (ContainerResources("c", (device, device)),))]


async def test_an_allocatable_device_has_an_item_for_each_node(root: Path) -> None:  # 6.7 for 6.10
    devices = [AllocatableDevice("a/b", "st1", (1, 0)), AllocatableDevice("a/b", "st0")]
    method = Method(
        "/v1.PodResourcesLister/GetAllocatableResources",
        pb.AllocatableResourcesRequest,
        pb.AllocatableResourcesResponse,
    )
    async with pod_resources.serve(Lister(devices=devices), root / "s"):
        async with transport.connect(root / "s") as kubelet:
            reply = await call(kubelet, method, pb.AllocatableResourcesRequest())
        sent = [(*device.device_ids, [node.ID for node in device.topology.nodes]) for device in reply.devices]
        assert sent == [("st1", [1]), ("st1", [0]), ("st0", [])]
        assert [device.HasField("topology") for device in reply.devices] == [True, True, False]
        async with pod_resources.connect(root / "s") as client:
            assert await client.allocatable() == [
                AllocatableDevice("a/b", "st0"),
                AllocatableDevice("a/b", "st1", (0, 1)),
            ]


async def test_a_client_with_gos_limit_is_refused_an_answer_beyond_it(root: Path) -> None:  # 6.14
    device = ContainerDevices("example.com/tape", "d" * 63)
    pods = [PodResources(f"{number:063}", "n" * 63, (ContainerResources("c", (device,)),)) for number in range(25_000)]
    async with pod_resources.serve(Lister(*pods), root / "s"):
        async with pod_resources.connect(root / "s") as kubelet:
            assert await kubelet.pods() == pods
        async with pod_resources.connect(root / "s", limit=transport.MESSAGE_LIMIT) as kubelet:
            with pytest.raises(PeerRefused, match="received message larger than max") as refused:
                await kubelet.pods()
            assert refused.value.code == "RESOURCE_EXHAUSTED"


async def test_an_old_socket_makes_way_for_the_new_one(root: Path) -> None:  # 6.1
    async with pod_resources.serve(Lister(), root / "s", kept=True) as first:
        pass
    assert first.exists()
    async with pod_resources.serve(Lister(IDLE), root / "s") as second:
        assert [path.name for path in root.iterdir()] == ["s"]
        assert second.exists()
        async with pod_resources.connect(root / "s") as kubelet:
            assert await kubelet.pods() == [IDLE]
    assert [*root.iterdir()] == []


async def test_the_sockets_mode_is_left_to_the_umask(root: Path) -> None:  # 6.1: no chmod
    before = os.umask(0o022)
    try:
        async with pod_resources.serve(Lister(), root / "s") as serving:
            assert stat.S_IMODE(serving.path.stat().st_mode) == 0o755
    finally:
        os.umask(before)


async def test_a_socket_that_was_never_renamed_is_replaced(root: Path) -> None:  # 6.1, killed in between
    with sockets.listen(root / ".new"):
        pass
    async with pod_resources.serve(Lister(), root / "s"):
        assert [path.name for path in root.iterdir()] == ["s"]


async def test_an_answer_over_our_limit_is_refused_with_its_size(root: Path) -> None:
    async def huge(_: bytes) -> bytes:
        return bytes(17 << 20)

    async with transport.serve(root / "s", [transport.Unary("/v1.PodResourcesLister/List", huge)]):
        with pytest.raises(PeerRefused, match=r"larger than max \(17825792 vs. 16777216\)"):
            await pod_resources.held_devices(root / "s", 60)


async def test_a_reply_to_a_registration_is_refused_with_its_size(root: Path) -> None:
    async def huge(_: bytes) -> bytes:
        return bytes(1 << 20)

    async with (
        transport.serve(root / "s", [transport.Unary("/v1beta1.Registration/Register", huge)]),
        registration.connect(root / "s") as kubelet,
    ):
        with pytest.raises(PeerRefused, match=r"larger than max \(1048576 vs. 65536\)"):
            await kubelet.register(RegisterRequest("plugin.sock", "example.com/tape"))
