"""What docs/cluster.md shows is what happens: its session is played with the real kubectl, and compared.

PLUGWRIGHT_REWRITE_TRANSCRIPT=1 writes what happened into the page instead. Ages, times, ports, process ids and the
machine's directories are no part of it.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.kubernetes import building
from tests.kubernetes.building import Recipe
from tests.kubernetes.client_programs import ANOTHER_VERSION
from tests.requirements import unavailable
from tests.transcripts import BLOCK, Exchange, comparable, exchanges, files, impersonal

PAGE = Path(__file__).parents[2] / "docs" / "cluster.md"


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
        return Exchange(command, impersonal(done.stdout, self._home))

    def end(self) -> None:
        """Whatever the page has left running."""
        self.play("plugwright down --state lab")


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
    for name, text in files(page).items():
        (tmp_path / name).write_text(text)
    shown = [exchange for block in BLOCK.findall(page) for exchange in exchanges(block)]
    assert len(shown) > 10
    seen = [session.play(each.command) for each in shown]
    if os.environ.get("PLUGWRIGHT_REWRITE_TRANSCRIPT") == "1":
        played = iter(seen)
        PAGE.write_text(BLOCK.sub(lambda block: "".join(str(next(played)) for _ in exchanges(block[0])), page))
        return
    for before, now in zip(shown, seen, strict=True):
        assert comparable(now.output) == comparable(before.output), f"$ {now.command}"
