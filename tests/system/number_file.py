"""A state file of numbers, to which processes add theirs."""

from pathlib import Path

import msgspec

from plugwright.system.files import FileCalls
from plugwright.system.state_file import JsonFormat, StateFile, StateFileOptions

__all__ = ["FORM", "Numbers", "add"]


class Numbers(msgspec.Struct, frozen=True):
    numbers: tuple[int, ...] = ()


FORM = JsonFormat(Numbers, version=2, oldest=1)


def add(path: Path, number: int, calls: FileCalls | None = None) -> None:
    def added(before: Numbers | None) -> Numbers:
        return Numbers(numbers=(*(before or Numbers()).numbers, number))

    StateFile(path, FORM, StateFileOptions(calls=calls or FileCalls(), lock_limit=60)).change(added)
