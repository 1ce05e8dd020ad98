"""Plugins that answer nonsense, too much, too late or not at all: refused in the kubelet's words, and survived."""

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.kubelet.rogue import TAPE, Hanging, Rogue, allocate, always, granting, listing, options, register, registered
from tests.proto import deviceplugin_v1beta1_pb2 as pb

from plugwright.errors import ContainerWaiting, KubeletError, PeerGone, PeerRefused, PodRefused
from plugwright.kubelet import Kubelet, KubeletSettings, Pod, Timing
from plugwright.protocol import checkpoint
from plugwright.protocol.transport import MESSAGE_LIMIT
from plugwright.testing import pod_requesting

BROKEN = b"\xff" * 8
NOT_UTF8 = b"\x0a\x08\x0a\x06\x0a\x01\xff\x12\x01\x78"  # an answer whose env has the name 0xff
HUGE = granting({"HUGE": "x" * (MESSAGE_LIMIT + 1)})
MALFORMED = "rpc error: code = Internal desc = grpc: failed to unmarshal the received message"
TOO_LARGE = r"rpc error: code = ResourceExhausted desc = grpc: received message larger than max \(4194306 vs. 4194304\)"


@pytest.fixture
async def node(root: Path) -> AsyncIterator[Kubelet]:
    async with Kubelet(root, KubeletSettings(timing=Timing(dial=0.2), timeout=60)) as kubelet:
        yield kubelet


async def refusal(kubelet: Kubelet, count: int = 1) -> str:
    """The message in the status of a pod that is refused."""
    with pytest.raises(PodRefused) as raised:
        await kubelet.admit(pod_requesting({TAPE: count}))
    assert raised.value.reason == "UnexpectedAdmissionError"
    return raised.value.message


async def admitted(kubelet: Kubelet, count: int = 1) -> Pod:
    return await kubelet.admit(pod_requesting({TAPE: count}))


def tapes(pod: Pod) -> str:
    return pod.container("main").env["TAPES"]


async def test_response_without_containers_is_refused_and_its_leak_is_a_finding(node: Kubelet) -> None:
    """3.40, 3.43."""
    async with registered(node, Rogue()) as rogue:
        await node.allocatable(TAPE, 2)
        rogue.answers["Allocate"] = always(granting())
        assert "Allocate failed due to no containers return in allocation response" in await refusal(node)
        assert [finding.fact for finding in node.findings] == ["3.43"]
        rogue.answers["Allocate"] = allocate
        assert tapes(await admitted(node, 2)) == "st0,st1"  # nothing leaked here


async def test_first_of_several_container_responses_counts(node: Kubelet) -> None:
    """3.41."""
    async with registered(node, Rogue()) as rogue:
        await node.allocatable(TAPE, 2)
        rogue.answers["Allocate"] = always(granting({"TAPES": "first"}, {"TAPES": "second"}))
        assert tapes(await admitted(node)) == "first"


async def test_empty_container_response_is_accepted(node: Kubelet) -> None:
    async with registered(node, Rogue()) as rogue:
        await node.allocatable(TAPE, 2)
        rogue.answers["Allocate"] = always(granting({}))
        granted = (await admitted(node)).container("main")
        assert (granted.env, granted.nodes, granted.mounts, granted.cdi) == ({}, (), (), ())
        [entry] = checkpoint.decode(node.paths.checkpoint.read_bytes()).entries or ()
        assert entry.answer == b""


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (
            HUGE,
            rf"code = ResourceExhausted desc = grpc: received message larger than max \({HUGE.ByteSize()} vs. 4194304",
        ),
        (BROKEN, MALFORMED),
        (NOT_UTF8, MALFORMED),
        (PeerRefused("UNKNOWN", "hw fault"), "rpc error: code = Unknown desc = hw fault"),
        (PeerRefused("CANCELLED", ""), "rpc error: code = Canceled desc = "),
        (RuntimeError("a bug"), "rpc error: code = Unknown desc = Internal Server Error"),
    ],
    ids=["huge", "broken", "not UTF-8", "an error", "an error without a word", "a crash"],
)
async def test_a_bad_answer_to_allocate_refuses_the_pod_and_frees_the_device(
    node: Kubelet, answer: object, text: str
) -> None:
    """3.39."""
    async with registered(node, Rogue("only")) as rogue:
        await node.allocatable(TAPE, 1)
        rogue.answers["Allocate"] = always(answer)
        message = await refusal(node)
        assert message.startswith("Pod was rejected: Allocate failed due to rpc error")
        assert re.search(text, message)
        rogue.answers["Allocate"] = allocate
        assert tapes(await admitted(node)) == "only"


async def test_a_plugin_that_dies_in_the_middle_of_a_call_refuses_the_pod(node: Kubelet) -> None:
    async with registered(node, Rogue()) as rogue:
        await node.allocatable(TAPE, 2)
        hanging = rogue.answers["Allocate"] = Hanging()
        refused = asyncio.create_task(refusal(node))
        await hanging.asked.wait()
    assert "Allocate failed due to rpc error: code = Unavailable" in await refused
    assert await node.allocatable(TAPE, 0) == 0


async def test_a_slow_plugin_makes_all_pods_wait_their_turn(node: Kubelet) -> None:
    """3.37."""
    async with registered(node, Rogue()) as slow, registered(node, Rogue("x0"), "example.com/other"):
        await node.allocatable(TAPE, 2)
        await node.allocatable("example.com/other", 1)
        hanging = slow.answers["Allocate"] = Hanging()
        first = asyncio.create_task(admitted(node))
        await hanging.asked.wait()
        second = asyncio.create_task(node.admit(pod_requesting({"example.com/other": 1})))
        asked = {call.resource for call in node.calls if call.method == "Allocate"}
        assert not asked
        assert await node.capacity(TAPE) == 2  # but for pods, nothing waits
        hanging.free.set()
        assert (tapes(await first), tapes(await second)) == ("st0", "x0")


async def test_cancelled_admission_leaves_nothing_behind(node: Kubelet) -> None:
    async with registered(node, Rogue("only")) as rogue:
        await node.allocatable(TAPE, 1)
        hanging = rogue.answers["Allocate"] = Hanging()
        waiting = asyncio.create_task(admitted(node))
        await hanging.asked.wait()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert node.pods == ()
        rogue.answers["Allocate"] = allocate
        assert tapes(await admitted(node)) == "only"


async def test_a_kubelet_stops_while_a_plugin_hangs(node: Kubelet) -> None:
    async with registered(node, Rogue()) as rogue:
        await node.allocatable(TAPE, 2)
        hanging = rogue.answers["Allocate"] = Hanging()
        waiting = asyncio.create_task(admitted(node))
        await hanging.asked.wait()
        await node.restart()
        with pytest.raises(KubeletError, match="was stopped while it admitted"):  # which refuses nothing
            await waiting
        assert await node.capacity(TAPE, 0) == 0


@pytest.mark.parametrize(
    ("preference", "got"),
    [
        (["st3", "st2"], "st2,st3"),
        (["st3", "st3", "st3"], "st0,st3"),
        (["none", "st9", "", "st1"], "st0,st1"),
        (["st3", "st2", "st1", "st0"], "st2,st3"),
        ([], "st0,st1"),
    ],
    ids=["as wished", "one thing again and again", "what is not there", "too many", "nothing"],
)
async def test_odd_preference_is_followed_as_far_as_possible(node: Kubelet, preference: list[str], got: str) -> None:
    """3.29."""
    rogue = Rogue("st0", "st1", "st2", "st3")
    rogue.answers["GetDevicePluginOptions"] = options(preference=True)
    preferred = pb.ContainerPreferredAllocationResponse(deviceIDs=preference)
    rogue.answers["GetPreferredAllocation"] = always(pb.PreferredAllocationResponse(container_responses=[preferred]))
    async with registered(node, rogue):
        await node.allocatable(TAPE, 4)
        assert tapes(await admitted(node, 2)) == got


async def test_preference_without_containers_is_ignored(node: Kubelet) -> None:
    rogue = Rogue()
    rogue.answers["GetDevicePluginOptions"] = options(preference=True)
    async with registered(node, rogue):
        await node.allocatable(TAPE, 2)
        assert tapes(await admitted(node)) == "st0"


@pytest.mark.parametrize("answer", [BROKEN, PeerRefused("INTERNAL", "no idea")], ids=["broken", "an error"])
async def test_a_preference_that_fails_refuses_the_pod(node: Kubelet, answer: object) -> None:
    """3.30."""
    rogue = Rogue()
    rogue.answers["GetDevicePluginOptions"] = options(preference=True)
    rogue.answers["GetPreferredAllocation"] = always(answer)
    async with registered(node, rogue):
        await node.allocatable(TAPE, 2)
        assert "device plugin GetPreferredAllocation rpc failed with err: rpc error: code" in await refusal(node)


async def test_container_waits_while_pre_start_container_fails(node: Kubelet) -> None:
    """3.48, 3.53."""
    rogue = Rogue()
    rogue.answers["GetDevicePluginOptions"] = options(pre_start=True)
    rogue.answers["PreStartContainer"] = always(BROKEN)
    async with registered(node, rogue):
        await node.allocatable(TAPE, 2)
        pod = await admitted(node)
        with pytest.raises(ContainerWaiting, match="PreStartContainer rpc failed with err"):
            pod.container("main")
        rogue.answers["PreStartContainer"] = always(pb.PreStartContainerResponse())
        await node.restart_container(pod, "main")
        assert tapes(pod) == "st0"


async def test_pre_start_container_that_hangs_times_out(root: Path) -> None:
    rogue = Rogue()
    rogue.answers["GetDevicePluginOptions"] = options(pre_start=True)
    rogue.answers["PreStartContainer"] = Hanging()
    async with Kubelet(root, KubeletSettings(timing=Timing(pre_start=0.1))) as node, registered(node, rogue):
        await node.allocatable(TAPE, 2)
        pod = await admitted(node)
        assert "code = DeadlineExceeded desc = context deadline exceeded" in pod.state("main").message


@pytest.mark.parametrize(
    "message", [BROKEN, listing("x" * MESSAGE_LIMIT), b"\x0a\x03\x0a\x01\xff"], ids=["broken", "huge", "not UTF-8"]
)
async def test_a_bad_list_ends_the_plugin_and_nothing_else(node: Kubelet, message: bytes) -> None:
    """2.15, 2.16."""
    async with registered(node, Rogue()) as rogue, registered(node, Rogue("x0"), "example.com/other"):
        await node.allocatable(TAPE, 2)
        rogue.lists.publish(message)
        assert await node.allocatable(TAPE, 0) == 0
        assert await node.capacity(TAPE) == 2
        assert await node.allocatable("example.com/other", 1) == 1


async def test_last_of_many_lists_counts(node: Kubelet) -> None:
    async with registered(node, Rogue()) as rogue:
        await node.allocatable(TAPE, 2)
        for count in range(300):
            rogue.lists.publish(listing(*(f"st{n}" for n in range(count % 7))))
            await asyncio.sleep(0)
        rogue.lists.publish(listing("last"))
        await node.allocatable(TAPE, 1)
        assert tapes(await admitted(node)) == "last"
        assert (checkpoint.decode(node.paths.checkpoint.read_bytes()).registered or {})[TAPE] == ("last",)


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (PeerRefused("INTERNAL", "no options"), "rpc error: code = Internal desc = no options"),
        (BROKEN, MALFORMED),
        (b"\x0a" * (MESSAGE_LIMIT + 2), TOO_LARGE),
    ],
    ids=["an error", "broken", "huge"],
)
async def test_a_plugin_whose_options_cannot_be_had_is_not_registered(node: Kubelet, answer: object, text: str) -> None:
    """1.33."""
    rogue = Rogue()
    rogue.answers["GetDevicePluginOptions"] = always(answer)
    with pytest.raises(PeerRefused, match=f"failed to get device plugin options: {text}"):
        async with registered(node, rogue):
            pass
    assert node.node() == {}


async def test_plugin_that_never_answers_for_its_options_blocks_no_other(node: Kubelet) -> None:
    """2.2: only its own call waits."""
    silent = Rogue()
    silent.answers["GetDevicePluginOptions"] = Hanging(options())
    with pytest.raises((PeerRefused, PeerGone, TimeoutError)):
        async with asyncio.timeout(0.2), registered(node, silent, "example.com/silent"):
            pass
    async with registered(node, Rogue()):
        assert await node.allocatable(TAPE, 2) == 2
    assert list(node.node()) == [TAPE]


@pytest.mark.parametrize("noise", [b"", b"\x00" * 100, b"HTTP/1.1 400 Bad Request\r\n\r\n", bytes(range(256)) * 300])
async def test_something_that_does_not_speak_grpc_is_not_registered(node: Kubelet, noise: bytes) -> None:
    async def speak(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(noise)
        writer.close()

    server = await asyncio.start_unix_server(speak, node.paths.device_plugins / "noise.sock")
    async with server:
        with pytest.raises(PeerRefused, match="failed to"):
            await register(node, "noise.sock", timeout=30)
    assert node.node() == {}


async def test_socket_without_a_listener_is_refused_in_the_kubelets_words(node: Kubelet) -> None:
    """1.32."""
    with pytest.raises(PeerRefused, match="failed to dial device plugin: context deadline exceeded"):
        await register(node, "nobody.sock", timeout=30)
