"""The kubelet's directory: its checkpoint, its live sockets, and pod-resources."""

import socket
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from tests.observed_kubelet import ObservedKubelet
from tests.protocol.held_devices import serve_held_devices

from plugwright import Device, Plugin, Settings, serving
from plugwright.errors import ConfigError
from plugwright.extended_resources.kubelet_dir import read
from plugwright.extended_resources.resources import KubeletDirectory
from plugwright.protocol import checkpoint
from plugwright.protocol.paths import KubeletPaths
from plugwright.protocol.pod_resources import HeldDevice
from plugwright.sdk.settings import Registration
from plugwright.system.boot import boot_id

NOTHING = KubeletDirectory(boot_id(), frozenset(), 0, frozenset())
REGISTERED = replace(NOTHING, registered=frozenset({"example.com/tape"}))


class Tape(Plugin):
    """One drive."""

    resource = "example.com/tape"

    async def discover(self) -> AsyncIterator[list[Device]]:
        yield [Device("st0")]


@pytest.fixture
def paths(root: Path) -> KubeletPaths:
    (root / "device-plugins").mkdir(exist_ok=True)
    return KubeletPaths.under(root)


def abandoned(path: Path) -> None:
    """A socket of a process that was killed."""
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))


async def test_directory_of_a_kubelet_without_plugins_is_empty(paths: KubeletPaths) -> None:
    assert await read(paths) == NOTHING


async def test_checkpoint_names_the_registered_resources(paths: KubeletPaths) -> None:
    paths.checkpoint.write_bytes(checkpoint.encode(checkpoint.Checkpoint(None, {"a/b": ("x",), "c/d": ()})))
    assert await read(paths) == replace(NOTHING, registered=frozenset({"a/b", "c/d"}))


async def test_a_checkpoint_that_cannot_be_trusted_is_an_error(paths: KubeletPaths) -> None:
    paths.checkpoint.write_bytes(b'{"Data":{},"Checksum":1}')
    with pytest.raises(ConfigError, match=r"kubelet_internal_checkpoint: checkpoint does not match its checksum"):
        await read(paths)


async def test_a_directory_that_is_not_there_is_an_error(root: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read the kubelet's directory"):
        await read(KubeletPaths.under(root))


async def test_a_plugin_listens_and_one_that_was_killed_does_not(
    paths: KubeletPaths, kubelet: ObservedKubelet, settings: Settings
) -> None:
    abandoned(paths.device_plugins / "killed.sock")
    async with serving(Tape(), settings=settings):
        await kubelet.endpoint("example.com/tape")
        assert await read(paths) == replace(REGISTERED, listening=1)
    assert await read(paths) == REGISTERED  # the kubelet keeps a resource for five minutes after its plugin (2.18)


async def test_a_plugin_in_plugins_registry_says_what_it_serves(
    paths: KubeletPaths, kubelet: ObservedKubelet, settings: Settings
) -> None:
    async with serving(Tape(), settings=msgspec.structs.replace(settings, registration=Registration.WATCHER)):
        await kubelet.endpoint("example.com/tape")
        assert await read(paths) == replace(REGISTERED, listening=1, announced=frozenset({"example.com/tape"}))


async def test_unidentified_server_in_plugins_registry_counts_as_listening(paths: KubeletPaths) -> None:
    class Node:
        async def held_devices(self) -> Sequence[HeldDevice]:
            return ()

    paths.plugins_registry.mkdir()
    abandoned(paths.plugins_registry / "killed.sock")
    async with serve_held_devices(Node(), paths.plugins_registry / "csi.sock"):
        assert await read(paths) == replace(NOTHING, listening=1)


async def test_pods_are_never_listed(paths: KubeletPaths) -> None:
    """List while an Allocate is open makes the kubelet give the device out again (3.58)."""
    lists = 0

    class Node:
        async def held_devices(self) -> Sequence[HeldDevice]:
            nonlocal lists
            lists += 1
            return ()

    paths.pod_resources_socket.parent.mkdir()
    async with serve_held_devices(Node(), paths.pod_resources_socket):
        assert await read(paths) == NOTHING
    assert lists == 0
