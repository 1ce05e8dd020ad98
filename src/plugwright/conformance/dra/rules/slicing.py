"""Rules of ResourceSlices: a DRA driver's published devices, and that they stay published."""

from collections import Counter
from collections.abc import Iterator
from functools import partial

from plugwright import quantity
from plugwright.conformance.asking import expect
from plugwright.conformance.dra import pools
from plugwright.conformance.dra.driver_session import NODE, DriverSession
from plugwright.conformance.dra.driver_verifier import DriverRule, DriverVerifier
from plugwright.conformance.dra.observed_node import Document, ObservedRequest
from plugwright.conformance.rule import Level, Rule
from plugwright.errors import RuleNotApplicable
from plugwright.model import some

__all__ = ["RULES", "pools", "until_back"]

_LOOKS = 5  # attempts to find a pause without writes
_SEMVER, _LIMITS = ("semver",), ("Too many", "Too long", "must not exceed", "may not be more than", "no more than")
_NAMES = (".name: Invalid", "must not contain dots", "RFC 1123", "C identifier")


async def _refused(verifier: DriverVerifier) -> list[ObservedRequest]:
    """Slices rejected by the API server, with the reason in their text."""
    session = await verifier.start()
    return [request for request in session.api.requests if request.writes_slice and request.code in (400, 403, 422)]


def _about(refused: list[ObservedRequest], words: tuple[str, ...]) -> list[str]:
    return [str(request) for request in refused if any(word in request.text for word in words)]


async def _all_pools(verifier: DriverVerifier) -> list[tuple[str, list[Document]]]:
    session, drivers = await verifier.drivers()
    names = {driver.name for driver in drivers}
    return [(pool, specs) for name in sorted(names) for pool, specs in sorted(session.pools(name).items())]


class IsAccepted(DriverRule):
    id, level = "SLC-01", Level.MUST
    title = "The API server accepts every slice"
    why = "The API server does not store a rejected slice: its devices cannot be allocated."
    fix = "Read the answer, which names the field. Check slices before you send them, and log rejections."

    async def check_driver(self, verifier: DriverVerifier) -> None:
        refused = await _refused(verifier)
        expect(not refused, "no refusal", some([str(request) for request in refused], 2))


class NamesAreLabels(DriverRule):
    id, level = "SLC-02", Level.MUST
    title = "Names of devices are DNS labels, names of attributes C identifiers"
    why = "Because of one invalid name, the API server rejects the whole slice with all its devices."
    fix = (
        "Use lower-case letters, digits and dashes in names of devices, and letters, digits and underscores in "
        "names of attributes."
    )

    async def check_driver(self, verifier: DriverVerifier) -> None:
        refused = _about(await _refused(verifier), _NAMES)
        expect(not refused, "names that the API server takes", some(refused, 1))


class VersionsAreSemver(DriverRule):
    id, level = "SLC-03", Level.MUST
    title = "Version attributes are strict semantic versions"
    why = "v1.2, 1.2 and 535.104.05 are not semantic versions, and the API server rejects the whole slice."
    fix = "Drop a leading v, add missing numbers, drop leading zeros; or publish it as a string."

    async def check_driver(self, verifier: DriverVerifier) -> None:
        refused = _about(await _refused(verifier), _SEMVER)
        expect(not refused, "versions such as 570.86.15", some(refused, 1))


class KeepsLimits(DriverRule):
    id, level = "SLC-04", Level.MUST
    title = "Slices keep the limits: 128 devices, 64 with taints or counters, 32 attributes, 64 bytes for a value"
    why = (
        "The API server rejects a larger slice as a whole, for example on the only node that has more devices "
        "than yours."
    )
    fix = "Divide the devices over several slices of the pool, and count them in resourceSliceCount."

    async def check_driver(self, verifier: DriverVerifier) -> None:
        refused = _about(await _refused(verifier), _LIMITS)
        expect(not refused, "slices within the limits", some(refused, 1))


class PoolIsComplete(DriverRule):
    id, level = "SLC-05", Level.MUST
    title = "resourceSliceCount is the number of slices of the pool's newest generation"
    why = "A scheduler considers the pool incomplete and uses none of it: cannot allocate all claims."
    fix = "Write the same count and generation to every slice of the pool."

    async def check_driver(self, verifier: DriverVerifier) -> None:
        for pool, specs in await _all_pools(verifier):
            problem = pools.incompleteness(specs)
            expect(not problem, f"as many slices in the pool {pool} as they say", problem)


class NoOldGenerations(DriverRule):
    id, level = "SLC-06", Level.SHOULD
    title = "Slices of older generations are deleted"
    why = "Schedulers ignore them, but they count towards quotas of the API server and mislead everyone who reads them."
    fix = "Delete obsolete slices first, then update, then create."

    async def check_driver(self, verifier: DriverVerifier) -> None:
        for pool, specs in await _all_pools(verifier):
            generations = sorted({str(pools.generation(spec)) for spec in specs})
            expect(len(generations) == 1, f"one generation in the pool {pool}", f"generations {some(generations)}")


class NamesAreUnique(DriverRule):
    id, level = "SLC-07", Level.MUST
    title = "Each device and each counter set occurs once in its pool"
    why = "The API server checks each slice separately; a scheduler calls the pool invalid and uses none of it."
    fix = "Look for duplicates over all slices of the pool before you publish."

    async def check_driver(self, verifier: DriverVerifier) -> None:
        for pool, specs in await _all_pools(verifier):
            for field in ("devices", "sharedCounters"):
                names = Counter(entry["name"] for spec in pools.newest(specs) for entry in spec.get(field) or ())
                twice = sorted(name for name, count in names.items() if count > 1)
                expect(not twice, f"each name once in {field} of the pool {pool}", f"{some(twice)} more than once")


def _consumption(specs: list[Document]) -> Iterator[tuple[str, str, str, str]]:
    """Device, counter set, counter and amount."""
    for spec in specs:
        for device in spec.get("devices") or ():
            for entry in device.get("consumesCounters") or ():
                for counter, amount in entry["counters"].items():
                    yield device["name"], entry["counterSet"], counter, str(amount["value"])


async def _pools_with_counters(verifier: DriverVerifier) -> list[tuple[str, list[Document]]]:
    found = [
        (pool, newest) for pool, specs in await _all_pools(verifier) if any(_consumption(newest := pools.newest(specs)))
    ]
    if not found:
        raise RuleNotApplicable("no device consumes counters")
    return found


def _counters(specs: list[Document]) -> dict[tuple[str, str], str]:
    return {
        (entry["name"], counter): str(amount["value"])
        for spec in specs
        for entry in spec.get("sharedCounters") or ()
        for counter, amount in entry["counters"].items()
    }


class CountersExist(DriverRule):
    id, level = "SLC-08", Level.MUST
    title = "Counters that devices consume are in the same pool"
    why = "The API server accepts it; schedulers then answer: invalid resource pools were encountered."
    fix = "Publish the counter sets in a slice of the pool, and count it."

    async def check_driver(self, verifier: DriverVerifier) -> None:
        for pool, specs in await _pools_with_counters(verifier):
            known = _counters(specs)
            missing = [f"{name}/{counter} of {device}" for device, name, counter, _ in _missing(specs, known)]
            expect(not missing, f"the counters in sharedCounters of the pool {pool}", f"none for {some(missing)}")


def _missing(specs: list[Document], known: dict[tuple[str, str], str]) -> list[tuple[str, str, str, str]]:
    return [entry for entry in _consumption(specs) if (entry[1], entry[2]) not in known]


class CountersSuffice(DriverRule):
    id, level = "SLC-09", Level.MUST
    title = "No device consumes more of a counter than its counter set contains"
    why = "Such a device can never be allocated, and its pod waits indefinitely."
    fix = "Compare the sum of each partition with the counter set."

    async def check_driver(self, verifier: DriverVerifier) -> None:
        for pool, specs in await _pools_with_counters(verifier):
            known = _counters(specs)
            greedy = [
                f"{device} with {amount} of {counter}"
                for device, name, counter, amount in _consumption(specs)
                if (name, counter) in known and quantity.parse(amount) > quantity.parse(known[name, counter])
            ]
            expect(not greedy, f"amounts within the counters of the pool {pool}", some(greedy))


class BelongsToNode(DriverRule):
    id, level, facts = "SLC-10", Level.MUST, ("11.8",)
    title = "Slices of local devices name their node"
    why = (
        "With allNodes, pods of other nodes get a device that does not exist there, and the kubelet never "
        "removes the slice."
    )
    fix = "Set spec.nodeName to the name in the pod's field spec.nodeName."

    async def check_driver(self, verifier: DriverVerifier) -> None:
        for pool, specs in await _all_pools(verifier):
            others = [str(spec.get("nodeName") or "no nodeName") for spec in specs if spec.get("nodeName") != NODE]
            expect(not others, f"nodeName {NODE} in the pool {pool}", some(others))


class HasOwner(DriverRule):
    id, level = "SLC-11", Level.SHOULD
    title = "Slices are owned by their Node"
    why = (
        "Without an owner they stay when the Node is deleted, and schedulers continue to allocate devices of a "
        "lost machine."
    )
    fix = "Set an owner reference with the Node's name and its uid, which GET of the Node returns."

    async def check_driver(self, verifier: DriverVerifier) -> None:
        session, drivers = await verifier.drivers()
        for document in (document for driver in drivers for document in session.slices(driver.name)):
            owners = document["metadata"].get("ownerReferences") or []
            uids = [str(owner.get("uid")) for owner in owners if owner.get("kind") == "Node"]
            name, uid = document["metadata"]["name"], session.api.node_uid
            expect(uids == [uid], f"the Node with uid {uid} as owner of {name}", f"owners {some(uids)}")


def _content(session: DriverSession, driver: str) -> list[str]:
    """Every device with its pool, sorted."""
    return sorted(f"{device.pool}/{device.name}" for device in session.devices(driver))


async def until_back(
    verifier: DriverVerifier, session: DriverSession, before: dict[str, list[str]], times: int = 1
) -> None:
    """Waits for the earlier devices, for `times` times the duration in Go's library; then raises RuleViolated.

    They must stay: a driver that publishes too much has complete pools only for a moment.
    """
    limit = verifier.limits.republish * times

    def back() -> bool:
        return all(
            _content(session, name) == content and session.has_whole_pools(name) for name, content in before.items()
        )

    restored = await session.api.until(back, limit)
    if restored and await session.api.until(lambda: not back(), verifier.limits.idle):
        restored = await session.api.until(back, verifier.limits.prompt)
    seen = {name: len(_content(session, name)) for name in before}
    shown = ", ".join(f"{count} of {len(before[name])} devices of {name}" for name, count in seen.items())
    broken = [
        text for name in before for specs in session.pools(name).values() if (text := pools.incompleteness(specs))
    ]
    shown += "".join(f"; {text}" for text in broken)
    expect(restored, f"the same devices in whole pools within {limit:g} s", shown)


async def _contents(verifier: DriverVerifier) -> tuple[DriverSession, dict[str, list[str]]]:
    session, drivers = await verifier.drivers()
    return session, {driver.name: _content(session, driver.name) for driver in drivers}


class RestoredAfterWipe(DriverRule):
    id, level, facts, waits = "SLC-12", Level.MUST, ("11.8",), 3
    title = "Slices are published again after a start of the kubelet, which deletes them all"
    why = "Otherwise the node has no devices from then on, until the driver is restarted."
    fix = "Watch your own slices for as long as the program runs, and create missing ones again."

    async def check_driver(self, verifier: DriverVerifier) -> None:
        session, before = await _contents(verifier)
        mark = session.mark
        await session.kubelet.restart()
        await session.kubelet.until(lambda: session.registered(mark) >= set(before), verifier.limits.register, "")
        await until_back(verifier, session, before)


class RestoredAfterDeletion(DriverRule):
    id, level, waits = "SLC-13", Level.MUST, 3
    title = "A slice that another client deletes is created again"
    why = "One missing slice makes its pool incomplete, and all of its devices unusable."
    fix = "Watch your own slices, not the kubelet: any client with the right may delete them."

    async def check_driver(self, verifier: DriverVerifier) -> None:
        session, before = await _contents(verifier)
        for name in before:
            session.api.change_slice(session.slices(name)[0]["metadata"]["name"], None)
        await until_back(verifier, session, before)


class RepairedAfterEdit(DriverRule):
    id, level, waits = "SLC-14", Level.SHOULD, 3
    title = "A slice that another client edits is repaired"
    why = "Missing or wrong devices in it stay so until the program is restarted."
    fix = "Compare the watched slices with the desired ones, and update those that differ."

    async def check_driver(self, verifier: DriverVerifier) -> None:
        session, before = await _contents(verifier)
        for name in before:
            edited = [document for document in session.slices(name) if document["spec"].get("devices")]
            if not edited:
                raise RuleNotApplicable("no slice has devices")
            spec = edited[0]["spec"]
            session.api.change_slice(edited[0]["metadata"]["name"], {**spec, "devices": spec["devices"][1:]})
        await until_back(verifier, session, before)


class StaysAtEnd(DriverRule):
    id, level, facts, alone = "SLC-15", Level.SHOULD, ("11.9",), True
    title = "A driver that ends leaves its slices"
    why = "An upgrade takes seconds, and pods do not have to wait for it; the kubelet removes the slices after 30 s."
    fix = "Delete no slice when the driver ends."

    async def check_driver(self, verifier: DriverVerifier) -> None:
        async with verifier.fresh_running() as (session, driver):
            before = {document["metadata"]["uid"] for document in session.slices(driver.name)}
            await session.program.stop(verifier.limits.end)
            after = {document["metadata"]["uid"] for document in session.slices(driver.name)}
            expect(after >= before, f"the {len(before)} slices as before", f"{len(before - after)} of them deleted")


class KeptOverRestart(DriverRule):
    id, level, alone = "SLC-16", Level.MUST, True
    title = "A restart adopts the existing slices"
    why = (
        "If the driver creates its slices again, there are more of them than resourceSliceCount says, and the "
        "pool is unusable. Devices with other names cannot be prepared for claims that were allocated before."
    )
    fix = (
        "List your slices first; update or delete existing ones, and create only missing ones. Derive the names of "
        "devices from the hardware."
    )

    async def check_driver(self, verifier: DriverVerifier) -> None:
        async with verifier.fresh_running() as (session, driver):
            before, mark = _content(session, driver.name), session.mark
            await session.program.stop(verifier.limits.end)
            await session.program.end()
            await session.start_program()
            await session.until_registered(verifier.resources, mark=mark, limit=verifier.limits.start)
            await session.api.until(
                lambda: not session.has_whole_pools(driver.name) or _content(session, driver.name) != before,
                verifier.limits.prompt,  # the new process can publish late
            )
            problems = [text for specs in session.pools(driver.name).values() if (text := pools.incompleteness(specs))]
            expect(not problems, "whole pools after a restart", some(problems))
            expect(_content(session, driver.name) == before, "the same devices", "other devices")


class RestsWhenIdle(DriverRule):
    id, level = "SLC-17", Level.MUST
    title = "Slices are not written while nothing changes"
    why = "Each write wakes every scheduler, and with a thousand nodes such writes are most of the API server's work."
    fix = "Compare semantically: the server adds fields, and quantities have several spellings."

    async def check_driver(self, verifier: DriverVerifier) -> None:
        session, _ = await verifier.drivers()
        before, seconds = self._writes(session), verifier.limits.idle
        for _ in range(_LOOKS):  # changes caused by other rules can still be in progress
            known = self._writes(session)
            if not await session.api.until(partial(self._has_written, session, known), seconds):
                return
        made = self._writes(session) - before
        expect(False, f"no writes for {seconds:g} s", f"{made}, and no such pause")

    def _has_written(self, session: DriverSession, known: int) -> bool:
        return self._writes(session) > known

    @staticmethod
    def _writes(session: DriverSession) -> int:
        return sum(request.writes_slice for request in session.api.requests)


RULES: tuple[type[Rule], ...] = (
    IsAccepted,
    NamesAreLabels,
    VersionsAreSemver,
    KeepsLimits,
    PoolIsComplete,
    NoOldGenerations,
    NamesAreUnique,
    CountersExist,
    CountersSuffice,
    BelongsToNode,
    HasOwner,
    RestoredAfterWipe,
    RestoredAfterDeletion,
    RepairedAfterEdit,
    StaysAtEnd,
    KeptOverRestart,
    RestsWhenIdle,
)
