"""The client of the API server for the event loop, over TLS to the embedded one."""

import asyncio
import json
import os
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import pytest
import trustme
from tests.apiserver.serving import TOKEN
from tests.kube.serving import ServedApi, requests_ended, served_api

from plugwright.apiserver.kinds import CONFIG_MAPS
from plugwright.apiserver.registry import ResourcePath, Writer
from plugwright.errors import ConfigError, PeerGone, PeerRefused, PeerSilent
from plugwright.kube.access import ClusterAccess
from plugwright.kube.api_client import ApiClient, Document, segment
from plugwright.kube.credentials import Credentials

MAPS = "/api/v1/namespaces/default/configmaps"


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[ServedApi]:
    async with served_api(tmp_path) as found:
        yield found


@pytest.fixture
async def api(served: ServedApi) -> AsyncIterator[ApiClient]:
    client = served.client()
    yield client
    client.close()


def config_map(name: str, **data: str) -> Document:
    return {"metadata": {"name": name}, "data": data}


async def test_an_object_is_created_read_changed_and_deleted(api: ApiClient) -> None:
    made = await api.create(MAPS, config_map("one", a="1"))
    assert (await api.get(f"{MAPS}/one"))["metadata"]["uid"] == made["metadata"]["uid"]
    updated = await api.update(f"{MAPS}/one", {**made, "data": {"a": "2"}})
    assert updated["data"] == {"a": "2"}
    patched = await api.patch(f"{MAPS}/one", {"data": {"b": "3"}}, "merge-patch")
    assert patched["data"] == {"a": "2", "b": "3"}
    applied = {"apiVersion": "v1", "kind": "ConfigMap", **config_map("one", c="4")}
    merged = await api.patch(f"{MAPS}/one", applied, "apply-patch", fieldManager="test")
    assert merged["data"] == {"a": "2", "b": "3", "c": "4"}
    await api.delete(f"{MAPS}/one", uid=made["metadata"]["uid"])
    with pytest.raises(PeerRefused) as caught:
        await api.get(f"{MAPS}/one")
    assert caught.value.code == "NotFound"


async def test_an_object_that_has_changed_is_neither_updated_nor_deleted(api: ApiClient) -> None:
    made = await api.create(MAPS, config_map("one"))
    await api.update(f"{MAPS}/one", {**made, "data": {"a": "1"}})
    with pytest.raises(PeerRefused) as caught:
        await api.update(f"{MAPS}/one", made)
    assert caught.value.code == "Conflict"
    with pytest.raises(PeerRefused) as caught:
        await api.delete(f"{MAPS}/one", resource_version=made["metadata"]["resourceVersion"])
    assert caught.value.code == "Conflict"
    with pytest.raises(PeerRefused) as caught:
        await api.delete(f"{MAPS}/one", uid="another")
    assert caught.value.code == "Conflict"


async def test_an_invalid_object_is_refused_with_the_reason(api: ApiClient) -> None:
    with pytest.raises(PeerRefused, match="RFC 1123") as caught:
        await api.create(MAPS, config_map("No"))
    assert caught.value.code == "Invalid"


async def test_a_list_of_many_pages_is_one_list(api: ApiClient, served: ServedApi) -> None:
    writer = Writer(served.store)
    for number in range(501):
        path = ResourcePath(CONFIG_MAPS, "default", f"map-{number:03}")
        writer.create(path, {"metadata": {"name": path.name}}, "test")
    items, version = await api.list(MAPS, labelSelector="!a")
    assert [item["metadata"]["name"] for item in items] == [f"map-{number:03}" for number in range(501)]
    assert int(version) == served.store.revision
    assert len(served.requests) == 2


async def test_a_watch_yields_each_change(api: ApiClient) -> None:
    _, version = await api.list(MAPS)
    async with aclosing(api.watch(MAPS, version)) as changes:
        made = await api.create(MAPS, config_map("one"))
        await api.update(f"{MAPS}/one", {**made, "data": {"a": "1"}})
        await api.delete(f"{MAPS}/one")
        kinds = [(await anext(changes))[0] for _ in range(3)]
    assert kinds == ["ADDED", "MODIFIED", "DELETED"]


async def test_a_watch_ends_when_the_server_goes(api: ApiClient, served: ServedApi) -> None:
    async with aclosing(api.watch(MAPS, "")) as changes:
        await api.create(MAPS, config_map("one"))
        await anext(changes)
        ending = asyncio.ensure_future(anext(changes))
        await served.stop()
        with pytest.raises(PeerGone):
            await ending


async def test_a_watch_that_is_left_leaves_no_thread_behind(api: ApiClient) -> None:
    async def read() -> None:
        async with aclosing(api.watch(MAPS, "")) as changes:
            async for _ in changes:
                begun.set()

    begun = asyncio.Event()
    reading = asyncio.create_task(read())
    await api.create(MAPS, config_map("one"))
    await begun.wait()
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    await requests_ended()


async def test_a_request_that_is_abandoned_before_it_connects_is_not_sent(served: ServedApi) -> None:
    abandoned = threading.Event()

    class LateServer(ClusterAccess):
        def tls_context(self) -> ssl.SSLContext | None:
            abandoned.wait(60)
            return super().tls_context()

    server = LateServer.in_cluster(served.environment, served.directory)
    assert server is not None
    asking = asyncio.create_task(ApiClient(server).get(MAPS))
    await asyncio.sleep(0)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    abandoned.set()
    await requests_ended()
    assert served.requests == []


async def test_a_watch_from_an_old_version_has_expired() -> None:
    gone = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"}
    change = json.dumps({"type": "ERROR", "object": gone}) + "\n"
    async with (
        answering(f"HTTP/1.1 200 OK\r\nContent-Length: {len(change)}\r\n\r\n{change}") as client,
        aclosing(client.watch(MAPS, "1")) as changes,
    ):
        with pytest.raises(PeerRefused) as caught:
            await anext(changes)
    assert caught.value.code == "Expired"


async def test_a_watch_that_is_cut_within_a_change_is_gone() -> None:
    async with (
        answering('HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{"type": "ADD') as client,
        aclosing(client.watch(MAPS, "1")) as changes,
    ):
        with pytest.raises(PeerGone):
            await anext(changes)


async def test_a_server_that_is_away_is_gone_and_found_again(api: ApiClient, served: ServedApi) -> None:
    await api.create(MAPS, config_map("one"))
    await served.stop()
    with pytest.raises(PeerGone, match="cannot reach https://127"):
        await api.get(f"{MAPS}/one")
    await served.start()
    assert (await api.get(f"{MAPS}/one"))["metadata"]["name"] == "one"


async def test_a_server_that_never_answers_costs_the_limit_and_a_few_threads() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        client = ApiClient(ClusterAccess(f"http://127.0.0.1:{listening.getsockname()[1]}", Credentials()), limit=0.1)
        answers = await asyncio.gather(*(client.get("/api") for _ in range(12)), return_exceptions=True)
        busy = [thread for thread in threading.enumerate() if "request to the API server" in thread.name]
    assert {type(answer) for answer in answers} <= {PeerSilent, PeerGone}
    assert len(busy) <= 4
    await requests_ended()


@pytest.mark.parametrize(("code", "text"), [(429, "slow down"), (500, "etcd"), (503, "starting")])
async def test_a_server_in_trouble_counts_as_gone(code: int, text: str) -> None:
    async with answering(f"HTTP/1.1 {code} No\r\nContent-Length: {len(text)}\r\n\r\n{text}") as client:
        with pytest.raises(PeerGone, match=f"cannot answer now: {text}"):
            await client.get("/api")


@pytest.mark.parametrize("depth", [10, 4900, 200_000])
async def test_an_object_that_is_nested_absurdly_deep_costs_no_other(depth: int) -> None:
    plain = {"name": 'one [ " {'}
    deep = '{"a":' * depth + '"]}"' + "}" * depth
    text = f'{{"items":[{json.dumps(plain)},{deep},{{"name":"two"}}]}}'
    async with answering(f"HTTP/1.1 200 OK\r\nContent-Length: {len(text)}\r\n\r\n{text}") as client:
        found = await client.get("/api")
    one, between, two = found["items"]
    assert (one, two) == (plain, {"name": "two"})
    for _ in range(min(depth, 290)):
        between = between["a"]


async def test_a_token_is_read_again_for_each_request(api: ApiClient, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("old")
    with pytest.raises(PeerRefused, match="the token may have expired"):
        await api.get(MAPS)
    (tmp_path / "token").write_text(TOKEN)
    await api.get(MAPS)


async def test_a_token_that_cannot_be_sent_is_not_shown(api: ApiClient, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret\nX-Other: header")
    with pytest.raises(ConfigError, match="must be one line of ASCII") as caught:
        await api.get(MAPS)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (os.mkfifo, "it must be a regular file"),
        (lambda path: path.symlink_to("/dev/zero"), "it must be a regular file"),
        (lambda path: path.write_bytes(b"a" * (2**20 + 1)), "it must have at most 1048576 bytes, got 1048577"),
    ],
    ids=["pipe", "endless", "large"],
)
async def test_a_token_without_end_is_an_error_with_the_reason(
    api: ApiClient, tmp_path: Path, make: Callable[[Path], object], reason: str
) -> None:
    token = tmp_path / "token"
    token.unlink()
    make(token)
    with pytest.raises(ConfigError, match=f"cannot read the token in {token}: {reason}"):
        await api.get(MAPS)


async def test_a_pipe_in_place_of_the_authority_is_refused(served: ServedApi, tmp_path: Path) -> None:
    (tmp_path / "ca.crt").unlink()
    os.mkfifo(tmp_path / "ca.crt")
    client = served.client()
    with pytest.raises(PeerGone, match=r"ca\.crt must be a regular file"):
        await client.get(MAPS)
    client.close()


async def test_an_authority_that_is_replaced_is_trusted_from_then_on(served: ServedApi, tmp_path: Path) -> None:
    right = (tmp_path / "ca.crt").read_bytes()
    client = served.client()
    trustme.CA().cert_pem.write_to_path(str(tmp_path / "ca.crt"))
    with pytest.raises(PeerGone, match="certificate verify failed"):
        await client.get(MAPS)
    (tmp_path / "ca.crt").write_bytes(right)
    await client.get(MAPS)
    client.close()


@pytest.mark.parametrize("path", ["/api/v1/../secrets", "/api v1", "/api\r\nHost: other", "api", "/api/ü"])
async def test_a_hostile_path_is_never_sent(api: ApiClient, served: ServedApi, path: str) -> None:
    with pytest.raises(PeerRefused, match="must not be"):
        await api.get(path)
    assert served.requests == []


def test_a_hostile_name_leads_to_no_other_object() -> None:
    assert segment("a/../b?c") == "a%2F..%2Fb%3Fc"
    for name in ("", ".", ".."):
        with pytest.raises(PeerRefused, match="must not be"):
            segment(name)


@asynccontextmanager
async def answering(text: str) -> AsyncIterator[ApiClient]:
    """A client of a server that answers every request with `text`, and then ends the connection."""
    server = await asyncio.start_server(_answer(text), "127.0.0.1")
    async with server:
        client = ApiClient(ClusterAccess(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", Credentials()))
        yield client
        client.close()


def _answer(text: str) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(text.encode())
        await writer.drain()
        writer.close()

    return answer
