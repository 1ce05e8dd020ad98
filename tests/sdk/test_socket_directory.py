"""The kubelet's directory replaced under a running daemon: found again, or said so and the daemon ends."""

import asyncio
import os
import shutil
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.observed_kubelet import ObservedKubelet
from tests.sdk.actors import TAPE, ListingPlugin, recorded_log

from plugwright import Settings, serving
from plugwright.errors import DirectoryReplaced
from plugwright.sdk.registration import RegistrationState
from plugwright.sdk.socket_directory import watch_for_replacement
from plugwright.system.inotify import Directory


async def test_a_directory_deleted_under_its_mount_ends_the_daemon(root: Path, settings: Settings) -> None:
    """A descriptor keeps a deleted directory as a mount does, and its path in /proc shows it."""
    kept = root / "device-plugins"
    kept.mkdir()
    descriptor = os.open(kept, os.O_RDONLY | os.O_DIRECTORY)
    mounted = f"/proc/self/fd/{descriptor}"

    async def serve() -> None:
        async with serving(ListingPlugin(), settings=replace(settings, device_plugins_dir=mounted)):
            kept.rmdir()
            kept.mkdir()
            await asyncio.Event().wait()

    try:
        with pytest.raises(DirectoryReplaced, match=f"^{mounted} was deleted on the node"):
            await serve()
    finally:
        os.close(descriptor)


async def test_a_replaced_directory_that_another_process_holds_open_is_found_again(
    kubelet: ObservedKubelet, settings: Settings
) -> None:
    directory = kubelet.paths.device_plugins
    async with serving(ListingPlugin(), settings=settings):
        first = await kubelet.endpoint(TAPE)
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)  # its deletion is not reported then
        try:
            await kubelet.stop()
            shutil.rmtree(directory)
            directory.mkdir()
            await kubelet.start()
            await kubelet.until(lambda _: TAPE in kubelet.endpoints and kubelet.endpoints[TAPE] is not first)
            await kubelet.endpoint(TAPE, count=2)
        finally:
            os.close(descriptor)


async def test_a_kubelet_that_starts_long_after_its_directory_was_replaced_is_found(
    kubelet: ObservedKubelet, settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing but a watch of the new directory reports its socket: nobody looks again by then."""
    directory = kubelet.paths.device_plugins
    with recorded_log("plugwright.sdk.socket_directory", caplog) as log:
        async with serving(ListingPlugin(), settings=settings) as daemon:
            await kubelet.endpoint(TAPE)
            descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)  # its deletion is not reported then
            try:
                await kubelet.stop()
                shutil.rmtree(directory)
                directory.mkdir()
                await log.until("directory of the sockets was replaced")
                registration = daemon.resources[TAPE].registration
                await registration.status.until(lambda status: status.state is RegistrationState.WAITING)
                await kubelet.start()
                await kubelet.endpoint(TAPE)
            finally:
                os.close(descriptor)


async def test_a_directory_that_is_missing_or_has_files_is_left_alone(root: Path) -> None:
    directory = Directory(root / "device-plugins")
    async with directory.watching():
        watching = asyncio.create_task(watch_for_replacement(directory, first_look=0.001))
        directory.path.mkdir()
        directory.path.joinpath("kubelet.sock").touch()
        await asyncio.sleep(0.05)
        assert not watching.done()
        watching.cancel()
        await asyncio.wait([watching])
