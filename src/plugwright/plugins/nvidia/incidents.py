"""The Xids that GPUs have reported, in a file of the daemon's state directory: they outlive its restarts.

An Xid that needs a reset is over when the GPU was reset, not when the daemon was restarted, and drivers before 570 do
not recommend resets themselves. A boot and a new load of the driver reset every GPU, so the file has the ids of both,
and what it holds is forgotten when either has changed.
"""

import json
import logging
from collections.abc import Mapping
from pathlib import Path

from msgspec.structs import asdict

from plugwright.errors import InvalidValue
from plugwright.plugins.nvidia.driver import DriverLoad, digest
from plugwright.plugins.nvidia.health import XidRecord
from plugwright.system import files
from plugwright.text import clean

__all__ = ["Incidents", "XidRecords"]

logger = logging.getLogger(__name__)

_VERSION = 1

XidRecords = Mapping[str, tuple[XidRecord, ...]]  # by the UUIDs of GPUs


class Incidents:
    """The file of the machine called `machine` in `directory`; with None nothing is kept.

    Its methods read and write the file: for a thread. `unreadable` is why the Xids of an earlier run are not known.
    """

    def __init__(self, directory: Path | None, machine: str) -> None:
        self.path = directory / f"nvidia-incidents-{digest([machine], 8)}.json" if directory is not None else None
        self.unreadable = ""
        self._is_recalled = self.path is None
        self._write_error = ""

    def recall(self, load: DriverLoad) -> XidRecords:
        """The Xids that were recorded under this load of the driver; none once they have been recalled."""
        if self._is_recalled or self.path is None:
            return {}
        try:
            recorded, records = _read(self.path)
        except FileNotFoundError:
            self._is_recalled, self.unreadable = True, ""
            return {}
        except Exception as error:  # noqa: BLE001  whatever is wrong with the file: what it holds is not known
            reason = f"cannot read {self.path}: {clean(error)}; remove it once the GPUs have been reset"
            if reason != self.unreadable:
                logger.error("recorded Xids not readable", extra={"error": reason})
            self.unreadable = reason
            return {}
        self._is_recalled, self.unreadable = True, ""
        if not load.may_be(recorded):
            return {}
        for uuid, xids in sorted(records.items()):
            logger.warning("Xids of an earlier run", extra={"gpu": uuid, "xids": [record.xid for record in xids]})
        return records

    def save(self, load: DriverLoad, records: XidRecords) -> None:
        """Replaces the file; without Xids that are not over there is none."""
        if self.path is None or self.unreadable:
            return
        pending = {
            uuid: [asdict(record) for record in xids if not record.reset]
            for uuid, xids in sorted(records.items())
            if not all(record.reset for record in xids)
        }
        content = {"version": _VERSION, "boot": load.boot, "driver": load.driver, "gpus": pending}
        try:
            if pending:
                files.write_atomically(self.path, json.dumps(content, indent=2) + "\n", mode=0o600)
            else:
                self.path.unlink(missing_ok=True)
            self._write_error = ""
        except OSError as error:
            if str(error) != self._write_error:
                logger.error("Xids cannot be kept", extra={"path": str(self.path), "error": clean(error)})
            self._write_error = str(error)


def _read(path: Path) -> tuple[DriverLoad, XidRecords]:
    stored = json.loads(path.read_bytes())
    if not isinstance(stored, dict) or stored.get("version") != _VERSION:
        version = stored.get("version") if isinstance(stored, dict) else None
        raise InvalidValue(f"version must be {_VERSION}, got {version!r}")
    records = {str(uuid): tuple(XidRecord(**record) for record in xids) for uuid, xids in stored["gpus"].items()}
    return DriverLoad(str(stored["boot"]), str(stored["driver"])), records
