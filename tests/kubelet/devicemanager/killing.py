"""A program that kills a process again and again while it saves, and looks at what it left.

    python killing.py DIRECTORY instants COUNT    at COUNT random instants, of a process that saves without a pause
    python killing.py DIRECTORY steps             before and after every call of a save

Prints what it saw as JSON. It forks, so it is a process of its own: the tests' has threads.
"""

import json
import os
import random
import select
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from plugwright.kubelet.devicemanager.checkpoint import CheckpointFile
from plugwright.protocol.checkpoint import Checkpoint, PodDevicesEntry
from plugwright.protocol.checkpoint_encoder import CheckpointEncoder
from plugwright.system.files import FileCalls

STEPS = ("open", "write", "fsync", "close", "rename")
LONGEST = 0.004  # seconds between the first save of a process and its end; a save takes about one thousandth
ENTRIES = tuple(
    PodDevicesEntry(f"pod-{number}", "main", "example.com/gpu", {0: (f"gpu-{number}",)}, b"\n\x05\n\x01a\x12\x00" * 4)
    for number in range(150)
)


def numbered(number: int) -> Checkpoint:
    return Checkpoint(ENTRIES, {"example.com/gpu": (str(number),)})


def number_in(path: Path, *numbers: int) -> int:
    """The number whose file this is, to the byte; fails if it is none of them."""
    data, encoder = path.read_bytes(), CheckpointEncoder()
    [match] = [number for number in numbers if encoder.encode(numbered(number)) == data]
    return match


def in_a_process_of_its_own(work: Callable[[], None]) -> int:
    process = os.fork()
    if process:
        return process
    try:
        work()
    finally:
        os._exit(1)  # only if nothing killed it


def kill_at_random_instants(path: Path, count: int) -> dict[str, int]:
    file, chance = CheckpointFile(path, plain_lists=False), random.Random(count)
    file.save(numbered(0))
    seen = {"kills": 0, "old": 0, "new": 0, "interrupted": 0}
    saved = 0
    for _ in range(count):
        answered = _kill_a_saving_process(file, saved, chance.uniform(0, LONGEST))
        saved = number_in(path, answered, answered + 1)
        seen["kills"] += 1
        seen["old" if saved == answered else "new"] += 1
        seen["interrupted"] += _temporary_files(path)
        assert not file.load().problem
        assert not _temporary_files(path)
    return seen


def _kill_a_saving_process(file: CheckpointFile, last: int, seconds: float) -> int:
    """The number of the last state that the process reported as saved."""
    receiving, sending = os.pipe()

    def save_on() -> None:
        number = last
        while True:
            number += 1
            file.save(numbered(number))
            os.write(sending, number.to_bytes(8))

    process = in_a_process_of_its_own(save_on)
    os.close(sending)
    answers = os.read(receiving, 8)
    select.select([], [], [], seconds)
    os.kill(process, signal.SIGKILL)
    assert os.waitpid(process, 0)[1] == signal.SIGKILL
    while more := os.read(receiving, 65536):
        answers += more
    os.close(receiving)
    return int.from_bytes(answers[-8:])


def _temporary_files(path: Path) -> int:
    return len(list(path.parent.iterdir())) - 1


def kill_at_each_step(path: Path) -> dict[str, str]:
    CheckpointFile(path, plain_lists=False).save(numbered(0))
    saved = 0
    seen = {}
    for step in STEPS:
        for when in ("before", "after"):
            before, saved = saved, _kill_at(path, saved, step, when == "after")
            seen[f"{when} {step}"] = "old" if saved == before else "new"
    return seen


def _kill_at(path: Path, before: int, step: str, after: bool) -> int:
    last: dict[str, Any] = {step: _last_call(getattr(FileCalls(), step), after)}
    file = CheckpointFile(path, plain_lists=False, calls=replace(FileCalls(), **last))
    process = in_a_process_of_its_own(lambda: file.save(numbered(before + 1)))
    assert os.waitpid(process, 0)[1] == signal.SIGKILL
    return number_in(path, before, before + 1)


def _last_call(call: Callable[..., object], after: bool) -> Callable[..., None]:
    def last(*arguments: object) -> None:
        if after:
            call(*arguments)
        os.kill(os.getpid(), signal.SIGKILL)

    return last


def main(directory: str, what: str, count: str = "0") -> None:
    path = Path(directory, "kubelet_internal_checkpoint")
    print(json.dumps(kill_at_each_step(path) if what == "steps" else kill_at_random_instants(path, int(count))))


if __name__ == "__main__":
    main(*sys.argv[1:])
