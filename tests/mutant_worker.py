"""Runs tests with a mistake in a fork of a process that has imported all tests: most of a short run is imports.

The program reads a trial per line from standard input, and writes its exit code and output. In the fork it puts the
code of the changed functions into those that are imported; processes that a test starts read the changed file. As the
first process of a PID namespace, it ends everything that a trial leaves.
"""

import gc
import json
import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryFile
from types import CodeType, FunctionType
from typing import IO, Any

import pytest

__all__ = ["MutantWorker", "put_into_imported_functions"]

_NOT_APPLIED = 100  # exit code of a fork


class MutantWorker:
    """The program in a copy of the tree, for one caller at a time."""

    def __init__(self, copy: Path, folders: Sequence[str], command: Sequence[str]) -> None:
        environment = {**os.environ, "PYTHONPATH": f"{copy / 'src'}", "PYTHONDONTWRITEBYTECODE": ""}
        arguments = [*command, sys.executable, "-m", "tests.mutant_worker", *folders]
        self.process = subprocess.Popen(
            arguments, cwd=copy, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self.process.stdout is not None
        self.process.stdout.readline()  # it has imported all files, which may be changed from now on

    def run(self, file: str, before: str, after: str, arguments: Sequence[str], limit: float) -> tuple[int, str] | None:
        """pytest's exit code and output; None if the mistake cannot be put into the imported code.

        After `limit` seconds all of it is killed.
        """
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        trial = {"file": file, "before": before, "after": after, "arguments": [*arguments], "limit": limit}
        self.process.stdin.write(f"{json.dumps(trial)}\n")
        self.process.stdin.flush()
        code, output = json.loads(self.process.stdout.readline())
        return None if code == _NOT_APPLIED else (code, output)

    def close(self) -> None:
        self.process.communicate()


def put_into_imported_functions(path: str, before: str, after: str) -> int:
    """Gives imported functions of this file the code of the changed source; returns the number of changed ones."""
    old, new = _codes(compile(before, path, "exec")), _codes(compile(after, path, "exec"))
    changed = [
        (code, new[name][place])
        for name, codes in old.items()
        for place, code in enumerate(codes)
        if len(new.get(name, ())) == len(codes) and code != new[name][place]
    ]
    gc.unfreeze()  # pytest's conftest froze them
    functions = [each for each in gc.get_objects() if type(each) is FunctionType and each.__code__.co_filename == path]
    gc.freeze()
    count = 0
    for function in functions:
        for code, replacement in changed:
            if function.__code__ == code:
                function.__code__ = replacement
                count += 1
                break
    return count


def _codes(code: CodeType) -> dict[str, list[CodeType]]:
    """The code of all functions, by qualified name, in the order of the file."""
    found: dict[str, list[CodeType]] = defaultdict(list)
    for inner in _inside(code):
        found[inner.co_qualname].append(inner)
    return found


def _inside(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _inside(constant)


def _try(trial: dict[str, Any], output: IO[bytes]) -> None:
    """In the fork; an unchanged file is a trial without a mistake."""
    for number in (0, 1, 2):
        os.dup2(output.fileno(), number)
    try:
        count = put_into_imported_functions(str(Path(trial["file"]).absolute()), trial["before"], trial["after"])
    except ValueError:  # other variables of an enclosing function
        count = 0
    is_made = count or trial["before"] == trial["after"]
    code = pytest.main([*trial["arguments"]]) if is_made else _NOT_APPLIED
    sys.stdout.flush()
    os._exit(code)


def _result(fork: int, limit: float) -> int:
    end = time.monotonic() + limit
    while True:
        ended, status = os.waitpid(fork, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > end:
            os.kill(fork, signal.SIGKILL)
        time.sleep(0.02)


def _end_all() -> None:
    if os.getpid() != 1:
        return
    try:
        os.kill(-1, signal.SIGKILL)  # all others of this PID namespace
        while True:
            os.waitpid(-1, 0)
    except (ProcessLookupError, ChildProcessError):
        pass


def main(*folders: str) -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    pytest.main(["--collect-only", "-qq", *folders])
    print(file=answers, flush=True)
    for line in sys.stdin:
        trial = json.loads(line)
        with TemporaryFile() as output:
            if not (fork := os.fork()):
                _try(trial, output)
            code = _result(fork, trial["limit"])
            _end_all()
            output.seek(0)
            answers.write(f"{json.dumps([code, output.read().decode(errors='replace')[-20_000:]])}\n")
            answers.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
