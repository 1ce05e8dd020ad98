"""Claims of drivers in real processes: killed in the middle, and two of them at once."""

import asyncio
from pathlib import Path

from tests.dra.resource_claims.claim_node import ClaimNode, claim, document, result, uid_of
from tests.dra.resource_claims.claim_process import running

from plugwright.dra.resource_claims.prepared_claims import State
from plugwright.errors import PlugwrightError


async def test_a_process_killed_in_the_middle_of_a_claim_loses_nothing(root: Path) -> None:
    documents = [document("one"), document("two")]
    (root / "hold").touch()
    node = ClaimNode.on(root)
    async with running(root, "held", *documents) as client:
        call = asyncio.create_task(client.prepare([claim("one")]))
        await node.until((root / "allocated").exists)
    (outcome,) = await asyncio.gather(call, return_exceptions=True)
    assert isinstance(outcome, PlugwrightError)
    (started,) = (await node.prepared.read()).values()
    assert (started.name, started.state) == ("one", State.STARTED)
    assert node.cdi_files() == []
    (root / "hold").unlink()
    async with running(root, "next") as client:
        refused = await client.prepare([claim("two")])
        assert "st0 is held by ResourceClaim default/one" in str(refused[uid_of("two")])
        prepared = await client.prepare([claim("one")])
        assert len(prepared[uid_of("one")]) == 1
        assert len(node.cdi_files()) == 1
        assert await client.unprepare([claim("one")]) == {uid_of("one"): ""}
        assert node.leftovers() == []
        assert len((await client.prepare([claim("two")]))[uid_of("two")]) == 1


async def test_two_processes_never_give_one_device_to_two_claims(root: Path) -> None:
    documents = [document(f"{name}{number}", result("st1")) for number in range(12) for name in "ab"]
    async with running(root, "a", *documents) as first, running(root, "b") as second:
        for number in range(12):
            mine, other = claim(f"a{number}"), claim(f"b{number}")
            answers = await asyncio.gather(first.prepare([mine]), second.prepare([other]))
            results = [next(iter(answer.values())) for answer in answers]
            (refused,) = [answer for answer in results if isinstance(answer, str)]
            assert "device st1 is held by ResourceClaim default/" in refused
            for held in (mine, other):  # by the process that did not prepare it, too
                assert await second.unprepare([held]) == {held.uid: ""}
    assert ClaimNode.on(root).leftovers() == []


async def test_two_processes_prepare_one_claim_alike(root: Path) -> None:
    async with running(root, "a", document("one")) as first, running(root, "b") as second:
        for _ in range(8):
            one, other = await asyncio.gather(first.prepare([claim("one")]), second.prepare([claim("one")]))
            assert one == other
            assert len(one[uid_of("one")]) == 1
            await first.unprepare([claim("one")])
    assert ClaimNode.on(root).leftovers() == []
