"""The checkpoint of claims: what survives a crash, a reboot, damage, an upgrade, and a second process."""

import asyncio
import fcntl
import json
import os
import sys
import zlib
from asyncio.subprocess import PIPE
from functools import partial
from pathlib import Path
from threading import Event

import pytest
from tests.dra.resource_claims.claim_node import ClaimNode, claim, document, result, uid_of

from plugwright.dra.resource_claims.claims import AllocatedClaim, AllocatedDevice
from plugwright.dra.resource_claims.prepared_claims import (
    ClaimedDevice,
    Claims,
    ClaimTransaction,
    PreparedClaim,
    PreparedClaims,
    State,
    held_by_another,
)
from plugwright.errors import CallTimedOut, ConfigError, StateFileLocked
from plugwright.model import Allocation
from plugwright.system.blocking import BlockingCalls
from plugwright.system.state_file import JsonFormat, StateFile, StateFileOptions

STORED = PreparedClaim(
    "u-1",
    "default",
    "one",
    State.DONE,
    "boot-1",
    (ClaimedDevice("st0", "ST0", "node-1", "tape", "s-1", cdi=("a/b=c",), consumed={"m": 3}, parameters={"x": [1]}),),
    {"kind": "a/b"},
)

# As earlier releases wrote it, and read it after a rollback.
CHECKPOINT = (
    b'{"format":1,"crc32":2286241412}\n'
    b'{"claims":[{"uid":"u-1","namespace":"default","name":"one","state":"done","boot_id":"boot-1","devices":'
    b'[{"name":"st0","id":"ST0","pool":"node-1","request":"tape","share_id":"s-1","admin_access":false,'
    b'"cdi":["a/b=c"],"consumed":{"m":3},"parameters":{"x":[1]}}],"spec":{"kind":"a/b"}}]}\n'
)


async def put(claims: PreparedClaims, stored: PreparedClaim) -> None:
    async with claims.transaction() as transaction:
        await transaction.run(partial(transaction.put, stored))


async def test_what_is_written_is_read_again(root: Path) -> None:
    path = root / "plugins" / "driver" / "checkpoint.json"
    await put(PreparedClaims(path, "boot-1"), STORED)
    assert path.stat().st_mode & 0o777 == 0o600
    claims = PreparedClaims(path, "boot-1")
    assert claims.held() == {}
    assert await claims.read() == {"u-1": STORED}
    assert claims.held() == {"st0": [STORED]}
    assert claims.problem == ""


async def test_the_file_is_that_of_earlier_releases(root: Path) -> None:
    path = root / "checkpoint.json"
    await put(PreparedClaims(path, "boot-1"), STORED)
    assert path.read_bytes() == CHECKPOINT
    path.write_bytes(CHECKPOINT)
    assert await PreparedClaims(path, "boot-1").read() == {"u-1": STORED}


async def test_a_field_that_a_later_version_adds_is_no_damage(root: Path) -> None:
    path = root / "checkpoint.json"
    await put(PreparedClaims(path, "boot-1"), STORED)
    content = json.loads(path.read_bytes().partition(b"\n")[2])
    content["claims"][0]["colour"] = content["more"] = "red"
    later = json.dumps(content).encode()
    path.write_bytes(b'{"format":1,"more":1,"crc32":%d}\n%s\n' % (zlib.crc32(later), later))
    claims = PreparedClaims(path, "boot-1")
    assert await claims.read() == {"u-1": STORED}
    assert claims.problem == ""


async def test_claims_that_cannot_be_read_hold_their_devices(root: Path) -> None:
    claims = PreparedClaims(root / "checkpoint.json", "boot-1", lock_limit=0.05)
    await put(claims, STORED)
    with (root / "checkpoint.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(StateFileLocked):
            await claims.read()
    assert list(claims.held()) == ["st0"]


async def test_a_claim_holds_its_devices_as_soon_as_it_is_recorded(root: Path) -> None:
    claims = PreparedClaims(root / "checkpoint.json", "boot-1")
    async with claims.transaction() as transaction:
        await transaction.run(partial(transaction.put, STORED))
        assert list(claims.held()) == ["st0"]


async def test_a_write_that_fails_changes_nothing(root: Path) -> None:
    path = root / "checkpoint.json"
    claims = PreparedClaims(path, "boot-1")
    await put(claims, STORED)
    async with claims.transaction() as transaction:
        path.rename(root / "away")
        path.mkdir()  # no file can take its place
        with pytest.raises(IsADirectoryError):
            await transaction.run(partial(transaction.remove, "u-1"))
        assert transaction.claims == {"u-1": STORED}
    path.rmdir()
    (root / "away").rename(path)
    assert await claims.read() == claims.latest.value == {"u-1": STORED}


async def test_a_call_that_hangs_keeps_the_lock_until_it_ends(root: Path) -> None:
    """However long its caller waits: what it writes at last replaces nothing newer."""
    options = StateFileOptions(lock=root / "lock", lock_limit=0.05)
    file: StateFile[Claims] = StateFile(root / "claims", JsonFormat(dict[str, PreparedClaim], 1), options)
    transaction = ClaimTransaction(file, BlockingCalls("claims", 0.2), lambda claims: None)
    ends, ended = Event(), Event()

    def hang() -> None:
        ends.wait()
        ended.set()

    await transaction.run(partial(transaction.open, lambda problem, was_there: {}))
    with pytest.raises(CallTimedOut):
        await transaction.run(hang)
    transaction.close()
    with pytest.raises(StateFileLocked), file.locked():
        pass
    ends.set()
    assert await asyncio.to_thread(ended.wait, 30)
    async with asyncio.timeout(30):
        while not is_free(root / "lock"):
            await asyncio.sleep(0.005)


def is_free(lock: Path) -> bool:
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True


async def test_a_claim_is_prepared_under_one_lock(node: ClaimNode) -> None:
    node.api.put(document("one"))
    free: list[bool] = []

    def allocate(given: object) -> Allocation:
        free.append(is_free(node.checkpoint.with_suffix(".lock")))
        return Allocation(env={"TAPES": "st0"})

    node.drives.allocation = allocate
    assert len(await node.prepare(claim("one"))) == 1
    assert free == [False]
    assert is_free(node.checkpoint.with_suffix(".lock"))


async def test_a_claim_whose_end_cannot_be_written_is_prepared_again(node: ClaimNode) -> None:
    node.api.put(document("one"), document("two"))
    away = node.checkpoint.with_name("away")

    def fill_the_disk(given: object) -> Allocation:
        node.checkpoint.rename(away)
        node.checkpoint.mkdir()  # no file can take its place
        return Allocation(env={"TAPES": "st0"})

    node.drives.allocation = fill_the_disk
    assert "Is a directory" in await node.prepare(claim("one"))
    node.checkpoint.rmdir()
    away.rename(node.checkpoint)
    node.drives.allocation = None
    node = node.restart()
    assert "is held by ResourceClaim default/one" in await node.prepare(claim("two"))
    assert len(await node.prepare(claim("one"))) == 1


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
        with pytest.raises(StateFileLocked, match=r"another process has had .*checkpoint.lock locked for 0.05 s"):
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
        async with claims.transaction() as transaction:
            await transaction.run(lambda: transaction.put(claim))

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


def test_no_claim_is_prepared_if_the_boot_is_not_known(root: Path) -> None:
    with pytest.raises(ConfigError, match="the boot id of this machine is not known"):
        PreparedClaims(root / "checkpoint.json", "")
