"""Records which test executes which statement, also in the processes that a test starts.

A copy of this file is `sitecustomize.py` in a directory of PYTHONPATH, so that each Python process of a test run
imports it at its start. It adds a call before each statement in the functions of the daemon's packages. pytest names
the running test in PYTEST_CURRENT_TEST, which child processes inherit. Each process writes its own file into `records`
beside this one, because a test may kill it at any time.
"""

import ast
import builtins
import os
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

__all__ = ["CALL", "instrumented"]

PACKAGES = ("sdk", "dra", "protocol", "system")
CALL = "__executed__"
_PARTS = ("body", "orelse", "finalbody")


def instrumented(text: str, name: str) -> ast.Module:
    """The module with a call of `__executed__("name:line")` before each statement of its functions."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            _instrument(node, name)
    return ast.fix_missing_locations(tree)


def _instrument(function: ast.AST, name: str) -> None:
    for part in _PARTS:
        statements = getattr(function, part, None)
        if isinstance(statements, list):
            setattr(function, part, [each for one in statements for each in (*_record(one, name), one)])
            for statement in statements:
                if not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
                    _instrument(statement, name)
    for branch in (*getattr(function, "handlers", ()), *getattr(function, "cases", ())):
        _instrument(branch, name)


def _record(statement: ast.stmt, name: str) -> list[ast.stmt]:
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
        return []  # a docstring, which must stay the first statement
    call = ast.Call(ast.Name(CALL, ast.Load()), [ast.Constant(f"{name}:{statement.lineno}")], [])
    return [ast.copy_location(ast.Expr(call), statement)]


class _Recorder:
    def __init__(self, directory: Path) -> None:
        self._file = os.open(directory / str(os.getpid()), os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC)
        self._environment: dict[bytes, bytes] = os.environ._data  # type: ignore[attr-defined]
        self._phase: bytes | None = None
        self._test = ""
        self._seen: set[str] = set()

    def __call__(self, line: str) -> None:
        phase = self._environment.get(b"PYTEST_CURRENT_TEST")
        if phase is not self._phase:
            self._phase = phase
            self._begin((phase or b"").decode().rpartition(" (")[0])
        if line not in self._seen:
            self._seen.add(line)
            os.write(self._file, f"{line}\n".encode())

    def _begin(self, test: str) -> None:
        if test != self._test:
            self._test = test
            self._seen = set()
            os.write(self._file, f"test {test}\n".encode())


def _begin(directory: Path) -> None:
    source = str(directory.parent.parent / "src" / "plugwright") + os.sep
    measured = tuple(f"{source}{package}{os.sep}" for package in PACKAGES)
    setattr(builtins, CALL, _Recorder(directory))
    compiled = SourceFileLoader.source_to_code

    def source_to_code(self: SourceFileLoader, data: Any, path: Any, **others: Any) -> Any:
        if isinstance(path, str) and path.startswith(measured):
            data = instrumented(bytes(data).decode(), path.removeprefix(source))
        return compiled(self, data, path, **others)

    SourceFileLoader.source_to_code = source_to_code  # type: ignore[method-assign, assignment]


if __name__ == "sitecustomize" and (records := Path(__file__).parent / "records").is_dir():
    _begin(records)
