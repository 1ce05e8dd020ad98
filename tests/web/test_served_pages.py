"""`plugwright page`, and the pages that `up` serves, as processes."""

import json
from pathlib import Path

from tests.cli.processes import python, running
from tests.cluster.up.clusters import RuntimeDirectory
from tests.web.visits import Visit


async def test_up_serves_a_page_of_its_own_and_page_serves_another(tmp_path: Path) -> None:
    runtime = RuntimeDirectory(tmp_path)
    runtime.environment |= {"HOME": str(tmp_path), "KUBECONFIG": ""}
    async with runtime.up() as up:
        visit = Visit(up.info["page"])
        assert "Fleet" in (await visit.open()).words
        await visit.until("/", lambda page: "10 devices on 1 node: 10 free" in page.words)
        assert f"in a browser: {visit.address}" in (await runtime.ask("up", "status")).out.splitlines()

        command = python("-m", "plugwright", "page", "-o", "json")
        async with running(command, runtime.environment) as process:
            found = json.loads(await process.out.until("page"))
            assert found["server"] == up.info["server"]
            other = Visit(found["page"])
            await other.open()
            await other.until("/", lambda page: "10 devices on 1 node: 10 free" in page.words)
            assert (await visit.get("/", Cookie=other.cookie)).status == 403  # each has a token of its own


async def test_up_without_a_page_has_no_address_for_one(tmp_path: Path) -> None:
    async with RuntimeDirectory(tmp_path).up("--no-page", "--bare") as up:
        assert up.info["page"] == ""
