"""The other way to a kubelet: it finds the plugin's socket in plugins_registry and asks who is there."""

import asyncio
import logging
import random
import shutil
import stat
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from tests.sdk.actors import TAPE, ListingPlugin

from plugwright import Registration, Settings, serving
from plugwright.errors import PeerGone, PeerRefused
from plugwright.protocol import registration
from plugwright.protocol.registration import PluginInfo
from plugwright.sdk.daemon import Daemon
from plugwright.sdk.logs import facts
from plugwright.sdk.registration import RegistrationState, RegistrationStatus, fixed_socket_name
from plugwright.system import sockets
from tiny_kubelet import TinyKubelet

NAME = fixed_socket_name(TAPE)
LIMIT = 60  # seconds that any fact here may take on a slow machine


class Watching(TinyKubelet):
    """Tells a socket from the one before it in the same place by more than its inode number, as the real one does."""

    async def _watch_registry(self) -> None:
        known: dict[Path, tuple[int, int]] = {}
        while True:
            present = {}
            for path in self._announced():
                with suppress(FileNotFoundError):
                    present[path] = path.stat().st_ino, path.stat().st_ctime_ns
            for path in [path for path, identity in present.items() if known.get(path) != identity]:
                try:
                    await self._introduce(path)
                except (PeerGone, PeerRefused, AttributeError):  # the last is grpclib's, when a peer hangs up at once
                    del present[path]  # to be tried again
            known = present
            await asyncio.sleep(0.01)


@pytest.fixture
async def kubelet(root: Path) -> AsyncIterator[Watching]:
    kubelet = Watching(root)
    await kubelet.start()
    yield kubelet
    await kubelet.stop()


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return replace(settings, registration=Registration.WATCHER)


def registry(kubelet: TinyKubelet) -> set[str]:
    return {path.name for path in kubelet.paths.plugins_registry.iterdir()}


def is_registered(count: int) -> Callable[[TinyKubelet], bool]:
    return lambda kubelet: len(kubelet.registered) >= count


def settled(*plugins: ListingPlugin) -> Callable[[TinyKubelet], bool]:
    """Every plugin is known by its one socket, and its list has arrived."""

    def is_settled(kubelet: TinyKubelet) -> bool:
        known = [kubelet.endpoints.get(plugin.resource) for plugin in plugins]
        listed = [tuple(endpoint.devices) for endpoint in known if endpoint and not endpoint.ended]
        return listed == [plugin.ids.value for plugin in plugins]

    return is_settled


async def stands(daemon: Daemon, state: RegistrationState, reason: str = "") -> RegistrationStatus:
    standing = daemon.resources[TAPE].registration.status
    async with asyncio.timeout(LIMIT):
        return await standing.until(lambda now: now.state is state and reason in now.reason)


async def test_a_plugin_is_found_and_its_list_arrives(kubelet: Watching, settings: Settings) -> None:
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
    kubelet = Watching(root)
    async with serving(ListingPlugin(), settings=settings) as daemon:
        standing = await stands(daemon, RegistrationState.WAITING)
        assert standing.reason == f"no directory {kubelet.paths.plugins_registry}"
        await kubelet.start()
        await kubelet.endpoint(TAPE)
        await kubelet.stop()


async def test_nothing_is_ever_registered_both_ways(root: Path, settings: Settings) -> None:
    kubelet = Watching(root)
    await kubelet.start()
    async with serving(ListingPlugin(), settings=settings):
        await kubelet.endpoint(TAPE)
        assert [path.name for path in kubelet.paths.device_plugins.iterdir()] == ["kubelet.sock"]
    async with serving(ListingPlugin(), settings=replace(settings, registration=Registration.DIRECT)):
        await kubelet.endpoint(TAPE)
        await kubelet.until(is_registered(2))
        assert registry(kubelet) == set()
    await kubelet.stop()
    assert [request.endpoint == NAME for request in kubelet.registered] == [True, False]


async def test_a_refusal_is_logged_with_its_reason_and_the_plugin_is_found_again(
    kubelet: Watching, settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    kubelet.refuse = "RegisterPlugin error -- no handler registered for plugin type: DevicePlugin"
    patience = replace(settings.timeouts, first_stream=0.05)
    async with serving(ListingPlugin(), settings=replace(settings, timeouts=patience)) as daemon:
        await stands(daemon, RegistrationState.REFUSED, "no handler registered")
        kubelet.refuse = ""
        await kubelet.until(settled(ListingPlugin()))
        await stands(daemon, RegistrationState.REGISTERED)
    refusals = [record for record in caplog.records if record.getMessage() == "not registered, trying again"]
    assert [facts(record)["reason"] for record in refusals if record.levelno >= logging.WARNING] == [
        "RegisterPlugin error -- no handler registered for plugin type: DevicePlugin"
    ]


async def test_a_kubelet_that_asks_for_no_list_finds_a_new_socket(kubelet: Watching, settings: Settings) -> None:
    kubelet.watch_lists = False
    patience = replace(settings.timeouts, first_stream=0.05)
    async with serving(ListingPlugin(), settings=replace(settings, timeouts=patience)):
        await kubelet.until(is_registered(3))
        kubelet.watch_lists = True
        await kubelet.until(settled(ListingPlugin()))
    assert {request.endpoint for request in kubelet.registered} == {NAME}


async def test_a_socket_that_was_removed_is_made_again_under_the_same_name(
    kubelet: Watching, settings: Settings
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


async def test_a_socket_that_a_killed_run_left_behind_is_taken_over(kubelet: Watching, settings: Settings) -> None:
    sockets.listen(kubelet.paths.plugins_registry / NAME).close()
    async with serving(ListingPlugin(), settings=settings):
        await kubelet.until(settled(ListingPlugin()))


async def test_the_directory_removed_and_made_again_is_found_again(kubelet: Watching, settings: Settings) -> None:
    async with serving(ListingPlugin(), settings=settings) as daemon:
        for _ in range(3):
            await kubelet.until(settled(ListingPlugin()))
            await kubelet.stop()
            shutil.rmtree(kubelet.paths.plugins_registry)
            await stands(daemon, RegistrationState.WAITING)
            await kubelet.start()
        await kubelet.until(settled(ListingPlugin()))


async def test_a_kubelet_that_restarts_finds_the_plugin_again(kubelet: Watching, settings: Settings) -> None:
    async with serving(ListingPlugin(), settings=settings):
        for _ in range(10):
            await kubelet.until(settled(ListingPlugin()))
            await kubelet.restart()
        await kubelet.until(settled(ListingPlugin()))
        assert registry(kubelet) == {NAME}
    assert {request.endpoint for request in kubelet.registered} == {NAME}


async def test_several_plugins_are_found_each_by_its_own_name(kubelet: Watching, settings: Settings) -> None:
    plugins = [
        ListingPlugin(),
        ListingPlugin("example.com/disk", "sda"),
        ListingPlugin("example.com/port", "eth0", "eth1"),
    ]
    async with serving(*plugins, settings=settings):
        await kubelet.until(settled(*plugins))
        assert registry(kubelet) == {fixed_socket_name(plugin.resource) for plugin in plugins}
    assert len(kubelet.registered) == 3


async def test_a_change_arrives_without_a_new_registration(kubelet: Watching, settings: Settings) -> None:
    plugin = ListingPlugin()
    async with serving(plugin, settings=settings):
        await kubelet.until(settled(plugin))
        plugin.ids.publish(("st0", "st1", "st2"))
        await kubelet.until(settled(plugin))
    assert len(kubelet.registered) == 1


async def test_a_registration_is_counted(kubelet: Watching, settings: Settings) -> None:
    async with serving(ListingPlugin(), settings=settings) as daemon:
        await stands(daemon, RegistrationState.REGISTERED)
        assert daemon.resources[TAPE].service.metrics.registrations["ok"] == 1


async def test_a_storm_of_restarts_and_removals_ends_with_one_endpoint(kubelet: Watching, settings: Settings) -> None:
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


async def test_a_second_daemon_leaves_the_socket_of_the_first_alone(kubelet: Watching, settings: Settings) -> None:
    async with serving(ListingPlugin(), settings=settings):
        await kubelet.endpoint(TAPE, count=2)
        async with serving(ListingPlugin(), settings=settings) as second:
            standing = second.resource(TAPE).registration.status
            async with asyncio.timeout(LIMIT):
                await standing.until(lambda now: now.state is RegistrationState.REFUSED)
            assert "belongs to another daemon" in standing.value.reason
        assert len(kubelet.registered) == 1
        assert registry(kubelet) == {NAME}


async def test_a_socket_that_a_killed_daemon_left_is_replaced(kubelet: Watching, settings: Settings) -> None:
    path = kubelet.paths.plugins_registry / NAME
    sockets.listen(path).close()
    async with serving(ListingPlugin(), settings=settings):
        await kubelet.endpoint(TAPE, count=2)
