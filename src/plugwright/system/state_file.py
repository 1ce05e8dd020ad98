"""State files: a program's memory across restarts, shared by parallel processes during an upgrade.

A reader sees the old content or the new, even if a writer is killed. Changes read, decide and write under a lock, so
none is lost. An unreadable file is never overwritten: it is set aside or left in place, and always reported.

The methods block: on an event loop, call them through `BlockingCalls`.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import msgspec

from plugwright.errors import StateFileDamaged, StateFileNewer, StateFileTooLarge
from plugwright.system import files
from plugwright.system.files import FileCalls
from plugwright.text import clean

__all__ = ["JsonFormat", "NewerVersion", "StateFile", "StateFileOptions", "StateFormat"]

T = TypeVar("T")


class NewerVersion(ValueError):
    """Raised by a format for content of a later version of plugwright."""


class StateFormat(Protocol[T]):
    """The bytes of a state file. `decode` raises NewerVersion, or any other ValueError for content it cannot read."""

    def encode(self, value: T) -> bytes: ...

    def decode(self, content: bytes) -> T: ...


class JsonFormat(Generic[T]):
    """JSON of a `msgspec.Struct` or a dataclass, with the format's number in `field` beside its own fields.

    Versions from `oldest` to `version` are read as the same type: keep names, and give new fields a default. An older
    plugwright ignores unknown fields; raise the version if it must not read the file. `indent` is the indentation, None
    for one line.
    """

    def __init__(
        self, kind: type[T], version: int, oldest: int | None = None, field: str = "version", indent: int | None = 2
    ) -> None:
        self._kind, self._field, self._indent = kind, field, -1 if indent is None else indent
        self._version, self._oldest = version, version if oldest is None else oldest

    def encode(self, value: T) -> bytes:
        fields: dict[str, object] = {self._field: self._version, **msgspec.to_builtins(value)}
        content = msgspec.json.encode({**fields, self._field: self._version})
        return msgspec.json.format(content, indent=self._indent) + b"\n"

    def decode(self, content: bytes) -> T:
        header = msgspec.json.decode(content, type=dict[str, msgspec.Raw])
        found = msgspec.json.decode(header[self._field], type=int) if self._field in header else None
        if found is not None and found > self._version:
            text = f"{self._field} must be at most {self._version}, got {found}"
            raise NewerVersion(f"written by a later version of plugwright: {text}")
        if found is None or found < self._oldest:
            raise ValueError(f"{self._field} must be {self._version}, got {found}")
        return msgspec.json.decode(content, type=self._kind)


class StateFileOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a state file is kept.

    `set_aside`: an unreadable file is renamed, and the next file can be written; without it the file stays in place
    until an operator removes it. `lock` is the file or directory locked by `change`, waiting at most `lock_limit`
    seconds; None is the directory of the state file.
    """

    limit: int = files.READ_LIMIT  # bytes
    mode: int = 0o600
    sync: bool = True  # on disk before the name leads to it
    sync_name: bool = True  # and the name too, before the call returns
    set_aside: bool = True
    lock: Path | None = None
    lock_limit: float = 5.0
    calls: FileCalls = FileCalls()


class StateFile(Generic[T]):
    """The file at `path`, of the given format.

    Reading and changing raise StateFileDamaged if the content cannot be used (StateFileNewer if a later plugwright has
    written it), and OSError if the disk fails. Writing too much raises StateFileTooLarge, an OSError.
    """

    def __init__(self, path: Path, form: StateFormat[T], options: StateFileOptions | None = None) -> None:
        self.path = path
        self._form, self._options = form, options or StateFileOptions()

    def read(self) -> T | None:
        """The content; None if there is no file."""
        try:
            return self._read()
        except StateFileDamaged:
            if not self._options.set_aside:
                raise
        with self._locked():
            return self._read_or_set_aside()  # another process can have replaced it meanwhile

    def write(self, value: T | None) -> None:
        """Replaces the content without reading it, for a file with a single writer; None removes the file."""
        if value is None:
            files.remove(self.path)
            return
        content, options = self._form.encode(value), self._options
        if len(content) > options.limit:
            raise StateFileTooLarge(self.path, len(content), options.limit)
        files.write_atomically(
            self.path,
            content,
            mode=options.mode,
            sync=options.sync,
            sync_name=options.sync_name,
            calls=options.calls,
        )

    def change(self, decide: Callable[[T | None], T | None]) -> T | None:
        """Replaces the content with the result of `decide` and returns it; does not write an equal value.

        No other process or thread changes the file meanwhile. If `decide` raises or the content cannot be used, nothing
        changes; after a file was set aside, the next call gets None. StateFileLocked.
        """
        with self.locked() as before:
            after = decide(before)
            if after != before:
                self.write(after)
            return after

    @contextmanager
    def locked(self, recover: Callable[[StateFileDamaged], T | None] | None = None) -> Iterator[T | None]:
        """The content, locked against other processes and threads while inside; for changes of several writes.

        With `recover`, setting a file aside is not an error: `recover` returns the content instead.
        """
        self.path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        with self._locked():
            try:
                content = self._read_or_set_aside()
            except StateFileDamaged as error:
                if recover is None or error.kept is None:
                    raise
                content = recover(error)
            yield content

    def _read_or_set_aside(self) -> T | None:
        try:
            return self._read()
        except StateFileDamaged as error:
            if not self._options.set_aside:
                raise
            raise type(error)(self.path, error.problem, files.put_aside(self.path)) from error

    def _read(self) -> T | None:
        try:
            return self._form.decode(files.read(self.path, self._options.limit))
        except FileNotFoundError:
            return None
        except NewerVersion as error:
            raise StateFileNewer(self.path, clean(error)) from error
        except ValueError as error:  # also the errors of msgspec and of text that is not UTF-8
            raise StateFileDamaged(self.path, clean(error)) from error
        except RecursionError as error:
            raise StateFileDamaged(self.path, "it is nested too deeply") from error

    def _locked(self) -> AbstractContextManager[None]:
        return files.locked(self._options.lock or self.path.parent, self._options.lock_limit)
