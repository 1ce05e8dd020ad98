"""One version of the chart and the image replaces another, and goes back, while pods hold devices and others come."""

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.kubernetes import building
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.conftest import shown
from tests.kubernetes.node import Node
from tests.kubernetes.pods import Pods, refusal
from tests.kubernetes.shipping import PREVIOUS, Previous, Release, build_previous
from tests.kubernetes.waiting import until

VERSION = os.environ.get("PLUGWRIGHT_KUBERNETES_VERSION") or building.DEFAULT_VERSION
OVERLAPPING = tuple(map(int, VERSION.split(".")[:2])) >= (1, 37)


@pytest.fixture
def release(cluster: Cluster, helm: Path, images: None) -> Iterator[Release]:
    release = Release(cluster, helm, "plugwright-upgraded")
    yield release
    release.remove()


@pytest.fixture(scope="session")
def previous(
    cluster: Cluster, images: None, pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory
) -> Previous:
    try:
        with shown(pytestconfig):
            found = build_previous(tmp_path_factory.mktemp("previous"))
    except KeyError:
        pytest.skip(f"no {PREVIOUS} in the history here")
    cluster.load_image(found.archive)
    return found


def test_upgrade_and_rollback_keep_pods_and_cordons(
    release: Release, previous: Previous, node: Node, pods: Pods
) -> None:
    mock = ("mock.enabled=true", "mock.resource=upgraded/gpu", "mock.count=4", "cleanup.enabled=false")
    release.install(*mock, f"image.tag={previous.tag}", chart=previous.chart)
    release.rolled_out()
    node.shows("upgraded/gpu", capacity=4, allocatable=4)
    holder = pods.create("upgraded-holder", {"upgraded/gpu": 1}).runs()
    held = holder.containers(), holder.devices()
    first, second = [device for device in _devices(release) if device not in held[1]][:2]
    release.plugwright("cordon", "upgraded/gpu", first, "--reason", "by the older one")
    node.shows("upgraded/gpu", capacity=4, allocatable=3)

    release.upgrade(*mock)
    release.rolled_out()
    node.shows("upgraded/gpu", capacity=4, allocatable=3)
    release.plugwright("cordon", "upgraded/gpu", second, "--reason", "by the newer one")
    node.shows("upgraded/gpu", capacity=4, allocatable=2)

    release.rollback()
    release.rolled_out()
    # It reads the file of the newer one, or says that it cannot: it never serves it as if it were empty, or loses it.
    until(
        "the older one serves, or says why not",
        lambda: node.resource("upgraded/gpu") == (4, 2) or "cordons not readable" in release.logs(),
        last=lambda: node.resource("upgraded/gpu"),
    )

    release.upgrade(*mock)
    release.rolled_out()
    node.shows("upgraded/gpu", capacity=4, allocatable=2)
    status = release.plugwright("status")
    assert "by the older one" in status
    assert "by the newer one" in status
    assert (holder.containers(), holder.devices()) == held
    assert not node.panics()


def _devices(release: Release) -> list[str]:
    lines = release.plugwright("status").splitlines()
    return [word for line in lines for word in line.split() if word.startswith("mock-")]


@pytest.mark.essential
@pytest.mark.skipif(not OVERLAPPING, reason=f"{VERSION}: the end of an older daemon cuts off the newer one")
def test_daemons_that_overlap_leave_no_moment_without_devices(
    release: Release, node: Node, pods: Pods, cluster: Cluster
) -> None:
    values = (
        *("mock.enabled=true", "mock.resource=overlap/gpu", "mock.count=8"),
        *("cleanup.enabled=false", "updateStrategy.overlap=true"),
    )
    release.install(*values)
    release.rolled_out()
    node.shows("overlap/gpu", capacity=8, allocatable=8)
    holder = pods.create("overlap-holder", {"overlap/gpu": 1}).runs()
    held = holder.containers(), holder.devices()
    seen: set[tuple[int, int] | None] = set()
    created: list[str] = []
    ending = threading.Event()

    def stream() -> None:
        """Pods that take one device and end, one after the other, and how many devices there are meanwhile."""
        while not ending.is_set():
            created.append(f"overlap-{len(created)}")
            pods.create(created[-1], {"overlap/gpu": 1}, "true", restartPolicy="Never")
            seen.add(node.resource("overlap/gpu"))

    streaming = threading.Thread(target=stream)
    streaming.start()
    try:
        for number in range(3):
            daemons = set(release.pods())
            release.upgrade(*values, f"podAnnotations.example\\.com/round=r{number}")
            release.rolled_out()
            assert set(release.pods()) - daemons
    finally:
        ending.set()
        streaming.join()
    until("all pods have ended", lambda: _phases(pods, created) <= {"Succeeded", "Failed"}, limit=180)
    refused = [found for name, pod in pods.every().items() if name in created and (found := refusal(pod))]
    assert not refused
    assert len(created) >= 10
    assert seen == {(8, 8)}
    assert (holder.containers(), holder.devices()) == held
    assert not node.panics()


def _phases(pods: Pods, names: list[str]) -> set[str]:
    return {pod["status"]["phase"] for name, pod in pods.every().items() if name in names}
