"""The author's way on a real cluster: from `plugwright new` to a pod that holds a device, by its image and chart."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.kubernetes import shipping
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.node import Node
from tests.kubernetes.pods import Pods
from tests.kubernetes.waiting import until

NAME, RESOURCE, DRIVER = "drives", "author.example/drive", "drive.author.example"
DEVICES = f"/run/{NAME}"  # of the node, where the project's plugin looks


@pytest.fixture
def project(tmp_path: Path) -> Path:
    directory = tmp_path / NAME
    command = ["new", NAME, "--resource", RESOURCE, "--dir", str(directory), "--chart", f"file://{shipping.CHART}"]
    subprocess.run([sys.executable, "-m", "plugwright", *command], check=True)
    return directory


Install = Callable[..., None]


@pytest.fixture
def install(project: Path, cluster: Cluster, helm: Path, images: None) -> Iterator[Install]:
    """The project's image on the node, and its chart in a namespace of its own; other values upgrade it."""
    cluster.load_image(shipping.build_project_image(project, NAME))
    in_namespace, chart = f"--namespace={NAME}", str(project / "chart")
    image = (f"plugwright.image.repository=localhost/{NAME}", "plugwright.image.pullPolicy=Never")
    usual = (*image, "plugwright.cleanup.enabled=false")

    def call(*arguments: str) -> None:
        done = cluster.run(helm, *arguments)
        assert done.returncode == 0, done.stderr

    def installed(*values: str) -> None:
        settings = [f"--set={value}" for value in (*usual, *values)]
        call("upgrade", "--install", NAME, chart, in_namespace, "--create-namespace", *settings)
        cluster.kubectl(in_namespace, "rollout", "status", f"daemonset/{NAME}-plugwright", "--timeout=120s")

    call("dependency", "build", chart)
    yield installed
    cluster.run(helm, "uninstall", NAME, in_namespace)


def set_state(cluster: Cluster, device: str, state: str) -> None:
    done = cluster.run("sh", "-c", f"mkdir -p {DEVICES} && echo '{state}' > {DEVICES}/{device}")
    assert done.returncode == 0, done.stderr


@pytest.fixture
def devices(cluster: Cluster) -> None:
    for device in ("one", "two"):
        set_state(cluster, device, "ok")


@pytest.mark.usefixtures("devices")
def test_a_pod_holds_the_device_of_a_new_project_and_a_claim_the_other_one(
    install: Install, cluster: Cluster, node: Node, pods: Pods
) -> None:
    install()
    node.shows(RESOURCE, capacity=2, allocatable=2)
    reader = pods.create("reader", {RESOURCE: 1}).runs()
    [device] = reader.devices("DRIVES_DEVICES")
    assert device in ("one", "two")
    assert reader.exec("cat", f"{DEVICES}/{device}").strip() == "ok"

    set_state(cluster, "one", "too hot")
    node.shows(RESOURCE, capacity=2, allocatable=1)

    def status() -> str:
        return cluster.kubectl(f"--namespace={NAME}", "exec", f"ds/{NAME}-plugwright", "--", "plugwright", "status")

    until("status has the reason", lambda: "the file contains 'too hot'" in status(), last=status)

    set_state(cluster, "one", "ok")
    node.shows(RESOURCE, capacity=2, allocatable=2)
    install("plugwright.plugin.serve=both")  # no line of the plugin is another
    by_claim = pods.create("by-claim", {f"deviceclass.resource.kubernetes.io/{DRIVER}": 1}).runs()
    assert {device, *by_claim.devices("DRIVES_DEVICES")} == {"one", "two"}
    assert reader.devices("DRIVES_DEVICES") == [device]
    pods.end()
