"""The Registration service; numbers in comments are those of the facts."""

import asyncio
from pathlib import Path

import pytest
from tests.kubelet.actors import OTHER, TAPE, ScriptedPlugin, quick_settings, register, registered
from tests.proto import deviceplugin_v1beta1_pb2 as pb
from tests.protobuf_methods import Method, call

from plugwright.errors import PeerRefused, PeerSilent
from plugwright.kubelet import Kubelet
from plugwright.kubelet.metrics import MetricName
from plugwright.model import Options
from plugwright.protocol import device_plugin, transport
from plugwright.protocol.registration import RegisterRequest
from plugwright.testing import pod_requesting

UNREACHABLE = "failed to dial device plugin: context deadline exceeded"


async def refusal(kubelet: Kubelet, request: RegisterRequest) -> PeerRefused:
    with pytest.raises(PeerRefused) as raised:
        await register(kubelet, request)
    assert raised.value.code == "UNKNOWN"  # 1.26
    return raised.value


async def test_the_service_is_found_by_its_name_on_the_wire(node: Kubelet) -> None:  # 0.5, 0.7
    method = Method("/v1beta1.Registration/Register", pb.RegisterRequest, pb.Empty)
    async with device_plugin.serve(ScriptedPlugin("a"), node.paths.device_plugins / "p.sock"):
        async with transport.connect(node.paths.kubelet_socket) as kubelet:
            request = pb.RegisterRequest(version="v1beta1", endpoint="p.sock", resource_name=TAPE)
            await call(kubelet, method, request)
        assert await node.allocatable(TAPE, 1) == 1


@pytest.mark.parametrize(
    "path", ["/v1.Registration/Register", "/grpc.health.v1.Health/Check", "/grpc.reflection.v1.ServerReflection/Info"]
)
async def test_nothing_else_is_served_there(node: Kubelet, path: str) -> None:  # 1.9
    async with transport.connect(node.paths.kubelet_socket) as kubelet:
        with pytest.raises(PeerRefused) as raised:
            await call(kubelet, Method(path, pb.Empty, pb.Empty), pb.Empty())
    assert raised.value.code == "UNIMPLEMENTED"


@pytest.mark.parametrize("version", ["v1beta2", "v1", "", "V1BETA1", "v1beta1 "])
async def test_another_version_is_refused(node: Kubelet, version: str) -> None:  # 1.26, 1.27
    refused = await refusal(node, RegisterRequest(TAPE, "x.sock", version=version))
    assert refused.message == (
        f'requested API version "{version}" is not supported by kubelet. Supported version is ["v1beta1"]'
    )


@pytest.mark.parametrize("name", ["tape", "", "/tape", "kubernetes.io/tape", "example.com/-x", "requests.a.b/x"])
async def test_name_that_is_no_extended_resource_is_refused(node: Kubelet, name: str) -> None:  # 1.28
    refused = await refusal(node, RegisterRequest(name, "x.sock"))
    assert refused.message == f'the ResourceName "{name}" is invalid'


async def test_version_is_checked_first_and_every_attempt_counts(node: Kubelet) -> None:  # 1.25
    refused = await refusal(node, RegisterRequest("no-slash", "x.sock", version="v2"))
    assert "requested API version" in refused.message
    assert node.metrics.value(MetricName.REGISTRATIONS, resource_name="no-slash") == 1


async def test_endpoint_without_a_listener_is_refused(node: Kubelet) -> None:  # 1.32
    assert (await refusal(node, RegisterRequest(TAPE, "nobody.sock"))).message == UNREACHABLE
    assert node.node() == {}


async def test_plugin_with_a_shorter_deadline_sees_its_own(root: Path) -> None:  # 1.32
    async with Kubelet(root) as kubelet:  # which would dial for ten seconds
        with pytest.raises(PeerSilent):
            await register(kubelet, RegisterRequest(TAPE, "nobody.sock"), timeout=0.1)


async def test_an_endpoint_may_leave_the_directory(node: Kubelet) -> None:  # 1.29
    async with device_plugin.serve(ScriptedPlugin("a"), node.paths.root / "out.sock"):
        await register(node, RegisterRequest(TAPE, "../out.sock"))
        assert await node.allocatable(TAPE, 1) == 1
    assert [finding.fact for finding in node.findings] == ["1.29"]


async def test_an_absolute_endpoint_lies_below_the_directory(node: Kubelet) -> None:  # 1.29
    async with device_plugin.serve(ScriptedPlugin("a"), node.paths.device_plugins / "p.sock"):
        await register(node, RegisterRequest(TAPE, "/p.sock"))
        assert await node.allocatable(TAPE, 1) == 1
        outside = node.paths.root / "out.sock"
        async with device_plugin.serve(ScriptedPlugin("b"), outside):
            assert (await refusal(node, RegisterRequest(TAPE, str(outside)))).message == UNREACHABLE


async def test_empty_endpoint_addresses_the_directory_and_is_refused(node: Kubelet) -> None:  # 1.29
    assert (await refusal(node, RegisterRequest(TAPE, ""))).message == UNREACHABLE


async def test_options_come_from_the_plugin_and_not_from_the_request(node: Kubelet) -> None:  # 1.30, 2.3
    plugin = ScriptedPlugin("a", options=Options(pre_start=True))
    async with device_plugin.serve(plugin, node.paths.device_plugins / "p.sock"):
        await register(node, RegisterRequest(TAPE, "p.sock", options=Options(preference=True)))
        await node.allocatable(TAPE, 1)
        await node.admit(pod_requesting({TAPE: 1}))
    assert plugin.methods == ["GetDevicePluginOptions", "ListAndWatch", "Allocate", "PreStartContainer"]


async def test_the_answer_comes_after_the_options_and_before_the_list(node: Kubelet) -> None:  # 1.31, 1.34
    plugin = ScriptedPlugin("a")
    options, lists = plugin.hold("GetDevicePluginOptions"), plugin.hold("ListAndWatch")
    async with device_plugin.serve(plugin, node.paths.device_plugins / "p.sock"):
        registering = asyncio.create_task(register(node, RegisterRequest(TAPE, "p.sock")))
        await options.asked.wait()
        assert not registering.done()
        assert plugin.methods == ["GetDevicePluginOptions"]
        options.free.set()
        await registering
        await lists.asked.wait()
        assert node.node() == {}
        lists.free.set()
        assert await node.allocatable(TAPE, 1) == 1


async def test_without_options_there_is_no_resource_and_no_list(node: Kubelet) -> None:  # 1.33, 1.38
    plugin = ScriptedPlugin("a")
    plugin.errors["GetDevicePluginOptions"] = "not now"
    with pytest.raises(PeerRefused) as raised:
        async with registered(node, plugin):
            pass
    assert raised.value.message == "failed to get device plugin options: rpc error: code = Unknown desc = not now"
    assert node.node() == {}
    assert plugin.methods == ["GetDevicePluginOptions"]


async def test_resource_that_is_served_may_be_registered_again(node: Kubelet) -> None:  # 1.35
    async with registered(node, ScriptedPlugin("a"), "one.sock"):
        await node.allocatable(TAPE, 1)
        async with registered(node, ScriptedPlugin("a", "b"), "two.sock"):
            assert await node.allocatable(TAPE, 2) == 2


async def test_one_registration_does_not_wait_for_another(node: Kubelet) -> None:  # 1.36
    slow = ScriptedPlugin("a")
    hold = slow.hold("GetDevicePluginOptions")
    async with device_plugin.serve(slow, node.paths.device_plugins / "slow.sock"):
        registering = asyncio.create_task(register(node, RegisterRequest(TAPE, "slow.sock")))
        await hold.asked.wait()
        async with (
            registered(node, ScriptedPlugin("x", resource=OTHER)),
            registered(node, ScriptedPlugin("b", "c"), "same.sock"),
        ):
            assert await node.allocatable(OTHER, 1) == 1
            assert await node.allocatable(TAPE, 2) == 2  # not even for one of the same name
            hold.free.set()
            await registering
            assert await node.allocatable(TAPE, 1) == 1


async def test_failed_second_registration_leaves_the_first_plugin_with_a_finding(node: Kubelet) -> None:  # 1.37
    second = ScriptedPlugin("b")
    second.errors["GetDevicePluginOptions"] = "not now"
    async with registered(node, ScriptedPlugin("a"), "one.sock"):
        await node.allocatable(TAPE, 1)
        with pytest.raises(PeerRefused):
            async with registered(node, second, "two.sock"):
                pass
        assert [finding.fact for finding in node.findings] == ["1.37"]
        await node.admit(pod_requesting({TAPE: 1}))
    assert await node.allocatable(TAPE, 0) == 0  # where a real kubelet would go on advertising it


async def test_since_1_37_a_socket_that_is_connected_is_refused(root: Path) -> None:  # 1.35, 1.37
    async with Kubelet(root, quick_settings(version="1.37")) as kubelet:
        async with registered(kubelet, ScriptedPlugin("a"), "one.sock") as plugin:
            await kubelet.allocatable(TAPE, 1)
            refused = await refusal(kubelet, RegisterRequest(TAPE, "one.sock"))
            assert refused.message == f"device plugin already connected: {kubelet.paths.device_plugins / 'one.sock'}"
            assert plugin.methods.count("GetDevicePluginOptions") == 2  # only then it is refused
            [finding] = kubelet.findings
            assert (finding.fact, "refused until the kubelet restarts" in finding.really) == ("1.37", True)
            async with registered(kubelet, ScriptedPlugin("a", "b"), "two.sock"):
                assert await kubelet.allocatable(TAPE, 2) == 2
        assert await kubelet.allocatable(TAPE, 0) == 0
        async with registered(kubelet, ScriptedPlugin("a"), "one.sock"):  # where a real kubelet would refuse it
            assert await kubelet.allocatable(TAPE, 1) == 1


async def test_since_1_37_a_failed_registration_on_another_socket_forgets_nothing(root: Path) -> None:  # 1.37
    second = ScriptedPlugin("b")
    second.errors["GetDevicePluginOptions"] = "not now"
    async with (
        Kubelet(root, quick_settings(version="1.37", strict=True)) as kubelet,
        registered(kubelet, ScriptedPlugin("a"), "one.sock"),
    ):
        with pytest.raises(PeerRefused):
            async with registered(kubelet, second, "two.sock"):
                pass
        assert kubelet.findings == ()


async def test_a_test_may_wait_in_and_refuse_a_registration(root: Path) -> None:
    seen: list[RegisterRequest] = []

    async def refuse_first(request: RegisterRequest) -> None:
        seen.append(request)
        if len(seen) == 1:
            raise PeerRefused("UNKNOWN", "not now")

    async with Kubelet(root, quick_settings(on_register=refuse_first)) as kubelet:
        refused = await refusal(kubelet, RegisterRequest(TAPE, "one.sock"))
        assert refused.message == "not now"
        async with registered(kubelet, ScriptedPlugin("a"), "one.sock"):
            assert await kubelet.allocatable(TAPE, 1) == 1
        assert [request.endpoint for request in seen] == ["one.sock", "one.sock"]


async def test_a_kubelet_that_hangs_up_ends_the_stream_and_takes_the_next_registration(node: Kubelet) -> None:  # 2.15
    async with registered(node, ScriptedPlugin("a"), "one.sock") as plugin:
        await node.allocatable(TAPE, 1)
        node.hang_up(TAPE)
        assert await node.allocatable(TAPE, 0) == 0
        await plugin.streams.until(lambda opened: opened == 0)
        await register(node, RegisterRequest(TAPE, "one.sock"))
        assert await node.allocatable(TAPE, 1) == 1
