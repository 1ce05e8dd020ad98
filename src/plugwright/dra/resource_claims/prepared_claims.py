"""The claims that are prepared on this node: the checkpoint of one driver, and which claim holds which device.

The file has a line with its format and the checksum of the bytes that follow, and then the claims: a field that a later
version adds changes no checksum. Every change reads it, decides and writes it under a lock of the file system, because
an old and a new process of one driver run side by side during an upgrade. What a claim was given stays in it after a
reboot, when nothing of it is set up any more: the boot id tells.

A file that cannot be used, damaged or of a later format, is put aside and the claims are found again by what they left
behind (`recovery`): a node must not lose its driver for it.
"""

import asyncio
import fcntl
import logging
import os
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec

from plugwright.dra.resource_claims.claims import AllocatedClaim
from plugwright.errors import CheckpointCorrupt, ClaimWaits
from plugwright.sdk.sysfs import BOOT_ID
from plugwright.system import files
from plugwright.system.concurrency import begin_in_thread
from plugwright.system.latest import Latest

__all__ = [
    "ClaimedDevice",
    "Claims",
    "PreparedClaim",
    "PreparedClaims",
    "State",
    "held_by_another",
    "read_boot_id",
]

logger = logging.getLogger(__name__)

T = TypeVar("T")

_FORMAT = 1
_PRIVATE = 0o600  # edits may hold what only the claim's containers are to know
_LOCK_PAUSE = 0.005
_DISK_LIMIT = 10.0


class State(StrEnum):
    """`ENDED`: unprepared while another pod seems to use it; everything stays until the API server says otherwise."""

    STARTED = "started"
    DONE = "done"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class ClaimedDevice:
    """A device that a claim has: `name` in the slice, `id` in the plugin."""

    name: str
    id: str
    pool: str
    request: str
    share_id: str = ""
    admin_access: bool = False
    cdi: tuple[str, ...] = ()
    consumed: dict[str, int] = field(default_factory=dict, hash=False)
    parameters: dict[str, object] = field(default_factory=dict, hash=False)

    @property
    def exclusive(self) -> bool:
        return not self.admin_access and not self.share_id

    @property
    def key(self) -> tuple[str, str, str, str, bool]:
        """What the allocation says of it."""
        return self.request, self.pool, self.name, self.share_id, self.admin_access


@dataclass(frozen=True, slots=True)
class PreparedClaim:
    """A claim on this node. `spec` is its CDI spec as in the file, None without one; `boot_id` that of its last start.

    A claim that was found again after the checkpoint was lost may have no namespace and name.
    """

    uid: str
    namespace: str
    name: str
    state: State = State.STARTED
    boot_id: str = ""
    devices: tuple[ClaimedDevice, ...] = ()
    spec: dict[str, object] | None = field(default=None, hash=False)

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.name else f"with uid {self.uid}"

    @property
    def found(self) -> bool:
        """Found again without the checkpoint: what more the claim says of its devices is not known."""
        return not self.boot_id

    def is_ready(self, boot_id: str) -> bool:
        return self.state is not State.STARTED and self.boot_id == boot_id

    def is_awaited(self, boot_id: str) -> bool:
        """The kubelet has it, and says when it ends."""
        return self.state is State.DONE and self.boot_id == boot_id


Claims = Mapping[str, PreparedClaim]  # by uid


class PreparedClaims:
    """`find` finds claims again without the checkpoint; `latest` is what the file had when it was last read here."""

    def __init__(
        self,
        path: Path,
        boot_id: str,
        find: Callable[[], Iterable[PreparedClaim]] = tuple[PreparedClaim],
        lock_limit: float = 5.0,  # seconds that another process may have the lock
    ) -> None:
        self.boot_id = boot_id
        self.latest: Latest[Claims] = Latest({})
        self.problem = ""  # why the file could not be used, the last time
        self._path, self._find, self._lock_limit = path, find, lock_limit
        self._turn = asyncio.Lock()

    async def read(self) -> Claims:
        """The claims in the file now."""
        return await self.change(dict)

    async def change(self, decide: Callable[[dict[str, PreparedClaim]], T]) -> T:
        """Lets `decide` change the claims; they are written when this returns. Where it raises, nothing changes.

        It runs in a thread. OSError or ClaimWaits where the file cannot be read, written or locked in time.
        """
        async with self._turn:
            call = begin_in_thread("claims", partial(self._transact, decide))
            call.add_done_callback(self._publish)  # also when its caller no longer waits
            done, _ = await asyncio.wait((call,), timeout=self._lock_limit + _DISK_LIMIT)
            if not done:
                raise ClaimWaits(f"{self._path} could not be read and written within {_DISK_LIMIT:g} s")
            result, _ = call.result()
            return result

    def held(self) -> dict[str, list[PreparedClaim]]:
        """The claims that hold each device, by its name; those with admin access hold none."""
        holders: dict[str, list[PreparedClaim]] = {}
        for claim in self.latest.value.values():
            for name in sorted({device.name for device in claim.devices if not device.admin_access}):
                holders.setdefault(name, []).append(claim)
        return dict(sorted(holders.items()))

    def _publish(self, call: "asyncio.Future[tuple[T, Claims]]") -> None:
        if call.exception() is None:
            self.latest.publish_if_changed(call.result()[1])

    def _transact(self, decide: Callable[[dict[str, PreparedClaim]], T]) -> tuple[T, Claims]:
        self._path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        with _locked(self._path.with_suffix(".lock"), self._lock_limit):
            before = self._load()
            claims = dict(before)
            result = decide(claims)
            if claims != before:
                self._write(claims)
            return result, dict(claims)

    def _write(self, claims: Claims) -> None:
        """Whole or not at all. What the last moment before a loss of power wrote may be gone: so are its containers."""
        files.write_atomically(self._path, _encode(claims.values()), mode=_PRIVATE, sync_name=False)

    def _load(self) -> dict[str, PreparedClaim]:
        try:
            content = self._path.read_bytes()
        except FileNotFoundError:
            return self._found("there is none")
        try:
            return _decode(content)
        except CheckpointCorrupt as error:
            return self._found(f"{error}; it is kept as {files.put_aside(self._path).name}", was_there=True)

    def _found(self, problem: str, *, was_there: bool = False) -> dict[str, PreparedClaim]:
        """The claims by the files that they have on this node, which become the checkpoint."""
        claims = {claim.uid: claim for claim in self._find()}
        if claims or was_there:
            self.problem = problem
            facts = {"path": str(self._path), "reason": problem, "claims": len(claims)}
            logger.error("checkpoint of claims cannot be used, claims are found again by their files", extra=facts)
            self._write(claims)
        return claims


def held_by_another(claims: Claims, wanted: AllocatedClaim, capacity: Mapping[str, Mapping[str, int]]) -> str:
    """Why the devices of a claim cannot be its own now; empty if they can.

    The scheduler sees to it, but it has been wrong: this is the last line. Shares of one device must fit together into
    its `capacity`; admin access takes nothing.
    """
    others = [
        (claim, device)
        for claim in claims.values()
        if claim.uid != wanted.uid
        for device in claim.devices
        if not device.admin_access
    ]
    for result in wanted.results:
        if result.admin_access:
            continue
        holders = [(claim, device) for claim, device in others if device.name == result.device]
        for claim, device in holders:
            if result.exclusive or device.exclusive:
                return f"device {result.device} is held by ResourceClaim {claim} until that is unprepared"
        shares: list[Mapping[str, int]] = [device.consumed for _, device in holders]
        shares += [own.consumed for own in wanted.results if own.device == result.device and not own.admin_access]
        for name, limit in capacity.get(result.device, {}).items():
            total = sum(share.get(name, 0) for share in shares)
            if total > limit:
                held = ", ".join(sorted({str(claim) for claim, _ in holders}))
                return f"device {result.device} has {limit} {name}, its claims would have {total}: {held} hold it too"
    return ""


def read_boot_id(path: Path = BOOT_ID) -> str:
    """Raises where it cannot be read: without it, claims of an earlier boot would count as prepared."""
    return path.read_text(encoding="ascii").strip()


@contextmanager
def _locked(path: Path, limit: float) -> Iterator[None]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, _PRIVATE)
    try:
        _lock(descriptor, path, limit)
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int, path: Path, limit: float) -> None:
    """Not a call that waits: another process may have been stopped while it has the lock."""
    ends = time.monotonic() + limit
    while True:
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > ends:
                raise ClaimWaits(f"another process has had {path} locked for {limit:g} s") from None
        time.sleep(_LOCK_PAUSE)


class _CheckpointHeader(msgspec.Struct):
    format: int
    crc32: int = 0


class _CheckpointContent(msgspec.Struct):
    claims: list[PreparedClaim]


def _encode(claims: Iterable[PreparedClaim]) -> bytes:
    content = msgspec.json.encode(_CheckpointContent(sorted(claims, key=lambda claim: claim.uid)))
    return msgspec.json.encode(_CheckpointHeader(_FORMAT, zlib.crc32(content))) + b"\n" + content + b"\n"


def _decode(text: bytes) -> dict[str, PreparedClaim]:
    first, _, content = text.partition(b"\n")
    try:
        header = msgspec.json.decode(first, type=_CheckpointHeader)
        if header.format != _FORMAT:
            raise CheckpointCorrupt(f"it has format {header.format}, this version reads {_FORMAT}")
        content = content.removesuffix(b"\n")
        if zlib.crc32(content) != header.crc32:
            raise CheckpointCorrupt("its checksum is wrong")
        return {claim.uid: claim for claim in msgspec.json.decode(content, type=_CheckpointContent).claims}
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CheckpointCorrupt(f"it cannot be parsed: {error}") from error
