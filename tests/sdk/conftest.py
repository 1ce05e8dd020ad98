"""Fixtures of the SDK's tests."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.sdk.misbehaving_kubelet import MisbehavingKubelet, misbehaving_kubelet


@pytest.fixture
async def misbehaving(root: Path) -> AsyncIterator[MisbehavingKubelet]:
    async with misbehaving_kubelet(root) as kubelet:
        yield kubelet
