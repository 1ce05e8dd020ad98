"""The embedded cluster's objects on disk: an SQLite file, one transaction for each change.

A change is committed before its writer gets a response, and in WAL mode a committed change survives a killed process.
"""

import sqlite3
from collections.abc import Iterable
from contextlib import closing, suppress
from pathlib import Path

import msgspec

from plugwright.apiserver.store import Change, Object, ObjectKey
from plugwright.errors import ClusterError

__all__ = ["Database"]

_LAYOUT = 1
_LOCK_TIMEOUT = 0.5  # seconds to wait for another process to unlock the file
_TABLES = """
CREATE TABLE IF NOT EXISTS objects (
  kind TEXT NOT NULL, namespace TEXT NOT NULL, name TEXT NOT NULL, body BLOB NOT NULL,
  PRIMARY KEY (kind, namespace, name)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
"""
_SAVE_OBJECT = "INSERT OR REPLACE INTO objects VALUES (?, ?, ?, ?)"
_SAVE_NUMBER = "INSERT OR REPLACE INTO facts VALUES (?, ?)"


class Database:
    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.touch(mode=0o600, exist_ok=True)
            self._connection = sqlite3.connect(path, timeout=_LOCK_TIMEOUT, isolation_level=None)
        except (OSError, sqlite3.Error) as error:
            raise ClusterError(f"cannot use {path}: {error}") from error
        try:
            self._prepare()
        except BaseException:
            self._connection.close()
            raise

    def _prepare(self) -> None:
        try:
            self._connection.execute("PRAGMA locking_mode=EXCLUSIVE")  # one cluster, one process
            self._connection.execute("PRAGMA journal_mode=WAL")
            self._connection.execute("PRAGMA synchronous=NORMAL")
            self._connection.executescript(_TABLES)
            self._check_layout()
        except sqlite3.Error as error:
            raise ClusterError(f"cannot use {self._path}: {error}") from error

    def load(self) -> tuple[int, Iterable[tuple[ObjectKey, Object]]]:
        try:
            with closing(self._connection.execute("SELECT kind, namespace, name, body FROM objects")) as rows:
                objects = [(ObjectKey(*key), msgspec.json.decode(body)) for *key, body in rows]
            return self._number("revision", 1), objects
        except (sqlite3.Error, msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ClusterError(f"cannot read {self._path}: {error}") from error

    def save(self, change: Change) -> None:
        key = change.key
        try:
            self._connection.execute("BEGIN")
            if change.type == "DELETED":
                self._connection.execute(
                    "DELETE FROM objects WHERE kind = ? AND namespace = ? AND name = ?",
                    (key.kind, key.namespace, key.name),
                )
            else:
                self._connection.execute(
                    _SAVE_OBJECT, (key.kind, key.namespace, key.name, msgspec.json.encode(change.object))
                )
            self._connection.execute(_SAVE_NUMBER, ("revision", change.revision))
            self._connection.execute("COMMIT")
        except sqlite3.Error as error:
            with suppress(sqlite3.Error):
                self._connection.execute("ROLLBACK")
            raise ClusterError(f"cannot write {self._path}: {error}") from error

    def close(self) -> None:
        self._connection.close()

    def _number(self, name: str, default: int) -> int:
        with closing(self._connection.execute("SELECT value FROM facts WHERE name = ?", (name,))) as rows:
            row = rows.fetchone()
        return int(row[0]) if row else default

    def _check_layout(self) -> None:
        layout = self._number("layout", _LAYOUT)
        if layout != _LAYOUT:
            raise ClusterError(
                f"{self._path} was written by another version of plugwright: its layout must be {_LAYOUT}, got {layout}"
            )
        self._connection.execute(_SAVE_NUMBER, ("layout", _LAYOUT))
