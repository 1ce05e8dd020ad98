"""A server that is killed while it writes and restarted under a watch: no answered write is lost."""

import asyncio
import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
from tests.apiserver.serving import TOKEN

MAPS = "/api/v1/namespaces/default/configmaps"
HEADERS = {"authorization": f"Bearer {TOKEN}"}
SERVER = """
import sys, uvicorn
from pathlib import Path
from tests.apiserver.serving import populated, server
from plugwright.apiserver.app import application
from plugwright.apiserver.database import Database
from plugwright.apiserver.store import Store
store = Store(Database(Path(sys.argv[1])))
app = application(server(store if store.objects("nodes") else populated(store)))
uvicorn.run(app, port=int(sys.argv[2]), log_level="critical", lifespan="off")
"""


@contextmanager
def killed_at_the_end(database: Path, port: int) -> Iterator[None]:
    process = subprocess.Popen([sys.executable, "-c", SERVER, str(database), str(port)])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


async def wait_until_ready(client: httpx2.AsyncClient) -> None:
    while True:
        try:
            if (await client.get("/readyz")).status_code == 200:
                return
        except httpx2.TransportError:
            await asyncio.sleep(0.05)


async def write_until_killed(client: httpx2.AsyncClient, prefix: str, answered: list[str]) -> None:
    for number in range(100_000):
        name = f"{prefix}-{number}"
        try:
            response = await client.post(MAPS, json={"metadata": {"name": name}})
        except httpx2.TransportError:
            return
        assert response.status_code == 201
        answered.append(name)


async def watch_until_killed(client: httpx2.AsyncClient, since: str, seen: list[str]) -> str:
    """The resource version of the last event."""
    try:
        async with client.stream("GET", f"{MAPS}?watch=1&resourceVersion={since}") as response:
            async for line in response.aiter_lines():
                event = json.loads(line)
                assert event["type"] == "ADDED", event
                since = event["object"]["metadata"]["resourceVersion"]
                seen.append(event["object"]["metadata"]["name"])
    except httpx2.TransportError:
        pass
    return since


async def test_a_watch_over_three_restarts_misses_nothing(tmp_path: Path) -> None:
    port, answered, seen = free_port(), list[str](), list[str]()
    since = ""
    for run in range(3):
        async with (
            asyncio.timeout(60),
            httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=HEADERS) as client,
        ):
            with killed_at_the_end(tmp_path / "cluster.db", port):
                await wait_until_ready(client)
                listed = (await client.get(MAPS)).json()
                names = {item["metadata"]["name"] for item in listed["items"]}
                assert names >= set(answered)
                # A change that was stored but not sent before the kill is in the list, from which the client continues.
                seen = sorted(names)
                since = listed["metadata"]["resourceVersion"]
                watching = asyncio.create_task(watch_until_killed(client, since, seen))
                writing = asyncio.create_task(write_until_killed(client, f"run-{run}", answered))
                while len(answered) < (run + 1) * 30:
                    await asyncio.sleep(0.01)
            await asyncio.gather(watching, writing)
        assert len(seen) == len(set(seen))
    assert len(answered) >= 90
