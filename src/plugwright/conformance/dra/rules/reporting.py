"""Rules of a driver's health reports, and of its requests to the API server."""

import asyncio
import re
from contextlib import AsyncExitStack, aclosing, suppress

from plugwright.conformance.asking import expect
from plugwright.conformance.dra.driver_session import NODE, DriverSession, RegisteredDriver
from plugwright.conformance.dra.driver_verifier import DriverRule, DriverVerifier
from plugwright.conformance.dra.observed_node import SLICES, ObservedRequest
from plugwright.conformance.rule import Level, Rule
from plugwright.errors import PlugwrightError, RuleNotApplicable, RuleViolated
from plugwright.model import some
from plugwright.protocol import dra_health, transport
from plugwright.protocol.dra_health import LEASE, HealthStatus, ReportedHealth

__all__ = ["HEALTH_RULES", "RIGHTS_RULES", "messages", "with_health"]

_NEEDED = re.compile(
    r"/apis/resource\.k8s\.io/v1(?:beta\d)?/(?:resourceslices|deviceclasses|namespaces/[^/]+/resourceclaims/).*"
    rf"|/api/v1/nodes/{NODE}|/api(?:s|/v1)?(?:/[^/]+){{0,2}}|/version|/openapi/.*|/healthz|/livez|/readyz"
    r"|/api/v1/namespaces/[^/]+/events.*|/apis/events\.k8s\.io/.*"
)
_OTHERS = re.compile(r"/api/v1/(?:secrets|pods|configmaps|nodes|namespaces|services|events)")
_REPEATS = 3  # reports of every device, including the first of a stream
_CLAIMS = re.compile(r"/apis/resource\.k8s\.io/[^/]+(?:/namespaces/[^/]+)?/resourceclaims")


async def with_health(verifier: DriverVerifier) -> tuple[DriverSession, list[tuple[RegisteredDriver, str]]]:
    """Each driver with each of its listed health services."""
    session, drivers = await verifier.drivers()
    found = [(driver, service) for driver in drivers for service in driver.services if service in dra_health.VERSIONS]
    if not found:
        raise RuleNotApplicable("the driver lists no DRAResourceHealth")
    return session, found


async def messages(driver: RegisteredDriver, service: str, count: int, limit: float) -> list[list[ReportedHealth]]:
    """The first messages of a stream that arrive within the limit."""
    found: list[list[ReportedHealth]] = []
    async with AsyncExitStack() as stack:
        connection = await stack.enter_async_context(transport.connect(driver.endpoint, transport.MESSAGE_LIMIT))
        stream = await stack.enter_async_context(aclosing(dra_health.watch(connection, service)))
        with suppress(TimeoutError):
            async with asyncio.timeout(limit):
                async for devices in stream:
                    found.append(devices)
                    if len(found) == count:
                        break
    return found


class ServesHealth(DriverRule):
    id, level, facts = "DRH-01", Level.MUST, ("11.23",)
    title = "Every listed health service is served, in v1 and in v1alpha1"
    why = "Kubelets up to 1.36 call v1alpha1, later ones the newest listed version; a failure is logged every 5 s."
    fix = "Serve NodeWatchResources under both names; the messages are the same."

    async def check_driver(self, verifier: DriverVerifier) -> None:
        _, found = await with_health(verifier)
        for driver, service in found:
            try:
                await messages(driver, service, 1, verifier.limits.quick)
            except PlugwrightError as error:
                raise RuleViolated(f"a stream of {service}", str(error)) from None


class ReportsAtOnce(DriverRule):
    id, level, facts = "DRH-02", Level.MUST, ("11.24", "11.26")
    title = "A health stream begins with the devices"
    why = "A restarted kubelet knows no health: pods show Unknown until the first message."
    fix = "Send the whole list when the stream is opened, then at each change."

    async def check_driver(self, verifier: DriverVerifier) -> None:
        _, found = await with_health(verifier)
        for driver, service in found:
            received = await messages(driver, service, 1, verifier.limits.call)
            expect(received and received[0], f"devices on {service} at once", "no message" if not received else "none")


class ReportsAllDevices(DriverRule):
    id, level, facts = "DRH-03", Level.MUST, ("11.24",)
    title = "The health of every published device is reported, under the names of the slices"
    why = "A device that is missing, or has another name, stays Unknown in the status of its pod."
    fix = "Use the pool and name that you publish."

    async def check_driver(self, verifier: DriverVerifier) -> None:
        session, found = await with_health(verifier)
        for driver, service in found:
            received = await messages(driver, service, 1, verifier.limits.call)
            reported = {(device.pool, device.name) for message in received for device in message}
            published = {(device.pool, device.name) for device in session.devices(driver.name)}
            missing = sorted("/".join(pair) for pair in published - reported)
            expect(not missing, "every published device", f"none of {some(missing)}")


class RepeatsHealth(DriverRule):
    id, level, facts, waits = "DRH-04", Level.MUST, ("11.24",), 5
    title = "Health is repeated before it expires, in v1 and in v1alpha1"
    why = "A device that is not repeated within its timeout, 30 seconds by default, is Unknown."
    fix = "Send the whole list every ten seconds, even if nothing has changed."

    async def check_driver(self, verifier: DriverVerifier) -> None:
        _, found = await with_health(verifier)
        await asyncio.gather(*(self._check(driver, service, verifier.limits.call) for driver, service in found))

    async def _check(self, driver: RegisteredDriver, service: str, limit: float) -> None:
        first = await messages(driver, service, 1, limit)
        if not first or not first[0]:
            raise RuleNotApplicable(f"no health is reported on {service}")
        devices = {(device.pool, device.name) for device in first[0]}
        lease = min(float(device.timeout or LEASE) for device in first[0])
        missing = await _unrepeated(driver, service, devices, lease)
        seen = f"none of {some(sorted(name for _, name in missing))}"
        expect(not missing, f"each device again on {service} within {lease:g} s, every time", seen)


async def _unrepeated(
    driver: RegisteredDriver, service: str, devices: set[tuple[str, str]], lease: float
) -> set[tuple[str, str]]:
    """The devices that a stream does not report again within the lease, several times in a row."""
    missing, rounds = set(devices), 0
    async with AsyncExitStack() as stack:
        connection = await stack.enter_async_context(transport.connect(driver.endpoint, transport.MESSAGE_LIMIT))
        stream = await stack.enter_async_context(aclosing(dra_health.watch(connection, service)))
        with suppress(TimeoutError):
            async with asyncio.timeout(lease) as waiting:
                async for message in stream:
                    missing -= {(device.pool, device.name) for device in message}
                    if missing:
                        continue
                    rounds += 1
                    if rounds == _REPEATS:
                        return set()
                    missing = set(devices)
                    waiting.reschedule(asyncio.get_running_loop().time() + lease)
    return missing


class ReportsHealthy(DriverRule):
    id, level = "DRH-05", Level.SHOULD
    title = "Devices without taints are not reported as Unhealthy"
    why = "Health is only displayed: schedulers continue to allocate an Unhealthy device that has no taint."
    fix = "Publish a taint for a failed device, in addition to its health."

    async def check_driver(self, verifier: DriverVerifier) -> None:
        session, found = await with_health(verifier)
        for driver, service in found:
            received = await messages(driver, service, 1, verifier.limits.call)
            published = {(device.pool, device.name) for device in session.devices(driver.name)}
            unhealthy = [
                device.name
                for message in received
                for device in message
                if device.health is HealthStatus.UNHEALTHY and (device.pool, device.name) in published
            ]
            expect(not unhealthy, "a taint for each device that is Unhealthy", f"none for {some(unhealthy)}")


async def _requests(verifier: DriverVerifier) -> list[ObservedRequest]:
    session, _ = await verifier.drivers()
    return list(session.api.requests)


class AsksLittle(DriverRule):
    id, level = "RGT-01", Level.SHOULD
    title = "The driver asks the API server for slices, its node and its claims, and for nothing else"
    why = "It runs on every node with these rights: an attacker on one node gets them."
    fix = "Remove the requests, and the rights from the ClusterRole."

    async def check_driver(self, verifier: DriverVerifier) -> None:
        asked = sorted({f"{one.method} {one.path}" for one in await _requests(verifier) if _is_wide(one)})
        expect(not asked, "slices, the own node and claims by their names", some(asked))


def _is_wide(request: ObservedRequest) -> bool:
    return bool(_OTHERS.fullmatch(request.path)) or not (
        _NEEDED.fullmatch(request.path) or _CLAIMS.fullmatch(request.path)
    )


class SelectsSlices(DriverRule):
    id, level = "RGT-02", Level.SHOULD
    title = "Lists and watches of slices select the driver's own"
    why = (
        "Without a field selector every node watches the slices of all nodes: the load grows with the square of "
        "their number."
    )
    fix = "Use the field selectors spec.driver and spec.nodeName."

    async def check_driver(self, verifier: DriverVerifier) -> None:
        lists = [one for one in await _requests(verifier) if one.method == "GET" and one.path == SLICES]
        wide = [str(one) for one in lists if "fieldSelector" not in one.query]
        expect(not wide, "a field selector", some(wide, 1))


class LeavesNodeAlone(DriverRule):
    id, level = "RGT-03", Level.SHOULD
    title = "The Node and the claims' specs are not written"
    why = "The right to write nodes or claims lets a driver on one node change all others."
    fix = "Publish facts as attributes of devices, and write only status.devices of claims."

    async def check_driver(self, verifier: DriverVerifier) -> None:
        written = [
            f"{one.method} {one.path}"
            for one in await _requests(verifier)
            if one.method != "GET"
            and ("/nodes/" in one.path or ("/resourceclaims" in one.path and not one.path.endswith("/status")))
        ]
        expect(not written, "no writes but of slices and of status.devices", some(written))


class ReadsClaimsByName(DriverRule):
    id, level = "RGT-04", Level.SHOULD
    title = "Claims are read by their names, not listed or watched"
    why = (
        "The right to list claims shows a driver on one node the claims of all namespaces, with everything their "
        "owners wrote."
    )
    fix = "GET the claim that the kubelet names; drop `list` and `watch` of resourceclaims from the ClusterRole."

    async def check_driver(self, verifier: DriverVerifier) -> None:
        lists = [f"{one.method} {one.path}" for one in await _requests(verifier) if _CLAIMS.fullmatch(one.path)]
        expect(not lists, "GET of single claims", some(sorted(set(lists))))


HEALTH_RULES: tuple[type[Rule], ...] = (
    ServesHealth,
    ReportsAtOnce,
    ReportsAllDevices,
    RepeatsHealth,
    ReportsHealthy,
)
RIGHTS_RULES: tuple[type[Rule], ...] = (AsksLittle, SelectsSlices, LeavesNodeAlone, ReadsClaimsByName)
