"""Rules of NodePrepareResources: the devices that a claim gets, and the claims that are refused."""

import time
import uuid
from dataclasses import replace

import msgspec

from plugwright.conformance.asking import expect
from plugwright.conformance.dra.cdi_specs import cdi_devices
from plugwright.conformance.dra.claim_calls import (
    REQUEST,
    Answer,
    ClaimAllocation,
    allocated,
    devices_in,
    expect_refused,
    plain_devices,
    prepare,
    prepared,
    refusal,
    some_devices,
    unprepare,
)
from plugwright.conformance.dra.driver_session import DriverSession, PublishedDevice, RegisteredDriver
from plugwright.conformance.dra.driver_verifier import DriverRule, DriverVerifier
from plugwright.conformance.dra.rules.unpreparing import spec_directories
from plugwright.conformance.rule import Level, Rule
from plugwright.conformance.verifier import Verifier
from plugwright.errors import PeerRefused, RuleViolated
from plugwright.grammars import CDI_NAME
from plugwright.model import some
from plugwright.protocol.dra import Claim

__all__ = ["RULES", "refuses_held"]

_NOBODY = "plugwright-verify-no-such-device"
_OTHER = "other-driver.plugwright.dev"
_SHORTEST = 12  # least characters of a meaningful error


class Prepares(DriverRule):
    id, level, facts = "PRP-01", Level.MUST, ("11.10", "11.14")
    title = "A claim for each published device is prepared"
    why = "The pod stays in ContainerCreating: FailedPrepareDynamicResources."
    fix = "GET the claim, take the results of your driver from status.allocation, and answer with their devices."

    async def check_driver(self, verifier: DriverVerifier) -> None:
        session, drivers = await verifier.drivers()
        for driver in drivers:
            for device in (device for device in session.devices(driver.name) if not device.is_shared):
                async with allocated(session, driver, ClaimAllocation([device])) as [claim]:
                    await prepared(session, driver, claim)


class AnswersEachClaim(DriverRule):
    id, level, facts = "PRP-02", Level.MUST, ("11.14", "11.15")
    title = "The answer has one entry for each claim of the call"
    why = "The kubelet sends all claims of a pod in one call, and fails the pod: skipped 1 ResourceClaims."
    fix = "Loop over the request's claims, and put each uid into the map, with devices or with an error."

    async def check_driver(self, verifier: DriverVerifier) -> None:
        session, drivers = await verifier.drivers()
        for driver in drivers:
            wanted = [ClaimAllocation([device]) for device in some_devices(session, driver, 2)]
            async with allocated(session, driver, *wanted) as claims:
                answer = await prepare(session, driver, *claims)
                missing = [claim.name for claim in claims if claim.uid not in answer]
                expect(not missing, f"entries for {len(claims)} claims", f"none for {some(missing)}")
                for claim, allocation in zip(claims, wanted, strict=True):
                    others = {device.name for device in devices_in(answer, claim)} - {allocation.devices[0].name}
                    expect(not others, f"{allocation.devices[0].name} for {claim.name}", some(sorted(others)))


class AnswersNoOtherClaim(DriverRule):
    id, level, facts = "PRP-03", Level.MUST, ("11.15",)
    title = "The answer has no entry for other claims"
    why = "The kubelet fails the pod: returned result for unknown claim UID."
    fix = "Answer only for the claims of this call, not for all prepared claims."

    async def check_driver(self, verifier: DriverVerifier) -> None:
        session, drivers = await verifier.drivers()
        for driver in drivers:
            wanted = [ClaimAllocation([device]) for device in some_devices(session, driver, 2)]
            async with allocated(session, driver, *wanted) as [one, other]:
                await prepared(session, driver, one)
                answer = await prepare(session, driver, other)
                expect(
                    set(answer) <= {other.uid}, f"an entry for {other.uid} alone", f"entries for {some(sorted(answer))}"
                )


class NamesRequest(DriverRule):
    id, level, facts = "PRP-04", Level.MUST, ("11.20",)
    title = "Devices carry the name of their request"
    why = "If the device carries another name, a container that names the request starts without it."
    fix = "Copy the request of the allocation's result into request_names."

    async def check_driver(self, verifier: DriverVerifier) -> None:
        await _check_request(verifier, ClaimAllocation())


class NamesMainRequest(DriverRule):
    id, level, facts = "PRP-05", Level.MUST, ("11.21",)
    title = "Devices of a subrequest carry the name of the main request"
    why = "With main/sub, a container that names the request starts without its device, and nothing reports an error."
    fix = "Use only the part of the result's request before the slash."

    async def check_driver(self, verifier: DriverVerifier) -> None:
        await _check_request(verifier, ClaimAllocation(subrequest="small"))


async def _check_request(verifier: DriverVerifier, allocation: ClaimAllocation) -> None:
    session, drivers = await verifier.drivers()
    for driver in drivers:
        wanted = replace(allocation, devices=some_devices(session, driver))
        async with allocated(session, driver, wanted) as [claim]:
            for device in await prepared(session, driver, claim):
                others = [name for name in device.requests if name != REQUEST]
                expect(not others, f"the request {REQUEST!r}, or none", f"{some(others)} for {device.name}")


class AnswersWithAllocated(DriverRule):
    id, level, facts = "PRP-06", Level.MUST, ("11.10",)
    title = "The devices of the answer are those of the allocation"
    why = (
        "The scheduler has counted another device: two pods get one device, and the health of the wrong device "
        "is shown."
    )
    fix = "Take pool and device from the result; do not choose."

    async def check_driver(self, verifier: DriverVerifier) -> None:
        session, drivers = await verifier.drivers()
        for driver in drivers:
            devices = some_devices(session, driver, 2)
            async with allocated(session, driver, ClaimAllocation(devices[1:])) as [claim]:
                answer = await prepared(session, driver, claim)
                if not answer:
                    continue  # a driver can work without devices in its response, for example by NRI (11.20)
                seen = {f"{device.pool}/{device.name}" for device in answer}
                wanted = {f"{device.pool}/{device.name}" for device in devices[1:]}
                expect(seen == wanted, some(sorted(wanted)), some(sorted(seen)))


class IsIdempotent(DriverRule):
    id, level, facts = "PRP-07", Level.MUST, ("11.17",)
    title = "A prepared claim gets the same answer again"
    why = "A restarted kubelet calls again for every new sandbox; an error prevents the pod from starting."
    fix = "Store the answer in a checkpoint, and return it again."

    async def check_driver(self, verifier: DriverVerifier) -> None:
        session, drivers = await verifier.drivers()
        for driver in drivers:
            async with allocated(session, driver, ClaimAllocation(some_devices(session, driver))) as [claim]:
                first = await prepared(session, driver, claim)
                second = await prepared(session, driver, claim)
                expect(first == second, f"{first}", f"{second}")


class LeavesOtherDrivers(DriverRule):
    id, level, facts = "PRP-08", Level.MUST, ("11.14",)
    title = "The driver ignores results and parameters of other drivers in a claim"
    why = "A claim may have devices of several drivers, such as a GPU and a network card."
    fix = "Skip results and config entries whose driver is not yours."

    async def check_driver(self, verifier: DriverVerifier) -> None:
        session, drivers = await verifier.drivers()
        parameters = {"apiVersion": f"{_OTHER}/v1", "kind": "Card", "speed": 400}
        config = {"source": "FromClaim", "requests": [], "opaque": {"driver": _OTHER, "parameters": parameters}}
        other = {"request": REQUEST, "driver": _OTHER, "pool": "other", "device": "card-0"}
        for driver in drivers:
            devices = some_devices(session, driver)
            wanted = ClaimAllocation(devices, results=[other], config=[config])
            async with allocated(session, driver, wanted) as [claim]:
                names = [device.name for device in await prepared(session, driver, claim)]
                expect(set(names) <= {devices[0].name}, f"{devices[0].name} alone", f"{some(names)}")


class RefusesUnknownClaim(DriverRule):
    id, level, facts = "PRP-09", Level.MUST, ("11.10",)
    title = "A claim that is not in the API is refused"
    why = "The claim was deleted in the meantime: nothing is allocated to it."
    fix = "Put the error of the GET into the claim's entry."

    async def check_driver(self, verifier: DriverVerifier) -> None:
        session, drivers = await verifier.drivers()
        for driver in drivers:
            await expect_refused(
                session, driver, Claim("default", "no-such-claim", str(uuid.uuid4())), "a claim that does not exist"
            )


class RefusesReplacedClaim(DriverRule):
    id, level, facts = "PRP-10", Level.MUST, ("11.10",)
    title = "A claim whose uid has changed is refused"
    why = "A claim with the same name was created again, and its devices are for another pod."
    fix = "Compare metadata.uid with the uid of the request."

    async def check_driver(self, verifier: DriverVerifier) -> None:
        session, drivers = await verifier.drivers()
        for driver in drivers:
            async with allocated(session, driver, ClaimAllocation(some_devices(session, driver))) as [claim]:
                old = msgspec.structs.replace(claim, uid=str(uuid.uuid4()))
                try:
                    await expect_refused(session, driver, old, "a claim with another uid")
                finally:
                    await unprepare(session, driver, old)


class RefusesUnallocatedClaim(DriverRule):
    id, level, facts = "PRP-11", Level.MUST, ("11.12",)
    title = "A claim without an allocation is refused"
    why = "Success without a device starts the pod without one."
    fix = "Return an error if status.allocation is missing."

    async def check_driver(self, verifier: DriverVerifier) -> None:
        session, drivers = await verifier.drivers()
        for driver in drivers:
            async with allocated(session, driver, _Unallocated()) as [claim]:
                await expect_refused(session, driver, claim, "a claim that is not allocated")


class _Unallocated(ClaimAllocation):
    def status(self, driver: str) -> dict[str, object]:
        return {}


class RefusesUnknownDevice(DriverRule):
    id, level = "PRP-12", Level.MUST
    title = "A device that the driver does not have is refused"
    why = "It was unplugged after the allocation: the pod would start without it."
    fix = "Look the device up, and return an error that names it."

    async def check_driver(self, verifier: DriverVerifier) -> None:
        session, drivers = await verifier.drivers()
        for driver in drivers:
            device = PublishedDevice(some_devices(session, driver)[0].pool, _NOBODY, {})
            async with allocated(session, driver, ClaimAllocation([device])) as [claim]:
                await expect_refused(session, driver, claim, "a device that was never published")


class IsExclusive(DriverRule):
    id, level = "PRP-13", Level.MUST
    title = "A device that another claim holds is refused"
    why = (
        "Force-deleted pods or two schedulers can cause this, and then two pods use one device. Kubernetes asks "
        "drivers to verify it, as the last line of defense (k8s.io/dynamic-resource-allocation, "
        "kubeletplugin/draplugin.go)."
    )
    fix = "Record in the checkpoint which claim has which device, and check it first."

    async def check_driver(self, verifier: DriverVerifier) -> None:
        session, drivers = await verifier.drivers()
        for driver in drivers:
            wanted = ClaimAllocation(plain_devices(session, driver))
            async with allocated(session, driver, wanted, wanted) as [one, other]:
                await prepared(session, driver, one)
                await expect_refused(session, driver, other, "a claim for a device in use")


async def refuses_held(verifier: Verifier) -> bool:
    """Whether the driver refuses held devices to a second claim, as PRP-13 requires; others cannot forget holders."""
    assert isinstance(verifier, DriverVerifier)
    session, [driver, *_] = await verifier.drivers()
    wanted = ClaimAllocation(plain_devices(session, driver))
    async with allocated(session, driver, wanted, wanted) as [one, other]:
        await prepared(session, driver, one)
        try:
            await expect_refused(session, driver, other, "a claim for a device in use")
        except RuleViolated:
            return False
    return True


class FreesDevice(DriverRule):
    id, level, facts, holds = "PRP-14", Level.MUST, ("11.19",), True
    title = "A device is free again after NodeUnprepareResources"
    why = "Otherwise each pod costs the node a device, until the driver is restarted."
    fix = "Remove the claim from the checkpoint when it is unprepared."

    async def check_driver(self, verifier: DriverVerifier) -> None:
        session, drivers = await verifier.drivers()
        for driver in drivers:
            wanted = ClaimAllocation(plain_devices(session, driver))
            async with allocated(session, driver, wanted, wanted) as [one, other]:
                await prepared(session, driver, one)
                await unprepare(session, driver, one)
                await prepared(session, driver, other)


class AllowsAdminAccess(DriverRule):
    id, level = "PRP-15", Level.MUST
    title = "A claim with admin access is prepared beside the holder of the device, which stays its holder"
    why = (
        "The scheduler does not count a device of such a claim as allocated, so it gives it to monitoring pods while "
        "it is held, and to another pod while it is monitored: those pods wait until the other claim has ended."
    )
    fix = "Do not count results with adminAccess, neither as holders nor as new claims."

    async def check_driver(self, verifier: DriverVerifier) -> None:
        session, drivers = await verifier.drivers()
        exclusive = await verifier.remembered(refuses_held)
        for driver in drivers:
            wanted = ClaimAllocation(plain_devices(session, driver))
            allocations = (wanted, wanted, replace(wanted, admin_access=True))
            async with allocated(session, driver, *allocations) as [one, other, admin]:
                await prepared(session, driver, one)
                await prepared(session, driver, admin)
                if exclusive:  # PRP-13 otherwise
                    await unprepare(session, driver, admin)
                    held = "a device whose holder stays, when a claim with admin access has ended"
                    await expect_refused(session, driver, other, held)
                await unprepare(session, driver, one)
                await prepared(session, driver, admin)
                answer = (await prepare(session, driver, other)).get(other.uid)
                seen = f"{answer!r}, while a claim with admin access for it is prepared"
                expect(isinstance(answer, list | tuple), "a free device for a claim without admin access", seen)


class FailsOneClaimAlone(DriverRule):
    id, level, facts = "PRP-16", Level.MUST, ("11.15",)
    title = "A failed claim does not affect the other claims of the call"
    why = "An error of the whole call does not name the failed claim, and fails all of them."
    fix = "Put errors into the claim's entry, and return a gRPC error only for a malformed request."

    async def check_driver(self, verifier: DriverVerifier) -> None:
        session, drivers = await verifier.drivers()
        for driver in drivers:
            wanted = some_devices(session, driver)
            nobody = PublishedDevice(wanted[0].pool, _NOBODY, {})
            async with allocated(session, driver, ClaimAllocation(wanted), ClaimAllocation([nobody])) as [claim, other]:
                # Go's library fails the whole call for a missing claim, which a driver cannot change.
                unknown = Claim("default", "no-such-claim", str(uuid.uuid4()))
                try:
                    answer = await prepare(session, driver, unknown, claim)
                except PeerRefused:
                    answer = await self._prepare(session, driver, other, claim)
                names = [name for device in devices_in(answer, claim) for name in device.cdi_devices]
                known = cdi_devices(spec_directories(verifier, session))
                missing = [name for name in names if CDI_NAME.fullmatch(name) and name not in known]
                expect(not missing, "the CDI specs of the claim that did not fail", f"none for {some(missing)}")

    @staticmethod
    async def _prepare(session: DriverSession, driver: RegisteredDriver, *claims: Claim) -> Answer:
        try:
            return await prepare(session, driver, *claims)
        except PeerRefused as error:
            raise RuleViolated("an entry for each claim", f"the call was answered {str(error)!r}") from None


class ErrorsAreReadable(DriverRule):
    id, level, facts = "PRP-17", Level.SHOULD, ("11.15",)
    title = "Errors describe the problem with the claim in one line"
    why = "The pod's owner sees only this text, in an event of the pod."
    fix = "State the expected and the actual state; no stack trace and no bare code."

    async def check_driver(self, verifier: DriverVerifier) -> None:
        session, drivers = await verifier.drivers()
        for driver in drivers:
            claim = Claim("default", "no-such-claim", str(uuid.uuid4()))
            text = await refusal(session, driver, claim, "a claim that does not exist")
            kept = len(text) >= _SHORTEST and "\n" not in text.strip() and "Traceback" not in text
            expect(kept, "a sentence", f"{text[:200]!r}")


class IsQuick(DriverRule):
    id, level, facts = "PRP-18", Level.SHOULD, ("11.11",)
    title = "NodePrepareResources is answered in time"
    why = "The kubelet gives up after 45 seconds, and retries after a minute or more; the pod waits until then."
    fix = "Do slow work outside of the call, or retry within it for less than 45 seconds."

    async def check_driver(self, verifier: DriverVerifier) -> None:
        session, drivers = await verifier.drivers()
        limit = verifier.limits.call
        for driver in drivers:
            async with allocated(session, driver, ClaimAllocation(some_devices(session, driver))) as [claim]:
                began = time.monotonic()
                await prepared(session, driver, claim)
                seconds = time.monotonic() - began
                expect(seconds < limit, f"an answer within {limit:g} s", f"{seconds:.1f} s")


RULES: tuple[type[Rule], ...] = (
    Prepares,
    AnswersEachClaim,
    AnswersNoOtherClaim,
    NamesRequest,
    NamesMainRequest,
    AnswersWithAllocated,
    IsIdempotent,
    LeavesOtherDrivers,
    RefusesUnknownClaim,
    RefusesReplacedClaim,
    RefusesUnallocatedClaim,
    RefusesUnknownDevice,
    IsExclusive,
    FreesDevice,
    AllowsAdminAccess,
    FailsOneClaimAlone,
    ErrorsAreReadable,
    IsQuick,
)
