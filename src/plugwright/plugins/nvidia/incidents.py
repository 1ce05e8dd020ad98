"""Stores the Xids reported by GPUs in the daemon's state directory, where they survive restarts.

A reset of the GPU clears such an Xid, a restart of the daemon does not, and drivers before 570 do not recommend resets.
A boot and a new load of the driver reset every GPU, so the file contains the ids of both, and its content is discarded
when either has changed.
"""

import logging
from collections.abc import Mapping
from pathlib import Path

import msgspec

from plugwright.errors import StateFileDamaged
from plugwright.plugins.nvidia.driver import DriverLoad, digest
from plugwright.plugins.nvidia.health import XidRecord
from plugwright.system.log_once import LogOnce
from plugwright.system.state_file import JsonFormat, StateFile, StateFileOptions
from plugwright.text import clean

__all__ = ["Incidents", "XidRecords"]

logger = logging.getLogger(__name__)

_VERSION = 1

XidRecords = Mapping[str, tuple[XidRecord, ...]]  # by the UUIDs of GPUs


class _RecordedXids(msgspec.Struct, frozen=True):
    boot: str
    driver: str
    gpus: dict[str, tuple[XidRecord, ...]]


class Incidents:
    """The file of the machine called `machine` in `directory`; if None, nothing is stored.

    The methods read and write the file: call them in a thread. `unreadable` is why the Xids of an earlier run are not
    known. An unreadable file stays until an operator has removed it, and nothing is written.
    """

    def __init__(self, directory: Path | None, machine: str) -> None:
        self.path = directory / f"nvidia-incidents-{digest([machine], 8)}.json" if directory is not None else None
        form, options = JsonFormat(_RecordedXids, _VERSION), StateFileOptions(set_aside=False)
        self._file = StateFile(self.path, form, options) if self.path is not None else None
        self.unreadable = ""
        self._is_recalled = self._file is None
        self._unread, self._unwritten = LogOnce(logger), LogOnce(logger)

    def recall(self, load: DriverLoad) -> XidRecords:
        """The Xids recorded under this load of the driver; empty once they have been recalled."""
        if self._is_recalled or self._file is None:
            return {}
        try:
            stored = self._file.read()
        except (OSError, StateFileDamaged) as error:
            reason = error.problem if isinstance(error, StateFileDamaged) else clean(error)
            self.unreadable = f"cannot read {self.path}: {reason}; remove it once the GPUs have been reset"
            self._unread.error("recorded Xids not readable", self.unreadable, extra={"error": self.unreadable})
            return {}
        self._is_recalled, self.unreadable = True, ""
        if stored is None or not load.may_be(DriverLoad(stored.boot, stored.driver)):
            return {}
        for uuid, xids in sorted(stored.gpus.items()):
            logger.warning("Xids of an earlier run", extra={"gpu": uuid, "xids": [record.xid for record in xids]})
        return stored.gpus

    def save(self, load: DriverLoad, records: XidRecords) -> None:
        """Replaces the file; removes it if all Xids are over."""
        if self._file is None or self.unreadable:
            return
        pending = {
            uuid: tuple(record for record in xids if not record.reset)
            for uuid, xids in sorted(records.items())
            if not all(record.reset for record in xids)
        }
        try:
            self._file.write(_RecordedXids(load.boot, load.driver, pending) if pending else None)
            self._unwritten.recovered()
        except OSError as error:
            facts = {"path": str(self.path), "error": clean(error)}
            self._unwritten.error("Xids cannot be kept", str(error), extra=facts)
