"""The API server in the process, and the store behind it."""

from collections.abc import AsyncIterator

import httpx2
import pytest
from tests.apiserver.serving import TOKEN, Api, populated, server

from plugwright.apiserver import KUBERNETES_VERSION
from plugwright.apiserver.app import application
from plugwright.apiserver.store import Store


@pytest.fixture
def store() -> Store:
    return populated(Store())


@pytest.fixture
def release() -> str:
    """Of the Kubernetes that the API server imitates."""
    return KUBERNETES_VERSION


@pytest.fixture
async def api(store: Store, release: str) -> AsyncIterator[Api]:
    transport = httpx2.ASGITransport(application(server(store, release)), raise_app_exceptions=False)
    headers = {"authorization": f"Bearer {TOKEN}"}
    async with httpx2.AsyncClient(transport=transport, base_url="http://test", headers=headers) as client:
        yield Api(client)
