"""The claims prepared on this node: the checkpoint of one driver, and which claim holds which device.

The file starts with a line that contains its format and the checksum of the following bytes, followed by the claims: a
field added by a later version changes no checksum. Preparing or unpreparing a claim is one transaction: the file is
locked and read once, and each state of the claim is on disk before it takes effect. The lock is held during the whole
call, because an old and a new process of one driver run side by side during an upgrade. A claim's devices stay in the
file after a reboot, when nothing is set up any more; the boot id shows that.

A file that is damaged or of a later format is set aside and the claims are found again by their files, because a node
must not lose its driver for it.
"""

import asyncio
import logging
import threading
import zlib
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import ExitStack, asynccontextmanager
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec

from plugwright.dra.resource_claims.claims import AllocatedClaim
from plugwright.errors import ClaimWaits, ConfigError, StateFileDamaged
from plugwright.system.blocking import BlockingCalls
from plugwright.system.latest import Latest
from plugwright.system.state_file import NewerVersion, StateFile, StateFileOptions

__all__ = [
    "ClaimTransaction",
    "ClaimedDevice",
    "Claims",
    "PreparedClaim",
    "PreparedClaims",
    "State",
    "held_by_another",
]

logger = logging.getLogger(__name__)

T = TypeVar("T")

_FORMAT = 1
_DISK_LIMIT = 10.0  # seconds that a call can take besides its wait for the lock


class State(StrEnum):
    """`ENDED`: unprepared while another pod seems to use it; everything stays until the API server shows otherwise."""

    STARTED = "started"
    DONE = "done"
    ENDED = "ended"


class ClaimedDevice(msgspec.Struct, frozen=True):
    """A device of a claim: `name` in the slice, `id` in the plugin."""

    name: str
    id: str
    pool: str
    request: str
    share_id: str = ""
    admin_access: bool = False
    cdi: tuple[str, ...] = ()
    consumed: dict[str, int] = {}
    parameters: dict[str, object] = {}

    @property
    def exclusive(self) -> bool:
        return not self.admin_access and not self.share_id

    @property
    def key(self) -> tuple[str, str, str, str, bool]:
        """The fields that come from the allocation."""
        return self.request, self.pool, self.name, self.share_id, self.admin_access


class PreparedClaim(msgspec.Struct, frozen=True):
    """A claim on this node. `spec` is its CDI spec as in the file, or None; `boot_id` that of its last start.

    A claim found again after the loss of the checkpoint can lack namespace and name. `pods` are the names of the pods
    for which an ended claim was kept.
    """

    uid: str
    namespace: str
    name: str
    state: State = State.STARTED
    boot_id: str = ""
    devices: tuple[ClaimedDevice, ...] = ()
    spec: dict[str, object] | None = None
    pods: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET  # which is left out of the file

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.name else f"with uid {self.uid}"

    @property
    def found(self) -> bool:
        """Whether it was found again without the checkpoint, so that other facts about its devices are unknown."""
        return not self.boot_id

    def is_ready(self, boot_id: str) -> bool:
        return self.state is not State.STARTED and self.boot_id == boot_id

    def is_awaited(self, boot_id: str) -> bool:
        """Whether the kubelet has it, and will report its end."""
        return self.state is State.DONE and self.boot_id == boot_id


Claims = Mapping[str, PreparedClaim]  # by uid


class PreparedClaims:
    """`find` finds claims again without the checkpoint; `latest` is the content of the file when last read here.

    ConfigError if `boot_id` is empty.
    """

    def __init__(
        self,
        path: Path,
        boot_id: str,
        find: Callable[[], Iterable[PreparedClaim]] = tuple[PreparedClaim],
        lock_limit: float = 5.0,  # seconds that another process can have the lock
    ) -> None:
        if not boot_id:
            raise ConfigError("the boot id of this machine is not known: claims of an earlier boot would seem prepared")
        self.boot_id = boot_id
        self.latest: Latest[Claims] = Latest({})
        self.problem = ""  # why the file was last unusable
        self._find = find
        # A power loss can revert the last write, but it ends the containers too.
        options = StateFileOptions(lock=path.with_suffix(".lock"), lock_limit=lock_limit, sync_name=False)
        self._file = StateFile(path, _CheckpointFormat(), options)
        self._disk = BlockingCalls(f"access to {path}", lock_limit + _DISK_LIMIT)
        self._turn = asyncio.Lock()

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator["ClaimTransaction"]:
        """The claims, locked against other calls and processes while inside; OSError, PlugwrightError if unreadable."""
        async with self._turn:
            transaction = ClaimTransaction(self._file, self._disk, self.latest.publish_if_changed)
            try:
                await transaction.run(partial(transaction.open, self._found))
            except BaseException:
                transaction.close()
                raise  # the known claims stay: claims in an unreadable file hold their devices
            try:
                yield transaction
            finally:
                transaction.close()
                self.latest.publish_if_changed(transaction.claims)

    async def read(self) -> Claims:
        """The present claims in the file."""
        async with self.transaction() as transaction:
            return transaction.claims

    def held(self) -> dict[str, list[PreparedClaim]]:
        """The claims that hold each device, by its name; claims with admin access hold none."""
        holders: dict[str, list[PreparedClaim]] = {}
        for claim in self.latest.value.values():
            for name in sorted({device.name for device in claim.devices if not device.admin_access}):
                holders.setdefault(name, []).append(claim)
        return dict(sorted(holders.items()))

    def _found(self, problem: str, *, was_there: bool) -> Claims:
        """The claims found by their files on this node, which become the checkpoint."""
        claims = {claim.uid: claim for claim in self._find()}
        if claims or was_there:
            self.problem = problem
            facts = {"path": str(self._file.path), "reason": problem, "claims": len(claims)}
            logger.error("checkpoint of claims cannot be used, claims are found again by their files", extra=facts)
        return claims


class ClaimTransaction:
    """The claims of a driver under the lock of their file; call its other methods, which block, by `run`.

    `changed` is called on the event loop with the claims that are now in the file.

    The lock is kept until the last of those calls has ended, even after its caller has stopped waiting: on a disk that
    hangs, an earlier write must not replace a later one.
    """

    def __init__(self, file: StateFile[Claims], disk: BlockingCalls, changed: Callable[[Claims], object]) -> None:
        self.claims: Claims = {}
        self._file, self._disk, self._changed = file, disk, changed
        self._lock = ExitStack()
        self._users, self._counting = 1, threading.Lock()

    async def run(self, work: Callable[[], T]) -> T:
        """The result of `work` in a thread, which completes even if the caller is cancelled: no file appears later."""
        result = await self._disk.run(partial(self._locked, work), to_end=True)
        self._changed(self.claims)
        return result

    def open(self, find: "Callable[..., Claims]") -> None:
        """Locks and reads the file; `find` finds the claims if the file is unusable."""

        def recover(error: StateFileDamaged) -> Claims:
            kept = f"; it is kept as {error.kept.name}" if error.kept is not None else ""
            claims = find(f"{error.problem}{kept}", was_there=True)
            self._file.write(claims)
            return claims

        claims = self._lock.enter_context(self._file.locked(recover))
        if claims is None:
            claims = find("there is none", was_there=False)
            if claims:
                self._file.write(claims)
        self.claims = claims

    def put(self, claim: PreparedClaim) -> None:
        claims = {**self.claims, claim.uid: claim}
        self._file.write(claims)
        self.claims = claims

    def remove(self, uid: str) -> None:
        if uid in self.claims:
            claims = {key: claim for key, claim in self.claims.items() if key != uid}
            self._file.write(claims)
            self.claims = claims

    def close(self) -> None:
        with self._counting:
            self._users -= 1
            if not self._users:
                self._lock.close()

    def _locked(self, work: Callable[[], T]) -> T:
        with self._counting:
            if not self._users:
                raise ClaimWaits("the transaction has ended")
            self._users += 1
        try:
            return work()
        finally:
            self.close()


def held_by_another(claims: Claims, wanted: AllocatedClaim, capacity: Mapping[str, Mapping[str, int]]) -> str:
    """Why a claim cannot have its devices now; empty if it can.

    The scheduler ensures that, but it has been wrong before: this is the last safeguard. Shares of one device must fit
    together into its `capacity`; admin access takes nothing.
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


class _CheckpointHeader(msgspec.Struct):
    format: int
    crc32: int = 0


class _CheckpointContent(msgspec.Struct):
    claims: list[PreparedClaim]


class _CheckpointFormat:
    """Implements `state_file.StateFormat`."""

    def encode(self, value: Claims) -> bytes:
        content = msgspec.json.encode(_CheckpointContent([value[uid] for uid in sorted(value)]))
        return msgspec.json.encode(_CheckpointHeader(_FORMAT, zlib.crc32(content))) + b"\n" + content + b"\n"

    def decode(self, content: bytes) -> Claims:
        first, _, rest = content.partition(b"\n")
        try:
            header = msgspec.json.decode(first, type=_CheckpointHeader)
            if header.format != _FORMAT:
                raise NewerVersion(f"it has format {header.format}, this version reads {_FORMAT}")
            rest = rest.removesuffix(b"\n")
            if zlib.crc32(rest) != header.crc32:
                raise ValueError("its checksum is wrong")
            return {claim.uid: claim for claim in msgspec.json.decode(rest, type=_CheckpointContent).claims}
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ValueError(f"it cannot be parsed: {error}") from error
