"""The last version of the operator's file that was in force, kept for a start at which the file is bad.

Without it a mistake in the file shows only at the next restart of the node, and takes all its devices out of service.
It is a file in the state directory, for root alone, with the number of its format: a daemon that cannot read it says
so, and starts without it.
"""

import logging
from dataclasses import dataclass
from pathlib import Path

import msgspec

from plugwright.config import schema
from plugwright.config.schema import Config
from plugwright.errors import ConfigError
from plugwright.system import files
from plugwright.text import clean

__all__ = ["LastGood", "LastGoodFile"]

logger = logging.getLogger(__name__)

_NAME = "last-good-config.json"
_FORMAT = 1


@dataclass(frozen=True, slots=True)
class LastGood:
    """The last configuration that could be used."""

    config: Config
    loaded: float  # when it was read from the operator's file


class _Header(msgspec.Struct, frozen=True):
    format: int


class _Stored(_Header, frozen=True):
    path: str
    loaded: float
    content: str


class LastGoodFile:
    """For the operator's file at `path`; another file's copy is not used. Without `state_dir` nothing is kept.

    Its methods read and write the disk: in a running daemon, for a thread.
    """

    def __init__(self, state_dir: Path | None, path: Path) -> None:
        self._file = state_dir / _NAME if state_dir is not None else None
        self._path = path
        self._logged = ""  # the last error in the log

    def load(self) -> LastGood | None:
        """None where there is no copy; ConfigError where there is one that cannot be used."""
        stored = self._stored()
        if stored is None or stored.path != str(self._path.absolute()):
            return None
        return LastGood(schema.decode(self._path, stored.content.encode()), stored.loaded)

    def save(self, config: Config, loaded: float) -> None:
        """An error is logged: devices are served without a copy."""
        if self._file is None:
            return
        new = _Stored(_FORMAT, str(self._path.absolute()), loaded, config.content.decode())
        error = ""
        try:
            if not self._has(new):
                files.write_atomically(self._file, msgspec.json.format(msgspec.json.encode(new)) + b"\n", mode=0o600)
        except OSError as raised:
            error = clean(raised)
            if error != self._logged:
                logger.warning("last good configuration not kept", extra={"path": str(self._file), "error": error})
        self._logged = error

    def _has(self, new: _Stored) -> bool:
        """Whether the copy is the same version already: a start then writes nothing."""
        try:
            stored = self._stored()
        except ConfigError:
            return False
        return stored is not None and (stored.path, stored.content) == (new.path, new.content)

    def _stored(self) -> _Stored | None:
        if self._file is None:
            return None
        try:
            content = self._file.read_bytes()
            header = msgspec.json.decode(content, type=_Header)
            if header.format != _FORMAT:
                raise ConfigError(f"{self._file} has format {header.format}, and this version reads {_FORMAT}")
            return msgspec.json.decode(content, type=_Stored)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.MsgspecError, UnicodeError) as error:
            raise ConfigError(f"cannot read {self._file}: {clean(error)}") from error
