"""What docs/cluster.md shows is what happens: its session is played with the real kubectl, and compared.

PLUGWRIGHT_REWRITE_TRANSCRIPT=1 writes what happened into the page instead. Ages, times, ports, process ids and the
machine's directories are no part of it.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.kubernetes import building
from tests.kubernetes.building import Recipe
from tests.kubernetes.client_programs import ANOTHER_VERSION
from tests.requirements import unavailable

PAGE = Path(__file__).parents[2] / "docs" / "cluster.md"
SHOWN_HOME, SHOWN_PORT, SHOWN_PID, SHOWN_TOKEN = "/home/me", "40123", "4711", "secret"
BLOCK = re.compile(r"(?<=```console\n).*?(?=```)", re.DOTALL)
FILE = re.compile(r"```yaml\n# (\S+\.yaml)\n.*?```", re.DOTALL)
AGE = re.compile(r"\b(\d+[dhms])+( \(x\d+ over (\d+[dhms])+\))?(?=\s|$)", re.MULTILINE)
TIME = re.compile(r"\d{4}-\d\d-\d\dT[\d:]+Z")
TOOK = re.compile(r"(?<=ready after )\d+\.\d(?= s)")
LOOKED = re.compile(r"(?<=updates \()\d+(?= s)|^ +\d+(?= s  )", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Exchange:
    """A command, and what it printed."""

    command: str
    output: str

    def __str__(self) -> str:
        return f"$ {self.command}\n{self.output}"


def exchanges(block: str) -> Iterator[Exchange]:
    """A line that ends with a backslash goes on."""
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        lines = part.splitlines(keepends=True)
        length = next(number for number, line in enumerate(lines, 1) if not line.endswith("\\\n"))
        yield Exchange("".join(lines[:length]).rstrip("\n"), "".join(lines[length:]))


def comparable(output: str) -> str:
    """Without what is another every time; columns are as wide as what is in them."""
    for pattern, word in ((AGE, "AGE"), (TIME, "TIME"), (TOOK, "0.7"), (LOOKED, "9")):
        output = pattern.sub(word, output)
    return re.sub(r" {2,}", "  ", re.sub(r"-{2,}", "--", output)).strip()


class Session:
    """A shell in a directory of its own, with kubectl and plugwright."""

    def __init__(self, home: Path, kubectl: Path) -> None:
        self._home = home
        programs = f"{kubectl.parent}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        clean = {name: value for name, value in os.environ.items() if not name.startswith("PLUGWRIGHT_")}
        self._environment = {**clean, "PATH": programs, "HOME": str(home), "KUBECONFIG": f"{home}/lab/kubeconfig"}

    def play(self, command: str) -> Exchange:
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=self._home,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            timeout=120,
            check=False,
        )
        return Exchange(command, self._impersonal(done.stdout))

    def end(self) -> None:
        """Whatever the page has left running."""
        self.play("plugwright down --state lab")

    def _impersonal(self, output: str) -> str:
        output = output.replace(str(self._home), SHOWN_HOME)
        output = re.sub(r"(?<=127\.0\.0\.1:)\d+", SHOWN_PORT, output)
        output = re.sub(r"(?<=process )\d+", SHOWN_PID, output)
        output = re.sub(r"(?<=token=)[\w-]+", SHOWN_TOKEN, output)
        return "".join(f"{line.rstrip()}\n" for line in output.splitlines())


RECIPES = [
    building.kubernetes(os.environ.get("PLUGWRIGHT_KUBERNETES_VERSION") or building.DEFAULT_VERSION),
    pytest.param(building.kubectl(building.OLDER_KUBECTL), marks=ANOTHER_VERSION),
]


@pytest.fixture(scope="module", params=RECIPES, ids=["this-version", building.OLDER_KUBECTL])
def kubectl(request: pytest.FixtureRequest) -> Path:
    recipe: Recipe = request.param
    if building.missing(recipe) and not shutil.which("go"):
        unavailable("kubernetes", "no kubectl in the cache, and no Go to build it")
    return building.build(recipe) / "kubectl"


@pytest.fixture
def session(kubectl: Path, tmp_path: Path) -> Iterator[Session]:
    session = Session(tmp_path, kubectl)
    yield session
    session.end()


@pytest.mark.essential
def test_the_session_of_the_page_happens_as_it_is_shown(session: Session, tmp_path: Path) -> None:
    page = PAGE.read_text()
    for file in FILE.finditer(page):
        (tmp_path / file[1]).write_text(file[0].removeprefix("```yaml\n").removesuffix("```"))
    shown = [exchange for block in BLOCK.findall(page) for exchange in exchanges(block)]
    assert len(shown) > 10
    seen = [session.play(each.command) for each in shown]
    if os.environ.get("PLUGWRIGHT_REWRITE_TRANSCRIPT") == "1":
        played = iter(seen)
        PAGE.write_text(BLOCK.sub(lambda block: "".join(str(next(played)) for _ in exchanges(block[0])), page))
        return
    for before, now in zip(shown, seen, strict=True):
        assert comparable(now.output) == comparable(before.output), f"$ {now.command}"
