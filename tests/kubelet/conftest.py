"""A kubelet for one test, and the clock by which its grace period runs."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.kubelet.actors import Clock, quick_settings

from plugwright.kubelet import Kubelet


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def node(root: Path, clock: Clock) -> AsyncIterator[Kubelet]:
    async with Kubelet(root, quick_settings(clock=clock)) as kubelet:
        yield kubelet
