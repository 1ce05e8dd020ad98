"""The same kubectl session, played to the real API server and to the embedded one: they must print the same.

What differs is either mended or has a row in docs/cluster-differences.md.
"""

import difflib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.components import NODE
from tests.kubernetes.node import Node
from tests.kubernetes.serving import Plugins
from tests.kubernetes.sessions import NAMESPACE, RESOURCE, STEPS, Said, Speaker, Step, comparable
from tests.kubernetes.waiting import until

DIFFERENCES = Path(__file__).parents[2] / "docs" / "cluster-differences.md"
EMULATED = "node-1"


def arguments(step: Step, node: str) -> list[str]:
    return [each.replace("NODE", node) for each in (f"--namespace={NAMESPACE}", *step.arguments)]


def real(cluster: Cluster) -> Speaker:
    def say(step: Step) -> Said:
        given = step.given.replace("NODE", NODE)
        done = cluster.run(cluster.kubectl.program, *arguments(step, NODE), given=given)
        return Said(done.returncode, done.stdout, done.stderr)

    return say


@contextmanager
def embedded(kubectl: Path, place: Path) -> Iterator[Speaker]:
    """`plugwright up` with ten devices on one node, while inside."""
    config, kubeconfig = place / "plugwright.yaml", place / "kubeconfig"
    config.write_text(json.dumps({"resources": [{"name": RESOURCE, "mock": {"count": 10}}]}))
    flags = [f"--config={config}", f"--state={place / 'state'}", f"--kubeconfig={kubeconfig}"]
    process = subprocess.Popen([sys.executable, "-m", "plugwright", "up", *flags], stdout=subprocess.DEVNULL)
    environment = {"KUBECONFIG": str(kubeconfig), "HOME": str(place), "PATH": os.environ["PATH"]}

    def say(step: Step) -> Said:
        given = step.given.replace("NODE", EMULATED)
        command = [str(kubectl), *arguments(step, EMULATED)]
        done = subprocess.run(
            command, input=given, env=environment, capture_output=True, text=True, timeout=90, check=False
        )
        return Said(done.returncode, done.stdout, done.stderr)

    try:
        until("the embedded cluster offers its devices", lambda: _offers(say), limit=30)
        yield say
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0


def _offers(say: Speaker) -> bool:
    said = say(Step(("get", "node", "NODE", f"--output=jsonpath={{.status.allocatable['{RESOURCE}']}}")))
    return said.out == "10"


def _difference(theirs: str, ours: str) -> Iterator[str]:
    return difflib.unified_diff(theirs.splitlines(), ours.splitlines(), "real", "ours", lineterm="", n=1)


def documented() -> set[str]:
    """The rows of the page: their first cells."""
    return set(re.findall(r"^\| ([^|]+?) +\|", DIFFERENCES.read_text(), re.MULTILINE))


def test_every_known_difference_is_documented() -> None:
    assert {step.differs for step in STEPS if step.differs} <= documented()


@pytest.mark.essential
def test_one_session_prints_the_same_on_both(cluster: Cluster, plugins: Plugins, node: Node, tmp_path: Path) -> None:
    cluster.kubectl.end_clean_ups()
    plugins.run({RESOURCE: {"count": 10}})
    node.shows(RESOURCE, 10, 10)
    they = real(cluster)
    theirs = [comparable(they(step), NODE, step.aside) for step in STEPS]
    with embedded(cluster.kubectl.program, tmp_path) as we:
        ours = [comparable(we(step), EMULATED, step.aside) for step in STEPS]
    differ = []
    for step, mine, other in zip(STEPS, ours, theirs, strict=True):
        if (mine != other) != bool(step.differs):
            told = "known to differ, and does not" if step.differs else "\n".join(_difference(other, mine))
            differ.append(f"$ kubectl {' '.join(step.arguments)} {step.given:.200}\n{told}")
    assert not differ, "\n".join(differ)
