"""The file that stores a node's taints over restarts of the daemon.

All resources of a node share it, and so do two daemons while one replaces the other: to grant an eviction, each reads
the file, decides and writes it under one lock. A grant takes effect only once persisted, so a crash loop cannot evict
repeatedly.
"""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
from msgspec.structs import replace

from plugwright.dra.device_taints.taint_budget import HOUR, Moment, TaintDecision, TaintRecord, TaintState
from plugwright.errors import StateFileDamaged, StateFileLocked
from plugwright.system.boot import BOOT_ID, boot_id
from plugwright.system.state_file import JsonFormat, StateFile, StateFileOptions
from plugwright.text import clean

__all__ = ["TaintFile", "moment"]

logger = logging.getLogger(__name__)

_VERSION = 1
_LOCK_LIMIT = 1.0  # seconds
_EFFECTS = ("", "None", "NoSchedule", "NoExecute")
_LATEST = 253_402_300_799  # the last second of the year 9999


class _TaintContent(msgspec.Struct, kw_only=True, omit_defaults=True):
    boot: str
    wall: float  # time of writing, for a reader after a reboot
    elapsed: float
    unknown_until: float = 0.0
    resources: dict[str, dict[str, TaintRecord]] = {}


class _TaintFormat(JsonFormat[_TaintContent]):
    def decode(self, content: bytes) -> _TaintContent:
        decoded = super().decode(content)
        for records in decoded.resources.values():
            for record in records.values():
                _check(record)
        return decoded


def moment() -> Moment:
    """The present time; the clock of the boot also counts while the machine sleeps."""
    return Moment(time.clock_gettime(time.CLOCK_BOOTTIME), time.time())


class TaintFile:
    """If `path` is None, the state lasts as long as the process. The methods block: call them in a thread.

    `unreadable` is why earlier evictions are not known; it stays until they would no longer count.
    """

    def __init__(self, path: Path | None, boot_id: Path = BOOT_ID) -> None:
        self.path, self.unreadable = path, ""
        self._boot_id = boot_id
        form, options = _TaintFormat(_TaintContent, _VERSION, indent=None), StateFileOptions(lock_limit=_LOCK_LIMIT)
        self._file = StateFile(path, form, options) if path is not None else None
        self._known = TaintState()  # as this object last read or wrote it

    def load(self, now: Moment) -> TaintState:
        """The state of an earlier process. StateFileLocked: it is read before the next grant."""
        if self._file is None:
            return self._known
        try:
            if not self._file.path.parent.exists():
                return self._known
            with self._locked(self._file, now) as stored:
                self._known = stored
                if stored != TaintState():
                    with suppress(OSError):  # each grant needs a write, which reports the problem when one is due
                        self._write(self._file, stored, now)  # its times refer to this boot from now on
        except StateFileLocked:
            raise
        except OSError as error:
            self._known = self._without_history(clean(error.strerror or error), now)
        return self._known

    def update(
        self, resource: str, mine: TaintState, decide: Callable[[TaintState], TaintDecision], now: Moment
    ) -> TaintDecision:
        """Decides with the state in the file, and writes the result. OSError, without a grant, if that fails.

        `mine` is the caller's state of its own resource, newer than the file unless another process has written.
        """
        if self._file is None:
            return decide(mine)
        with self._locked(self._file, now) as stored:
            is_known = stored.of(resource) == self._known.of(resource)
            decision = decide(stored.with_records(resource, mine.of(resource)) if is_known else stored)
            self._write(self._file, decision.state, now)
            self._known = decision.state
        return decision

    @contextmanager
    def _locked(self, file: StateFile[_TaintContent], now: Moment) -> Iterator[TaintState]:
        """The state in the file, locked while inside; the state known here if there is no file."""
        unknown: list[TaintState] = []

        def recover(error: StateFileDamaged) -> None:
            unknown.append(self._without_history(error.problem, now))

        with file.locked(recover) as content:
            if content is not None:
                yield _state(content, boot_id(self._boot_id), now)
            else:
                yield unknown[0] if unknown else self._known

    def _without_history(self, reason: str, now: Moment) -> TaintState:
        self.unreadable = f"cannot read {self.path}: {reason}; no device gets NoExecute for an hour"
        facts = {"path": str(self.path), "error": reason}
        logger.error("earlier evictions are not known, the budget counts as spent for an hour", extra=facts)
        return replace(self._known, unknown_until=now.elapsed + HOUR)

    def _write(self, file: StateFile[_TaintContent], state: TaintState, now: Moment) -> None:
        content = _TaintContent(
            boot=boot_id(self._boot_id),
            wall=now.wall,
            elapsed=now.elapsed,
            unknown_until=state.unknown_until,
            resources={name: dict(state.resources[name]) for name in sorted(state.resources)},
        )
        file.write(content)


def _state(content: _TaintContent, boot: str, now: Moment) -> TaintState:
    # After a reboot the times are converted to the new clock: as old as the calendar says, but never in the future.
    is_same_boot = bool(boot) and content.boot == boot
    shift = 0.0 if is_same_boot else now.elapsed - content.elapsed - max(0.0, now.wall - content.wall)

    def moved(time: float | None) -> float | None:
        return None if time is None else min(time + shift, now.elapsed)

    resources = {
        resource: {
            device_id: replace(
                record,
                since=moved(record.since),
                executed=moved(record.executed),
                cleared=moved(record.cleared),
            )
            for device_id, record in records.items()
        }
        for resource, records in content.resources.items()
    }
    unknown_until = min(content.unknown_until + shift, now.elapsed + HOUR) if content.unknown_until else 0.0
    return TaintState(resources, unknown_until)


def _check(record: TaintRecord) -> None:
    for value in (record.added, record.cordoned):
        if not 0 <= value <= _LATEST:
            raise ValueError(f"times must be seconds since 1970, got {value}")
    if record.effect not in _EFFECTS:
        raise ValueError(f"an effect must be one of {', '.join(_EFFECTS[1:])}, got {clean(record.effect)}")
