"""A cluster of one node, its kubelet, and our client of it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.extended_resources.imitation import Cluster, Time
from tests.extended_resources.kubelet import Kubelet
from tests.extended_resources.serving import serving

from plugwright.extended_resources.changes import NodesClient
from plugwright.extended_resources.client import connect


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def cluster(time: Time) -> Cluster:
    cluster = Cluster(time)
    cluster.add_node("n1")
    return cluster


@pytest.fixture
def kubelet_of_n1(cluster: Cluster) -> Kubelet:
    return Kubelet(cluster, "n1")


@pytest.fixture
def kubeconfig(cluster: Cluster, tmp_path: Path) -> Iterator[Path]:
    with serving(cluster, tmp_path) as path:
        yield path


@pytest.fixture
def api(kubeconfig: Path) -> Iterator[NodesClient]:
    with connect(kubeconfig) as connected:
        yield connected
