"""The same requests to a real API server and to the embedded one: each difference is a row of the docs page.

    PLUGWRIGHT_REWRITE_DIFFERENCES=1 python -m pytest tests/kubernetes/test_differences.py

writes the rows, and the answers that the tests of the embedded one compare with.
"""

import asyncio
import os
import ssl
from pathlib import Path

import httpx2
import pytest
from tests.apiserver.serving import TOKEN, populated, served
from tests.kubernetes import building
from tests.kubernetes.differences import page, requests
from tests.kubernetes.differences.playing import Json, play
from tests.kubernetes.lone_api_server import lone_api_server

from plugwright.apiserver import KUBERNETES_VERSION
from plugwright.apiserver.store import Store

VERSION = os.environ.get("PLUGWRIGHT_KUBERNETES_VERSION") or building.DEFAULT_VERSION
REQUESTS = [*requests.all_requests()]


async def answers(url: str, token: str, verify: ssl.SSLContext | bool) -> dict[str, Json]:
    headers = {"authorization": f"Bearer {token}"}
    async with httpx2.AsyncClient(base_url=url, headers=headers, verify=verify, timeout=30) as client:
        await play(client, requests.beginning())
        return await play(client, REQUESTS)


async def real_answers(directory: Path) -> dict[str, Json]:
    async with lone_api_server(directory) as server:
        return await answers(server.url, server.token, ssl.create_default_context(cafile=server.certificate))


async def embedded_answers() -> dict[str, Json]:
    async with served(populated(Store())) as url:
        return await answers(url, TOKEN, verify=True)


@pytest.mark.skipif(
    VERSION != KUBERNETES_VERSION, reason=f"the embedded API server answers as {KUBERNETES_VERSION} does"
)
async def test_each_difference_of_the_api_servers_is_documented(tmp_path: Path) -> None:
    assert len(REQUESTS) - len(requests.SPECS) >= 300
    assert len(requests.SPECS) >= 100
    real, embedded = await asyncio.gather(real_answers(tmp_path), embedded_answers())
    rows = page.rows(real, embedded)
    different = sum(real[name] != embedded[name] for name in real)
    print(f"{len(real)} requests, {different} answered differently:", *rows, sep="\n")
    if os.environ.get("PLUGWRIGHT_REWRITE_DIFFERENCES"):
        page.rewrite(rows)
        requests.record(real, embedded)
    documented = page.documented_rows()
    assert [row for row in rows if row not in documented] == []
    assert [row for row in documented if row not in rows] == []
