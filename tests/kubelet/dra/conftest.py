"""A kubelet whose ResourceClaims are in a table, and a driver that has registered with it."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.kubelet.actors import Clock, quick_settings
from tests.kubelet.dra.driver import ScriptedDriver, registered

from plugwright.kubelet import Kubelet
from plugwright.kubelet.dra.resource_api import ClaimTable


@pytest.fixture
def api() -> ClaimTable:
    return ClaimTable()


@pytest.fixture
async def node(root: Path, clock: Clock, api: ClaimTable) -> AsyncIterator[Kubelet]:
    async with Kubelet(root, quick_settings(clock=clock), resource_api=api) as kubelet:
        yield kubelet


@pytest.fixture
async def driver(node: Kubelet) -> AsyncIterator[ScriptedDriver]:
    async with registered(ScriptedDriver(), node) as driver:
        yield driver
