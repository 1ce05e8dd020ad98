"""Rules of the device list: its ids, its health and topology, and the streams that carry it."""

import asyncio
from collections import Counter
from contextlib import aclosing

from plugwright.conformance.asking import check_devices, expect, expect_list
from plugwright.conformance.observations import first_restart, idleness, program_life
from plugwright.conformance.rule import Level, Rule
from plugwright.conformance.session import RegisteredPlugin
from plugwright.conformance.verifier import Verifier
from plugwright.errors import RuleNotApplicable, RuleViolated
from plugwright.kubelet.events import StateChange
from plugwright.model import DEVICE_ID_LIMIT, some
from plugwright.protocol.messages import ListedDevice

__all__ = ["RULES"]

_HEALTH = ("Healthy", "Unhealthy")
_STREAMS = 3
_LAST_NODE = 63  # of the kubelet's masks
_REPEATS = 4  # lists of a resource without changes or requests


class SendsFirstList(Rule):
    id, level, facts = "LST-01", Level.MUST, ("2.12", "8.5")
    title = "ListAndWatch sends a list immediately"
    why = "A resource without a list does not appear on the node at all."
    fix = "Send the current list, even an empty one, as soon as the stream is open."

    async def check(self, verifier: Verifier) -> None:
        session = await verifier.started()
        opened = {call.resource for call in session.kubelet.calls if call.method == "ListAndWatch"}
        if not opened:
            raise RuleNotApplicable("ListAndWatch was never called")
        silent = opened - session.listed()
        expect(not silent, "a list for each stream", f"none for {', '.join(sorted(silent))}")


class ListFits(Rule):
    id, level, facts = "LST-02", Level.MUST, ("2.16", "8.17")
    title = "The list is smaller than 4 MiB"
    why = "The kubelet ends the stream if a message is larger, and the resource stays at 0."
    fix = "Use shorter ids, or offer fewer devices for one resource."

    async def check(self, verifier: Verifier) -> None:
        session = await verifier.started()
        large = [event.text for event in session.stops() if "larger than max" in event.text]
        verifier.examine([*large, *session.lists()], "list")
        expect(not large, "at most 4 MiB", large[0] if large else "")


class IdsAreNotEmpty(Rule):
    id, level, facts = "LST-03", Level.MUST, ("2.9", "8.15")
    title = "Every device has an id"
    why = "The kubelet treats an empty id as a device and allocates it."
    fix = "Omit devices without an identity."

    async def check(self, verifier: Verifier) -> None:
        await check_devices(verifier, lambda device: "" if device.id else "an empty id", "no empty id")


class IdsAreUnique(Rule):
    id, level, facts = "LST-04", Level.MUST, ("2.8", "8.15")
    title = "Every id is listed once"
    why = (
        "The kubelet counts a repeated id once, so a device is missing; an id that is both Healthy and Unhealthy "
        "is counted twice."
    )
    fix = "Derive ids from a property that distinguishes the devices, such as a serial number or an address."

    async def check(self, verifier: Verifier) -> None:
        for event in (await verifier.started()).lists():
            counts = Counter(device.id for device in verifier.examine(event.devices, "device in a list"))
            repeated = sorted(device_id for device_id, count in counts.items() if count > 1)
            expect(not repeated, "unique ids", f"the list of {event.about} repeats {some(repeated)}")


class IdsAreShort(Rule):
    id, level, facts = "LST-05", Level.SHOULD, ("2.7", "8.15")
    title = f"Ids have at most {DEVICE_ID_LIMIT} characters"
    why = (
        "The API defines this limit, and tools that label or report devices rely on it; the kubelet does not check it."
    )
    fix = "Shorten them, with a hash if they must stay unique."

    async def check(self, verifier: Verifier) -> None:
        def problem(device: ListedDevice) -> str:
            return f"{device.id[:20]!r}… of {len(device.id)}" if len(device.id) > DEVICE_ID_LIMIT else ""

        await check_devices(verifier, problem, f"at most {DEVICE_ID_LIMIT} characters")


class HealthIsKnown(Rule):
    id, level, facts = "LST-06", Level.MUST, ("2.6",)
    title = "Health is Healthy or Unhealthy"
    why = "Every value except the exact word Healthy is unhealthy: a device with `healthy` is never allocated."
    fix = "Use the constants of the API."

    async def check(self, verifier: Verifier) -> None:
        def problem(device: ListedDevice) -> str:
            return "" if device.health in _HEALTH else f"health {device.health!r}"

        await check_devices(verifier, problem, "Healthy or Unhealthy")


class NumaNodesExist(Rule):
    id, level, facts = "LST-07", Level.MUST, ("5.6", "5.16", "8.16")
    title = f"NUMA nodes are 0 to {_LAST_NODE}"
    why = (
        "sysfs writes -1 for no node. Sent as it is, or as 255, no node suits the device: the topology policies "
        "restricted and single-numa-node refuse every pod that asks for it. The kubelet's masks have 64 nodes."
    )
    fix = "Omit the topology if the NUMA node is not known."

    async def check(self, verifier: Verifier) -> None:
        def problem(device: ListedDevice) -> str:
            return next((f"NUMA node {node}" for node in device.nodes or () if not 0 <= node <= _LAST_NODE), "")

        await check_devices(verifier, problem, f"NUMA nodes from 0 to {_LAST_NODE}")


class TopologyHasNodes(Rule):
    id, level, facts = "LST-08", Level.SHOULD, ("6.11", "8.16")
    title = "A topology has at least one NUMA node"
    why = "A device with an empty topology is missing from the pod-resources API's GetAllocatableResources."
    fix = "Omit the topology field if there is no NUMA node."

    async def check(self, verifier: Verifier) -> None:
        def problem(device: ListedDevice) -> str:
            return f"{device.id!r} with an empty topology" if device.nodes == () else ""

        await check_devices(verifier, problem, "a topology with nodes, or none")


class StreamStaysOpen(Rule):
    id, level, facts = "LST-09", Level.MUST, ("2.15", "2.21")
    title = "ListAndWatch stays open after the list"
    why = (
        "For the kubelet, the end of the stream is the end of the plugin: all devices become unhealthy, and it "
        "does not call again."
    )
    fix = "Return from ListAndWatch only when the stream is cancelled or the program ends."

    async def check(self, verifier: Verifier) -> None:
        session = await verifier.started()
        if not session.lists():
            raise RuleNotApplicable("there was no list")
        stops = [event for event in session.kubelet.recorded[: verifier.settled] if event in session.stops()]
        ended = [event for event in stops if isinstance(event, StateChange) and "larger than max" not in event.text]
        expect(not ended, "an open stream", f"the stream of {ended[0].about} ended: {ended[0].text}" if ended else "")


class ServesSeveralStreams(Rule):
    id, level, facts = "LST-10", Level.MUST, ("2.22",)
    title = f"{_STREAMS} streams at once each get the list"
    why = "A restarted kubelet opens its stream while the old one may still exist."
    fix = "Give each call its own state, and send the latest list to each."

    async def check(self, verifier: Verifier) -> None:
        for plugin in await verifier.plugins():
            together = asyncio.Barrier(_STREAMS)
            streams = [_held_list(verifier, plugin, together) for _ in range(_STREAMS)]
            await asyncio.gather(*streams)


class ServesAfterDeadStream(Rule):
    id, level, facts = "LST-11", Level.MUST, ("2.15",)
    title = "A disconnected stream does not prevent the next one from getting the list"
    why = (
        "Killed kubelets leave such streams behind; if one of them holds a lock or consumes the update, the next "
        "stream waits indefinitely."
    )
    fix = "End a stream when its context ends, and share no channel between streams."

    async def check(self, verifier: Verifier) -> None:
        for plugin in await verifier.plugins():
            for _ in range(_STREAMS):
                await expect_list(verifier, plugin, "a stream after one that was cut")


class ListStaysSame(Rule):
    id, level, facts, alone = "LST-12", Level.MUST, ("2.5", "2.25"), True
    waits, observation = 1, "first restart"
    title = "The list is the same after a restart of the kubelet: the devices, their health and their NUMA nodes"
    why = (
        "Each list is complete: the kubelet removes omitted devices, and pods that hold them lose them. A device "
        "without its NUMA nodes is given to pods on another NUMA node."
    )
    fix = (
        "Send the same list on every stream, with the current health of each device, however many streams came before."
    )

    async def check(self, verifier: Verifier) -> None:
        seen = await verifier.remembered(first_restart)
        verifier.examine((device_id for ids in seen.before.ids.values() for device_id in ids), "device in a list")
        for resource, ids in seen.before.ids.items():
            missing = sorted(ids - seen.after.ids.get(resource, set()))
            expect(not missing, f"all {len(ids)} devices of {resource}", f"missing: {some(missing)}")
            late = sorted(ids - seen.first_lists.get(resource, ids))
            expect(not late, f"all {len(ids)} devices of {resource} in the first list", f"only later: {some(late)}")
        lost = sorted(device_id for _, device_id in seen.before.healthy - seen.after.healthy)
        expect(not lost, "the devices that were Healthy before", f"not Healthy: {some(lost)}")
        for (resource, device_id), nodes in seen.before.numa.items():
            now = seen.after.numa.get((resource, device_id), nodes)
            expect(set(nodes) == set(now), f"NUMA nodes {list(nodes)} of {device_id!r}, as before", f"{list(now)}")


class ListIsNotRepeated(Rule):
    id, level, facts, observation = "LST-13", Level.SHOULD, ("2.14",), "idleness"
    title = "An unchanged list is not sent repeatedly"
    why = "The kubelet writes its checkpoint to disk for every list."
    fix = "Send a list only if it differs from the previous one."

    async def check(self, verifier: Verifier) -> None:
        idle = await verifier.remembered(idleness)
        often = [f"{count} lists of {resource}" for resource, count in idle.lists.items() if count >= _REPEATS]
        expect(not often, f"fewer than {_REPEATS} lists in {idle.seconds:g} s", some(often))


class IdsSurviveProgram(Rule):
    id, level, facts, alone, observation = "LST-14", Level.MUST, ("8.15",), True, "program life"
    title = "Devices have the same ids after a restart of the program"
    why = "The kubelet knows from its checkpoint which pod holds which id; with new ids, two pods get one device."
    fix = "Derive ids from the hardware, never from a counter, the time or random numbers."

    async def check(self, verifier: Verifier) -> None:
        life = await verifier.remembered(program_life)
        if life.again:
            raise RuleNotApplicable(f"it is not registered after a new start: {life.again}")
        for resource, ids in life.ids.items():
            verifier.examine(ids, "device in a list")
            again = life.ids_again.get(resource, set())
            expect(ids == again, some(sorted(ids), 4), some(sorted(again), 4))


async def _held_list(verifier: Verifier, plugin: RegisteredPlugin, together: asyncio.Barrier) -> None:
    """Reads the first list of a stream, and keeps the stream open until all have read theirs."""
    expected, limit = "a list for each of several streams", verifier.limits.call
    try:
        async with (
            asyncio.timeout(limit),
            plugin.connect() as client,
            aclosing(client.list_and_watch()) as lists,
        ):
            async for _ in lists:
                await together.wait()
                return
    except (TimeoutError, asyncio.BrokenBarrierError):
        await together.abort()
        raise RuleViolated(expected, f"not for all {_STREAMS} of {plugin.resource} in {limit:g} s") from None
    raise RuleViolated(expected, f"a stream of {plugin.resource} ended without one")


RULES: tuple[type[Rule], ...] = (
    SendsFirstList,
    ListFits,
    IdsAreNotEmpty,
    IdsAreUnique,
    IdsAreShort,
    HealthIsKnown,
    NumaNodesExist,
    TopologyHasNodes,
    StreamStaysOpen,
    ServesSeveralStreams,
    ServesAfterDeadStream,
    ListStaysSame,
    ListIsNotRepeated,
    IdsSurviveProgram,
)
