"""The sessions that documentation pages show: their files, commands and output.

Ages, times, ports, process ids and the machine's directories are no part of a comparison.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = ["BLOCK", "Exchange", "comparable", "exchanges", "files", "impersonal"]

SHOWN_HOME, SHOWN_PORT, SHOWN_PID, SHOWN_TOKEN = "/home/me", "40123", "4711", "secret"
BLOCK = re.compile(r"(?<=```console\n).*?(?=```)", re.DOTALL)
FILE = re.compile(r"```(?:yaml|python|ini)\n(# (\S+\.(?:yaml|py|ini))\n.*?)```", re.DOTALL)
AGE = re.compile(r"\b(\d+[dhms])+( \(x\d+ over (\d+[dhms])+\))?(?=\s|$)", re.MULTILINE)
TIME = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z")
TOOK = re.compile(r"(?<=ready after )\d+\.\d(?= s)|(?<= passed in )\d+\.\d+(?=s)")
LOOKED = re.compile(r"(?<=updates \()\d+(?= s)|^ +\d+(?= s  )", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Exchange:
    """A command, and what it printed."""

    command: str
    output: str

    def __str__(self) -> str:
        return f"$ {self.command}\n{self.output}"


def files(page: str) -> Mapping[str, str]:
    """The blocks of a page that begin with a comment that names a file."""
    return {file[2]: file[1] for file in FILE.finditer(page)}


def exchanges(block: str) -> Iterator[Exchange]:
    """A line that ends with a backslash goes on."""
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        lines = part.splitlines(keepends=True)
        length = next(number for number, line in enumerate(lines, 1) if not line.endswith("\\\n"))
        yield Exchange("".join(lines[:length]).rstrip("\n"), "".join(lines[length:]))


def impersonal(output: str, home: Path) -> str:
    """The output as a page shows it: with directories, ports and process ids of nobody in particular."""
    output = output.replace(str(home), SHOWN_HOME)
    output = re.sub(r"(?<=127\.0\.0\.1:)\d+", SHOWN_PORT, output)
    output = re.sub(r"(?<=process )\d+", SHOWN_PID, output)
    output = re.sub(r"(?<=token=)[\w-]+", SHOWN_TOKEN, output)
    return "".join(f"{line.rstrip()}\n" for line in output.splitlines())


def comparable(output: str) -> str:
    """Without what is another every time; columns are as wide as what is in them."""
    for pattern, word in ((TOOK, "0.7"), (AGE, "AGE"), (TIME, "TIME"), (LOOKED, "9")):
        output = pattern.sub(word, output)
    return re.sub(r" {2,}", "  ", re.sub(r"-{2,}", "--", output)).strip()
