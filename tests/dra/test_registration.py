"""A driver's sockets and its registration, against the emulated kubelet."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from pathlib import Path

import pytest
from tests.kubelet.actors import Clock, quick_settings
from tests.kubelet.dra.driver import ScriptedDriver
from tests.kubelet.dra.stored_claims import StoredClaims

from plugwright.dra.registration import DriverRegistration, DriverServices, DriverSockets, RunningCalls
from plugwright.errors import ConfigError, PathTooLong, PeerGone
from plugwright.kubelet import Kubelet
from plugwright.protocol import dra, dra_health, registration, transport
from plugwright.protocol.dra import Claim
from plugwright.protocol.paths import KubeletPaths
from plugwright.sdk.metrics import ResourceMetrics
from plugwright.sdk.registration import RegistrationState
from plugwright.system.concurrency import cancel

DRIVER = "tape.example.com"
UID = "0f6c1b0a-8d7e-4a57-93e6-7f0b5c3f9d21"
LIMIT = 30.0
HEALTHY = dra_health.ReportedHealth("node", "st0", dra_health.HealthStatus.HEALTHY, updated=7)


@asynccontextmanager
async def served(root: Path, driver: ScriptedDriver, instance: str = "") -> AsyncIterator[DriverRegistration]:
    sockets = DriverSockets.of(KubeletPaths.under(root), DRIVER, instance)
    registering = DriverRegistration(DRIVER, sockets, DriverServices(driver, driver))
    running = asyncio.create_task(registering.run())
    try:
        yield registering
    finally:
        await cancel(running)


async def until(registering: DriverRegistration, state: RegistrationState) -> None:
    async with asyncio.timeout(LIMIT):
        await registering.status.until(lambda status: status.state is state)


def kubelet_at(root: Path) -> Kubelet:
    return Kubelet(root, quick_settings(clock=Clock()), resource_api=StoredClaims())


async def test_a_driver_registers_with_the_kubelet(root: Path) -> None:
    async with kubelet_at(root), served(root, ScriptedDriver()) as registering:
        await until(registering, RegistrationState.REGISTERED)
        assert registering.sockets.service == root / "plugins" / DRIVER / "dra.sock"
        assert registering.sockets.registration == root / "plugins_registry" / f"{DRIVER}-reg.sock"


async def test_both_sockets_are_their_owners_alone(root: Path) -> None:
    async with kubelet_at(root), served(root, ScriptedDriver()) as registering:
        await until(registering, RegistrationState.REGISTERED)
        modes = [
            path.stat().st_mode & 0o777 for path in (registering.sockets.service, registering.sockets.registration)
        ]
        assert modes == [0o600, 0o600]


async def test_versions_are_announced_with_the_newest_first(root: Path) -> None:
    (root / "plugins_registry").mkdir()
    async with served(root, ScriptedDriver()) as registering:
        await until(registering, RegistrationState.REGISTERING)
        async with registration.connect_watched(registering.sockets.registration) as watcher:
            info = await watcher.announce(LIMIT)
    assert (info.name, info.kind) == (DRIVER, "DRAPlugin")
    assert info.versions == (
        "v1.DRAPlugin",
        "v1beta1.DRAPlugin",
        "v1.DRAResourceHealth",
        "v1alpha1.DRAResourceHealth",
    )


async def test_a_driver_waits_for_a_kubelet_that_has_no_directory_yet(root: Path) -> None:
    async with served(root, ScriptedDriver()) as registering:
        await until(registering, RegistrationState.WAITING)
        assert registering.status.value.reason == f"no directory {root / 'plugins_registry'}"
        async with kubelet_at(root):
            await until(registering, RegistrationState.REGISTERED)


async def test_a_driver_is_registered_again_after_a_restart_of_the_kubelet(root: Path) -> None:
    async with kubelet_at(root) as kubelet, served(root, ScriptedDriver()) as registering:
        await until(registering, RegistrationState.REGISTERED)
        await kubelet.stop()
        await until(registering, RegistrationState.WAITING)
        assert registering.status.value.reason == "the kubelet has ended its connection"
        await kubelet.start()
        await until(registering, RegistrationState.REGISTERED)


@pytest.mark.parametrize("name", ["service", "registration"])
async def test_a_socket_that_somebody_removes_is_made_again(root: Path, name: str) -> None:
    async with kubelet_at(root), served(root, ScriptedDriver()) as registering:
        await until(registering, RegistrationState.REGISTERED)
        getattr(registering.sockets, name).unlink()
        await until(registering, RegistrationState.REGISTERING)
        await until(registering, RegistrationState.REGISTERED)
        assert registering.sockets.service.is_socket()
        assert registering.sockets.registration.is_socket()


async def test_sockets_of_a_killed_run_are_replaced(root: Path) -> None:
    sockets = DriverSockets.of(KubeletPaths.under(root), DRIVER)
    old_uid = sockets.service.with_name(f"dra-{UID}.sock")
    for path in (sockets.service, sockets.registration, old_uid):
        path.parent.mkdir(parents=True, exist_ok=True)
        abandon_socket(path)
    async with kubelet_at(root), served(root, ScriptedDriver()) as registering:
        await until(registering, RegistrationState.REGISTERED)
    assert not old_uid.exists()


async def test_a_socket_of_another_driver_stays(root: Path) -> None:
    other = root / "plugins_registry" / f"{DRIVER}-x-reg.sock"
    other.parent.mkdir()
    abandon_socket(other)
    async with served(root, ScriptedDriver()) as registering:
        await until(registering, RegistrationState.REGISTERING)
        assert other.exists()


async def test_a_second_instance_is_refused_while_the_first_lives(root: Path) -> None:
    async with kubelet_at(root), served(root, ScriptedDriver()) as one, served(root, ScriptedDriver()) as other:
        await until(one, RegistrationState.REGISTERED)
        await until(other, RegistrationState.REFUSED)
        assert "another instance of the driver" in other.status.value.reason
        assert one.status.value.state is RegistrationState.REGISTERED


async def test_instances_of_two_pods_serve_side_by_side(root: Path) -> None:
    async with (
        kubelet_at(root),
        served(root, ScriptedDriver(), UID) as one,
        served(root, ScriptedDriver(), UID[::-1]) as other,
    ):
        await until(one, RegistrationState.REGISTERED)
        await until(other, RegistrationState.REGISTERED)


async def test_a_call_under_way_is_finished_before_the_sockets_go(root: Path) -> None:
    held = asyncio.Event()
    driver, claim = ScriptedDriver(held=held), Claim("default", "drive", "uid-1")
    async with kubelet_at(root):
        async with AsyncExitStack() as stack:
            registering = await stack.enter_async_context(served(root, driver))
            await until(registering, RegistrationState.REGISTERED)
            async with dra.connect(registering.sockets.service) as kubelet:
                preparing = asyncio.create_task(kubelet.prepare([claim], LIMIT))
                while not driver.prepared:
                    await asyncio.sleep(0)
                asyncio.get_running_loop().call_later(0.05, held.set)
                await stack.aclose()
                assert await preparing == {"uid-1": list(driver.answer)}
        assert not registering.sockets.service.exists()
        assert not registering.sockets.registration.exists()


async def test_a_driver_that_stops_takes_no_more_calls() -> None:
    calls = RunningCalls(ScriptedDriver(), ResourceMetrics())
    await calls.close(LIMIT)
    with pytest.raises(PeerGone, match="stopping"):
        await calls.prepare([])


async def test_the_reason_of_a_failed_prepare_is_kept_until_one_succeeds() -> None:
    driver, metrics = ScriptedDriver(answer="the drive is jammed"), ResourceMetrics()
    calls, claim = RunningCalls(driver, metrics), Claim("default", "drive", "uid-1")
    await calls.prepare([claim])
    assert metrics.failures["NodePrepareResources"][1] == "the drive is jammed"
    driver.answer = ()
    await calls.prepare([claim])
    assert metrics.failures == {}


async def test_health_is_served_beside_claims(root: Path) -> None:
    driver = ScriptedDriver()
    driver.health.publish([HEALTHY])
    async with kubelet_at(root), served(root, driver) as registering:
        await until(registering, RegistrationState.REGISTERED)
        for version in dra_health.VERSIONS:
            async with (
                transport.connect(registering.sockets.service) as connection,
                aclosing(dra_health.watch(connection, version)) as messages,
            ):
                assert await anext(messages) == [HEALTHY]


def test_long_names_get_sockets_that_can_be_bound() -> None:
    paths = KubeletPaths.under("/var/lib/kubelet")
    for length in range(5, 64):
        for instance in ("", UID):
            sockets = DriverSockets.of(paths, "d" * length, instance)
            assert len(os.fsencode(sockets.service)) <= 107
            assert len(os.fsencode(sockets.registration)) <= 107
            assert not sockets.registration.name.startswith(".")


def test_two_pods_with_a_long_driver_name_have_different_sockets() -> None:
    paths = KubeletPaths.under("/var/lib/kubelet")
    one, other = (DriverSockets.of(paths, "d" * 63, uid) for uid in (UID, UID[::-1]))
    assert one.service != other.service
    assert one.registration != other.registration


def test_a_directory_that_is_too_deep_is_an_error() -> None:
    with pytest.raises(PathTooLong):
        DriverSockets.of(KubeletPaths.under(f"/{'x' * 100}"), DRIVER)


@pytest.mark.parametrize("uid", ["../x", "a/b", "-a", "x" * 65])
def test_a_hostile_uid_is_refused(uid: str) -> None:
    with pytest.raises(ConfigError, match="uid of the pod"):
        DriverSockets.of(KubeletPaths.under("/var/lib/kubelet"), DRIVER, uid)


def abandon_socket(path: Path) -> None:
    """A socket that nobody listens on, older than a second."""
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
    os.utime(path, (1, 1))
