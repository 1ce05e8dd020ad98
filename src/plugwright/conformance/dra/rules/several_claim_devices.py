"""Rules of claims with several devices, of calls with several claims, and of many pods at once."""

import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from plugwright.conformance.asking import expect
from plugwright.conformance.dra.cdi_specs import CdiDevice, cdi_devices
from plugwright.conformance.dra.claim_calls import (
    REQUEST,
    ClaimAllocation,
    allocated,
    expect_refused,
    prepare,
    prepared,
    separate_devices,
    shared_device,
    unprepare,
)
from plugwright.conformance.dra.driver_session import DriverSession, PublishedDevice, RegisteredDriver
from plugwright.conformance.dra.driver_verifier import DriverRule, DriverVerifier
from plugwright.conformance.dra.rules.preparing import refuses_held
from plugwright.conformance.dra.rules.unpreparing import spec_directories
from plugwright.conformance.pace import PODS, WINDOW, pace
from plugwright.conformance.rule import Level, Rule
from plugwright.errors import RuleNotApplicable, RuleViolated
from plugwright.model import some
from plugwright.protocol.dra import Claim, PreparedDevice

__all__ = ["PREPARE_RULES", "UNPREPARE_RULES"]

_MOST = 32  # devices of a claim, the limit of the API
_NOBODY = "plugwright-verify-no-such-device"


@dataclass(frozen=True, slots=True)
class TwoRequests(ClaimAllocation):
    """Each device belongs to a separate request."""

    def status(self, driver: str) -> dict[str, object]:
        status = ClaimAllocation.status(self, driver)
        allocation = status["allocation"]
        assert isinstance(allocation, dict)
        for number, result in enumerate(allocation["devices"]["results"]):
            result["request"] = f"{REQUEST}-{number}"
        return status

    def spec(self, driver: str) -> dict[str, object]:
        requests = [
            {"name": f"{REQUEST}-{number}", "exactly": {"deviceClassName": driver}}
            for number in range(len(self.devices))
        ]
        return {"devices": {"requests": requests}}


def _names(devices: Sequence[PublishedDevice | PreparedDevice]) -> list[str]:
    return sorted(f"{device.pool}/{device.name}" for device in devices)


class PreparesSeveral(DriverRule):
    id, level, facts = "PRP-23", Level.MUST, ("11.10", "11.20")
    title = "A claim with several devices gets each of them, with its CDI devices and the name of its request"
    why = "The container starts without one of the devices allocated to its claim, and nothing reports it."
    fix = "Loop over all results of your driver in the allocation, and answer with a device for each."

    async def check_driver(self, verifier: DriverVerifier) -> None:
        session, drivers = await verifier.drivers()
        for driver in drivers:
            devices = separate_devices(session, driver, 2)
            alone = await self._edits(verifier, session, driver, devices[:_MOST])
            for wanted in (devices[:2], devices[-2:], devices[:_MOST]):
                for allocation in (ClaimAllocation(wanted), TwoRequests(wanted)):
                    async with allocated(session, driver, allocation) as [claim]:
                        answer = await prepared(session, driver, claim)
                        if not answer:
                            raise RuleNotApplicable("the driver answers without devices")
                        self._check(wanted, answer, allocation)
                        self._check_specs(verifier, session, claim, answer, alone)

    @staticmethod
    def _check(wanted: Sequence[PublishedDevice], answer: Sequence[PreparedDevice], asked: ClaimAllocation) -> None:
        expect(_names(wanted) == _names(answer), some(_names(wanted)), some(_names(answer)))
        if not isinstance(asked, TwoRequests):
            return
        requests = {device.name: f"{REQUEST}-{number}" for number, device in enumerate(wanted)}
        for device in answer:
            others = [name for name in device.requests if name != requests[device.name]]
            expect(not others, f"the request {requests[device.name]} for {device.name}", some(others))

    @staticmethod
    async def _edits(
        verifier: DriverVerifier, session: DriverSession, driver: RegisteredDriver, devices: Sequence[PublishedDevice]
    ) -> dict[str, set[str]]:
        """The edits that each device has in a claim of its own."""
        found = {}
        for device in devices:
            async with allocated(session, driver, ClaimAllocation([device])) as [claim]:
                found[device.name] = _edits(verifier, session, claim, await prepared(session, driver, claim))
        return found

    @staticmethod
    def _check_specs(
        verifier: DriverVerifier,
        session: DriverSession,
        claim: Claim,
        answer: Sequence[PreparedDevice],
        alone: Mapping[str, set[str]],
    ) -> None:
        known = cdi_devices(spec_directories(verifier, session))
        missing = [name for device in answer for name in device.cdi_devices if name not in known]
        expect(not missing, "a CDI spec for each name", f"none for {some(missing)}")
        edits = _edits(verifier, session, claim, answer)
        common = set.intersection(*alone.values())
        lost = sorted({edit for device in answer for edit in alone.get(device.name, set())} - edits - common)
        expect(not lost, "the device nodes, mounts and variables that each device has by itself", f"no {some(lost)}")
        twice = [conflict for names in _names_of_requests(answer) for conflict in _conflicts(known, names)]
        expect(not twice, "different paths and variables in the container for each device", some(twice))


def _names_of_requests(answer: Sequence[PreparedDevice]) -> list[list[str]]:
    """The CDI names of each request: a container can use one request alone, so two may set the same variable."""
    requests = sorted({request for device in answer for request in device.requests})
    return [
        [name for device in answer if request in device.requests for name in device.cdi_devices] for request in requests
    ]


def _conflicts(known: Mapping[str, CdiDevice], names: Sequence[str]) -> list[str]:
    """Paths and variables of the container that two of the CDI devices set in different ways: the last one wins."""
    sources: dict[str, set[str]] = {}
    for name in dict.fromkeys(names):
        edits = known.get(name, {}).get("containerEdits") or {}
        for node in edits.get("deviceNodes") or ():
            sources.setdefault(f"node {node.get('path')}", set()).add(str(node.get("hostPath") or node.get("path")))
        for mount in edits.get("mounts") or ():
            sources.setdefault(f"mount {mount.get('containerPath')}", set()).add(str(mount.get("hostPath")))
        for variable in edits.get("env") or ():
            key, _, value = str(variable).partition("=")
            sources.setdefault(f"variable {key}", set()).add(value)
    return [f"{what} is {some(sorted(found))}" for what, found in sources.items() if len(found) > 1]


def _edits(
    verifier: DriverVerifier, session: DriverSession, claim: Claim, answer: Sequence[PreparedDevice]
) -> set[str]:
    """The edits of CDI devices: nodes by their paths on the host, mounts by those in the container, and variables.

    The name and uid of the claim are left out, so that files of a claim, such as its metadata, are the same in each.
    """
    known = cdi_devices(spec_directories(verifier, session))
    found = set()
    for name in (name for device in answer for name in device.cdi_devices):
        edits = known.get(name, {}).get("containerEdits") or {}
        found |= {str(node.get("hostPath") or node.get("path")) for node in edits.get("deviceNodes") or ()}
        found |= {f"mount {mount.get('containerPath')}" for mount in edits.get("mounts") or ()}
        found |= {f"variable {str(variable).partition('=')[0]}" for variable in edits.get("env") or ()}
    return {edit.replace(claim.uid, "UID").replace(claim.name, "NAME") for edit in found}


class PartialFailureHoldsNothing(DriverRule):
    id, level, facts, holds = "PRP-24", Level.MUST, ("11.15",), True
    title = "A claim that fails for one of its devices holds none of the others"
    why = "The pod waits, possibly indefinitely, and no other pod gets the devices of its half-prepared claim."
    fix = "Check all devices before you write anything, or undo all changes if one device fails."

    async def check_driver(self, verifier: DriverVerifier) -> None:
        session, drivers = await verifier.drivers()
        exclusive = await verifier.remembered(refuses_held)
        for driver in drivers:
            devices = separate_devices(session, driver, 1)[:2]
            nobody = PublishedDevice(devices[0].pool, _NOBODY, {})
            for wanted in ([*devices, nobody], [nobody, *devices]):
                await self._fail(verifier, session, driver, wanted, devices)
            if exclusive and len(devices) == 2:
                async with allocated(session, driver, ClaimAllocation(devices[1:])) as [holder]:
                    await prepared(session, driver, holder)
                    await self._fail(verifier, session, driver, devices, devices[:1])

    @staticmethod
    async def _fail(
        verifier: DriverVerifier,
        session: DriverSession,
        driver: RegisteredDriver,
        wanted: Sequence[PublishedDevice],
        free: Sequence[PublishedDevice],
    ) -> None:
        others = [ClaimAllocation([device]) for device in free]
        async with allocated(session, driver, ClaimAllocation(wanted), *others) as [claim, *next_ones]:
            await expect_refused(session, driver, claim, "a claim with a device that cannot be prepared")
            names = [name for name in cdi_devices(spec_directories(verifier, session)) if claim.uid in name]
            expect(not names, "no CDI spec of a claim that failed", some(names))
            for other in next_ones:
                await prepared(session, driver, other)


class PreparesManyPods(DriverRule):
    id, level, facts = "PRP-25", Level.MUST, ("11.11",)
    title = f"The claims of {PODS} pods that start at once, as after a boot, are prepared within {WINDOW:g} s"
    why = (
        "The kubelet gives up on each call after 45 s and retries later; if calls wait for a lock, the last pods "
        "never start."
    )
    fix = "Hold no lock while you wait for hardware, files or the API server."

    async def check_driver(self, verifier: DriverVerifier) -> None:
        session, drivers = await verifier.drivers()
        for driver in drivers:
            devices = separate_devices(session, driver, 1)[:PODS]
            async with allocated(session, driver, *(ClaimAllocation([device]) for device in devices)) as claims:
                calls = [self._prepare(session, driver, claim) for claim in (claims * PODS)[:PODS]]
                seconds = await pace(calls, WINDOW)
                expect(seconds <= WINDOW, f"{PODS} answers within {WINDOW:g} s", f"they take {seconds:.0f} s")
                calls = [self._unprepare(session, driver, claim) for claim in (claims * PODS)[:PODS]]
                seconds = await pace(calls, WINDOW)
                expected = f"{PODS} answers to NodeUnprepareResources within {WINDOW:g} s"
                expect(seconds <= WINDOW, expected, f"they take {seconds:.0f} s")

    @staticmethod
    async def _prepare(session: DriverSession, driver: RegisteredDriver, claim: Claim) -> None:
        async with driver.connect() as client:
            await client.prepare([claim], WINDOW * 2)

    @staticmethod
    async def _unprepare(session: DriverSession, driver: RegisteredDriver, claim: Claim) -> None:
        async with driver.connect() as client:
            await client.unprepare([claim], WINDOW * 2)


async def _expect_free(
    verifier: DriverVerifier, session: DriverSession, driver: RegisteredDriver, devices: Sequence[PublishedDevice]
) -> None:
    """Raises RuleViolated unless each device can be prepared for another claim."""
    for device in devices:
        async with allocated(session, driver, ClaimAllocation([device])) as [claim]:
            result = (await prepare(session, driver, claim)).get(claim.uid)
            if result is None or isinstance(result, str):
                raise RuleViolated(f"{device.name} is free", f"another claim for it gets {result!r}")


class UnpreparesAllDevices(DriverRule):
    id, level, facts, holds = "UNP-05", Level.MUST, ("11.19",), True
    title = "NodeUnprepareResources frees every device of a claim"
    why = "Each pod with several devices costs the node some of them, until the driver's state is removed by hand."
    fix = "Loop over all devices that the checkpoint contains for the claim; remove its specs as well."

    async def check_driver(self, verifier: DriverVerifier) -> None:
        session, drivers = await verifier.drivers()
        for driver in drivers:
            devices = separate_devices(session, driver, 2)[:_MOST]
            async with allocated(session, driver, ClaimAllocation(devices)) as [claim]:
                names = [name for device in await prepared(session, driver, claim) for name in device.cdi_devices]
                await unprepare(session, driver, claim)
                known = cdi_devices(spec_directories(verifier, session))
                left = [name for name in names if claim.uid in name and name in known]
                expect(not left, "no spec of the claim", some(left))
                await _expect_free(verifier, session, driver, devices)


class UnpreparesAllClaims(DriverRule):
    id, level, facts = "UNP-06", Level.MUST, ("11.19",)
    title = "Every claim of a call is unprepared"
    why = "The kubelet sends all claims of a pod in one call; claims without an entry keep the pod in Terminating."
    fix = "Loop over the request's claims, and put each uid into the map."

    async def check_driver(self, verifier: DriverVerifier) -> None:
        session, drivers = await verifier.drivers()
        for driver in drivers:
            devices = separate_devices(session, driver, 2)[:3]
            async with allocated(session, driver, *(ClaimAllocation([device]) for device in devices)) as claims:
                await prepare(session, driver, *claims)
                unknown = Claim("default", "never-prepared", str(uuid.uuid4()))  # one that failed is sent, too
                answer = await unprepare(session, driver, unknown, *claims)
                failed = [claim.name for claim in claims if answer.get(claim.uid) != ""]
                expect(not failed, f"success for {len(claims)} claims", f"none for {some(failed)}")
                await _expect_free(verifier, session, driver, devices)


class LeavesOtherClaims(DriverRule):
    id, level, facts = "UNP-07", Level.MUST, ("11.16", "11.19")
    title = "NodeUnprepareResources leaves other claims prepared, with their CDI specs and devices"
    why = (
        "Other pods continue to run when one ends: their containers could not restart, or their devices would be "
        "allocated twice."
    )
    fix = "Remove only the state that belongs to the uid of the claim."

    async def check_driver(self, verifier: DriverVerifier) -> None:
        session, drivers = await verifier.drivers()
        exclusive = await verifier.remembered(refuses_held)
        for driver in drivers:
            with suppress(RuleNotApplicable):  # a driver without shared devices
                await self._check_shares(verifier, session, driver)
            one, two = (ClaimAllocation([device]) for device in separate_devices(session, driver, 2)[:2])
            async with allocated(session, driver, one, two, two) as [ended, kept, other]:
                await prepared(session, driver, ended)
                before = await prepared(session, driver, kept)
                names = {name for device in before for name in device.cdi_devices}
                names &= set(cdi_devices(spec_directories(verifier, session)))
                await unprepare(session, driver, ended)
                gone = sorted(names - set(cdi_devices(spec_directories(verifier, session))))
                expect(not gone, "the CDI specs of a claim that stays", f"none for {some(gone)}")
                if exclusive:  # PRP-13 otherwise
                    await expect_refused(session, driver, other, "a device of a claim that stays")
                after = await prepared(session, driver, kept)
                expect(before == after, f"the same answer as before, {before}", f"{after}")

    @staticmethod
    async def _check_shares(verifier: DriverVerifier, session: DriverSession, driver: RegisteredDriver) -> None:
        """The end of one share of a device leaves the other one."""
        wanted = ClaimAllocation([shared_device(session, driver)])
        async with allocated(session, driver, wanted, wanted) as [ended, kept]:
            await prepared(session, driver, ended)
            names = {name for device in await prepared(session, driver, kept) for name in device.cdi_devices}
            names &= set(cdi_devices(spec_directories(verifier, session)))
            await unprepare(session, driver, ended)
            gone = sorted(names - set(cdi_devices(spec_directories(verifier, session))))
            expect(not gone, "the CDI specs of another share of the device", f"none for {some(gone)}")


PREPARE_RULES: tuple[type[Rule], ...] = (PreparesSeveral, PartialFailureHoldsNothing, PreparesManyPods)
UNPREPARE_RULES: tuple[type[Rule], ...] = (UnpreparesAllDevices, UnpreparesAllClaims, LeavesOtherClaims)
