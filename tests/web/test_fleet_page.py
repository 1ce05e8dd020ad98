"""The view of the fleet over a real socket: cells, filters, and their changes as events."""

import re
from contextlib import aclosing
from pathlib import Path

from tests.cluster.embedding import Lab
from tests.web.visits import page_of, page_without_cluster

from plugwright.plugins.mock import Mock, MockOptions
from plugwright.sdk.plugin import Plugin


def three_gpus(node: str) -> list[Plugin]:
    return [Mock("mock/gpu", MockOptions(count=3, model="A100 <b>", seed=node))]


def a_device(lab: Lab) -> str:
    snapshot = lab.cluster.daemon("node-1").resources["mock/gpu"].inventory.latest.value
    assert snapshot is not None
    return next(iter(snapshot.devices))


async def test_cells_show_the_state_of_every_device_as_it_changes(root: Path) -> None:
    async with page_of(root, nodes=2, plugins=three_gpus) as (lab, visit):
        await visit.until("/", lambda page: "6 devices on 2 nodes: 6 free" in page.words)
        lab.create("two", {"mock/gpu": "2"})
        page = await visit.until("/", lambda page: page.body.count(": held, default/two/main") == 2)
        cells = re.findall(r'<a class="c s-(\w+)" href="[^"]*" aria-label="[^"]*">(.)</a>', page.body)
        assert sorted(cells) == [("free", ".")] * 4 + [("held", "H")] * 2
        lab.delete("two", grace=0)
        await visit.until("/", lambda page: "6 devices on 2 nodes: 6 free" in page.words)

        async with aclosing(visit.changes("/")) as changes:
            assert "main" in await anext(changes)  # the version that the visitor has is not known
            await lab.command("fail", a_device(lab))
            pieces: dict[str, str] = {}
            while "1 unhealthy" not in pieces.get("summary", ""):
                pieces |= await anext(changes)
            assert 's-unhealthy" href' in pieces["n0-node-1"]
            assert "n1-node-2" not in pieces  # nothing has changed there


async def test_filters_are_in_the_address_and_their_texts_are_inert(root: Path) -> None:
    async with page_of(root, plugins=three_gpus) as (lab, visit):
        await visit.until("/", lambda page: "3 devices on 1 node: 3 free" in page.words)
        device = a_device(lab)
        await lab.command("fail", device)
        page = await visit.until("/?state=unhealthy", lambda page: "1 device on" in page.words)
        assert f"{device} (#0) of mock/gpu" in page.body
        assert "3 devices" in (await visit.get("/?by=model&resource=mock%2Fgpu")).words
        assert "<h2><bdi>A100 &lt;b&gt;</bdi></h2>" in (await visit.get("/?by=model")).body
        assert "1 device on" in (await visit.get(f"/?q={device}")).words
        nothing = await visit.get("/?q=%3Cscript%3E%22%00%E2%80%AE&state=<b>&by=<b>")
        assert "No device matches" in nothing.words
        assert "<script>" not in nothing.body
        assert "\u202e" not in nothing.body


async def test_an_api_server_that_does_not_answer_is_said() -> None:
    async with page_without_cluster() as visit:
        page = await visit.get("/")
        assert "0 devices on 0 nodes" in page.words
        assert "Not up to date: the API server does not answer" in page.words
