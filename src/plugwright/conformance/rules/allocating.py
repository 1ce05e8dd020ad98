"""Rules of Allocate and PreStartContainer: which calls are answered, how often, and how soon."""

import asyncio
import time
from collections.abc import Mapping, Sequence

from plugwright.conformance.asking import (
    UNKNOWN_ID,
    allocate,
    answered_devices,
    expect,
    outcome,
    with_devices,
    with_option,
)
from plugwright.conformance.observations import newly_started
from plugwright.conformance.restarting import restart_kubelet
from plugwright.conformance.rule import Level, Rule
from plugwright.conformance.session import RegisteredPlugin
from plugwright.conformance.verifier import Verifier
from plugwright.errors import PeerRefused, RuleNotApplicable
from plugwright.model import some
from plugwright.protocol.messages import AllocateResponse

__all__ = ["RULES"]

_CONCURRENT = 10
_PRE_START_LIMIT = 30.0  # of the kubelet
_MOST = 16  # devices of one container


class AllocatesEveryDevice(Rule):
    id, level, facts = "ALO-01", Level.MUST, ("3.36", "3.39")
    title = "Every healthy device can be allocated alone"
    why = "The kubelet chooses any healthy device; an error refuses the pod permanently."
    fix = "List a device as Unhealthy if it cannot be allocated."

    async def check(self, verifier: Verifier) -> None:
        for plugin in await with_devices(verifier):
            errors = (await verifier.remembered(answered_devices)).errors.get(plugin.resource, {})
            refused = ", ".join(f"{device_id!r}: {error}" for device_id, error in list(errors.items())[:3])
            expect(not errors, f"an answer for each of {len(plugin.ids)} devices of {plugin.resource}", refused)


class AnswersAreNotEmpty(Rule):
    id, level, facts = "ALO-02", Level.MUST, ("3.40", "3.43")
    title = "Allocate is never answered without a container"
    why = "The kubelet refuses the pod, and keeps the device marked as in use until its next clean-up."
    fix = "Return one response, even if it is empty, or an error."

    async def check(self, verifier: Verifier) -> None:
        for plugin in await with_devices(verifier):
            responses = await allocate(verifier, plugin, plugin.ids[:1])
            expect(responses, "one container response", f"none from {plugin.resource}")


class OneResponsePerContainer(Rule):
    id, level, facts = "ALO-03", Level.MUST, ("3.41", "8.11")
    title = "Allocate is answered with one response for each container"
    why = (
        "Kubelets use only the first response: a plugin that creates one for each device hands out only the "
        "first device."
    )
    fix = "Loop over container_requests, and put all devices of a container into its response."

    async def check(self, verifier: Verifier) -> None:
        for plugin in await with_devices(verifier, 2):
            one, two = plugin.ids[:2]
            for containers in ([[one, two]], [[one], [two]]):
                if await _refuses_several(verifier, plugin, containers[0]):
                    continue
                count = len(await allocate(verifier, plugin, *containers))
                expect(count == len(containers), f"{len(containers)} responses to {containers}", f"{count} responses")


class ResponsesAreInOrder(Rule):
    id, level, facts = "ALO-04", Level.MUST, ("8.11",)
    title = "Responses are in the order of the containers"
    why = "A container would get the devices of another one."
    fix = "Append the responses while you loop over container_requests."

    async def check(self, verifier: Verifier) -> None:
        for plugin in await with_devices(verifier, 2):
            one, two = plugin.ids[:2]
            single = [(await allocate(verifier, plugin, [device_id]))[:1] for device_id in (one, two)]
            both = await allocate(verifier, plugin, [one], [two])
            different = single[0] != single[1]
            swapped = different and [both[:1], both[1:2]] == [single[1], single[0]]
            expect(not swapped, f"the answer for {one!r} first", f"that for {two!r} came first")
            repeated = different and both[:1] == both[1:2] and both[:1] in single
            expect(not repeated, f"the answers for {one!r} and {two!r}", "the same answer for both containers")


class RefusesUnknown(Rule):
    id, level, facts = "ALO-05", Level.SHOULD, ("2.25", "8.11")
    title = "Allocate of a device that is not listed is refused"
    why = (
        "A device may disappear between the choice and the call. Kubelets from 1.34 on crash when they record a "
        "device that is no longer listed; with older ones, the container starts without it."
    )
    fix = "Look up every id in the current list, and return an error for an unknown one."

    async def check(self, verifier: Verifier) -> None:
        for plugin in await with_devices(verifier):
            error = await outcome(allocate(verifier, plugin, [UNKNOWN_ID]))
            expect(error is not None, "an error", f"{plugin.resource} allocated {UNKNOWN_ID!r}")


class RefusesUnhealthy(Rule):
    id, level, facts = "ALO-06", Level.SHOULD, ("3.16",)
    title = "Allocate of an unhealthy device is refused"
    why = "A device may fail between the choice and the call; the pod would start with a broken device."
    fix = "Return an error for a device that is currently not healthy."

    async def check(self, verifier: Verifier) -> None:
        plugins = [
            (plugin, device.id)
            for plugin in await verifier.plugins()
            for device in plugin.devices
            if device.health == "Unhealthy"
        ]
        if not plugins:
            raise RuleNotApplicable("no device is unhealthy")
        for plugin, device_id in plugins[:1]:
            error = await outcome(allocate(verifier, plugin, [device_id]))
            expect(
                error is not None, "an error", f"{plugin.resource} allocated {device_id!r}, which it lists as Unhealthy"
            )


class HandlesRepeatedId(Rule):
    id, level, facts, note = "ALO-07", Level.SHOULD, ("3.54",), True
    title = "A device that is requested twice in one call is not handed out twice"
    why = (
        "No kubelet sends an id twice, and runc accepts a repeated device node, but other clients and runtimes "
        "guarantee neither."
    )
    fix = "Refuse the request, or treat the ids as a set."

    async def check(self, verifier: Verifier) -> None:
        for plugin in await with_devices(verifier):
            device_id = plugin.ids[0]
            if await outcome(allocate(verifier, plugin, [device_id, device_id])) is not None:
                continue
            once = await allocate(verifier, plugin, [device_id])
            twice = await allocate(verifier, plugin, [device_id, device_id])
            expect(_sizes(twice) == _sizes(once), "an error, or the answer for one device", f"{_sizes(twice)} items")


class AllocatesAgain(Rule):
    id, level, facts, holds = "ALO-08", Level.MUST, ("3.35", "3.61", "8.11"), True
    title = "A device can be allocated again"
    why = (
        "The kubelet never reports a freed device to plugins, and containers of a pod share the devices of its "
        "init containers."
    )
    fix = "Do not record allocations; the kubelet does."

    async def check(self, verifier: Verifier) -> None:
        for plugin in await with_devices(verifier):
            for number in range(3):
                error = await outcome(allocate(verifier, plugin, plugin.ids[:1]))
                expect(error is None, "the same answer as before", f"call {number + 1} of {plugin.ids[0]!r}: {error}")


class AnswersAreRepeatable(Rule):
    id, level, facts = "ALO-09", Level.SHOULD, ("3.49", "8.12")
    title = "The same devices get the same answer"
    why = "The kubelet uses the first answer for all restarts of a container; different answers would not match it."
    fix = "Derive the answer only from the devices; sort the entries of maps."

    async def check(self, verifier: Verifier) -> None:
        for plugin in await with_devices(verifier):
            ids = plugin.ids[:1]
            seen = [await allocate(verifier, plugin, ids) for _ in range(4)]
            expect(all(answer == seen[0] for answer in seen), "the same answer each time", "answers that differ")


class OrderOfIdsIsFree(Rule):
    id, level, facts = "ALO-10", Level.MUST, ("3.27",)
    title = "Devices can be requested in any order"
    why = "The kubelet's sets have no order: the order of the ids is different each time."
    fix = "Sort the ids if the order matters."

    async def check(self, verifier: Verifier) -> None:
        for plugin in await with_devices(verifier, 2):
            ids = plugin.ids[:3]
            errors = [await outcome(allocate(verifier, plugin, order)) for order in (ids, ids[::-1])]
            refused = [error for error in errors if error]
            expect(len(refused) != 1, "an answer for both orders", f"one was refused: {next(iter(refused), None)}")


class AnswersConcurrently(Rule):
    id, level, facts = "ALO-11", Level.MUST, ("1.36", "8.11")
    title = f"{_CONCURRENT} Allocate calls at once get the answers of single ones"
    why = (
        "Calls of a kubelet from before and after a restart overlap; shared state would mix up the containers' devices."
    )
    fix = "Use no variable that outlives a call."

    async def check(self, verifier: Verifier) -> None:
        for plugin in await with_devices(verifier):
            ids = (plugin.ids * _CONCURRENT)[:_CONCURRENT]
            alone = {device_id: await allocate(verifier, plugin, [device_id]) for device_id in dict.fromkeys(ids)}
            together = await asyncio.gather(*(_answer_or_refusal(verifier, plugin, device_id) for device_id in ids))
            wrong = _mixed_up(alone, list(zip(ids, together, strict=True)))
            expect(
                not wrong, "the same answers as one after the other", f"others for {', '.join(map(repr, wrong[:3]))}"
            )


class AllocatesQuickly(Rule):
    id, level, facts = "ALO-12", Level.SHOULD, ("3.37", "8.11")
    title = "Allocate is answered quickly"
    why = "The call has no deadline, and the admission of all pods of the node waits for it."
    fix = "Prepare devices in advance, or in PreStartContainer, which delays only one container."

    async def check(self, verifier: Verifier) -> None:
        for plugin in await with_devices(verifier):
            took = min([await _seconds(verifier, plugin) for _ in range(3)])
            expect(took <= verifier.limits.quick, f"at most {verifier.limits.quick:g} s", f"{took:.1f} s")


class AllocatesAfterRestart(Rule):
    id, level, facts, alone, waits = "ALO-13", Level.MUST, ("3.49", "8.12"), True, 1
    title = "Devices can be allocated after a restart of the kubelet as before"
    why = (
        "The kubelet admits previously refused pods now, with devices that were allocated before. If an id means "
        "another device by then, a second pod gets the device of a running pod."
    )
    fix = "Do not tie devices to a connection or a registration, or to their position in a list."

    async def check(self, verifier: Verifier) -> None:
        async with newly_started(verifier) as session:
            plugins = verifier.examine((one for one in session.plugins() if one.ids), "healthy device")
            ids = {plugin.resource: plugin.ids[:1] for plugin in plugins}
            before = {plugin.resource: await self._host_paths(verifier, plugin, plugin.ids[:1]) for plugin in plugins}
            for plugin in [one for one in await restart_kubelet(session) if one.resource in ids]:
                asked, paths = ids[plugin.resource], before[plugin.resource]
                error = await outcome(allocate(verifier, plugin, asked))
                expect(error is None, f"an answer for {asked}", str(error))
                now = await self._host_paths(verifier, plugin, asked) if paths else paths
                expect(now == paths, f"{some(sorted(paths))} for {asked}, as before", some(sorted(now)) or "no node")

    @staticmethod
    async def _host_paths(verifier: Verifier, plugin: RegisteredPlugin, ids: Sequence[str]) -> set[str]:
        """The device nodes of an answer; none if two answers differ, which ALO-09 is about."""
        first, second = [await allocate(verifier, plugin, ids) for _ in range(2)]
        return {node.host_path for response in first for node in response.nodes} if first == second else set()


class StartsContainers(Rule):
    id, level, facts = "PST-01", Level.MUST, ("3.47", "3.48")
    title = "PreStartContainer is answered if the options announce it"
    why = "The container waits with CreateContainerConfigError, and the kubelet retries indefinitely."
    fix = "Implement the method, or do not set pre_start_required."

    async def check(self, verifier: Verifier) -> None:
        for plugin in await with_option(verifier, "pre_start"):
            error = await outcome(_pre_start(verifier, plugin, plugin.ids[:1]))
            expect(error is None, "an answer", str(error))


class StartsContainersAgain(Rule):
    id, level, facts = "PST-02", Level.MUST, ("3.48", "8.14")
    title = "PreStartContainer is answered for every start of a container"
    why = "The kubelet also calls it before each restart; a container that crashed once would never start again."
    fix = "Reset the device at every call."

    async def check(self, verifier: Verifier) -> None:
        for plugin in await with_option(verifier, "pre_start"):
            for number in range(3):
                error = await outcome(_pre_start(verifier, plugin, plugin.ids[:1]))
                expect(error is None, "an answer each time", f"call {number + 1}: {error}")


class StartsContainersInTime(Rule):
    id, level, facts = "PST-03", Level.SHOULD, ("3.48", "8.14")
    title = "PreStartContainer is answered well within its 30 seconds"
    why = "The kubelet gives up after 30 s, and the container does not start."
    fix = "Do slow work in the background, before devices are listed as healthy."

    async def check(self, verifier: Verifier) -> None:
        for plugin in await with_option(verifier, "pre_start"):
            began = time.monotonic()
            await _pre_start(verifier, plugin, plugin.ids[:1])
            took = time.monotonic() - began
            expect(took <= verifier.limits.prompt, f"at most {verifier.limits.prompt:g} s", f"{took:.1f} s")


class RefusesUnknownStart(Rule):
    id, level, facts = "PST-04", Level.SHOULD, ("3.48",)
    title = "PreStartContainer of a device that is not listed is refused"
    why = "The kubelet sends the devices on record, listed or not: the container would start with a missing device."
    fix = "Return an error for an unknown id."

    async def check(self, verifier: Verifier) -> None:
        for plugin in await with_option(verifier, "pre_start"):
            error = await outcome(_pre_start(verifier, plugin, [UNKNOWN_ID]))
            expect(error is not None, "an error", f"{plugin.resource} prepared {UNKNOWN_ID!r}")


class StartsWithAllDevices(Rule):
    id, level, facts = "PST-05", Level.MUST, ("3.48", "8.14")
    title = "PreStartContainer is answered for all devices of a container at once"
    why = "The kubelet sends all of them in one call: a container with two devices would never start."
    fix = "Loop over devices_ids."

    async def check(self, verifier: Verifier) -> None:
        for plugin in await with_option(verifier, "pre_start", 2):
            for ids in (plugin.ids[:2], plugin.ids[:_MOST]):
                if not await _refuses_several(verifier, plugin, ids):
                    error = await outcome(_pre_start(verifier, plugin, ids))
                    expect(error is None, f"an answer for {some(ids)}", str(error))


async def _pre_start(verifier: Verifier, plugin: RegisteredPlugin, ids: list[str]) -> None:
    async with plugin.connect() as client:
        await client.pre_start(ids, _PRE_START_LIMIT)


async def _answer_or_refusal(
    verifier: Verifier, plugin: RegisteredPlugin, device_id: str
) -> list[AllocateResponse] | PeerRefused:
    try:
        return await allocate(verifier, plugin, [device_id])
    except PeerRefused as error:
        return error


def _mixed_up(
    alone: Mapping[str, list[AllocateResponse]], together: Sequence[tuple[str, list[AllocateResponse] | PeerRefused]]
) -> list[str]:
    """The devices whose answer differs from their answer alone.

    A plugin can refuse a device while another call for it is open, because no kubelet makes two. One of them must be
    answered.
    """
    answered = {device_id for device_id, answer in together if not isinstance(answer, PeerRefused)}
    for device_id, answer in together:
        if isinstance(answer, PeerRefused) and device_id not in answered:
            raise answer
    return [
        device_id
        for device_id, answer in together
        if not isinstance(answer, PeerRefused) and answer != alone[device_id]
    ]


async def _seconds(verifier: Verifier, plugin: RegisteredPlugin) -> float:
    began = time.monotonic()
    await allocate(verifier, plugin, plugin.ids[:1])
    return time.monotonic() - began


async def _refuses_several(verifier: Verifier, plugin: RegisteredPlugin, ids: list[str]) -> bool:
    """Whether the plugin refuses more than one device per container, as some do by policy."""
    return len(ids) > 1 and await outcome(allocate(verifier, plugin, ids)) is not None


def _sizes(responses: list[AllocateResponse]) -> list[int]:
    return [len(response.nodes) + len(response.mounts) + len(response.cdi) for response in responses]


RULES: tuple[type[Rule], ...] = (
    AllocatesEveryDevice,
    AnswersAreNotEmpty,
    OneResponsePerContainer,
    ResponsesAreInOrder,
    RefusesUnknown,
    RefusesUnhealthy,
    HandlesRepeatedId,
    AllocatesAgain,
    AnswersAreRepeatable,
    OrderOfIdsIsFree,
    AnswersConcurrently,
    AllocatesQuickly,
    AllocatesAfterRestart,
    StartsContainers,
    StartsContainersAgain,
    StartsContainersInTime,
    RefusesUnknownStart,
    StartsWithAllDevices,
)
