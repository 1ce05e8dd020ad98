"""The file in which a node remembers its taints over restarts of the daemon.

All resources of a node share it, and so do two daemons while one replaces the other: to grant an eviction, each reads,
decides and writes it under one lock. A grant that is not on disk is none, since a daemon that is killed again and
again would otherwise evict once more each time.
"""

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec.structs import replace

from plugwright.dra.device_taints.taint_budget import HOUR, Moment, TaintDecision, TaintRecord, TaintState
from plugwright.errors import ConfigError
from plugwright.sdk import sysfs
from plugwright.sdk.sysfs import BOOT_ID
from plugwright.system import files
from plugwright.text import clean

__all__ = ["TaintFile", "moment"]

logger = logging.getLogger(__name__)

_VERSION = 1
_EFFECTS = ("", "None", "NoSchedule", "NoExecute")
_LATEST = 253_402_300_799  # the last second of the year 9999


class _TaintContent(msgspec.Struct, kw_only=True, omit_defaults=True):
    version: int
    boot: str
    wall: float  # when it was written: for a reader after a reboot
    elapsed: float
    unknown_until: float = 0.0
    resources: dict[str, dict[str, TaintRecord]] = {}


def moment() -> Moment:
    """By the clock of the boot that also counts while the machine sleeps."""
    return Moment(time.clock_gettime(time.CLOCK_BOOTTIME), time.time())


class TaintFile:
    """With None for `path`, state lasts as long as the process. The methods block: for a thread.

    `unreadable` is why earlier evictions are not known; it stays until they would no longer count.
    """

    def __init__(self, path: Path | None, boot_id: Path = BOOT_ID) -> None:
        self.unreadable = ""
        self._path, self._boot_id = path, boot_id
        self._known = TaintState()  # as this object last read or wrote it

    @property
    def path(self) -> Path | None:
        return self._path

    def load(self, now: Moment) -> TaintState:
        """What an earlier process left; never raises."""
        if self._path is not None:
            try:
                with files.locked_directory(self._path.parent):
                    self._known = self._read(now)
                    if self._known != TaintState():
                        with suppress(OSError):  # no grant goes without a write, so it is said when one is due
                            self._write(self._known, now)  # its times are of this boot from now on
            except FileNotFoundError:  # the directory is not made yet
                pass
            except OSError as error:
                self._known = self._without_history(error, now)
        return self._known

    def update(
        self, resource: str, mine: TaintState, decide: Callable[[TaintState], TaintDecision], now: Moment
    ) -> TaintDecision:
        """Decides over what the file has, and writes what comes of it. OSError, with nothing granted, if it cannot.

        `mine` is what the caller knows of its own resource, newer than the file unless another process has written.
        """
        if self._path is None:
            return decide(mine)
        self._path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        with files.locked_directory(self._path.parent):
            stored = self._read(now)
            if stored.of(resource) == self._known.of(resource):
                stored = stored.with_records(resource, mine.of(resource))
            decision = decide(stored)
            self._write(decision.state, now)
            self._known = decision.state
        return decision

    def _read(self, now: Moment) -> TaintState:
        if self._path is None:
            return self._known
        try:
            return _state(self._path.read_bytes(), self._boot(), now)
        except FileNotFoundError:
            return self._known
        except (OSError, msgspec.MsgspecError, ConfigError) as error:
            return self._without_history(error, now)

    def _without_history(self, error: Exception, now: Moment) -> TaintState:
        reason = clean((error.strerror if isinstance(error, OSError) else "") or error)
        unreadable = f"cannot read {self._path}: {reason}; no device gets NoExecute for an hour"
        if unreadable != self.unreadable:
            facts = {"path": str(self._path), "error": reason}
            logger.error("earlier evictions are not known, the budget counts as spent for an hour", extra=facts)
        self.unreadable = unreadable
        if self._path is not None and not isinstance(error, OSError):
            with suppress(OSError):
                files.put_aside(self._path)
        return replace(self._known, unknown_until=now.elapsed + HOUR)

    def _write(self, state: TaintState, now: Moment) -> None:
        content = _TaintContent(
            version=_VERSION,
            boot=self._boot(),
            wall=now.wall,
            elapsed=now.elapsed,
            unknown_until=state.unknown_until,
            resources={name: dict(state.resources[name]) for name in sorted(state.resources)},
        )
        if self._path is not None:
            files.write_atomically(self._path, msgspec.json.encode(content) + b"\n", mode=0o600)

    def _boot(self) -> str:
        return sysfs.attribute(self._boot_id.parent, self._boot_id.name)


def _state(data: bytes, boot: str, now: Moment) -> TaintState:
    content = msgspec.json.decode(data, type=_TaintContent)
    if content.version != _VERSION:
        raise ConfigError(f"it must have version {_VERSION}, got {content.version}")
    # After a reboot the old times are moved to the new clock: as old as the calendar says, and never in the future.
    is_same_boot = bool(boot) and content.boot == boot
    shift = 0.0 if is_same_boot else now.elapsed - content.elapsed - max(0.0, now.wall - content.wall)

    def moved(time: float | None) -> float | None:
        return None if time is None else min(time + shift, now.elapsed)

    resources = {
        resource: {
            device_id: replace(
                _checked(record),
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


def _checked(record: TaintRecord) -> TaintRecord:
    for value in (record.added, record.cordoned):
        if not 0 <= value <= _LATEST:
            raise ConfigError(f"times must be seconds since 1970, got {value}")
    if record.effect not in _EFFECTS:
        raise ConfigError(f"an effect must be one of {', '.join(_EFFECTS[1:])}, got {clean(record.effect)}")
    return record
