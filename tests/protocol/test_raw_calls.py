"""Calls whose messages are bytes, against a server of our own."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.kubelet.actors import ScriptedPlugin

from plugwright.errors import PeerGone, PeerRefused
from plugwright.protocol import device_plugin, raw_calls
from plugwright.protocol.raw_calls import DEVICE_PLUGIN_SERVICE, RawClient


@pytest.fixture
async def client(root: Path) -> AsyncIterator[RawClient]:
    async with (
        device_plugin.serve(ScriptedPlugin("a"), root / "raw.sock"),
        raw_calls.connect(root / "raw.sock") as client,
    ):
        yield client


async def test_bytes_go_out_and_come_back_as_they_are(client: RawClient) -> None:
    assert await client.call(f"{DEVICE_PLUGIN_SERVICE}/GetDevicePluginOptions", b"", 60) == b""


async def test_a_malformed_message_and_an_unknown_method_are_the_peers_errors(client: RawClient) -> None:
    with pytest.raises(PeerRefused, match="INVALID_ARGUMENT"):
        await client.call(f"{DEVICE_PLUGIN_SERVICE}/Allocate", b"\xff\xff", 60)
    with pytest.raises(PeerRefused, match="UNIMPLEMENTED"):
        await client.call(f"{DEVICE_PLUGIN_SERVICE}/None", b"", 60)


async def test_a_peer_that_is_not_there_is_gone(root: Path) -> None:
    async with raw_calls.connect(root / "none.sock") as client:
        with pytest.raises(PeerGone):
            await client.call(f"{DEVICE_PLUGIN_SERVICE}/Allocate", b"", 60)
