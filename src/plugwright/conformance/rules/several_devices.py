"""Rules of Allocate for every device, for several at once, and for many pods together."""

import itertools
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress

from plugwright.conformance.asking import (
    UNKNOWN_ID,
    allocate,
    answered_devices,
    expect,
    outcome,
    with_devices,
)
from plugwright.conformance.observations import newly_started, program_life
from plugwright.conformance.pace import PODS, WINDOW, pace
from plugwright.conformance.rule import Level, Rule
from plugwright.conformance.session import RegisteredPlugin
from plugwright.conformance.verifier import Verifier
from plugwright.errors import PeerGone, PeerRefused, RuleNotApplicable
from plugwright.model import some
from plugwright.protocol.messages import AllocateResponse

__all__ = ["RULES"]

_MOST = 64  # devices of one request
_PRE_START_LIMIT = 30.0  # seconds of the kubelet (3.48)


class AnswersAllDevices(Rule):
    id, level, facts = "ALO-14", Level.MUST, ("3.36", "3.41")
    title = "The answer for several devices contains each of them"
    why = "A container that requests two devices gets one, and nothing reports it."
    fix = "Loop over all ids of a container request, and add the nodes, mounts, CDI names and variables of each."

    async def check(self, verifier: Verifier) -> None:
        plugins = await with_devices(verifier, 2)
        known = await verifier.remembered(answered_devices)
        asked, refused = 0, ""
        for plugin, ids in [(one, ids) for one in plugins for ids in _combinations(one.ids)]:
            error = await outcome(allocate(verifier, plugin, ids))
            if error is not None:  # some plugins allocate only one device per container, as a policy
                refused = str(error)
                continue
            asked += 1
            missing = list(_missing(known.of(plugin.resource), ids, await allocate(verifier, plugin, ids)))
            expect(not missing, f"what each of {some(ids)} gets by itself", f"no {some(missing)}")
        if not asked:
            raise RuleNotApplicable(f"several devices for one container are refused: {refused}")
        for plugin in plugins if refused else ():
            await self._check_three(verifier, plugin)

    @staticmethod
    async def _check_three(verifier: Verifier, plugin: RegisteredPlugin) -> None:
        """Three devices must be answered if every pair of them is: then no policy separates them."""
        three = plugin.ids[:3]
        for pair in itertools.combinations(three, 2):
            if await outcome(allocate(verifier, plugin, pair)) is not None:
                return
        error = await outcome(allocate(verifier, plugin, three))
        expect(error is None, f"an answer for {some(three)}, as for each two of them", str(error))


def _combinations(ids: Sequence[str]) -> list[list[str]]:
    """Two from each end, the two ends, and the maximum number."""
    found = [ids[:2], ids[-2:], [ids[0], ids[-1]], ids[:_MOST]]
    return [list(one) for one in dict.fromkeys(map(tuple, found))]


def _missing(
    known: Mapping[str, AllocateResponse], ids: Sequence[str], responses: Sequence[AllocateResponse]
) -> Iterator[str]:
    """The parts of devices' own answers that are missing in the answer for all of them."""
    alone = {device_id: known[device_id] for device_id in ids if device_id in known}
    if not responses:
        return  # ALO-02
    together = responses[0]
    for name in ("nodes", "mounts"):
        hosts = {item.host_path for item in getattr(together, name)}
        targets = {item.container_path for item in getattr(together, name)}
        own = {device_id: getattr(answer, name) for device_id, answer in alone.items()}
        for device_id, items in own.items():
            yield from (f"{item.host_path} of {device_id}" for item in items if item.host_path not in hosts)
            # A path common to all devices, such as /dev/acc0, can be numbered if there are several.
            others = {item.container_path for other, theirs in own.items() if other != device_id for item in theirs}
            rights = {item.host_path: _rights(item) for item in getattr(together, name)}
            other = [item for item in items if rights.get(item.host_path, _rights(item)) != _rights(item)]
            yield from (f"{_rights(item)} for {item.host_path} of {device_id}" for item in other)
            special = [item.container_path for item in items if item.container_path not in others]
            yield from (f"{path} of {device_id}" for path in special if path not in targets)
    for device_id, answer in alone.items():
        yield from (f"CDI device {name} of {device_id}" for name in answer.cdi if name not in together.cdi)
    yield from _lost_variables(alone, together)


def _rights(item: object) -> str:
    """The permissions of a device node, or whether a mount can be written to."""
    permissions = getattr(item, "permissions", "")
    return f"permissions {permissions}" if permissions else f"read_only {getattr(item, 'read_only', False)}"


def _lost_variables(alone: Mapping[str, AllocateResponse], together: AllocateResponse) -> Iterator[str]:
    """Variables of one device alone that are missing in the answer for all, and those with only one device's value."""
    for kind in ("env", "annotations"):
        names = {device_id: set(getattr(answer, kind)) for device_id, answer in alone.items()}
        shared = Counter(name for found in names.values() for name in found)
        for device_id, found in names.items():
            gone = sorted(name for name in found - set(getattr(together, kind)) if shared[name] == 1)
            yield from (f"{name} of {device_id}" for name in gone)
        for name, value in getattr(together, kind).items():
            own = {device_id: getattr(answer, kind) for device_id, answer in alone.items()}
            values = {device_id: theirs[name] for device_id, theirs in own.items() if name in theirs}
            if value in values.values() and len(set(values.values())) == len(values) > 1:
                lost = next(device_id for device_id, single in values.items() if single != value)
                yield f"value of {lost} in {name}, which is {value!r}"


class AnswersNameTheirDevice(Rule):
    id, level, facts = "ALO-17", Level.MUST, ("3.36", "8.12")
    title = "The answer for one device does not name another one"
    why = "Two containers use one device, and the device of the second container is idle: nothing reports it."
    fix = "Compare complete ids when you map them to devices: part-10 is not part-1."

    async def check(self, verifier: Verifier) -> None:
        known = await verifier.remembered(answered_devices)
        for plugin in await with_devices(verifier, 3):
            fields = {device_id: _fields(answer) for device_id, answer in known.of(plugin.resource).items()}
            expected, wrong = "what names the device itself", list(_misnamed(fields))
            expect(not wrong, expected, f"{some(wrong)} of {plugin.resource}")


def _fields(answer: AllocateResponse) -> dict[str, str]:
    """The texts of an answer that can name a device, by their location."""
    found = {f"variable {name}": value for name, value in answer.env.items()}
    found |= {f"annotation {name}": value for name, value in answer.annotations.items()}
    found |= {f"CDI device {number}": name for number, name in enumerate(answer.cdi)}
    for number, node in enumerate(answer.nodes):
        found |= {f"node {number}": node.host_path, f"node {number} in the container": node.container_path}
    for number, mount in enumerate(answer.mounts):
        found |= {f"mount {number}": mount.host_path, f"mount {number} in the container": mount.container_path}
    return found


def _misnamed(fields: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    """Devices with another device's id in a text that for most devices contains their own id.

    Only such texts count: an id can occur in an answer for other reasons, and several ids can mean one device.
    """
    for place in dict.fromkeys(place for texts in fields.values() for place in texts):
        texts = {device_id: found[place] for device_id, found in fields.items() if place in found}
        forms = Counter(text.replace(device_id, "\0") for device_id, text in texts.items() if device_id in text)
        for form, count in forms.most_common(1):
            own = {form.replace("\0", device_id): device_id for device_id in fields}
            if "\0" in form and 2 * count > len(fields) and len(own) == len(fields):
                others = ((device_id, own.get(text, device_id)) for device_id, text in texts.items())
                yield from (f"{place} of {asked} names {named}" for asked, named in others if asked != named)


class FailureHoldsNothing(Rule):
    id, level, facts, holds = "ALO-15", Level.MUST, ("3.39", "8.11"), True
    title = "An Allocate or a PreStartContainer that fails holds none of its devices"
    why = "The pod is refused, and no call frees its devices: each such pod costs the node devices."
    fix = "Check all ids before you change anything, and do not record allocations."

    async def check(self, verifier: Verifier) -> None:
        for plugin in await with_devices(verifier):
            known = plugin.ids[:3]
            for ids in ([*known, f"{UNKNOWN_ID}-1"], [f"{UNKNOWN_ID}-2", *known]):
                for _ in range(2):
                    await outcome(allocate(verifier, plugin, ids))
                    await outcome(allocate(verifier, plugin, known[:1], [UNKNOWN_ID]))
                if plugin.options.pre_start:
                    await outcome(self._start(verifier, plugin, ids))
            for device_id in known:
                error = await outcome(allocate(verifier, plugin, [device_id]))
                expect(error is None, f"an answer for {device_id!r} after requests that failed", str(error))
            for device_id in known if plugin.options.pre_start else ():
                error = await outcome(self._start(verifier, plugin, [device_id]))
                expect(error is None, f"PreStartContainer of {device_id!r} after one that failed", str(error))

    @staticmethod
    async def _start(verifier: Verifier, plugin: RegisteredPlugin, ids: Sequence[str]) -> None:
        async with plugin.connect() as client:
            await client.pre_start(ids, verifier.limits.call)


class ServesManyPods(Rule):
    id, level, facts = "ALO-16", Level.MUST, ("3.37", "3.48", "8.11")
    title = f"{PODS} pods that start at once, as after a boot, get their devices within {WINDOW:g} s"
    why = (
        "The kubelet admits pods one after the other and waits for each Allocate. It waits 30 s for "
        "PreStartContainer; if calls wait for a lock, the last pods are too late."
    )
    fix = "Hold no lock while you wait for hardware, files or other programs; do slow work before devices are listed."

    async def check(self, verifier: Verifier) -> None:
        for plugin in await with_devices(verifier):
            seconds = await _serve_pods(plugin, _allocate, WINDOW)
            expect(seconds <= WINDOW, f"{PODS} answers to Allocate within {WINDOW:g} s", f"they take {seconds:.0f} s")
            if plugin.options.pre_start:
                seconds = await _serve_pods(plugin, _start, _PRE_START_LIMIT)
                expected = f"{PODS} answers to PreStartContainer within {_PRE_START_LIMIT:g} s"
                expect(seconds <= _PRE_START_LIMIT, expected, f"they take {seconds:.0f} s")


class KeepsNodes(Rule):
    id, level, facts, alone, observation = "ALO-19", Level.MUST, ("3.49", "8.15"), True, "program life"
    title = "Devices have the same nodes after a restart of the program"
    why = (
        "Pods continue to run with the nodes of an earlier start, and the kubelet knows devices only by their "
        "ids: it hands out another id, and two pods get one device."
    )
    fix = (
        "Derive the id from a property that distinguishes the hardware, and find the node by that property, "
        "never by a position in a list."
    )

    async def check(self, verifier: Verifier) -> None:
        life = await verifier.remembered(program_life)
        if life.again:
            raise RuleNotApplicable(f"it is not registered after a new start: {life.again}")
        both = {known: nodes for known, nodes in life.nodes.items() if known in life.nodes_again}
        verifier.examine((path for nodes in both.values() for path in nodes), "device node in an answer")
        for (resource, device_id), nodes in both.items():
            now = life.nodes_again[resource, device_id]
            expect(nodes == now, f"{some(sorted(nodes))} for {device_id!r} of {resource}, as before", some(sorted(now)))


class KeepsAllocatedDevices(Rule):
    id, level, facts, alone = "ALO-18", Level.MUST, ("2.5", "2.25", "8.9"), True
    title = "A device that was allocated stays in the list, and Healthy"
    why = (
        "The kubelet itself knows which devices are in use. Kubelets from 1.34 on may crash when an allocated "
        "device is dropped from the list; one that becomes Unhealthy reduces allocatable, and its pod is "
        "reported to run on a broken device."
    )
    fix = "List all existing devices, whether in use or not; health describes only the hardware."

    async def check(self, verifier: Verifier) -> None:
        async with newly_started(verifier) as session:
            chosen = {plugin.resource: plugin.ids[:1] for plugin in session.plugins() if plugin.ids}
            verifier.examine(chosen, "resource with a healthy device")
            for plugin in session.plugins():
                if ids := chosen.get(plugin.resource):
                    await outcome(allocate(verifier, plugin, ids))

            def is_lost() -> bool:
                return any(not set(chosen.get(one.resource, ())) <= set(one.ids) for one in session.plugins())

            with suppress(PeerGone):  # no further list is expected
                await session.kubelet.until(is_lost, verifier.limits.idle, "")
            for plugin in session.plugins():
                listed = {device.id: device.health for device in plugin.devices}
                for device_id in chosen.get(plugin.resource, ()):
                    seen = f"{device_id!r} is {listed.get(device_id, 'not listed')} after Allocate"
                    expect(device_id in plugin.ids, f"{device_id!r} of {plugin.resource} as Healthy", seen)


async def _serve_pods(
    plugin: RegisteredPlugin, call: Callable[[RegisteredPlugin, str], Awaitable[None]], limit: float
) -> float:
    """The seconds that calls for all pods take; raises the error of a device without any answered call.

    A plugin with fewer devices than pods can refuse a device while another call for it is open.
    """
    answered: set[str] = set()
    refused: dict[str, PeerRefused] = {}

    async def serve(device_id: str) -> None:
        try:
            await call(plugin, device_id)
        except PeerRefused as error:
            refused[device_id] = error
        else:
            answered.add(device_id)

    ids = (plugin.ids * PODS)[:PODS]
    seconds = await pace([serve(device_id) for device_id in ids], limit)
    for device_id in refused.keys() - answered if seconds <= limit else ():
        raise refused[device_id]
    return seconds


async def _allocate(plugin: RegisteredPlugin, device_id: str) -> None:
    async with plugin.connect() as client:
        await client.allocate_encoded([device_id])


async def _start(plugin: RegisteredPlugin, device_id: str) -> None:
    async with plugin.connect() as client:
        await client.pre_start([device_id], WINDOW * 2)


RULES: tuple[type[Rule], ...] = (
    AnswersAllDevices,
    FailureHoldsNothing,
    ServesManyPods,
    AnswersNameTheirDevice,
    KeepsAllocatedDevices,
    KeepsNodes,
)
