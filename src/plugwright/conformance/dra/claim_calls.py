"""Claims that rules allocate to published devices, and calls of a driver about them."""

import asyncio
import itertools
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace

from plugwright.conformance.asking import expect
from plugwright.conformance.dra.claim_parameters import opaque_config
from plugwright.conformance.dra.driver_session import DriverSession, PublishedDevice, RegisteredDriver
from plugwright.errors import PeerRefused, PlugwrightError, PrerequisiteBroken, RuleNotApplicable
from plugwright.protocol.dra import Claim, PreparedDevice

__all__ = [
    "DEADLINE",
    "REQUEST",
    "Answer",
    "ClaimAllocation",
    "allocated",
    "create_claim",
    "expect_prepared",
    "expect_refused",
    "plain_devices",
    "prepare",
    "prepared",
    "refusal",
    "separate_devices",
    "shared_device",
    "some_devices",
    "unprepare",
]

NAMESPACE = "default"
REQUEST = "verified"
DEADLINE = 45.0  # seconds of the kubelet for one call (11.11)
Answer = Mapping[str, Sequence[PreparedDevice] | str]
_ASK_AGAIN = 0.2  # seconds
_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class ClaimAllocation:
    """The allocation of a claim for a number of pods; `results` and `config` are additional entries of its status."""

    devices: Sequence[PublishedDevice] = ()
    subrequest: str = ""
    share_id: str = ""
    admin_access: bool = False
    pods: int = 1
    results: Sequence[Mapping[str, object]] = ()
    config: Sequence[Mapping[str, object]] = ()

    def status(self, driver: str) -> dict[str, object]:
        request = f"{REQUEST}/{self.subrequest}" if self.subrequest else REQUEST
        more: dict[str, object] = {"shareID": self.share_id} if self.share_id else {}
        more |= {"adminAccess": True} if self.admin_access else {}
        own = [
            {"request": request, "driver": driver, "pool": device.pool, "device": device.name, **_share(device), **more}
            for device in self.devices
        ]
        devices: dict[str, object] = {"results": [*own, *self.results]}
        config: dict[str, object] = {"config": list(self.config)} if self.config else {}
        pods = [{"resource": "pods", "name": f"pod-{n}", "uid": str(uuid.uuid4())} for n in range(self.pods)]
        return {"allocation": {"devices": devices | config}, "reservedFor": pods}

    def spec(self, driver: str) -> dict[str, object]:
        wanted: dict[str, object] = {"deviceClassName": driver}
        request: dict[str, object]
        if self.subrequest:
            request = {"name": REQUEST, "firstAvailable": [{"name": self.subrequest, **wanted}]}
        else:
            request = {"name": REQUEST, "exactly": wanted}
        return {"devices": {"requests": [request]}}


def _share(device: PublishedDevice) -> dict[str, object]:
    """The scheduler's fields for a device that several claims can share."""
    if not device.is_shared:
        return {}
    return {"shareID": str(uuid.uuid4()), "consumedCapacity": device.consumption}


@asynccontextmanager
async def allocated(
    session: DriverSession, driver: RegisteredDriver, *claims: ClaimAllocation
) -> AsyncIterator[list[Claim]]:
    """Allocated claims in the API; afterwards they are unprepared and deleted."""
    async with AsyncExitStack() as stack:
        made = []
        for allocation in claims:
            name = f"claim-{next(_numbers)}"
            made.append(create_claim(session, driver, name, allocation))
            stack.callback(session.api.remove, NAMESPACE, name)
        stack.push_async_callback(_give_back, session, driver.name, made)
        yield made


def create_claim(
    session: DriverSession,
    driver: RegisteredDriver,
    name: str,
    allocation: ClaimAllocation,
    *,
    namespace: str = NAMESPACE,
) -> Claim:
    """Puts an allocated claim into the API."""
    document = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": namespace},
        "spec": allocation.spec(driver.name),
        "status": _with_parameters(session, driver.name, allocation).status(driver.name),
    }
    session.api.put(document)
    return Claim(namespace, name, session.api.claim_uid(namespace, name))


def _with_parameters(session: DriverSession, driver: str, allocation: ClaimAllocation) -> ClaimAllocation:
    """The allocation with the driver's own parameters, if the user gave any."""
    if session.parameters is None:
        return allocation
    return replace(allocation, config=[opaque_config(driver, session.parameters), *allocation.config])


async def _give_back(session: DriverSession, name: str, claims: Sequence[Claim]) -> None:
    with suppress(PlugwrightError, TimeoutError, OSError):
        for driver in await session.drivers():
            if driver.name == name:
                for claim in claims:
                    await unprepare(session, driver, claim)


async def prepare(session: DriverSession, driver: RegisteredDriver, *claims: Claim, version: str = "") -> Answer:
    async with driver.connect(version) as client:
        return await client.prepare(claims, DEADLINE)


async def unprepare(session: DriverSession, driver: RegisteredDriver, *claims: Claim) -> Mapping[str, str]:
    async with driver.connect() as client:
        return await client.unprepare(claims, DEADLINE)


async def prepared(session: DriverSession, driver: RegisteredDriver, claim: Claim) -> list[PreparedDevice]:
    """The devices of a claim that must be prepared; raises RuleViolated if it is not."""
    return devices_in(await prepare(session, driver, claim), claim)


def devices_in(answer: Answer, claim: Claim) -> list[PreparedDevice]:
    result = answer.get(claim.uid)
    if result is None or isinstance(result, str):
        seen = "no entry for it" if result is None else f"the error {result!r}"
        expected = f"devices for the claim {claim.name}"
        raise PrerequisiteBroken("PRP-01", expected, f"NodePrepareResources was answered with {seen}")
    return list(result)


async def expect_prepared(session: DriverSession, driver: RegisteredDriver, claim: Claim, after: str) -> None:
    """Asks for a claim until it is prepared, as a kubelet does; raises RuleViolated if it never is."""
    seen = "no answer"
    with suppress(TimeoutError):
        async with asyncio.timeout(session.limits.register):
            while True:
                result = (await prepare(session, driver, claim)).get(claim.uid)
                if result is not None and not isinstance(result, str):
                    return
                seen = f"the error {result!r} again and again"
                await asyncio.sleep(_ASK_AGAIN)
    expect(False, f"devices for the claim {after}", seen)


async def expect_refused(session: DriverSession, driver: RegisteredDriver, claim: Claim, why: str) -> None:
    """Raises RuleViolated if a claim that must not be prepared is prepared; a driver can also let it wait.

    The kubelet abandons a waiting claim (11.11), and its pod waits as after an error.
    """
    with suppress(TimeoutError):
        async with asyncio.timeout(session.limits.wait):
            await refusal(session, driver, claim, why)


async def refusal(session: DriverSession, driver: RegisteredDriver, claim: Claim, why: str) -> str:
    """The error of a claim that must not be prepared, however long it takes.

    Go's library fails the call for some. For a call with one claim that is equivalent: the pod waits with the text in
    an event; PRP-16 tests two claims at once.
    """
    try:
        result = (await prepare(session, driver, claim)).get(claim.uid)
    except PeerRefused as error:
        return str(error)
    seen = "no entry" if result is None else f"{len(result)} devices and no error"
    expect(isinstance(result, str), f"an error in the entry of {why}", seen)
    return str(result)


def some_devices(session: DriverSession, driver: RegisteredDriver, count: int = 1) -> list[PublishedDevice]:
    """Devices for claims, exclusive ones first; not applicable if there are fewer."""
    found = sorted(session.devices(driver.name), key=lambda device: device.is_shared)[:count]
    if len(found) < count:
        raise RuleNotApplicable(f"fewer than {count} devices are published")
    return found


def plain_devices(session: DriverSession, driver: RegisteredDriver, count: int = 1) -> list[PublishedDevice]:
    """Devices that a claim gets exclusively; not applicable if there are fewer."""
    found = [device for device in session.devices(driver.name) if not device.is_shared][:count]
    if len(found) < count:
        raise RuleNotApplicable(f"fewer than {count} devices are published that a claim has to itself")
    return found


def separate_devices(session: DriverSession, driver: RegisteredDriver, count: int) -> list[PublishedDevice]:
    """Devices that one claim can have together: neither shared ones nor parts of a device, which exclude others."""
    found = [
        device
        for device in session.devices(driver.name)
        if not device.is_shared and not device.content.get("consumesCounters")
    ]
    if len(found) < count:
        raise RuleNotApplicable(f"fewer than {count} devices are published that a claim can have together")
    return found


def shared_device(session: DriverSession, driver: RegisteredDriver) -> PublishedDevice:
    """A device that two claims can share; not applicable if there is none."""
    shared = [device for device in session.devices(driver.name) if device.is_shared and device.has_room_for(2)]
    if not shared:
        raise RuleNotApplicable("no device has allowMultipleAllocations and capacity for two claims")
    return shared[0]
