"""Plugins, pods, restarts and crashes in any order: no device twice, none lost, checkpoint and node status agree."""

import asyncio
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack, aclosing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from tests.kubelet.rogue import Hanging, Rogue, allocate, always, registered
from tests.proto import deviceplugin_v1beta1_pb2 as pb

from plugwright.errors import KubeletError, PeerRefused, PodRefused
from plugwright.kubelet import Kubelet, KubeletSettings, Pod
from plugwright.kubelet.devicemanager.devices import DeviceCount
from plugwright.kubelet.events import StateChange
from plugwright.protocol import checkpoint
from plugwright.testing import pod_requesting

T = TypeVar("T")
RESOURCES = ("example.com/a", "example.com/b")
IDS = ("d0", "d1", "d2", "d3")
UNAVAILABLE = re.compile(r"unavailable for (\S+)\. Requested: \d+, Available: (\d+)")
FOREVER = 3600.0

resources = st.sampled_from(RESOURCES)
lists = st.dictionaries(st.sampled_from(IDS), st.booleans())  # the devices, and whether they are healthy
requests = st.dictionaries(resources, st.integers(0, 3), min_size=1)


@dataclass
class Served:
    """The expected counts of a resource, and its plugin if it is running."""

    healthy: frozenset[str] = frozenset()
    unhealthy: frozenset[str] = frozenset()
    rogue: Rogue | None = None
    stack: AsyncExitStack = field(default_factory=AsyncExitStack)
    remembered: bool = True  # by the checkpoint

    @property
    def count(self) -> DeviceCount:
        return DeviceCount(len(self.healthy) + len(self.unhealthy), len(self.healthy))

    def stop(self) -> None:
        self.rogue, self.healthy, self.unhealthy = None, frozenset(), self.healthy | self.unhealthy


class AnyOrder(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.root = Path(tempfile.mkdtemp(prefix="pw-", dir="/tmp"))
        self.now = 0.0
        self.kubelet = self.run(self.started())
        self.served: dict[str, Served] = {}
        self.active: list[Pod] = []

    async def started(self) -> Kubelet:
        return await Kubelet(self.root / "k", KubeletSettings(clock=lambda: self.now)).__aenter__()

    def run(self, work: Coroutine[object, object, T]) -> T:
        return self.runner.run(work)

    def teardown(self) -> None:
        try:
            self.run(self.ended())
        finally:
            self.runner.close()
            shutil.rmtree(self.root)

    async def ended(self) -> None:
        await self.check_all_are_free()
        await self.kubelet.__aexit__(None, None, None)
        for served in self.served.values():
            await served.stack.aclose()

    async def check_all_are_free(self) -> None:
        """Without pods, one pod may have everything."""
        for pod in self.kubelet.pods:
            await self.kubelet.remove(pod)
        for resource, served in self.served.items():
            if served.healthy:
                pod = await self.kubelet.admit(pod_requesting({resource: len(served.healthy)}))
                assert self.devices(pod, resource) == served.healthy

    async def until_recorded(self, kind: str, resource: str, cause: Callable[[], Awaitable[None]]) -> None:
        """Runs `cause` and waits for the state change that it causes."""
        async with aclosing(self.kubelet.events(new=True)) as events:
            await cause()
            async for event in events:
                if isinstance(event, StateChange) and (event.kind, event.about) == (kind, resource):
                    return

    @rule(resource=resources, devices=lists)
    def a_plugin_registers(self, resource: str, devices: dict[str, bool]) -> None:
        self.run(self.register(resource, devices))

    async def register(self, resource: str, devices: dict[str, bool]) -> None:
        await self.end(resource)
        served, rogue = self.served.setdefault(resource, Served()), Rogue()
        rogue.lists.publish(_listing(devices))

        async def cause() -> None:
            await served.stack.enter_async_context(registered(self.kubelet, rogue, resource))

        await self.until_recorded("list", resource, cause)
        served.rogue, served.remembered = rogue, True
        self.note_list(resource, devices)

    @rule(resource=resources, devices=lists)
    def a_plugin_lists(self, resource: str, devices: dict[str, bool]) -> None:
        served = self.served.get(resource)
        if served is not None and served.rogue is not None:
            self.run(self.list_anew(resource, served.rogue, devices))

    async def list_anew(self, resource: str, rogue: Rogue, devices: dict[str, bool]) -> None:
        async def cause() -> None:
            rogue.lists.publish(_listing(devices))

        await self.until_recorded("list", resource, cause)
        self.note_list(resource, devices)

    def note_list(self, resource: str, devices: dict[str, bool]) -> None:
        self.served[resource].healthy = frozenset(device_id for device_id, healthy in devices.items() if healthy)
        self.served[resource].unhealthy = frozenset(device_id for device_id, healthy in devices.items() if not healthy)

    @rule(resource=resources)
    def a_plugin_ends(self, resource: str) -> None:
        self.run(self.end(resource))

    async def end(self, resource: str) -> None:
        served = self.served.get(resource)
        if served is None:
            return
        stack, served.stack = served.stack, AsyncExitStack()
        if served.rogue is None:
            await stack.aclose()
        else:
            await self.until_recorded("stopped", resource, stack.aclose)
            served.stop()

    @rule(request=requests, init=st.booleans())
    def a_pod_comes(self, request: dict[str, int], init: bool) -> None:
        self.run(self.admit(request, {"prepare": request} if init else {}))

    async def admit(self, request: dict[str, int], init: dict[str, dict[str, int]]) -> None:
        held, known = self.held(), self.kubelet.node()
        try:
            pod = await self.kubelet.admit(pod_requesting(request, init=init))
        except PodRefused as refused:
            for resource, available in UNAVAILABLE.findall(refused.message):
                free = self.served[resource].healthy - held[resource].keys()
                assert int(available) == len(free), "a device was lost"
            return
        self.active.append(pod)
        for resource, count in request.items():
            got = self.devices(pod, resource)
            assert len(got) == (count if resource in known else 0)  # 3.63
            assert not got or got <= self.served[resource].healthy

    @rule(request=requests)
    def a_pod_comes_while_plugins_fail(self, request: dict[str, int]) -> None:
        async def play() -> None:
            self.answer_with(always(PeerRefused("UNKNOWN", "broken")))
            await self.admit(request, {})
            self.answer_with(allocate)

        self.run(play())

    def answer_with(self, answer: Callable[..., Awaitable[object]]) -> None:
        for served in self.served.values():
            if served.rogue is not None:
                served.rogue.answers["Allocate"] = answer

    @precondition(lambda self: self.active)
    @rule(which=st.integers(0, 99), finished=st.booleans())
    def a_pod_goes(self, which: int, finished: bool) -> None:
        pod = self.active.pop(which % len(self.active))
        if finished:
            self.kubelet.finish(pod)
        else:
            self.run(self.kubelet.remove(pod))

    @rule(reboot=st.booleans())
    def the_kubelet_restarts(self, reboot: bool) -> None:
        self.run(self.restart(reboot))

    @rule(request=requests)
    def the_kubelet_crashes_while_a_pod_comes(self, request: dict[str, int]) -> None:
        self.run(self.crash(request))

    async def crash(self, request: dict[str, int]) -> None:
        hanging = Hanging()
        self.answer_with(hanging)
        coming = asyncio.create_task(self.admit(request, {}))
        asked = asyncio.create_task(hanging.asked.wait())
        await asyncio.wait({coming, asked}, return_when=asyncio.FIRST_COMPLETED)
        asked.cancel()
        await self.restart(reboot=False)
        with suppress(KubeletError):  # it was stopped while it admitted the pod
            await coming

    async def restart(self, reboot: bool) -> None:
        """Plugins are cut off; containers that run keep what they have, those that do not are refused (3.68, 3.69)."""
        before = {pod.uid: self.holdings(pod) for pod in self.active}
        satisfied = all(
            map(self.has_all_it_asked_for, self.active)
        )  # else the fit check counts devices that no pod has
        await self.kubelet.restart(reboot=reboot)
        for served in self.served.values():
            served.stop()
            served.unhealthy = frozenset()
        for pod in self.active:
            if reboot and before[pod.uid]:
                assert pod.phase == "Failed", "a pod that was not running was admitted without a plugin"
            elif satisfied and not reboot and len(pod.containers) == 1:
                assert pod.phase == "Running", "a running pod lost its devices"
        self.active = [pod for pod in self.active if pod.phase == "Running"]
        assert all(self.holdings(pod) == before[pod.uid] for pod in self.active)

    @rule()
    def an_hour_passes(self) -> None:
        self.now += FOREVER
        for served in self.served.values():
            if served.rogue is None:
                served.unhealthy, served.remembered = frozenset(), False
        self.kubelet.node()  # which is when the kubelet notices

    @invariant()
    def the_node_says_what_the_newest_lists_said(self) -> None:
        assert self.kubelet.node() == {resource: served.count for resource, served in sorted(self.served.items())}

    @invariant()
    def no_device_is_granted_twice(self) -> None:
        assert not [device_id for devices in self.held().values() for device_id, count in devices.items() if count > 1]

    @invariant()
    def the_checkpoint_is_what_the_kubelet_remembers(self) -> None:
        if not self.kubelet.paths.checkpoint.exists():
            assert not self.served
            return
        written = checkpoint.decode(self.kubelet.paths.checkpoint.read_bytes())
        on_disk: Counter[tuple[str, str, str]] = Counter()
        for entry in written.entries or ():
            for device_id in {device_id for ids in (entry.devices or {}).values() for device_id in ids or ()}:
                if entry.container == "main":
                    on_disk[entry.pod_uid, entry.resource, device_id] += 1
        for pod in self.active:
            assert {key[1:] for key in on_disk if key[0] == pod.uid} == self.holdings(pod)
        registered = written.registered or {}
        assert set(registered) == {resource for resource, served in self.served.items() if served.remembered}
        for resource, served in self.served.items():
            if served.rogue is not None:
                assert set(registered[resource] or ()) == served.healthy

    def holdings(self, pod: Pod) -> set[tuple[str, str]]:
        return {(device.resource, device.device_id) for device in self.kubelet.device_health(pod)["main"]}

    def has_all_it_asked_for(self, pod: Pod) -> bool:
        return all(len(self.devices(pod, resource)) == pod.spec.requested(resource) for resource in pod.spec.resources)

    def devices(self, pod: Pod, resource: str) -> set[str]:
        return {device_id for held, device_id in self.holdings(pod) if held == resource}

    def held(self) -> dict[str, Counter[str]]:
        return {
            resource: Counter(device_id for pod in self.active for device_id in self.devices(pod, resource))
            for resource in RESOURCES
        }


def _listing(devices: dict[str, bool]) -> bytes:
    healths = {True: "Healthy", False: "Unhealthy"}
    listed = [pb.Device(ID=device_id, health=healths[healthy]) for device_id, healthy in devices.items()]
    return pb.ListAndWatchResponse(devices=listed).SerializeToString()


def test_no_device_is_granted_twice_or_lost_in_any_order() -> None:
    run_state_machine_as_test(AnyOrder, settings=settings(max_examples=40, stateful_step_count=25))
