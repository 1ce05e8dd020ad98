"""The last valid version of the operator's file, kept for a start at which the file is invalid.

Without it a mistake in the file shows only at the next restart of the node, and takes all its devices out of service.
It is a file in the state directory, readable by root only, with the number of its format: a daemon that cannot read it
reports that and starts without it.
"""

import logging
from pathlib import Path

import msgspec

from plugwright.config import schema
from plugwright.config.schema import Config
from plugwright.errors import ConfigError, StateFileDamaged
from plugwright.system.log_once import LogOnce
from plugwright.system.state_file import JsonFormat, StateFile, StateFileOptions
from plugwright.text import clean

__all__ = ["LastGood", "LastGoodFile"]

logger = logging.getLogger(__name__)

_NAME = "last-good-config.json"
_FORMAT = 1
_LARGEST = 7 * 2**20  # bytes: a configuration of 1 MiB has no more, however much of it JSON escapes


class LastGood(msgspec.Struct, frozen=True):
    """The last configuration that could be used."""

    config: Config
    loaded: float  # when it was read from the operator's file


class _StoredConfig(msgspec.Struct, frozen=True):
    path: str
    loaded: float
    content: str


class LastGoodFile:
    """For the operator's file at `path`; another file's copy is not used. Without `state_dir` nothing is kept.

    Its methods read and write the disk: in a running daemon, for a thread.
    """

    def __init__(self, state_dir: Path | None, path: Path) -> None:
        self._directory, self._path = state_dir, path
        self._problems = LogOnce(logger)

    def load(self) -> LastGood | None:
        """None if there is no copy; ConfigError if the copy cannot be used, which then stays in place."""
        try:
            stored = _file(self._directory, set_aside=False).read() if self._directory is not None else None
        except (OSError, StateFileDamaged) as error:
            raise ConfigError(clean(error)) from error
        if stored is None or stored.path != str(self._path.absolute()):
            return None
        return LastGood(schema.decode(self._path, stored.content.encode()), stored.loaded)

    def save(self, config: Config, loaded: float) -> None:
        """An error is logged: devices are served without a copy."""
        if self._directory is None:
            return
        new = _StoredConfig(str(self._path.absolute()), loaded, config.content.decode())
        file = _file(self._directory)
        try:
            _keep(file, new)
            self._problems.recovered()
        except OSError as error:
            facts = {"path": str(file.path), "error": clean(error)}
            self._problems.warning("last valid configuration not saved", clean(error), extra=facts)


def _file(directory: Path, *, set_aside: bool = True) -> StateFile[_StoredConfig]:
    options = StateFileOptions(set_aside=set_aside, limit=_LARGEST)
    return StateFile(directory / _NAME, JsonFormat(_StoredConfig, _FORMAT, field="format"), options)


def _keep(file: StateFile[_StoredConfig], new: _StoredConfig) -> None:
    """A start with the version that is kept already writes nothing."""

    def kept(stored: _StoredConfig | None) -> _StoredConfig:
        is_same = stored is not None and (stored.path, stored.content) == (new.path, new.content)
        return stored if stored is not None and is_same else new

    try:
        file.change(kept)
    except StateFileDamaged as error:  # set aside, so that the new one replaces nothing
        logger.warning("last good configuration was damaged", extra={"error": clean(error)})
        file.write(new)
