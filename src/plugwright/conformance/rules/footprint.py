"""Rules of resources: descriptors, threads and memory over restarts and calls, and the cost of an idle plugin."""

import asyncio
import itertools
import time
from dataclasses import replace

from plugwright.conformance.asking import UNKNOWN_ID, expect, expect_list, outcome, with_devices
from plugwright.conformance.measuring import Growth, Usage, growth, usage
from plugwright.conformance.observations import idleness
from plugwright.conformance.restarting import crashed
from plugwright.conformance.rule import Level, Rule
from plugwright.conformance.session import RegisteredPlugin, Session
from plugwright.conformance.verifier import Verifier
from plugwright.errors import PeerRefused, PluginNotRunning, PrerequisiteBroken, RuleNotApplicable
from plugwright.model import PreferenceRequest
from plugwright.protocol.device_plugin import DevicePluginClient

__all__ = ["RULES"]

_WARM_UP, _RESTARTS, _THOROUGH = 3, 12, 1000
_MEMORY = 256 * 1024  # bytes that one restart may add
_LISTS = 2000
_WAKE_UPS = 50  # in a second
_CPU = 0.5  # of one core
_CALLS, _FEW_CALLS, _MANY_CALLS = 200, 10, 400  # of one round
_ROUND_TIME, _CALLS_TIME = 0.5, 60.0  # seconds for a round, and at most


async def _session(verifier: Verifier) -> Session:
    session = await verifier.running()
    if verifier.target.attached:
        raise RuleNotApplicable("the program is attached")
    return session


async def restart_growth(verifier: Verifier) -> Usage:
    """The increase over restarts of the kubelet."""
    session, restarts = await _session(verifier), _restarts(verifier)
    for _ in range(_WARM_UP):
        await _restart(session)
    grown = await _grown(session, restarts)
    if grown.memory < restarts * _MEMORY:
        return grown
    # A heap with a garbage collector grows before it reaches its limit: a leak continues.
    again = await _grown(session, restarts)
    return replace(grown, memory=min(grown.memory, again.memory))


async def _grown(session: Session, restarts: int) -> Usage:
    before = usage(session.program.processes())
    for _ in range(restarts):
        await _restart(session)
    return usage(session.program.processes()) - before


async def _restart(session: Session) -> None:
    resources, mark = {plugin.resource for plugin in session.plugins()}, session.mark
    await session.kubelet.restart()
    try:
        await session.until_registered(resources, mark=mark)
    except PluginNotRunning as error:
        program = session.program
        if program.running or not program.returncode or crashed(program):
            raise
        program.forgive()
        raise RuleNotApplicable(f"it ends when a kubelet restarts often, so nothing adds up: {error}") from None


def _restarts(verifier: Verifier) -> int:
    return _THOROUGH if verifier.options.thorough else _RESTARTS


class KeepsDescriptors(Rule):
    id, level, facts, observation, waits = "RES-01", Level.MUST, ("1.38",), "restarts", _RESTARTS
    title = "Restarts of the kubelet leave no descriptor open"
    why = "After some hundred restarts the program can no longer open any file."
    fix = "Stop the old server and close the old connection at each registration."

    async def check(self, verifier: Verifier) -> None:
        restarts = _restarts(verifier)
        grown = (await verifier.remembered(restart_growth)).descriptors
        expect(grown < restarts // 2, "as many descriptors as before", f"{grown} more after {restarts} restarts")


class KeepsThreads(Rule):
    id, level, facts, observation, waits = "RES-02", Level.MUST, (), "restarts", _RESTARTS
    title = "Restarts of the kubelet leave no thread behind"
    why = "Each thread holds memory, and finally the program can start no thread any more."
    fix = "End a stream's thread when its context ends."

    async def check(self, verifier: Verifier) -> None:
        restarts = _restarts(verifier)
        grown = (await verifier.remembered(restart_growth)).threads
        expect(grown < restarts // 2, "as many threads as before", f"{grown} more after {restarts} restarts")


class KeepsMemory(Rule):
    id, level, facts, observation, waits = "RES-03", Level.SHOULD, (), "restarts", _RESTARTS
    title = "Restarts of the kubelet do not fill the memory"
    why = "The pod is killed at its memory limit, with all its devices."
    fix = "Drop the state of the previous registration; look for lists that only grow."

    async def check(self, verifier: Verifier) -> None:
        restarts = _restarts(verifier)
        grown = (await verifier.remembered(restart_growth)).memory
        seen = f"{grown / 1024:.0f} KiB more after {restarts} restarts"
        expect(grown < restarts * _MEMORY, f"less than {_MEMORY // 1024} KiB for each restart", seen)


class IsQuietWhenIdle(Rule):
    id, level, facts, observation = "RES-04", Level.SHOULD, (), "idleness"
    title = "An idle plugin does not wake up constantly"
    why = "It runs on every node, for months, beside work that needs the cores."
    fix = "Wait for events; if you must poll, poll every few seconds."

    async def check(self, verifier: Verifier) -> None:
        await _session(verifier)
        rate = (await verifier.remembered(idleness)).wake_ups
        expect(rate <= _WAKE_UPS, f"at most {_WAKE_UPS} wake-ups in a second", f"{rate:.0f} in a second")


class CostsNothingWhenIdle(Rule):
    id, level, facts, observation = "RES-05", Level.MUST, (), "idleness"
    title = "An idle plugin does not use the processor"
    why = "A busy loop takes a core of every node."
    fix = "Wait for events; a `for {}` around a select with a default is a busy loop."

    async def check(self, verifier: Verifier) -> None:
        await _session(verifier)
        used = (await verifier.remembered(idleness)).cpu
        expect(used <= _CPU, f"at most {_CPU:.0%} of a core", f"{used:.0%}")


class EnduresStreams(Rule):
    id, level, facts, thorough = "RES-06", Level.MUST, ("2.22",), True
    title = f"{_LISTS} streams, opened and ended, leave nothing behind"
    why = "Monitoring agents and debuggers open streams too; nothing of a stream may remain after its end."
    fix = "Remove a stream from your list of streams when it ends."

    async def check(self, verifier: Verifier) -> None:
        session = await _session(verifier)
        plugin = session.plugins()[0]
        before = None
        for number in range(_LISTS):
            await expect_list(verifier, plugin, "each stream")
            if number == _LISTS // 10:
                before = usage(session.program.processes())
        assert before is not None
        grown = usage(session.program.processes()) - before
        expect(grown.descriptors < _LISTS // 10, "no descriptor more", f"{grown.descriptors} more")
        expect(grown.memory < _LISTS * 8192, "no memory more", f"{grown.memory // 1024} KiB more")


async def call_growth(verifier: Verifier) -> Growth:
    """Leaks of calls for containers: Allocate, answered and refused, and others that the plugin announces."""
    session = await _session(verifier)
    plugins = [(plugin, itertools.cycle(plugin.ids)) for plugin in await with_devices(verifier)]
    made = 0

    async def make_calls(count: int) -> None:
        nonlocal made
        async with asyncio.timeout(_CALLS_TIME):
            for plugin, ids in plugins:
                async with plugin.connect() as client:
                    for device_id in itertools.islice(ids, -(-count // len(plugins))):
                        await _serve(verifier, plugin, client, device_id)
                        made += 1

    try:
        began = time.monotonic()
        await make_calls(_FEW_CALLS)
        each = (time.monotonic() - began) / _FEW_CALLS
        calls = max(_FEW_CALLS, min(_CALLS, int(_ROUND_TIME / max(each, 1e-4))))
        return await growth(session.program.processes, make_calls, calls, max(calls, _MANY_CALLS))
    except (PeerRefused, TimeoutError) as error:
        grown = usage(session.program.processes())
        used = f"the program has {grown.descriptors} open descriptors and {grown.threads} threads"
        raise PrerequisiteBroken(
            "RES-07", "an answer to every Allocate in a row", f"{str(error) or 'none'} after {made} of them; {used}"
        ) from None


async def _serve(verifier: Verifier, plugin: RegisteredPlugin, client: DevicePluginClient, device_id: str) -> None:
    """The calls for a container, and an Allocate that is refused, as for pods in a loop."""
    limit = verifier.limits.call
    async with asyncio.timeout(limit):
        await client.allocate_encoded([device_id])
        if plugin.options.preference:
            await client.prefer(PreferenceRequest(tuple(plugin.ids), (), 1))
        await outcome(client.allocate_encoded([UNKNOWN_ID]))
    if plugin.options.pre_start:
        await client.pre_start([device_id], limit)


class CallsLeaveNoDescriptor(Rule):
    id, level, facts, observation = "RES-07", Level.MUST, ("8.11",), "calls"
    title = "Allocate leaves no descriptor open"
    why = "After some thousand pods the program can no longer open any file, and then crashes at its next start."
    fix = "Close everything you open in the call, even if the call fails."

    async def check(self, verifier: Verifier) -> None:
        grown = await verifier.remembered(call_growth)
        seen = f"{grown.total.descriptors} more after {grown.total_calls} calls"
        expect(not grown.leaks_descriptors, "as many descriptors as before", seen)


class CallsLeaveNoThread(Rule):
    id, level, facts, observation = "RES-08", Level.MUST, ("8.11",), "calls"
    title = "Allocate leaves no thread behind"
    why = "Each thread holds memory, and finally the program can start no thread any more."
    fix = "End everything that you start for a call when the call ends."

    async def check(self, verifier: Verifier) -> None:
        grown = await verifier.remembered(call_growth)
        seen = f"{grown.total.threads} more after {grown.total_calls} calls"
        expect(not grown.leaks_threads, "as many threads as before", seen)


class CallsLeaveNoMemory(Rule):
    id, level, facts, observation = "RES-09", Level.MUST, ("8.11",), "calls"
    title = "Allocate does not fill the memory"
    why = "The pod is killed at its memory limit, with all its devices."
    fix = "Keep nothing of a call: look for lists and maps that only grow, and goroutines that never end."

    async def check(self, verifier: Verifier) -> None:
        grown = await verifier.remembered(call_growth)
        seen = f"{grown.total.memory / 1024:.0f} KiB more after {grown.total_calls} calls, some with each of them"
        expect(not grown.leaks_memory, "memory that stops growing", seen)


RULES: tuple[type[Rule], ...] = (
    KeepsDescriptors,
    KeepsThreads,
    KeepsMemory,
    IsQuietWhenIdle,
    CostsNothingWhenIdle,
    EnduresStreams,
    CallsLeaveNoDescriptor,
    CallsLeaveNoThread,
    CallsLeaveNoMemory,
)
