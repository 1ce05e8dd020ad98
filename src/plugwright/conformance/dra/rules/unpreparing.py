"""Rules of NodeUnprepareResources, and of the CDI devices in the responses of NodePrepareResources."""

import uuid
from collections.abc import Sequence
from pathlib import Path

from plugwright.conformance.asking import expect
from plugwright.conformance.dra.cdi_specs import (
    cdi_devices,
    cdi_devices_of,
    refused_specs,
    spec_files,
    spec_paths_on_host,
)
from plugwright.conformance.dra.claim_calls import (
    ClaimAllocation,
    allocated,
    prepared,
    shared_device,
    some_devices,
    unprepare,
)
from plugwright.conformance.dra.driver_session import DriverSession, PublishedDevice, RegisteredDriver
from plugwright.conformance.dra.driver_verifier import DriverRule, DriverVerifier
from plugwright.conformance.rule import Level, Rule
from plugwright.errors import RuleNotApplicable
from plugwright.grammars import CDI_NAME
from plugwright.model import some
from plugwright.protocol.dra import Claim

__all__ = ["CDI_RULES", "UNPREPARE_RULES", "WITHOUT_SPEC_RULES", "prepared_names", "spec_directories"]

_MOST = 32  # devices from each end of the list


async def _expect_success(session: DriverSession, driver: RegisteredDriver, claim: Claim, which: str) -> None:
    answer = await unprepare(session, driver, claim)
    seen = "no entry" if claim.uid not in answer else f"the error {answer[claim.uid]!r}"
    expect(answer.get(claim.uid) == "", f"success for {which}", seen)


class Unprepares(DriverRule):
    id, level, facts = "UNP-01", Level.MUST, ("11.19",)
    title = "A prepared claim is unprepared, with one entry in the answer"
    why = "A failure causes no event: the pod stays in Terminating, and its claim stays allocated."
    fix = "Answer with an entry for each claim, without an error."

    async def check_driver(self, verifier: DriverVerifier) -> None:
        session, drivers = await verifier.drivers()
        for driver in drivers:
            async with allocated(session, driver, ClaimAllocation(some_devices(session, driver))) as [claim]:
                await prepared(session, driver, claim)
                await _expect_success(session, driver, claim, "a prepared claim")


class UnpreparesTwice(DriverRule):
    id, level, facts = "UNP-02", Level.MUST, ("11.19",)
    title = "A claim that was unprepared is unprepared again without an error"
    why = "The kubelet may not have received the answer, and repeats the call until it has."
    fix = "Treat a claim that is not in the checkpoint as unprepared."

    async def check_driver(self, verifier: DriverVerifier) -> None:
        session, drivers = await verifier.drivers()
        for driver in drivers:
            async with allocated(session, driver, ClaimAllocation(some_devices(session, driver))) as [claim]:
                await prepared(session, driver, claim)
                await unprepare(session, driver, claim)
                await _expect_success(session, driver, claim, "a claim that was unprepared before")


class UnpreparesUnknown(DriverRule):
    id, level, facts = "UNP-03", Level.MUST, ("11.19",)
    title = "A claim that was never prepared is unprepared without an error"
    why = "The kubelet also unprepares claims that it failed to prepare; otherwise the pod would never end."
    fix = "Treat a claim that is not in the checkpoint as unprepared."

    async def check_driver(self, verifier: DriverVerifier) -> None:
        session, drivers = await verifier.drivers()
        for driver in drivers:
            claim = Claim("default", "never-prepared", str(uuid.uuid4()))
            await _expect_success(session, driver, claim, "a claim that was never prepared")


class UnpreparesDeleted(DriverRule):
    id, level, facts = "UNP-04", Level.MUST, ("11.19",)
    title = "A claim that was deleted from the API is unprepared"
    why = "If a pod is force-deleted, its claim is deleted too; the devices would be held indefinitely."
    fix = "Read what you need from the checkpoint, not from the API."

    async def check_driver(self, verifier: DriverVerifier) -> None:
        session, drivers = await verifier.drivers()
        for driver in drivers:
            wanted = ClaimAllocation(some_devices(session, driver))
            async with allocated(session, driver, wanted, wanted) as [claim, next_one]:
                await prepared(session, driver, claim)
                session.api.remove(claim.namespace, claim.name)
                await _expect_success(session, driver, claim, "a claim that was deleted")
                await prepared(session, driver, next_one)


class UnpreparesWithoutSpec(DriverRule):
    id, level, facts = "UNP-08", Level.MUST, ("11.17", "11.19")
    title = "A claim whose CDI spec is missing is unprepared"
    why = (
        "A reboot empties /var/run/cdi. The kubelet unprepares claims of pods that were deleted in the meantime, "
        "without preparing them again; a failure keeps the claim allocated and its device held."
    )
    fix = "Treat a file that does not exist as removed."

    async def check_driver(self, verifier: DriverVerifier) -> None:
        session, drivers = await verifier.drivers()
        for driver in drivers:
            wanted = ClaimAllocation(some_devices(session, driver))
            async with allocated(session, driver, wanted, wanted) as [claim, other]:
                names = set(await prepared_names(session, driver, claim))
                own = [path for path in session.cdi.iterdir() if names >= set(cdi_devices_of(path)) > set()]
                if not own:
                    raise RuleNotApplicable("no spec in {cdi} is for one claim alone")
                for path in own:
                    path.unlink()
                await _expect_success(session, driver, claim, "a claim whose spec is gone")
                await prepared(session, driver, other)


def spec_directories(verifier: DriverVerifier, session: DriverSession) -> list[Path]:
    return list(dict.fromkeys([*map(session.on_host, verifier.options.cdi_dirs), session.cdi]))


async def prepared_names(session: DriverSession, driver: RegisteredDriver, claim: Claim) -> list[str]:
    """The CDI names of a claim; not applicable if it has none."""
    names = [name for device in await prepared(session, driver, claim) for name in device.cdi_devices]
    if not names:
        raise RuleNotApplicable("the devices have no CDI names")
    return names


class ClaimNamesAreQualified(DriverRule):
    id, level, facts = "CDI-01", Level.MUST, ("11.20",)
    title = "CDI devices of prepared claims have qualified names"
    why = "A runtime rejects a container if a name is not of the form vendor/class=device."
    fix = "Send the kind of the spec, an equals sign and the name of the device."

    async def check_driver(self, verifier: DriverVerifier) -> None:
        session, drivers = await verifier.drivers()
        for driver in drivers:
            odd: list[str] = []
            for device in _each_device(session, driver):
                async with allocated(session, driver, ClaimAllocation([device])) as [claim]:
                    names = await prepared_names(session, driver, claim)
                odd += [name for name in names if not CDI_NAME.fullmatch(name)]
            expect(not odd, "names such as example.com/claim=uid-gpu-0", some(odd))


async def _known(verifier: DriverVerifier, found: Sequence[str], session: DriverSession) -> None:
    known = cdi_devices(spec_directories(verifier, session))
    missing = [name for name in found if name not in known]
    places = ", ".join(map(str, spec_directories(verifier, session)))
    expect(not missing, f"specs in {places} for each name", f"none for {some(missing)}")


class ClaimNamesResolve(DriverRule):
    id, level, facts = "CDI-02", Level.MUST, ("11.20",)
    title = "CDI devices of prepared claims are in a spec"
    why = "The runtime fails to create the container: unresolvable CDI devices."
    fix = "Write the spec atomically to the CDI directory before you answer."

    async def check_driver(self, verifier: DriverVerifier) -> None:
        session, drivers = await verifier.drivers()
        for driver in drivers:
            async with allocated(session, driver, ClaimAllocation(some_devices(session, driver))) as [claim]:
                await _known(verifier, await prepared_names(session, driver, claim), session)


class CdiEditsAreThere(DriverRule):
    id, level = "CDI-03", Level.MUST
    title = "CDI devices of prepared claims have edits"
    why = "A device without edits is invalid and makes its file useless, or the pod runs without its device."
    fix = "If there is nothing to edit, send no CDI name."

    async def check_driver(self, verifier: DriverVerifier) -> None:
        session, drivers = await verifier.drivers()
        for driver in drivers:
            async with allocated(session, driver, ClaimAllocation(some_devices(session, driver))) as [claim]:
                names = await prepared_names(session, driver, claim)
                known = cdi_devices(spec_directories(verifier, session))
                empty = [
                    name
                    for name in names
                    if name in known and not any((known[name].get("containerEdits") or {}).values())
                ]
                expect(not empty, "containerEdits that change something", f"none for {some(empty)}")


class CdiNodesExist(DriverRule):
    id, level = "CDI-04", Level.MUST
    title = "Device nodes and mounts in the specs of prepared claims exist on the host"
    why = "The runtime fails to create the container, or the pod starts without its device."
    fix = "Check nodes and files on the host before you answer, and return an error if one is missing."

    async def check_driver(self, verifier: DriverVerifier) -> None:
        session, drivers = await verifier.drivers()
        for driver in drivers:
            for device in _each_device(session, driver):
                async with allocated(session, driver, ClaimAllocation([device])) as [claim]:
                    gone = [
                        path
                        for path in _paths(verifier, session, await prepared_names(session, driver, claim))
                        if not verifier.on_host(path).exists()
                    ]
                    expect(not gone, f"paths of this machine for {device.name}", f"no {some(gone)}")


def _each_device(session: DriverSession, driver: RegisteredDriver) -> list[PublishedDevice]:
    """Every exclusive device, at most `_MOST` from each end; or else a shared one."""
    devices = [device for device in session.devices(driver.name) if not device.is_shared]
    return list(dict.fromkeys([*devices[:_MOST], *devices[-_MOST:]])) or some_devices(session, driver)


def _paths(verifier: DriverVerifier, session: DriverSession, names: Sequence[str]) -> list[str]:
    """The host paths of the nodes and mounts in these CDI devices."""
    known = cdi_devices(spec_directories(verifier, session))
    return [path for name in names for path in spec_paths_on_host(known.get(name, {}))]


class CdiSpecsAreRemoved(DriverRule):
    id, level = "CDI-05", Level.SHOULD
    title = "The spec of a claim is removed when it is unprepared"
    why = "Runtimes read every file at each change: a node that is never rebooted becomes slower with each pod."
    fix = "Write one file for each claim, and remove it."

    async def check_driver(self, verifier: DriverVerifier) -> None:
        session, drivers = await verifier.drivers()
        for driver in drivers:
            async with allocated(session, driver, ClaimAllocation(some_devices(session, driver))) as [claim]:
                names = await prepared_names(session, driver, claim)
                before = [name for name in names if claim.uid in name]
                if not before:
                    raise RuleNotApplicable("the CDI names are not those of one claim")
                await unprepare(session, driver, claim)
                known = cdi_devices(spec_directories(verifier, session))
                left = [name for name in before if name in known]
                expect(not left, "no spec of the claim", f"{some(left)}")


class CdiNamesAreNew(DriverRule):
    id, level = "CDI-06", Level.SHOULD
    title = "No CDI name is in two files when two claims share a device"
    why = "A runtime treats a name in two files as a conflict, and creates neither container."
    fix = "Put the uid of the claim into the name, or all names of a device into one file."

    async def check_driver(self, verifier: DriverVerifier) -> None:
        session, drivers = await verifier.drivers()
        for driver in drivers:
            wanted = ClaimAllocation([shared_device(session, driver)])
            async with allocated(session, driver, wanted, wanted) as claims:
                names = [name for claim in claims for name in await prepared_names(session, driver, claim)]
                places = spec_directories(verifier, session)
                twice = sorted({name for name in names if spec_files(places, name) > 1})
                expect(not twice, "each name in one file", f"{some(twice)} in several")


class CdiSpecsAreValid(DriverRule):
    id, level, facts = "CDI-07", Level.MUST, ("11.20",)
    title = "Runtimes accept the specs of prepared claims"
    why = "A runtime ignores a file that violates the specification: unresolvable CDI devices."
    fix = (
        "Write cdiVersion, kind and edits as the specification defines them; its Go library checks a spec before "
        "it writes."
    )

    async def check_driver(self, verifier: DriverVerifier) -> None:
        session, drivers = await verifier.drivers()
        for driver in drivers:
            async with allocated(session, driver, ClaimAllocation(some_devices(session, driver))) as [claim]:
                names = await prepared_names(session, driver, claim)
                refused = refused_specs(spec_directories(verifier, session), names)
                expect(not refused, "a valid spec", some(refused))


class CdiSpecsStay(DriverRule):
    id, level, facts = "CDI-08", Level.MUST, ("11.16",)
    title = "The spec of a claim stays while other claims are prepared"
    why = "The kubelet does not call again for a running pod: its next container cannot be created."
    fix = "Write a file for each claim, or add the claim to those that the file already contains."

    async def check_driver(self, verifier: DriverVerifier) -> None:
        session, drivers = await verifier.drivers()
        for driver in drivers:
            wanted = [ClaimAllocation([device]) for device in some_devices(session, driver, 2)]
            async with allocated(session, driver, *wanted) as [claim, other]:
                names = set(await prepared_names(session, driver, claim))
                names &= set(cdi_devices(spec_directories(verifier, session)))
                await prepared(session, driver, other)
                gone = sorted(names - set(cdi_devices(spec_directories(verifier, session))))
                expect(not gone, "the spec of the claim that was prepared before", f"none for {some(gone)}")


UNPREPARE_RULES: tuple[type[Rule], ...] = (Unprepares, UnpreparesTwice, UnpreparesUnknown, UnpreparesDeleted)
WITHOUT_SPEC_RULES: tuple[type[Rule], ...] = (UnpreparesWithoutSpec,)
CDI_RULES: tuple[type[Rule], ...] = (
    ClaimNamesAreQualified,
    ClaimNamesResolve,
    CdiEditsAreThere,
    CdiNodesExist,
    CdiSpecsAreRemoved,
    CdiNamesAreNew,
    CdiSpecsAreValid,
    CdiSpecsStay,
)
