"""Ring 2: plugwright beside a real kubelet. Collected only when asked for: `pytest tests/kubernetes`.

PLUGWRIGHT_KUBERNETES_VERSION chooses the version; with PLUGWRIGHT_REQUIRE=kubernetes the tests fail on a machine that
cannot run a cluster, instead of being skipped.
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.kubernetes import building, machine, shipping
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.comparing import Both
from tests.kubernetes.comparing_claims import BothKubelets
from tests.kubernetes.findings import Findings
from tests.kubernetes.node import Node
from tests.kubernetes.pods import Pods
from tests.kubernetes.rule_drivers import RuleDrivers
from tests.kubernetes.serving import Plugins
from tests.requirements import unavailable

_HERE = Path(__file__).parent
_FINDINGS = pytest.StashKey[Findings]()


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "plays(*rules): shows the effect that these rules of `plugwright verify` claim")
    config.addinivalue_line("markers", "essential: part of the short pass at another version of Kubernetes")
    config.addinivalue_line("markers", "smoke: part of the pass at older versions, in the full run")
    config.stash[_FINDINGS] = Findings()


def pytest_ignore_collect(config: pytest.Config) -> bool | None:
    """Whoever runs all tests wants those that need no root and no cluster."""
    asked = (Path(each.partition("::")[0]).absolute() for each in config.args)
    return None if any(path == _HERE or _HERE in path.parents for path in asked) else True


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker of xdist sends its findings to the process that prints them."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["findings"] = [*session.config.stash[_FINDINGS].lines()]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: object) -> None:
    config: pytest.Config = getattr(node, "config")  # noqa: B009  xdist has no types
    config.stash[_FINDINGS].notes += getattr(node, "workeroutput", {}).get("findings", [])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    lines = list(config.stash[_FINDINGS].lines())
    if lines:
        terminalreporter.section("real Kubernetes")
        for line in lines:
            terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def findings(pytestconfig: pytest.Config) -> Findings:
    return pytestconfig.stash[_FINDINGS]


@pytest.fixture(scope="session")
def cluster(request: pytest.FixtureRequest, findings: Findings) -> Iterator[Cluster]:
    """The one cluster of this session."""
    version = os.environ.get("PLUGWRIGHT_KUBERNETES_VERSION") or building.DEFAULT_VERSION
    _need_a_machine_that_can(version)
    with shown(request.config):
        _prepare(version)
        print(f"starting Kubernetes {version}", flush=True)
    began = time.monotonic()
    with Cluster(version) as cluster:
        findings.version, findings.bring_up = version, time.monotonic() - began
        yield cluster
        if request.session.testsfailed:
            findings.logs = str(cluster.keep_logs())


@pytest.fixture(scope="session")
def helm(cluster: Cluster, pytestconfig: pytest.Config) -> Path:
    """The program; `cluster.run(helm, …)` runs it."""
    with shown(pytestconfig):
        return building.build(building.HELM) / "helm"


@pytest.fixture(scope="session")
def images(cluster: Cluster, pytestconfig: pytest.Config) -> None:
    """Both images of ours, on the node."""
    with shown(pytestconfig):
        archives = shipping.build_images()
    for archive in archives:
        cluster.load_image(archive)


@pytest.fixture
def node(cluster: Cluster) -> Node:
    return Node(cluster)


@pytest.fixture
def pods(cluster: Cluster) -> Iterator[Pods]:
    pods = Pods(cluster.kubectl)
    yield pods
    cluster.revive()
    pods.end()


@pytest.fixture
def both(cluster: Cluster, pods: Pods, root: Path) -> Both:
    return Both(cluster, root)


@pytest.fixture
def both_kubelets(cluster: Cluster, pods: Pods, root: Path) -> BothKubelets:
    return BothKubelets(cluster, root)


@pytest.fixture
def plugins(cluster: Cluster) -> Iterator[Plugins]:
    plugins = Plugins(cluster)
    yield plugins
    plugins.end()


@pytest.fixture
def drivers(cluster: Cluster, plugins: Plugins, pods: Pods) -> Iterator[RuleDrivers]:
    drivers = RuleDrivers(cluster, plugins)
    yield drivers
    cluster.revive()
    drivers.end()


def _need_a_machine_that_can(version: str) -> None:
    obstacles = machine.obstacles(go_needed=any(map(building.missing, Cluster.recipes(version))))
    if obstacles:
        unavailable("kubernetes", f"no Kubernetes on this machine: {'; '.join(obstacles)}")


def _prepare(version: str) -> None:
    """All that takes long the first time and nothing later."""
    for name in machine.remove_remains():
        print(f"removed what is left of {name}", flush=True)
    machine.install_packages()
    for recipe in Cluster.recipes(version):
        building.build(recipe)


@contextmanager
def shown(config: pytest.Config) -> Iterator[None]:
    """What is printed inside is seen at once: building takes minutes."""
    capture = config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        print(flush=True)
        yield
