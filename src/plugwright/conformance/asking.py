"""Calls of rules to a plugin on separate connections, and the texts of their findings."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass

from plugwright.conformance.session import RegisteredPlugin
from plugwright.conformance.verifier import Verifier
from plugwright.errors import PeerGone, PlugwrightError, PrerequisiteBroken, RuleNotApplicable, RuleViolated
from plugwright.kubelet.events import Call
from plugwright.model import PreferenceRequest, some
from plugwright.protocol import messages
from plugwright.protocol.messages import AllocateResponse, ListedDevice

__all__ = [
    "UNKNOWN_ID",
    "AnsweredDevices",
    "allocate",
    "answered",
    "answered_devices",
    "answers",
    "check_alive",
    "check_devices",
    "expect",
    "expect_answers",
    "expect_list",
    "outcome",
    "prefer",
    "with_devices",
    "with_option",
]

_WORDS = {
    "nodes": "device node in an answer",
    "mounts": "mount in an answer",
    "env": "variable in an answer",
    "cdi": "CDI device in an answer",
    "annotations": "annotation in an answer",
}
_MOST_DEVICES = 4096  # called one by one; of more devices a sample from the whole list
UNKNOWN_ID = "plugwright-verify-no-such-device"


def expect(kept: object, expected: str, seen: str) -> None:
    """Raises RuleViolated unless `kept`."""
    if not kept:
        raise RuleViolated(expected, seen)


def expect_answers(calls: Iterable[Call]) -> None:
    """Checks each resource's last call, because the kubelet repeats calls that a starting program does not answer."""
    failed = [call.outcome for call in {call.resource: call for call in calls}.values() if call.outcome != "OK"]
    expect(not failed, "an answer", failed[0] if failed else "")


async def with_devices(verifier: Verifier, count: int = 1) -> list[RegisteredPlugin]:
    """The plugins with at least `count` healthy devices; not applicable if there are none.

    A plugin that has had healthy devices gets some time to list one again: some check them after each registration.
    """
    session = await verifier.running()
    healthy = {event.about for event in session.lists() if any(device.health == "Healthy" for device in event.devices)}
    if healthy and not any(plugin.ids for plugin in session.plugins()):
        if verifier.emptied is not session:
            with suppress(PeerGone):
                await session.kubelet.until(
                    lambda: any(plugin.ids for plugin in session.plugins()), verifier.limits.prompt, ""
                )
            verifier.emptied = session
        if not any(plugin.ids for plugin in session.plugins()):
            raise PrerequisiteBroken(
                "ALO-18", f"healthy devices of {some(sorted(healthy))}, as before", "none any more"
            )
    plugins = [plugin for plugin in session.plugins() if len(plugin.ids) >= count]
    if not plugins:
        raise RuleNotApplicable(f"no resource has {count} healthy device{'s' if count > 1 else ''}")
    return plugins


async def with_option(verifier: Verifier, name: str, count: int = 1) -> list[RegisteredPlugin]:
    """The plugins that announce PreStartContainer (`pre_start`) or GetPreferredAllocation (`preference`)."""
    plugins = [plugin for plugin in await with_devices(verifier, count) if getattr(plugin.options, name)]
    if not plugins:
        method = "PreStartContainer" if name == "pre_start" else "GetPreferredAllocation"
        raise RuleNotApplicable(f"the plugin's options do not announce {method}")
    return plugins


async def allocate(verifier: Verifier, plugin: RegisteredPlugin, *containers: Sequence[str]) -> list[AllocateResponse]:
    """The container responses of one Allocate."""
    async with plugin.connect() as client, asyncio.timeout(verifier.limits.call):
        encoded = await client.allocate_encoded(*containers)
    return [messages.decode(response) for response in encoded]


@dataclass(frozen=True, slots=True)
class AnsweredDevices:
    """The answer to Allocate for every healthy device alone, or the error, by resource and id."""

    answers: dict[str, dict[str, AllocateResponse]]
    errors: dict[str, dict[str, PlugwrightError]]

    def of(self, resource: str) -> dict[str, AllocateResponse]:
        return self.answers.get(resource, {})


async def answered_devices(verifier: Verifier) -> AnsweredDevices:
    found = AnsweredDevices({}, {})
    for plugin in await with_devices(verifier):
        answers, errors = found.answers.setdefault(plugin.resource, {}), found.errors.setdefault(plugin.resource, {})
        async with plugin.connect() as client:
            for device_id in plugin.ids[:: max(1, -(-len(plugin.ids) // _MOST_DEVICES))]:
                try:
                    async with asyncio.timeout(verifier.limits.call):
                        encoded = await client.allocate_encoded([device_id])
                except PeerGone:
                    raise
                except PlugwrightError as error:
                    errors[device_id] = error
                else:
                    answers.update((device_id, messages.decode(response)) for response in encoded[:1])
    return found


async def answers(verifier: Verifier, plugin: RegisteredPlugin) -> list[tuple[str, AllocateResponse]]:
    """The answer for each healthy device alone, without refused ones.

    If all of them are refused, the first error is raised: it is a finding of the rule about Allocate, not of this one.
    """
    known = await verifier.remembered(answered_devices)
    found = known.of(plugin.resource)
    for error in [] if found else known.errors.get(plugin.resource, {}).values():
        raise error
    if not found:
        raise RuleNotApplicable(f"Allocate of {plugin.resource} is never answered")
    return list(found.items())


async def answered(
    verifier: Verifier, problems: Callable[[AllocateResponse], Iterable[str]], expected: str, *fields: str
) -> None:
    """Raises RuleViolated for the first answer to Allocate with problems in these fields.

    If these fields are always empty, the rule is not applicable.
    """
    for plugin in await with_devices(verifier):
        for device_id, response in await answers(verifier, plugin):
            for field in fields:
                verifier.examine(getattr(response, field), _WORDS[field])
            found = list(problems(response))
            expect(
                not found, expected, f"Allocate of {device_id!r} of {plugin.resource} was answered with {some(found)}"
            )


async def prefer(verifier: Verifier, plugin: RegisteredPlugin, *requests: PreferenceRequest) -> list[list[str]]:
    async with plugin.connect() as client, asyncio.timeout(verifier.limits.call):
        return await client.prefer(*requests)


async def outcome(call: Awaitable[object]) -> PlugwrightError | None:
    """The error of a call, or None; raises if the peer disconnected."""
    try:
        await call
    except PeerGone:
        raise
    except PlugwrightError as error:
        return error
    return None


async def expect_list(verifier: Verifier, plugin: RegisteredPlugin, which: str) -> None:
    """Opens a stream, and raises RuleViolated unless it sends a list."""
    expected, limit = f"a list for {which}", verifier.limits.call
    try:
        async with (
            asyncio.timeout(limit),
            plugin.connect() as client,
            aclosing(client.list_and_watch()) as lists,
        ):
            async for _ in lists:
                return
    except TimeoutError:
        raise RuleViolated(expected, f"none from {plugin.resource} in {limit:g} s") from None
    raise RuleViolated(expected, f"the stream of {plugin.resource} ended without one")


async def check_alive(verifier: Verifier, after: str) -> None:
    problem = await verifier.is_alive()
    expect(not problem, f"the plugin serves on after {after}", problem)


async def check_devices(verifier: Verifier, problems: Callable[[ListedDevice], str], expected: str) -> None:
    """Raises RuleViolated for the first devices of a list with a problem."""
    for event in (await verifier.started()).lists():
        devices = verifier.examine(event.devices, "device in a list")
        found = list(dict.fromkeys(text for device in devices if (text := problems(device))))
        expect(not found, expected, f"the list of {event.about} has {some(found)}")
