"""`plugwright node` says the same on a real cluster and on the embedded one, stale resources included."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.kubernetes.cluster import Cluster
from tests.kubernetes.components import NODE
from tests.kubernetes.serving import Plugins
from tests.kubernetes.waiting import until

SERVED, LICENCE = "commands/gpu", "example.com/commands"
EMULATED = "node-1"
WAITING = ("--wait", "--round=1s")
WHILE_SERVED = [
    ("resources", "NODE"),
    ("add", "NODE", f"{LICENCE}=4", *WAITING),
    ("resources", "NODE"),
    ("add", "NODE", f"{SERVED}=3"),
    ("remove", "NODE", SERVED),
    ("remove", "--stale", "--all-nodes", f"--resource={SERVED}"),
    ("remove", "NODE", LICENCE, *WAITING),
    ("remove", "NODE", LICENCE),
    ("resources", "nobody"),
]
WHEN_STOPPED = [
    ("resources", "NODE"),
    ("remove", "NODE", SERVED),
    ("remove", "--stale", "--all-nodes", f"--resource={SERVED}"),
]
WHEN_FORGOTTEN = [  # five minutes on a real node: with --full
    ("remove", "--stale", "--all-nodes", f"--resource={SERVED}", *WAITING),
    ("resources", "NODE"),
]
LIMIT = 600
PATIENCE = re.compile(r"\d+(?= s\b)")
KNOWN = re.compile(r"(?<=it has: )[^\\\"]*")  # also what other tests have left
MOMENT = re.compile(r"\d{4}-\d\d-\d\dT[\d:]+Z")

Run = Callable[[Sequence[str]], "subprocess.CompletedProcess[str]"]


@dataclass(frozen=True, slots=True)
class Site:
    """A cluster with one node of interest, where commands can be run."""

    node: str
    run: Run

    def answers(self, commands: Sequence[tuple[str, ...]]) -> list[str]:
        return [f"$ {' '.join(each)}\n{self._answer(each)}" for each in commands]

    def until_counted(self, *counts: int) -> None:
        """Until the node has so many, and so many of them to give."""
        until(f"{SERVED} of {self.node} is {counts}", lambda: self._counts() == [counts], last=self._counts)

    def _counts(self) -> list[tuple[int, int]]:
        rows = json.loads(self._run("resources", self.node).stdout)["nodes"][0]["resources"]
        return [(row["capacity"], row["allocatable"]) for row in rows if row["name"] == SERVED]

    def _answer(self, command: tuple[str, ...]) -> str:
        done = self._run(*(self.node if word == "NODE" else word for word in command))
        facts = _ours(json.loads(done.stdout)) if done.stdout else done.stderr
        said = f"{json.dumps(facts, indent=1)} [{done.returncode}]".replace(EMULATED, NODE)
        return KNOWN.sub("…", MOMENT.sub("TIME", PATIENCE.sub("9", said)))

    def _run(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        return self.run([sys.executable, "-m", "plugwright", "node", *arguments, "--output=json"])


def _ours(answer: dict[str, list[dict[str, object]]]) -> object:
    """Without what other tests have left on the node, and the node's own facts."""
    if "nodes" not in answer:
        return answer
    rows = answer["nodes"][0]["resources"]
    assert isinstance(rows, list)
    return [row for row in rows if row["name"] in (SERVED, LICENCE)]


def real(cluster: Cluster) -> Site:
    return Site(NODE, lambda command: cluster.run(*command, limit=LIMIT))


@contextmanager
def embedded(place: Path) -> Iterator[tuple[Site, Callable[[], None]]]:
    """And what stops its plugin."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PLUGWRIGHT_")}
    environment = {**clean, "XDG_RUNTIME_DIR": str(place)}
    hurried = ("--heartbeat=1s", "--plugin-grace=90s")  # longer than the commands take on a busy machine
    plugwright = [sys.executable, "-m", "plugwright"]
    with subprocess.Popen(
        [*plugwright, "up", "--bare", *hurried, "--output=json"], stdout=subprocess.PIPE, env=environment
    ) as up:
        assert up.stdout is not None
        facts = json.loads(up.stdout.readline())
        config = place / "plugwright.yaml"
        config.write_text(json.dumps({"resources": [{"name": SERVED, "mock": {"count": 4}}]}))
        places = [f"--kubelet-dir={facts['nodes'][EMULATED]['kubelet_dir']}", f"--state-dir={place}"]
        flags = [f"--config={config}", *places, f"--control-socket={place / 'plugin.sock'}"]
        plugin = subprocess.Popen([*plugwright, "run", *flags], env=environment)

        def stop() -> None:
            plugin.terminate()
            assert plugin.wait(20) == 0

        def run(command: Sequence[str]) -> "subprocess.CompletedProcess[str]":
            settings = {**environment, "KUBECONFIG": facts["kubeconfig"]}
            return subprocess.run(command, env=settings, capture_output=True, text=True, timeout=LIMIT, check=False)

        try:
            yield Site(EMULATED, run), stop
        finally:
            plugin.kill()
            plugin.wait()
            up.terminate()


def test_the_same_commands_give_the_same_answers(
    cluster: Cluster, plugins: Plugins, tmp_path: Path, full: bool
) -> None:
    daemon = plugins.run({SERVED: {"count": 4}})
    they = real(cluster)
    with embedded(tmp_path) as (we, stop):
        for site in (they, we):
            site.until_counted(4, 4)
        assert we.answers(WHILE_SERVED) == they.answers(WHILE_SERVED)
        daemon.process.stop()
        stop()
        for site in (they, we):
            site.until_counted(4, 0)
        last = [*WHEN_STOPPED, *(WHEN_FORGOTTEN if full else ())]
        assert we.answers(last) == they.answers(last)
