"""The author's way on a real cluster: from `plugwright new` to a pod that holds a device, by its image and chart."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.kubernetes import shipping
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.node import Node
from tests.kubernetes.pods import Pods
from tests.kubernetes.waiting import until

NAME, RESOURCE = "drives", "author.example/drive"
DEVICES = f"/run/{NAME}"  # of the node, where the project's plugin looks


@pytest.fixture
def project(tmp_path: Path) -> Path:
    directory = tmp_path / NAME
    command = ["new", NAME, "--resource", RESOURCE, "--dir", str(directory), "--chart", f"file://{shipping.CHART}"]
    subprocess.run([sys.executable, "-m", "plugwright", *command], check=True)
    return directory


@pytest.fixture
def installed(project: Path, cluster: Cluster, helm: Path, images: None) -> Iterator[None]:
    """The project's image on the node, and its chart in a namespace of its own."""
    cluster.load_image(shipping.build_project_image(project, NAME))
    in_namespace = f"--namespace={NAME}"
    image = (f"plugwright.image.repository=localhost/{NAME}", "plugwright.image.pullPolicy=Never")
    values = [f"--set={value}" for value in (*image, "plugwright.cleanup.enabled=false")]
    for arguments in (
        ("dependency", "build", str(project / "chart")),
        ("install", NAME, str(project / "chart"), in_namespace, "--create-namespace", *values),
    ):
        done = cluster.run(helm, *arguments)
        assert done.returncode == 0, done.stderr
    cluster.kubectl(in_namespace, "rollout", "status", f"daemonset/{NAME}-plugwright", "--timeout=120s")
    yield
    cluster.run(helm, "uninstall", NAME, in_namespace)


def set_state(cluster: Cluster, device: str, state: str) -> None:
    done = cluster.run("sh", "-c", f"mkdir -p {DEVICES} && echo '{state}' > {DEVICES}/{device}")
    assert done.returncode == 0, done.stderr


@pytest.fixture
def devices(cluster: Cluster) -> None:
    for device in ("one", "two"):
        set_state(cluster, device, "ok")


@pytest.mark.usefixtures("devices", "installed")
def test_a_pod_holds_the_device_of_a_new_project(cluster: Cluster, node: Node, pods: Pods) -> None:
    node.shows(RESOURCE, capacity=2, allocatable=2)
    reader = pods.create("reader", {RESOURCE: 1}).runs()
    [device] = reader.devices("DRIVES_DEVICES")
    assert device in ("one", "two")
    assert reader.exec("cat", f"{DEVICES}/{device}").strip() == "ok"

    set_state(cluster, "one", "too hot")
    node.shows(RESOURCE, capacity=2, allocatable=1)

    def status() -> str:
        return cluster.kubectl(f"--namespace={NAME}", "exec", f"ds/{NAME}-plugwright", "--", "plugwright", "status")

    until("status has the reason", lambda: "it says 'too hot'" in status(), last=status)
