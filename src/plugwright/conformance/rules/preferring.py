"""Rules of GetPreferredAllocation, for plugins whose options announce it."""

import time
from collections.abc import Sequence

from plugwright.conformance.asking import expect, outcome, prefer, with_option
from plugwright.conformance.rule import Level, Rule
from plugwright.conformance.session import RegisteredPlugin
from plugwright.conformance.verifier import Verifier
from plugwright.model import PreferenceRequest, some

__all__ = ["RULES"]


_MOST, _LEFT_OUT = 8, 64  # sizes and required devices; omitted devices


def _request(ids: Sequence[str], size: int, required: Sequence[str] = ()) -> PreferenceRequest:
    return PreferenceRequest(tuple(ids), tuple(required), size)


def _sizes(count: int) -> list[int]:
    """Numbers of devices that a container requests: the first sizes, and all."""
    return sorted({*range(1, min(count, _MOST) + 1), count})


def _required(ids: Sequence[str]) -> list[list[str]]:
    """Sets of devices that a container already has: each of the first ones alone, and several together."""
    return [[device_id] for device_id in ids[:_MOST]] + [list(ids[-count:]) for count in (2, 3) if count < len(ids)]


async def _preferred(verifier: Verifier, plugin: RegisteredPlugin, request: PreferenceRequest) -> list[str]:
    responses = await prefer(verifier, plugin, request)
    expect(responses, "one container response", f"none from {plugin.resource}")
    return responses[0]


class AnswersPreference(Rule):
    id, level, facts = "PRF-01", Level.MUST, ("3.28", "3.30")
    title = "GetPreferredAllocation is answered if the options announce it"
    why = "An error refuses the pod permanently, with UnexpectedAdmissionError."
    fix = "Implement the method, or do not set get_preferred_allocation_available."

    async def check(self, verifier: Verifier) -> None:
        for plugin in await with_option(verifier, "preference"):
            for size in _sizes(len(plugin.ids)):
                error = await outcome(prefer(verifier, plugin, _request(plugin.ids, size)))
                expect(error is None, f"an answer for {size} of {len(plugin.ids)} devices", str(error))


class PreferenceHasSize(Rule):
    id, level, facts = "PRF-02", Level.MUST, ("3.29", "8.13")
    title = "A preference has the requested number of devices"
    why = "The kubelet adds or removes arbitrary devices: the choice is lost."
    fix = "Return allocation_size ids."

    async def check(self, verifier: Verifier) -> None:
        for plugin in await with_option(verifier, "preference", 2):
            for size in _sizes(len(plugin.ids)):
                count = len(await _preferred(verifier, plugin, _request(plugin.ids, size)))
                expect(count == size, f"{size} of {len(plugin.ids)} devices", f"{count}")


class PreferenceIsAvailable(Rule):
    id, level, facts = "PRF-03", Level.MUST, ("3.29", "8.13")
    title = "A preference names devices that are available"
    why = "The kubelet silently drops other devices and chooses replacements."
    fix = "Choose only among available_deviceIDs; all other devices are in use."

    async def check(self, verifier: Verifier) -> None:
        for plugin in await with_option(verifier, "preference", 2):
            for left_out in plugin.ids[:_LEFT_OUT]:
                available = [device_id for device_id in plugin.ids if device_id != left_out]
                for size in {1, min(2, len(available))}:
                    others = set(await _preferred(verifier, plugin, _request(available, size))) - set(available)
                    expect(not others, f"{size} of {some(available)}", some(sorted(others)))


class PreferenceIncludesRequired(Rule):
    id, level, facts = "PRF-04", Level.MUST, ("3.23", "3.29", "8.13")
    title = "A preference includes all must_include_deviceIDs"
    why = (
        "The pod has them already, for an init container or by NUMA alignment. The API requires them in the answer: "
        "without them it has too many other devices, of which the kubelet takes arbitrary ones, far from those it has."
    )
    fix = "Begin with must_include_deviceIDs."

    async def check(self, verifier: Verifier) -> None:
        for plugin in await with_option(verifier, "preference", 2):
            for required in _required(plugin.ids):
                chosen = await _preferred(verifier, plugin, _request(plugin.ids, len(required) + 1, required))
                expect(set(required) <= set(chosen), f"{some(required)} and another", some(chosen) or "no device")


class PreferenceIsDistinct(Rule):
    id, level, facts = "PRF-05", Level.MUST, ("3.29",)
    title = "A preference names each device once"
    why = "The kubelet counts a repeated device once and adds an arbitrary one."
    fix = "Remove each chosen device from the remaining ones."

    async def check(self, verifier: Verifier) -> None:
        for plugin in await with_option(verifier, "preference", 2):
            for required in ([], plugin.ids[:1], plugin.ids[:2]):
                size = min(len(required) + 2, len(plugin.ids))
                chosen = await _preferred(verifier, plugin, _request(plugin.ids, size, required))
                expect(len(set(chosen)) == len(chosen), "different devices", some(chosen))


class PreferenceIsRepeatable(Rule):
    id, level, facts = "PRF-06", Level.SHOULD, ("8.13",)
    title = "The same request gets the same preference"
    why = "Otherwise you cannot distinguish a fault on one node from chance."
    fix = "Break ties by the id, never by the order of a map or at random."

    async def check(self, verifier: Verifier) -> None:
        for plugin in await with_option(verifier, "preference", 2):
            seen = [sorted(await _preferred(verifier, plugin, _request(plugin.ids, 2))) for _ in range(8)]
            expect(all(chosen == seen[0] for chosen in seen), f"{seen[0]} each time", f"{seen}")


class PreferenceIgnoresOrder(Rule):
    id, level, facts = "PRF-07", Level.SHOULD, ("3.27",)
    title = "A preference does not depend on the order of the ids"
    why = "The kubelet sends them in a different order each time, so the choice would be arbitrary."
    fix = "Sort the ids before you choose."

    async def check(self, verifier: Verifier) -> None:
        for plugin in await with_option(verifier, "preference", 3):
            seen = [
                sorted(await _preferred(verifier, plugin, _request(ids, 2))) for ids in (plugin.ids, plugin.ids[::-1])
            ]
            expect(seen[0] == seen[1], f"{seen[0]}", f"{seen[1]} for the reverse order")


class OnePreferencePerContainer(Rule):
    id, level, facts = "PRF-08", Level.MUST, ("3.28",)
    title = "GetPreferredAllocation is answered with one response for each container"
    why = (
        "The kubelet reads only the first response: with a response for each device, it sees the choice of a "
        "single device."
    )
    fix = "Loop over container_requests."

    async def check(self, verifier: Verifier) -> None:
        for plugin in await with_option(verifier, "preference", 2):
            count = len(await prefer(verifier, plugin, _request(plugin.ids, 1), _request(plugin.ids, 2)))
            expect(count == 2, "2 responses", f"{count}")


class PrefersWithoutChoice(Rule):
    id, level, facts = "PRF-09", Level.MUST, ("3.25", "3.30")
    title = "A preference is given even if there is no choice left"
    why = "Without NUMA nodes, the kubelet calls the plugin even if it needs all devices; an error refuses the pod."
    fix = "Return the whole list if its length is allocation_size."

    async def check(self, verifier: Verifier) -> None:
        for plugin in await with_option(verifier, "preference"):
            request = _request(plugin.ids, len(plugin.ids), plugin.ids[:1])
            error = await outcome(prefer(verifier, plugin, request))
            expect(error is None, f"all {len(plugin.ids)} devices", str(error))


class PrefersQuickly(Rule):
    id, level, facts = "PRF-10", Level.SHOULD, ("3.28",)
    title = "GetPreferredAllocation is answered quickly"
    why = "The call has no deadline, and the admission of all pods of the node waits for it."
    fix = "Limit the search; a suitable choice in time is better than the best choice too late."

    async def check(self, verifier: Verifier) -> None:
        for plugin in await with_option(verifier, "preference"):
            times = []
            for _ in range(3):
                began = time.monotonic()
                await prefer(verifier, plugin, _request(plugin.ids, max(1, len(plugin.ids) // 2)))
                times.append(time.monotonic() - began)
            expect(min(times) <= verifier.limits.quick, f"at most {verifier.limits.quick:g} s", f"{min(times):.1f} s")


RULES: tuple[type[Rule], ...] = (
    AnswersPreference,
    PreferenceHasSize,
    PreferenceIsAvailable,
    PreferenceIncludesRequired,
    PreferenceIsDistinct,
    PreferenceIsRepeatable,
    PreferenceIgnoresOrder,
    OnePreferencePerContainer,
    PrefersWithoutChoice,
    PrefersQuickly,
)
