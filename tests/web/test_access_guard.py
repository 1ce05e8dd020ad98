"""Who may see the page: requests over a real socket from strangers, other sites and other names of this machine."""

import re
from collections.abc import AsyncIterator

import pytest
from tests.web.visits import Visit, page_without_cluster


@pytest.fixture
async def visit() -> AsyncIterator[Visit]:
    async with page_without_cluster() as visit:
        yield visit


async def test_the_page_is_closed_to_those_without_its_address(visit: Visit) -> None:
    assert (await visit.get("/")).status == 200
    stranger = Visit(visit.address)
    for target in ("/", "/events/", "/page.js", "/nothing", "/?token=guess", "/?token="):
        answer = await stranger.get(target)
        assert (answer.status, "token" in answer.body) == (403, True), target
    assert (await stranger.get("/", Cookie=f"plugwright-{visit.port}=guess")).status == 403
    assert (await stranger.post("/", {}, Cookie=visit.cookie, Origin="http://evil.example")).status == 403


async def test_a_name_that_another_site_has_point_here_is_refused(visit: Visit) -> None:
    for host in ("evil.example", f"evil.example:{visit.port}", "127.0.0.1.evil.example", "[::1", "0.0.0.0"):
        assert (await visit.get("/", Host=host)).status == 421, host
    for host in (f"localhost:{visit.port}", "127.0.0.1:9000"):  # a forwarded port has another number
        assert (await visit.get("/", Host=host)).status == 200, host


async def test_the_token_leaves_the_address_bar_and_scripts_cannot_read_its_cookie(visit: Visit) -> None:
    token = visit.address.partition("token=")[2]
    answer = await Visit(visit.address).get(f"/?by=model&token={token}")
    assert (answer.status, answer.headers["location"]) == (303, "/?by=model")
    assert {"HttpOnly", "SameSite=strict"} <= set(answer.headers["set-cookie"].split("; "))
    outside = await Visit(visit.address).get(f"//evil.example/?token={token}")
    assert outside.headers["location"].startswith("/evil.example/")


async def test_every_answer_forbids_foreign_code_frames_and_storage(visit: Visit) -> None:
    for target in ("/", "/page.css", "/page.js", "/icon.svg", "/nothing", "/?token=wrong"):
        headers = (await visit.get(target)).headers
        policy = headers["content-security-policy"].split("; ")
        assert {"default-src 'none'", "script-src 'self'", "frame-ancestors 'none'", "base-uri 'none'"} <= set(policy)
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["cache-control"] == "no-store"
        assert headers["x-content-type-options"] == "nosniff"
    body = (await visit.get("/")).body
    assert " style=" not in body
    assert " onclick" not in body
    sources = re.findall(r'(?:href|src|action)="([^"]*)"', body)
    assert all(source.startswith(("/", "#")) and not source.startswith("//") for source in sources)


async def test_other_methods_are_refused(visit: Visit) -> None:
    for method in ("PUT", "DELETE", "OPTIONS", "TRACE"):
        assert (await visit.request(method, "/")).status == 405
