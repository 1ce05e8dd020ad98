"""The other way to a kubelet: it finds the plugin's socket in plugins_registry and asks who is there."""

import asyncio
import logging
import random
import shutil
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.observed_kubelet import ObservedKubelet
from tests.sdk.actors import TAPE, ListingPlugin

from plugwright import Registration, Settings, serving
from plugwright.errors import PeerGone
from plugwright.protocol import registration
from plugwright.protocol.registration import PluginInfo
from plugwright.sdk.daemon import Daemon
from plugwright.sdk.logs import facts
from plugwright.sdk.registration import RegistrationState, RegistrationStatus, fixed_socket_name
from plugwright.system import sockets

NAME = fixed_socket_name(TAPE)
LIMIT = 60  # seconds that any fact here may take on a slow machine


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return replace(settings, registration=Registration.WATCHER)


def registry(kubelet: ObservedKubelet) -> set[str]:
    return {path.name for path in kubelet.paths.plugins_registry.iterdir()}


def is_registered(count: int) -> Callable[[ObservedKubelet], bool]:
    return lambda kubelet: len(kubelet.registered) >= count


def settled(*plugins: ListingPlugin) -> Callable[[ObservedKubelet], bool]:
    """Every plugin is known by its one socket, and its list has arrived."""

    def is_settled(kubelet: ObservedKubelet) -> bool:
        known = [kubelet.endpoints.get(plugin.resource) for plugin in plugins]
        listed = [tuple(endpoint.devices) for endpoint in known if endpoint and not endpoint.ended]
        names = {fixed_socket_name(plugin.resource) for plugin in plugins}
        return listed == [plugin.ids.value for plugin in plugins] and names <= registry(kubelet)

    return is_settled


async def stands(daemon: Daemon, state: RegistrationState, reason: str = "") -> RegistrationStatus:
    standing = daemon.resources[TAPE].registration.status
    async with asyncio.timeout(LIMIT):
        return await standing.until(lambda now: now.state is state and reason in now.reason)


async def notify_as_watcher(daemon: Daemon, path: Path, *, registered: bool, error: str = "") -> tuple[int, int]:
    """The plugin watcher of a kubelet that asks for no list; returns the identity of the socket that it has found."""
    while True:
        await stands(daemon, RegistrationState.REGISTERING, "has not asked yet")
        with suppress(PeerGone, FileNotFoundError):  # replaced in between, and to be found again
            status = path.stat()
            async with registration.connect_watched(path) as plugin:
                await plugin.announce()
                await plugin.notify(registered, error)
            return status.st_ino, status.st_ctime_ns


async def test_a_plugin_is_found_and_its_list_arrives(kubelet: ObservedKubelet, settings: Settings) -> None:
    async with serving(ListingPlugin(), settings=settings) as daemon:
        tape = await kubelet.endpoint(TAPE)
        assert [device.id for device in tape.lists[0]] == ["st0", "st1"]
        await stands(daemon, RegistrationState.REGISTERED)
        assert registry(kubelet) == {NAME}
        assert stat.S_IMODE((kubelet.paths.plugins_registry / NAME).lstat().st_mode) == 0o600
    assert registry(kubelet) == set()


async def test_a_plugin_answers_get_info(root: Path, settings: Settings) -> None:
    registry = root / "plugins_registry"
    registry.mkdir()
    async with serving(ListingPlugin(), settings=settings) as daemon:
        await stands(daemon, RegistrationState.REGISTERING, "has not asked yet")
        async with registration.connect_watched(registry / NAME) as plugin:
            assert await plugin.announce() == PluginInfo(TAPE, "DevicePlugin", "", ("v1beta1",))


async def test_a_plugin_that_is_there_first_is_found_later(root: Path, settings: Settings) -> None:
    kubelet = ObservedKubelet(root)
    async with serving(ListingPlugin(), settings=settings) as daemon:
        standing = await stands(daemon, RegistrationState.WAITING)
        assert standing.reason == f"no directory {kubelet.paths.plugins_registry}"
        await kubelet.start()
        await kubelet.endpoint(TAPE)
        await kubelet.stop()


async def test_nothing_is_ever_registered_both_ways(root: Path, settings: Settings) -> None:
    kubelet = ObservedKubelet(root)
    await kubelet.start()
    async with serving(ListingPlugin(), settings=settings):
        await kubelet.endpoint(TAPE)
        assert {path.name for path in kubelet.paths.device_plugins.iterdir()} == {
            "kubelet.sock",
            "kubelet_internal_checkpoint",
        }
    async with serving(ListingPlugin(), settings=replace(settings, registration=Registration.DIRECT)):
        await kubelet.endpoint(TAPE)
        await kubelet.until(is_registered(2))
        assert registry(kubelet) == set()
    await kubelet.stop()
    assert [request.endpoint == NAME for request in kubelet.registered] == [True, False]


async def test_a_refusal_is_logged_with_its_reason_and_the_plugin_is_found_again(
    root: Path, settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    kubelet, refusal = (
        ObservedKubelet(root),
        "RegisterPlugin error -- no handler registered for plugin type: DevicePlugin",
    )
    kubelet.paths.plugins_registry.mkdir()
    patience = replace(settings.timeouts, first_stream=0.05)
    async with serving(ListingPlugin(), settings=replace(settings, timeouts=patience)) as daemon:
        await notify_as_watcher(daemon, kubelet.paths.plugins_registry / NAME, registered=False, error=refusal)
        await stands(daemon, RegistrationState.REFUSED, "no handler registered")
        await kubelet.start()
        await kubelet.until(settled(ListingPlugin()))
        await stands(daemon, RegistrationState.REGISTERED)
        await kubelet.stop()
    refusals = [record for record in caplog.records if record.getMessage() == "not registered, retrying"]
    assert [facts(record)["reason"] for record in refusals if record.levelno >= logging.WARNING] == [refusal]


async def test_a_kubelet_that_asks_for_no_list_finds_a_new_socket(root: Path, settings: Settings) -> None:
    kubelet, patience = ObservedKubelet(root), replace(settings.timeouts, first_stream=0.05)
    kubelet.paths.plugins_registry.mkdir()
    async with serving(ListingPlugin(), settings=replace(settings, timeouts=patience)) as daemon:
        path = kubelet.paths.plugins_registry / NAME
        found = {await notify_as_watcher(daemon, path, registered=True) for _ in range(3)}
        await kubelet.start()
        await kubelet.until(is_registered(1))
        await kubelet.until(settled(ListingPlugin()))
        await kubelet.stop()
    assert len(found) == 3
    assert {request.endpoint for request in kubelet.registered} == {NAME}


async def test_a_socket_that_was_removed_is_made_again_under_the_same_name(
    kubelet: ObservedKubelet, settings: Settings
) -> None:
    async with serving(ListingPlugin(), settings=settings):
        for count in range(1, 6):
            await kubelet.until(is_registered(count))
            await kubelet.until(settled(ListingPlugin()))
            (kubelet.paths.plugins_registry / NAME).unlink()
        await kubelet.until(is_registered(6))
        await kubelet.until(settled(ListingPlugin()))
        assert registry(kubelet) == {NAME}
    assert {request.endpoint for request in kubelet.registered} == {NAME}


async def test_a_socket_that_a_killed_run_left_behind_is_taken_over(
    kubelet: ObservedKubelet, settings: Settings
) -> None:
    sockets.listen(kubelet.paths.plugins_registry / NAME).close()
    async with serving(ListingPlugin(), settings=settings):
        await kubelet.until(settled(ListingPlugin()))


async def test_the_directory_removed_and_made_again_is_found_again(
    kubelet: ObservedKubelet, settings: Settings
) -> None:
    async with serving(ListingPlugin(), settings=settings) as daemon:
        for _ in range(3):
            await kubelet.until(settled(ListingPlugin()))
            await kubelet.stop()
            shutil.rmtree(kubelet.paths.plugins_registry)
            await stands(daemon, RegistrationState.WAITING)
            await kubelet.start()
        await kubelet.until(settled(ListingPlugin()))


async def test_a_kubelet_that_restarts_finds_the_plugin_again(kubelet: ObservedKubelet, settings: Settings) -> None:
    async with serving(ListingPlugin(), settings=settings):
        for _ in range(10):
            await kubelet.until(settled(ListingPlugin()))
            await kubelet.restart()
        await kubelet.until(settled(ListingPlugin()))
        assert registry(kubelet) == {NAME}
    assert {request.endpoint for request in kubelet.registered} == {NAME}


async def test_several_plugins_are_found_each_by_its_own_name(kubelet: ObservedKubelet, settings: Settings) -> None:
    plugins = [
        ListingPlugin(),
        ListingPlugin("example.com/disk", "sda"),
        ListingPlugin("example.com/port", "eth0", "eth1"),
    ]
    async with serving(*plugins, settings=settings):
        await kubelet.until(settled(*plugins))
        assert registry(kubelet) == {fixed_socket_name(plugin.resource) for plugin in plugins}
    assert len(kubelet.registered) == 3


async def test_a_change_arrives_without_a_new_registration(kubelet: ObservedKubelet, settings: Settings) -> None:
    plugin = ListingPlugin()
    async with serving(plugin, settings=settings):
        await kubelet.until(settled(plugin))
        plugin.ids.publish(("st0", "st1", "st2"))
        await kubelet.until(settled(plugin))
    assert len(kubelet.registered) == 1


async def test_a_registration_is_counted(kubelet: ObservedKubelet, settings: Settings) -> None:
    async with serving(ListingPlugin(), settings=settings) as daemon:
        await stands(daemon, RegistrationState.REGISTERED)
        assert daemon.resources[TAPE].service.metrics.registrations["ok"] == 1


async def test_a_storm_of_restarts_and_removals_ends_with_one_endpoint(
    kubelet: ObservedKubelet, settings: Settings
) -> None:
    plugins, chance = [ListingPlugin(), ListingPlugin("example.com/disk", "sda")], random.Random(4)
    async with serving(*plugins, settings=settings):
        for _ in range(60):
            if chance.random() < 0.5:
                for name in registry(kubelet):
                    (kubelet.paths.plugins_registry / name).unlink(missing_ok=True)
            if chance.random() < 0.5:
                await kubelet.restart()
            if chance.random() < 0.3:
                await kubelet.until(settled(chance.choice(plugins)))
        await kubelet.until(settled(*plugins))
        assert registry(kubelet) == {fixed_socket_name(plugin.resource) for plugin in plugins}
    assert registry(kubelet) == set()


async def test_a_second_daemon_leaves_the_socket_of_the_first_alone(
    kubelet: ObservedKubelet, settings: Settings
) -> None:
    async with serving(ListingPlugin(), settings=settings):
        await kubelet.endpoint(TAPE, count=2)
        async with serving(ListingPlugin(), settings=settings) as second:
            standing = second.resource(TAPE).registration.status
            async with asyncio.timeout(LIMIT):
                await standing.until(lambda now: now.state is RegistrationState.REFUSED)
            assert "belongs to another daemon" in standing.value.reason
        assert len(kubelet.registered) == 1
        assert registry(kubelet) == {NAME}


async def test_a_socket_that_a_killed_daemon_left_is_replaced(kubelet: ObservedKubelet, settings: Settings) -> None:
    path = kubelet.paths.plugins_registry / NAME
    sockets.listen(path).close()
    async with serving(ListingPlugin(), settings=settings):
        await kubelet.endpoint(TAPE, count=2)
