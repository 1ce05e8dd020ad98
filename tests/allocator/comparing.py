"""Our answers beside upstream's: the Go program that answers the same questions, and what must be equal."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
from tests.requirements import unavailable

from plugwright.allocator.questions import answer

__all__ = ["differences", "oracle", "our_answer", "upstream_answers"]

ORACLE = Path(__file__).parent / "oracle"
_MODULES = {"1.36": "old.mod", "1.37": "go.mod"}
# Upstream writes 1000000000000000000000 as 1, since it has no suffix for it.
_UNWRITABLE = re.compile(r'"\d{20,}"')
_Answer = Mapping[str, Any]


def oracle(version: str, directory: Path) -> Path:
    """Builds upstream's allocator of a version; `make test-allocator` downloads its modules."""
    if shutil.which("go") is None:
        unavailable("go", "needs Go")
    program = directory / f"oracle-{version}"
    command = ["go", "build", "-trimpath", "-modfile", _MODULES[version], "-o", str(program), "."]
    environment = {**os.environ, "CGO_ENABLED": "0", "GOTOOLCHAIN": "local"}
    built = subprocess.run(command, cwd=ORACLE, env=environment, capture_output=True, text=True, check=False)
    if built.returncode:
        unavailable("go", f"needs the Go modules of tests/allocator/oracle: {built.stderr.strip()[:200]}")
    return program


def upstream_answers(program: Path, questions: Iterable[_Answer]) -> Iterator[_Answer]:
    lines = b"".join(msgspec.json.encode(question) + b"\n" for question in questions)
    done = subprocess.run([program], input=lines, capture_output=True, check=True)
    return map(json.loads, done.stdout.splitlines())


def our_answer(question: _Answer) -> _Answer:
    reply: _Answer = json.loads(msgspec.json.encode(answer(question)))
    return reply


def differences(question: _Answer, expected: _Answer, ours: _Answer) -> str:
    """What differs, empty if the answers are the same. Share ids are made up, and errors may be worded differently."""
    wrong = bool(expected.get("error"))
    if wrong != ("error" in ours):
        return f"error expected: {expected.get('error')!r}, got {ours}"
    amounts = not _UNWRITABLE.search(json.dumps(question.get("slices")))
    theirs, mine = _comparable(expected, amounts), _comparable(ours, amounts)
    return "" if theirs == mine else f"expected {theirs}, got {mine}"


def _comparable(reply: _Answer, amounts: bool) -> list[Any]:
    results = json.loads(json.dumps(reply.get("results") or []))
    for result in results:
        for device in result["devices"].get("results") or ():
            device["shareID"] = "shareID" in device
            if not amounts:
                device.pop("consumedCapacity", None)
        if not result["devices"].get("results"):
            result["devices"].pop("results", None)
    return list(results)
