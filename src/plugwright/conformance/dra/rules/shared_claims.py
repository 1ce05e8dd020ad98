"""Rules of concurrent claims: simultaneous calls, devices shared by several claims, claims shared by several pods."""

import asyncio
import uuid

from plugwright.conformance.asking import expect
from plugwright.conformance.dra.cdi_specs import cdi_devices
from plugwright.conformance.dra.claim_calls import (
    ClaimAllocation,
    allocated,
    create_claim,
    devices_in,
    expect_refused,
    plain_devices,
    prepare,
    prepared,
    shared_device,
    some_devices,
    unprepare,
)
from plugwright.conformance.dra.driver_session import DriverSession, RegisteredDriver
from plugwright.conformance.dra.driver_verifier import DriverRule, DriverVerifier
from plugwright.conformance.dra.rules.preparing import refuses_held
from plugwright.conformance.dra.rules.unpreparing import spec_directories
from plugwright.conformance.rule import Level, Rule
from plugwright.model import some

__all__ = ["RULES"]

_OTHER_NAMESPACE = "plugwright-verify"


class AllowsCallsAtOnce(DriverRule):
    id, level, facts = "PRP-19", Level.MUST, ("11.14",)
    title = "Calls for several pods at once are answered, each with its own devices"
    why = "The kubelet calls for several pods in parallel; a lost update of the checkpoint loses a claim."
    fix = "Serialise the calls, or protect their shared state with a lock."

    async def check_driver(self, verifier: DriverVerifier) -> None:
        session, drivers = await verifier.drivers()
        for driver in drivers:
            devices = plain_devices(session, driver, 2)
            await verifier.remembered(refuses_held)
            wanted = [ClaimAllocation([device]) for device in devices]
            async with allocated(session, driver, *wanted, *wanted) as claims:
                calls = [prepare(session, driver, claim) for claim in claims[:2]]
                made = await asyncio.gather(*calls)
                first = {claim.uid: devices_in(answer, claim) for claim, answer in zip(claims[:2], made, strict=True)}
                if await verifier.remembered(refuses_held):  # PRP-13 otherwise
                    held = "a device that one of the two claims holds"
                    await asyncio.gather(*(expect_refused(session, driver, claim, held) for claim in claims[2:]))
                for claim in claims[:2]:
                    again = await prepared(session, driver, claim)
                    expect(again == first[claim.uid], f"the same answer again, {first[claim.uid]}", f"{again}")


class SharesDevice(DriverRule):
    id, level = "PRP-20", Level.MUST
    title = "A device with allowMultipleAllocations is prepared for several claims at once"
    why = "The scheduler gives shares of it to several pods; all pods except the first would wait indefinitely."
    fix = "Do not count results with a shareID as exclusive."

    async def check_driver(self, verifier: DriverVerifier) -> None:
        session, drivers = await verifier.drivers()
        for driver in drivers:
            wanted = ClaimAllocation([shared_device(session, driver)])
            async with allocated(session, driver, wanted, wanted) as claims:
                for claim in claims:
                    await prepared(session, driver, claim)


class NamesShare(DriverRule):
    id, level, facts = "PRP-21", Level.SHOULD, ("11.2",)
    title = "A share of a device carries its share_id"
    why = "Without it, the kubelet and its clients cannot distinguish the shares of one device."
    fix = "Copy the result's shareID into share_id, in v1."

    async def check_driver(self, verifier: DriverVerifier) -> None:
        session, drivers = await verifier.drivers()
        for driver in drivers:
            share = str(uuid.uuid4())
            wanted = ClaimAllocation([shared_device(session, driver)], share_id=share)
            async with allocated(session, driver, wanted) as [claim]:
                ids = [device.share_id for device in await prepared(session, driver, claim)]
                expect(ids == [share] or driver.version != "v1.DRAPlugin", f"share_id {share}", f"{ids}")


class PreparesForTwoPods(DriverRule):
    id, level, facts = "PRP-22", Level.MUST, ("11.16", "11.17")
    title = "A claim that two pods use is prepared in the same way for both"
    why = "Several pods may use one claim, and the kubelet calls once for all of them: none would start."
    fix = "Do not expect exactly one entry in status.reservedFor, and tie the devices to the claim, not to a pod."

    async def check_driver(self, verifier: DriverVerifier) -> None:
        session, drivers = await verifier.drivers()
        for driver in drivers:
            wanted = ClaimAllocation(some_devices(session, driver), pods=2)
            async with allocated(session, driver, wanted) as [claim]:
                first = await prepared(session, driver, claim)
                second = await prepared(session, driver, claim)
                expect(first == second, f"{first}", f"{second}")


class ReadsClaimOfSameName(DriverRule):
    id, level, facts = "PRP-26", Level.MUST, ("11.10",)
    title = "A claim gets its own devices if another claim had its name before, or has it in another namespace"
    why = (
        "StatefulSets and Jobs create claims again under the same name, with other devices, and one manifest may "
        "be applied to many namespaces."
    )
    fix = "Identify claims by their uid, in CDI specs too; read a claim again if your cache contains another uid."

    async def check_driver(self, verifier: DriverVerifier) -> None:
        session, drivers = await verifier.drivers()
        for driver in drivers:
            first, second = (ClaimAllocation([device]) for device in some_devices(session, driver, 2))
            async with allocated(session, driver, first) as [old]:
                await prepared(session, driver, old)
                await unprepare(session, driver, old)
                session.api.remove(old.namespace, old.name)
                new = create_claim(session, driver, old.name, second)
                try:
                    names = {device.name for device in await prepared(session, driver, new)}
                finally:
                    await unprepare(session, driver, new)
                wanted = second.devices[0].name
                expect(names <= {wanted}, f"{wanted} for the second claim {new.name}", some(sorted(names)))
            await self._check_namespaces(verifier, session, driver, (first, second))

    @staticmethod
    async def _check_namespaces(
        verifier: DriverVerifier,
        session: DriverSession,
        driver: RegisteredDriver,
        wanted: tuple[ClaimAllocation, ClaimAllocation],
    ) -> None:
        first, second = wanted
        async with allocated(session, driver, first) as [one]:
            before = await prepared(session, driver, one)
            places = spec_directories(verifier, session)
            own_names = {name for device in before for name in device.cdi_devices}
            specs = {name: entry for name, entry in cdi_devices(places).items() if name in own_names}
            other = create_claim(session, driver, one.name, second, namespace=_OTHER_NAMESPACE)
            try:
                answer = await prepared(session, driver, other)
                now = cdi_devices(places)
            finally:
                await unprepare(session, driver, other)
                session.api.remove(other.namespace, other.name)
            names, own = {device.name for device in answer}, second.devices[0].name
            which = f"the claim {other.name} in another namespace"
            expect(names <= {own}, f"{own} for {which}", some(sorted(names)))
            # A CDI device that every claim gets, such as common edits of a node, may be named by both.
            changed = sorted(name for name, entry in specs.items() if now.get(name) != entry)
            expect(not changed, f"the CDI specs of {one.name} beside {which}", f"others or none for {some(changed)}")
            again = await prepared(session, driver, one)
            expect(again == before, f"{before}, as before {which}", f"{again}")


RULES: tuple[type[Rule], ...] = (
    AllowsCallsAtOnce,
    SharesDevice,
    NamesShare,
    PreparesForTwoPods,
    ReadsClaimOfSameName,
)
