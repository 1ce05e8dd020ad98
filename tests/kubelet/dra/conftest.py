"""A kubelet whose ResourceClaims are in a table, and a driver that has registered with it."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.kubelet.actors import Clock, quick_settings
from tests.kubelet.dra.driver import ScriptedDriver, registered
from tests.kubelet.dra.stored_claims import StoredClaims

from plugwright.kubelet import Kubelet


@pytest.fixture
def api() -> StoredClaims:
    return StoredClaims()


@pytest.fixture
async def node(root: Path, clock: Clock, api: StoredClaims) -> AsyncIterator[Kubelet]:
    async with Kubelet(root, quick_settings(clock=clock), resource_api=api) as kubelet:
        yield kubelet


@pytest.fixture
async def driver(node: Kubelet) -> AsyncIterator[ScriptedDriver]:
    async with registered(ScriptedDriver(), node) as driver:
        yield driver
