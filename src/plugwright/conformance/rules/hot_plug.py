"""Rules of health, if the operator provides commands that make a device fail and recover."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager

from plugwright.conformance.asking import allocate, answered_devices, expect, outcome, with_devices
from plugwright.conformance.restarting import restart_kubelet
from plugwright.conformance.rule import Level, Rule
from plugwright.conformance.session import RegisteredPlugin, Session
from plugwright.conformance.verifier import Verifier
from plugwright.errors import PeerGone, PrerequisiteBroken, RuleNotApplicable, RuleViolated
from plugwright.model import some
from plugwright.protocol.messages import ListedDevice

__all__ = ["RULES"]

_STREAMS = 3
_OTHERS = 4  # the first devices, of which one fails


async def _chosen(verifier: Verifier, place: int = -1) -> tuple[Session, RegisteredPlugin, str]:
    """The device that is made to fail: the last healthy one, or the one at another position."""
    if not verifier.options.fail or not verifier.options.recover:
        raise RuleNotApplicable("needs --fail-command and --recover-command")
    session = await verifier.running()
    plugin = (await with_devices(verifier, 2))[0]
    return session, plugin, plugin.ids[place]


@asynccontextmanager
async def _failed(verifier: Verifier, place: int = -1) -> AsyncIterator[tuple[Session, RegisteredPlugin, str]]:
    """A device that has failed while inside, as the plugin lists it."""
    session, plugin, device_id = await _chosen(verifier, place)
    await verifier.run_command(verifier.options.fail, device_id, plugin.resource)
    try:
        await _fails(session, plugin.resource, device_id)
        yield session, plugin, device_id
    finally:
        await verifier.run_command(verifier.options.recover, device_id, plugin.resource)
        await _recovers(session, plugin.resource, device_id)


async def _fails(session: Session, resource: str, device_id: str) -> None:
    await _until(session, resource, device_id, "Unhealthy", "HOT-01")


async def _recovers(session: Session, resource: str, device_id: str) -> None:
    await _until(session, resource, device_id, "Healthy", "HOT-03")


async def _until(session: Session, resource: str, device_id: str, health: str, rule: str) -> None:
    """Waits until the kubelet's list has the device with this health; `rule` is about the change itself."""

    def is_listed() -> bool:
        return _health(session, resource, device_id) == health

    try:
        await session.kubelet.until(is_listed, session.limits.register, f"{device_id!r} is not {health}")
    except PeerGone as error:
        seen = _health(session, resource, device_id) or "not listed"
        raise PrerequisiteBroken(rule, f"{device_id!r} of {resource} as {health}", f"{error}, but {seen}") from None


def _health(session: Session, resource: str, device_id: str) -> str:
    """Its health in the last list; of a device that is listed twice, the worse one."""
    lists = [event for event in session.lists() if event.about == resource]
    found = {device.health for device in lists[-1].devices if device.id == device_id} if lists else set()
    return max(found, key=lambda health: health != "Healthy", default="")


class ReportsFailure(Rule):
    id, level, facts, observation = "HOT-01", Level.MUST, ("2.10", "7.7"), "health"
    title = "A device that fails is listed as Unhealthy"
    why = "Otherwise the kubelet continues to allocate it, and each pod that gets it fails."
    fix = "Watch the device, and send a new list when its health changes."

    async def check(self, verifier: Verifier) -> None:
        async with _failed(verifier):
            pass


class KeepsFailedDevice(Rule):
    id, level, facts, since, observation = "HOT-02", Level.MUST, ("2.25", "8.9"), "", "health"
    title = "A device that fails stays in the list"
    why = "Kubelets from 1.34 on may crash when a device that a pod holds is dropped from the list."
    fix = "List it as Unhealthy for as long as a pod may hold it."

    async def check(self, verifier: Verifier) -> None:
        session, plugin, device_id = await _chosen(verifier)
        mark = session.mark
        await verifier.run_command(verifier.options.fail, device_id, plugin.resource)
        try:
            await session.kubelet.until(lambda: bool(session.lists(mark)), session.limits.register, "no new list")
            ids = {device.id for device in session.lists(mark)[-1].devices}
            expect(device_id in ids, f"{device_id!r} as Unhealthy", "it is missing")
        except PeerGone as error:
            raise RuleViolated("a new list", str(error)) from None
        finally:
            await verifier.run_command(verifier.options.recover, device_id, plugin.resource)
            await _recovers(session, plugin.resource, device_id)


class ReportsRecovery(Rule):
    id, level, facts, observation = "HOT-03", Level.MUST, ("2.5",), "health"
    title = "A device that recovers is listed as Healthy again, and can be allocated"
    why = "Otherwise the node loses a device for each fault until the program is restarted."
    fix = "Watch for the recovery as you watch for the failure."

    async def check(self, verifier: Verifier) -> None:
        known = (await verifier.remembered(answered_devices)).answers
        async with _failed(verifier) as (session, plugin, device_id):
            pass
        expect(_health(session, plugin.resource, device_id) == "Healthy", "Healthy", "Unhealthy")
        if device_id in known.get(plugin.resource, {}):
            error = await outcome(allocate(verifier, plugin, [device_id]))
            expect(error is None, f"an answer to Allocate of {device_id!r} after its recovery", str(error))


class FailsAlone(Rule):
    id, level, facts, observation = "HOT-04", Level.MUST, ("2.10",), "health"
    title = "Other devices stay as they are when one fails"
    why = (
        "One lost device must not cause every pod of the node to be refused. If ids are positions among the "
        "healthy devices, pods get devices that other pods hold."
    )
    fix = "Store the health of each device separately, by its id."

    async def check(self, verifier: Verifier) -> None:
        known = (await verifier.remembered(answered_devices)).answers
        async with _failed(verifier, 0) as (session, plugin, device_id):
            latest = [event for event in session.lists() if event.about == plugin.resource][-1].devices
            others = sorted(set(plugin.ids) - {device_id} - _healthy(latest))
            expect(not others, "the others are Healthy", f"not so: {', '.join(others)}")
            _expect_nodes(plugin, latest)
            for other in [one for one in plugin.ids[1:_OTHERS] if one in known.get(plugin.resource, {})]:
                before, now = known[plugin.resource][other].nodes, await allocate(verifier, plugin, [other])
                paths = {node.host_path for answer in now for node in answer.nodes}
                lost = sorted({node.host_path for node in before} - paths)
                expect(not lost, f"{some(lost)} for {other!r}, as before", some(sorted(paths)) or "no node")
        lists = [event for event in session.lists() if event.about == plugin.resource]
        _expect_nodes(plugin, lists[-1].devices)  # after the recovery


def _expect_nodes(plugin: RegisteredPlugin, latest: Sequence[ListedDevice]) -> None:
    """Raises RuleViolated unless each device has the NUMA nodes that it had before the failure."""
    before = {device.id: sorted(device.nodes or ()) for device in plugin.devices}
    for device in latest:
        nodes = sorted(device.nodes or ())
        expect(
            nodes == before.get(device.id, nodes), f"NUMA nodes {before.get(device.id)} of {device.id!r}", f"{nodes}"
        )


class RefusesFailed(Rule):
    id, level, facts, observation = "HOT-05", Level.SHOULD, ("3.16",), "health"
    title = "Allocate of a device that has failed is refused"
    why = "The kubelet may have chosen it just before the failure."
    fix = "Check the current health in Allocate."

    async def check(self, verifier: Verifier) -> None:
        async with _failed(verifier) as (_, plugin, device_id):
            error = await outcome(allocate(verifier, plugin, [device_id]))
            expect(error is not None, "an error", f"{device_id!r} was allocated")


class UpdatesEveryStream(Rule):
    id, level, facts, observation = "HOT-06", Level.MUST, ("2.22",), "health"
    title = "A change reaches every open stream"
    why = "Streams that read one channel take updates from each other, and the kubelet's stream may get none."
    fix = "Publish the latest list, and let each stream compare it with the list that it last sent."

    async def check(self, verifier: Verifier) -> None:
        _, plugin, device_id = await _chosen(verifier)
        async with AsyncExitStack() as stack:
            streams = [await stack.enter_async_context(_stream(verifier, plugin)) for _ in range(_STREAMS)]
            async with _failed(verifier):
                for number, stream in enumerate(streams, 1):
                    seen = await _reads(verifier, stream, device_id)
                    expect(seen, "the change on each stream", f"not on stream {number} of {_STREAMS}")


class KeepsUpdateFromDeadStream(Rule):
    id, level, facts, observation = "HOT-07", Level.MUST, ("2.15",), "health"
    title = "A change reaches the kubelet after it was restarted"
    why = "A dead stream that consumes the only update leaves the kubelet with an old list until the next change."
    fix = "End the streams of the previous registration, and share no channel with them."

    async def check(self, verifier: Verifier) -> None:
        session, _, _ = await _chosen(verifier)
        await restart_kubelet(session)
        await restart_kubelet(session)
        async with _failed(verifier):
            pass


class ReportsFailureWhileAway(Rule):
    id, level, facts, observation = "HOT-08", Level.MUST, ("2.5",), "health"
    title = "The next list contains failures that occurred while there was no kubelet"
    why = "The kubelet takes the first list after a start as the complete state."
    fix = "Watch devices whether or not a kubelet is connected."

    async def check(self, verifier: Verifier) -> None:
        session, plugin, device_id = await _chosen(verifier)
        mark = session.mark
        await session.kubelet.stop()
        await verifier.run_command(verifier.options.fail, device_id, plugin.resource)
        try:
            await session.kubelet.start()
            await session.until_registered(verifier.resources, mark=mark)
            await _fails(session, plugin.resource, device_id)
        finally:
            await verifier.run_command(verifier.options.recover, device_id, plugin.resource)
            await _recovers(session, plugin.resource, device_id)


class ListsChangesOnce(Rule):
    id, level, facts, observation = "HOT-09", Level.MUST, ("2.5", "2.8"), "health"
    title = "A list after a change has each device once"
    why = "A device that is listed twice, with two healths, is counted as healthy and as unhealthy."
    fix = "Change the device in your list and send the complete list; do not append changed devices."

    async def check(self, verifier: Verifier) -> None:
        async with _failed(verifier) as (session, plugin, _):
            lists = [event for event in session.lists() if event.about == plugin.resource]
            count = Counter(device.id for device in lists[-1].devices)
            twice = sorted(device_id for device_id, times in count.items() if times > 1)
            expect(not twice, "each device once", f"{some(twice)} twice or more often")


class ReportsNextFailure(Rule):
    id, level, facts, observation = "HOT-10", Level.MUST, ("2.5", "2.10"), "health"
    title = "A device that fails again is listed as Unhealthy again"
    why = "A device that has failed once often fails again, and then each pod that gets it fails."
    fix = "Watch the device for as long as the program runs, not until its first failure."

    async def check(self, verifier: Verifier) -> None:
        async with _failed(verifier):
            pass
        async with _failed(verifier):
            pass


def _healthy(devices: tuple[ListedDevice, ...]) -> set[str]:
    return {device.id for device in devices if device.health == "Healthy"}


@asynccontextmanager
async def _stream(verifier: Verifier, plugin: RegisteredPlugin) -> AsyncIterator[AsyncIterator[list[ListedDevice]]]:
    """A stream whose first list was read."""
    async with plugin.connect() as client, aclosing(client.list_and_watch()) as lists:
        async with asyncio.timeout(verifier.limits.call):
            await anext(lists)
        yield lists


async def _reads(verifier: Verifier, lists: AsyncIterator[list[ListedDevice]], device_id: str) -> bool:
    try:
        async with asyncio.timeout(verifier.limits.call):
            async for devices in lists:
                healths = {device.health for device in devices if device.id == device_id}
                if healths != {"Healthy"}:
                    return True
    except (TimeoutError, PeerGone):
        return False
    return False


RULES: tuple[type[Rule], ...] = (
    ReportsFailure,
    KeepsFailedDevice,
    ReportsRecovery,
    FailsAlone,
    RefusesFailed,
    UpdatesEveryStream,
    KeepsUpdateFromDeadStream,
    ReportsFailureWhileAway,
    ListsChangesOnce,
    ReportsNextFailure,
)
