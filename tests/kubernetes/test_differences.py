"""The same requests to a real API server and to the embedded one: each difference is a row of the docs page.

    PLUGWRIGHT_REWRITE_DIFFERENCES=1 python -m pytest tests/kubernetes/test_differences.py

writes the rows again.
"""

import asyncio
import os
import ssl
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from tests.cluster.api.serving import TOKEN, populated, served
from tests.kubernetes import building
from tests.kubernetes.differences import page
from tests.kubernetes.differences.container_specs import CONTAINER_SPECS
from tests.kubernetes.differences.every_kind import NAMESPACE, every_kind
from tests.kubernetes.differences.particular import particular
from tests.kubernetes.differences.playing import Json, Played, play
from tests.kubernetes.differences.pod_specs import POD_SPECS
from tests.kubernetes.lone_api_server import lone_api_server

from plugwright.cluster import KUBERNETES_VERSION
from plugwright.cluster.store import Store

VERSION = os.environ.get("PLUGWRIGHT_KUBERNETES_VERSION") or building.DEFAULT_VERSION
SPECS = {**CONTAINER_SPECS, **POD_SPECS}


def beginning() -> Iterator[Played]:
    """A namespace with the account that the controller manager would make, without a token in each pod."""
    account = {"metadata": {"name": "default"}, "automountServiceAccountToken": False}
    yield Played("namespace", "POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    yield Played("account", "POST", f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts", account)


def pods() -> Iterator[Played]:
    for number, (name, spec) in enumerate(SPECS.items()):
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"pod-{number}"}, "spec": spec}
        yield Played(name, "POST", f"/api/v1/namespaces/{NAMESPACE}/pods", pod)


REQUESTS = [*pods(), *every_kind(), *particular()]


async def answers(url: str, token: str, verify: ssl.SSLContext | bool) -> dict[str, Json]:
    headers = {"authorization": f"Bearer {token}"}
    async with httpx2.AsyncClient(base_url=url, headers=headers, verify=verify, timeout=30) as client:
        await play(client, beginning())
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
    assert len(REQUESTS) - len(SPECS) >= 300
    assert len(SPECS) >= 100
    real, embedded = await asyncio.gather(real_answers(tmp_path), embedded_answers())
    rows = page.rows(real, embedded)
    different = sum(real[name] != embedded[name] for name in real)
    print(f"{len(real)} requests, {different} answered differently:", *rows, sep="\n")
    if os.environ.get("PLUGWRIGHT_REWRITE_DIFFERENCES"):
        page.rewrite(rows)
    documented = page.documented_rows()
    assert [row for row in rows if row not in documented] == []
    assert [row for row in documented if row not in rows] == []
