"""The checkpoint of claims: what survives a crash, a reboot, damage, an upgrade, and a second process."""

import asyncio
import fcntl
import json
import os
import sys
import zlib
from asyncio.subprocess import PIPE
from pathlib import Path

import pytest
from tests.dra.resource_claims.claim_node import ClaimNode, claim, document, result, uid_of

from plugwright.dra.resource_claims import prepared_claims
from plugwright.dra.resource_claims.claims import AllocatedClaim, AllocatedDevice
from plugwright.dra.resource_claims.prepared_claims import (
    ClaimedDevice,
    PreparedClaim,
    PreparedClaims,
    State,
    held_by_another,
)
from plugwright.errors import ClaimWaits

STORED = PreparedClaim(
    "u-1",
    "default",
    "one",
    State.DONE,
    "boot-1",
    (ClaimedDevice("st0", "ST0", "node-1", "tape", "s-1", cdi=("a/b=c",), consumed={"m": 3}, parameters={"x": [1]}),),
    {"kind": "a/b"},
)


def put(stored: PreparedClaim, claims: dict[str, PreparedClaim]) -> None:
    claims[stored.uid] = stored


async def test_what_is_written_is_read_again(root: Path) -> None:
    path = root / "plugins" / "driver" / "checkpoint.json"
    await PreparedClaims(path, "boot-1").change(lambda claims: put(STORED, claims))
    assert path.stat().st_mode & 0o777 == 0o600
    claims = PreparedClaims(path, "boot-1")
    assert claims.held() == {}
    assert await claims.read() == {"u-1": STORED}
    assert claims.held() == {"st0": [STORED]}
    assert claims.problem == ""


async def test_a_field_that_a_later_version_adds_is_no_damage(root: Path) -> None:
    path = root / "checkpoint.json"
    await PreparedClaims(path, "boot-1").change(lambda claims: put(STORED, claims))
    content = json.loads(path.read_bytes().partition(b"\n")[2])
    content["claims"][0]["colour"] = content["more"] = "red"
    later = json.dumps(content).encode()
    path.write_bytes(b'{"format":1,"more":1,"crc32":%d}\n%s\n' % (zlib.crc32(later), later))
    claims = PreparedClaims(path, "boot-1")
    assert await claims.read() == {"u-1": STORED}
    assert claims.problem == ""


async def test_a_change_that_fails_changes_nothing(root: Path) -> None:
    claims = PreparedClaims(root / "checkpoint.json", "boot-1")
    await claims.change(lambda stored: put(STORED, stored))

    def fail(stored: dict[str, PreparedClaim]) -> None:
        stored.clear()
        raise ClaimWaits("no")

    with pytest.raises(ClaimWaits):
        await claims.change(fail)
    assert await claims.read() == {"u-1": STORED}


def damaged(content: bytes) -> list[tuple[bytes, str]]:
    later = content.replace(b'"format":1', b'"format":2')
    flipped = content.replace(b"default", b"defaulx")
    first = content.partition(b"\n")[0]
    wrong = b'{"claims":[{"uid":7}]}'
    return [
        (b"", "cannot be parsed"),
        (content[:-20], "checksum is wrong"),
        (flipped, "checksum is wrong"),
        (first, "checksum is wrong"),
        (b"\xff\xfe\x00" * 40, "cannot be parsed"),
        (b'{"format":1,"crc32":%d}\n%s\n' % (zlib.crc32(wrong), wrong), "cannot be parsed"),
        (later, "it has format 2, this version reads 1"),
        (b"\0" * len(content), "cannot be parsed"),  # as file systems leave it after a crash
    ]


@pytest.mark.parametrize("case", range(8))
async def test_claims_are_found_again_where_the_checkpoint_is_damaged_or_of_a_later_format(
    node: ClaimNode, case: int, caplog: pytest.LogCaptureFixture
) -> None:  # 6.3, 6.4
    node.api.put(document("one"), document("two"), document("three", result("st1", "a"), result("st2", "b")))
    answers = [await node.prepare(claim(name)) for name in ("one", "three")]
    content, problem = damaged(node.checkpoint.read_bytes())[case]
    node.checkpoint.write_bytes(content)
    node = node.restart()
    assert "is held by ResourceClaim default/one" in await node.prepare(claim("two"))
    assert list(node.prepared.held()) == ["st0", "st1", "st2"]
    assert problem in node.prepared.problem
    assert node.checkpoint.with_name("checkpoint.json.damaged").read_bytes() == content
    assert caplog.text.count("checkpoint of claims cannot be used") == 1
    assert [await node.prepare(claim(name)) for name in ("one", "three")] == answers
    assert node.drives.released == []
    for name in ("one", "three"):
        assert await node.unprepare(claim(name)) == ""
    assert node.leftovers() == []
    assert len(await node.prepare(claim("two"))) == 1


async def test_claims_are_found_again_where_the_checkpoint_was_removed(node: ClaimNode) -> None:
    node.api.put(document("one"), document("two"))
    await node.prepare(claim("one"))
    node.checkpoint.unlink()
    node = node.restart()
    assert "is held by ResourceClaim default/one" in await node.prepare(claim("two"))


async def test_claims_found_by_their_cdi_files_alone_hold_their_devices_until_they_are_unprepared(root: Path) -> None:
    node = ClaimNode.on(root, tells_containers=False)
    node.api.put(document("one"), document("two"))
    await node.prepare(claim("one"))
    node.checkpoint.write_bytes(b"damaged")
    node = node.restart()
    await node.preparation.abandoned.undo()
    assert f"is held by ResourceClaim with uid {uid_of('one')}" in await node.prepare(claim("two"))
    assert await node.unprepare(claim("one")) == ""
    assert len(await node.prepare(claim("two"))) == 1


async def test_what_claims_found_again_share_is_asked_of_the_api_server(node: ClaimNode) -> None:
    node.api.put(document("one", result(shareID="s-1")), document("two", result(shareID="s-2")), document("gone"))
    assert len(await node.prepare(claim("one"))) == 1
    node.checkpoint.write_bytes(b"damaged")
    node = node.restart()
    assert "is held by" in await node.prepare(claim("two"))
    await node.preparation.abandoned.undo()
    assert len(await node.prepare(claim("two"))) == 1


async def test_a_claim_found_again_that_is_gone_is_undone(node: ClaimNode) -> None:
    node.api.put(document())
    await node.prepare(claim())
    node.checkpoint.write_bytes(b"damaged")
    node.api.remove("one")
    node = node.restart()
    await node.preparation.abandoned.undo()
    assert node.leftovers() == []
    assert node.prepared.held() == {}


async def test_a_process_that_keeps_the_lock_is_said(root: Path) -> None:
    path = root / "checkpoint.json"
    claims = PreparedClaims(path, "boot-1", lock_limit=0.05)
    descriptor = os.open(path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        with pytest.raises(ClaimWaits, match=r"another process has had .*checkpoint.lock locked for 0.05 s"):
            await claims.read()
    finally:
        os.close(descriptor)
    assert await claims.read() == {}


SHARE = AllocatedDevice("tape", "node-1", "st0", share_id="s-2", consumed={"m": 4})
WHOLE = AllocatedDevice("tape", "node-1", "st0")
ADMIN = AllocatedDevice("tape", "node-1", "st0", admin_access=True)


@pytest.mark.parametrize(
    ("holder", "wanted", "text"),
    [
        (WHOLE, WHOLE, "is held by"),
        (WHOLE, SHARE, "is held by"),
        (SHARE, WHOLE, "is held by"),
        (SHARE, SHARE, ""),
        (ADMIN, WHOLE, ""),
        (WHOLE, ADMIN, ""),
        (SHARE, ADMIN, ""),
    ],
)
def test_a_device_has_one_claim_unless_it_is_shared_or_only_looked_at(
    holder: AllocatedDevice, wanted: AllocatedDevice, text: str
) -> None:
    device = ClaimedDevice(
        "st0", "st0", "node-1", "tape", holder.share_id, holder.admin_access, consumed=dict(holder.consumed)
    )
    claims = {"u-1": PreparedClaim("u-1", "default", "one", devices=(device,))}
    reason = held_by_another(claims, AllocatedClaim("default", "two", "u-2", (wanted,)), {"st0": {"m": 8}})
    assert (text in reason) if text else reason == ""
    assert held_by_another(claims, AllocatedClaim("default", "one", "u-1", (wanted,)), {}) == ""


PROCESS = """
import asyncio, sys
from pathlib import Path
from plugwright.dra.resource_claims.prepared_claims import *

async def main():
    claims = PreparedClaims(Path(sys.argv[1]), "boot-1")
    for number in range(40):
        claim = PreparedClaim(f"{sys.argv[2]}-{number}", "default", "x")
        await claims.change(lambda stored: stored.__setitem__(claim.uid, claim))

asyncio.run(main())
"""


async def test_two_processes_lose_nothing_of_each_other(root: Path) -> None:
    path = root / "checkpoint.json"
    command = (sys.executable, "-c", PROCESS, str(path))
    processes = [await asyncio.create_subprocess_exec(*command, name, stderr=PIPE) for name in ("a", "b")]
    for process in processes:
        _, errors = await process.communicate()
        assert process.returncode == 0, errors
    assert len(await PreparedClaims(path, "boot-1").read()) == 80


def test_the_boot_id_is_the_kernels() -> None:
    assert len(prepared_claims.read_boot_id()) == 36
